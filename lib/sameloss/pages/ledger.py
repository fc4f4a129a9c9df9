"""The ledger on disk: one JSON file a chapter and profile, written whole, read back checked."""

import json
import math
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sameloss import paths
from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate, holm, paired_p
from sameloss.pages import claims
from sameloss.runs.store import writing


class Row(BaseModel):
    """What a row on disk has to be. here: value, standard error and n of an estimate."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    claim: Annotated[str, Field(pattern=f"^({'|'.join(claims.CLAIMS)})$")]
    chapter: str
    profile: str
    statistic: str
    here: tuple[float, float, int] | None
    verdict: str
    seeds: str
    note: str
    figure: str
    p: float | None
    stamp: str


_ROWS = TypeAdapter(list[Row])


def folder(profile: str) -> Path:
    """Where the rows of a profile lie (SAMELOSS_LEDGER moves it, for a run with changed parameters)."""
    return Path(os.environ.get("SAMELOSS_LEDGER", paths.build() / "ledger")) / profile


def write(profile: str, chapter: str, rows: list[dict[str, Any]]) -> None:
    """Write a chapter's rows at once, with Holm's p-values over the chapter's claims; no rows remove the file."""
    target = folder(profile) / f"{chapter}.json"
    aside = target.with_suffix(f".{os.getpid()}.part")
    with writing(target, paths.MOVE_BUILD):
        if not rows:
            target.unlink(missing_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            aside.write_text(json.dumps(with_p_values(rows), indent=1, allow_nan=False) + "\n", encoding="utf-8")
            os.replace(aside, target)
        except OSError:
            aside.unlink(missing_ok=True)
            raise


def read(profile: str) -> list[dict[str, Any]]:
    """All rows of a profile, in the order of the claims; UserError naming a file that is not a ledger."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder(profile).glob("*.json")):
        try:
            rows += [row.model_dump() for row in _ROWS.validate_json(path.read_bytes())]
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            why = ": ".join([*map(str, fault["loc"]), " ".join(fault["msg"].split())])
            raise UserError(f"{path}: not a ledger ({why}); delete it and run the chapter again") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    order = list(claims.CLAIMS)
    return sorted(rows, key=lambda row: (order.index(row["claim"]), row["chapter"]))


def with_p_values(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with p: two-sided t over seeds, Holm-adjusted over the empirical claims of the chapter."""
    raw = [None if row["here"] is None else paired_p(Estimate(*row["here"])) for row in rows]
    tested = [
        i
        for i, (row, p) in enumerate(zip(rows, raw, strict=True))
        if p is not None and math.isfinite(p) and claims.CLAIMS[row["claim"]].kind == "empirical"
    ]
    adjusted = dict(zip(tested, holm([float(raw[i] or 0.0) for i in tested]), strict=True))
    return [row | {"p": adjusted.get(i)} for i, row in enumerate(rows)]


def shown_value(row: dict[str, Any]) -> str:
    """The estimate of a row as text: value ± standard error and its 95 % interval."""
    if row["here"] is None:
        return ""
    estimate = Estimate(*row["here"])
    low, high = estimate.interval()
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        return f"{estimate.value:.4g}"
    places = max(0, min(6, 2 - math.floor(math.log10(max(high - low, 1e-12)))))
    return f"{estimate} [{low:.{places}f}, {high:.{places}f}]"
