"""Published rows: `book/results/<profile>/<chapter>/<condition>.<key>.csv`, one small file per finished run.

The key is the hash of all that decides the numbers, so a file is either exactly what a spec asks for or is not read.
Every row carries its provenance, the commit of the profile with its predictions included; machine and versions, which
are long, stand in the first row, for all of them. A file a run keeps each of them small, written at once and never
rewritten.
"""

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sameloss import paths
from sameloss.errors import UserError
from sameloss.runs.store import write_atomically

TEXT = ("run", "condition", "weights", "quantity", "task", "features", "source")
FACTS = ("profile", "key", "revision", "profile_revision", "date", "machine", "recipe", "versions")
ONCE = ["machine", "versions"]  # half of a file if in every row


def path(profile: str, chapter: str, name: str, key: str) -> Path:
    """Where the rows of one table lie."""
    return paths.root() / "book" / "results" / profile / chapter / f"{name}.{key}.csv"


def read(profile: str, chapter: str, name: str, key: str) -> pd.DataFrame | None:
    """The published rows of `name` for exactly this key (attrs["origin"]: where they come from), else None.

    None as well while SAMELOSS_FRESH=1 asks for everything to be computed again.
    UserError for a file that is not what it says it is.
    """
    file = path(profile, chapter, name, key)
    if not file.exists() or os.environ.get("SAMELOSS_FRESH") == "1":
        return None
    try:
        frame = parse(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as a table ({error}); restore it from git, or delete it") from None
    if missing := [fact for fact in FACTS if fact not in frame]:
        raise UserError(f"{file}: column {missing[0]!r} is missing; restore the file from git, or delete it")
    facts = _facts(frame)
    if (
        len(facts) != 1
        or facts.isna().any(axis=None)
        or facts["key"].iloc[0] != key
        or facts["profile"].iloc[0] != profile
    ):
        raise UserError(f"{file}: rows of another spec or profile; restore the file from git, or delete it")
    origin = {**facts.iloc[0].to_dict(), "source": "from results"}
    try:
        origin |= {fact: json.loads(origin[fact]) for fact in ("recipe", "versions")}
    except ValueError as error:
        raise UserError(
            f"{file}: recipe or versions are not JSON ({error}); restore it from git, or delete it"
        ) from None
    frame = frame.drop(columns=list(FACTS))
    frame.attrs = {"origin": origin}
    return frame


def publish(profile: str, chapter: str, name: str, key: str, frame: pd.DataFrame, current: Sequence[str]) -> Path:
    """Write the rows of one finished run with their provenance; files of `name` for none of the `current` keys go.

    UserError when the profile (with its predictions) was not committed before the run.
    """
    origin = frame.attrs["origin"]
    if not committed(origin["profile_revision"]):
        raise UserError(
            f"book/profiles/{profile}.yaml: {name} was run before the profile, with its predictions, was committed; "
            "commit it, remove the run (`sameloss runs clean RUN`) and run again"
        )
    facts = {**origin, "profile": profile, "key": key}
    facts |= {name: json.dumps(facts[name], sort_keys=True, separators=(",", ":")) for name in ("recipe", "versions")}
    file = path(profile, chapter, name, key)
    rows = frame.reset_index(drop=True).assign(**{fact: facts[fact] for fact in FACTS})
    rows.loc[1:, ONCE] = ""
    if not file.exists():
        write_atomically(file, to_bytes(rows))
    for old in file.parent.glob(f"{name}.*.csv"):
        if old.name.split(".")[1] not in (*current, key):
            old.unlink()
    return file


def committed(revision: str) -> bool:
    """Whether a revision is a commit, and nothing beyond it."""
    return revision != "unknown" and not revision.endswith("+")


def publishing() -> bool:
    """Whether tables that chapters compute themselves are to be published (set by `sameloss results`)."""
    return os.environ.get("SAMELOSS_PUBLISH") == "1"


def merge(origins: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One origin for a table that is made of several: what differs stands side by side."""
    merged = dict(origins[0])
    for fact in ("source", "revision", "profile_revision", "machine"):
        merged[fact] = "; ".join(dict.fromkeys(str(origin[fact]) for origin in origins if fact in origin))
    dates = sorted(str(origin["date"]) for origin in origins)
    merged["date"] = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    for fact in ("recipe", "versions"):
        names = dict.fromkeys(name for origin in origins for name in origin[fact])
        values = {n: dict.fromkeys(str(origin[fact][n]) for origin in origins if n in origin[fact]) for n in names}
        merged[fact] = {name: "/".join(found) for name, found in values.items()}
    return merged


def _facts(frame: pd.DataFrame) -> pd.DataFrame:
    """The different facts of a file's rows: one line where all are of one origin."""
    facts = frame[list(FACTS)].copy()
    facts[ONCE] = facts[ONCE].where(facts[ONCE] != "").ffill()
    return facts.drop_duplicates()


def to_bytes(frame: pd.DataFrame) -> bytes:
    """CSV that reads back to the very same numbers and texts."""
    return frame.to_csv(index=False, lineterminator="\n", na_rep="nan").encode()


def parse(data: bytes) -> pd.DataFrame:
    """The inverse of `to_bytes`: names stay text even where they look like numbers, empty texts stay empty."""
    frame = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False)
    return frame.apply(lambda column: column if column.name in (*TEXT, *FACTS) else _numbers(column))


def _numbers(column: pd.Series) -> pd.Series:
    """Whole numbers, else numbers to the last bit (Python's own reading), else text; ValueError for a mixture."""
    for kind in (int, float):
        try:
            return column.map(kind)
        except ValueError:
            continue
    if len(texts := column[~column.map(_is_number)]) < len(column) / 2:  # a text in passing may look like a number
        raise ValueError(f"column {column.name}, row {texts.index[0] + 2}: {texts.iloc[0]!r} among numbers")
    return column


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
