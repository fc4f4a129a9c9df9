"""Published numbers computed anew: a random sample of tables, compared row by row.

The same machine and versions give the same bytes. Another processor adds floats in another order, and training carries
that on: a number agrees when it lies within one percent of the published one, or within a tenth of its standard error.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from sameloss import paths
from sameloss.runs import results
from sameloss.runs.profile import Profile
from sameloss.runs.progress import Progress
from sameloss.runs.spec import RunSpec
from sameloss.runs.store import Store, digest, write_atomically

RELATIVE, STDERR = 0.01, 0.1
VARIABLE = "SAMELOSS_VERIFY"  # a folder: tables named in it are computed by their chapters, and the outcome goes there
Table = tuple[str, str]  # chapter, name


def sample(profile: Profile, tables: int, seed: int, only: str = "") -> list[Table]:
    """`tables` of the published tables of a profile (all if there are fewer); the same seed, the same ones."""
    files = (paths.root() / "book" / "results" / profile.name).glob(f"{only or '*'}/*.csv")
    found = sorted({(file.parent.name, file.name.split(".")[0]) for file in files})
    return sorted(sorted(found, key=lambda table: digest({"seed": seed, "table": table}))[:tables])


def runs(profile: Profile, table: Table) -> list[RunSpec]:
    """The runs that a published table of trained models comes from; [] for one that its chapter computes itself."""
    return [spec for spec in profile.runs(table[0]) if spec.name == table[1]]


def recomputed(profile: Profile, spec: RunSpec, chapter: str, progress: Progress) -> str:
    """Train and measure one run in a store of its own; what the comparison says, as `compared`."""
    from sameloss.runs import experiment  # imports this module

    published = results.read(profile.name, chapter, spec.name, spec.key())
    if published is None:
        return "differs: what is published belongs to another spec, and is not read by the book"
    with tempfile.TemporaryDirectory() as folder:
        work = replace(experiment.work_for(profile, progress), store=Store(Path(folder), progress.note))
        return compared(published, experiment.compute(spec, work, profile))


def ask(folder: Path, tables: Sequence[Table]) -> None:
    """Have the chapters that are run from now on compute these tables anew; the outcome of each goes to `folder`."""
    for chapter, name in tables:
        write_atomically(folder / f"{chapter}.{name}.json", json.dumps("differs: no chapter asks for it").encode())
    os.environ[VARIABLE] = str(folder)


def answer(folder: Path, table: Table) -> str:
    """What became of a table asked for."""
    return str(json.loads((folder / f"{table[0]}.{table[1]}.json").read_text()))


def asked(chapter: str, name: str) -> Path | None:
    """Where the outcome of a table goes that is to be computed anew, None for any other."""
    file = Path(os.environ.get(VARIABLE, "")) / f"{chapter}.{name}.json"
    return file if VARIABLE in os.environ and file.is_file() else None


def compared(published: pd.DataFrame, found: pd.DataFrame) -> str:
    """One line: "the same to the last digit", "within the tolerance ...", or "differs ..." with the first number."""
    facts = ["run", "source"]  # the hash and the origin, not numbers
    published, found = (f.reset_index(drop=True).drop(columns=facts, errors="ignore") for f in (published, found))
    if list(published.columns) != list(found.columns) or len(published) != len(found):
        return f"differs: {len(published)} rows of {list(published)}, computed {len(found)} of {list(found)}"
    largest = 0.0
    for column in published:
        a, b = published[column], found[column]
        if not pd.api.types.is_numeric_dtype(a):
            if rows := np.flatnonzero((a != b).to_numpy()).tolist():
                return f"differs in row {rows[0] + 2}, {column}: published {a[rows[0]]!r}, computed {b[rows[0]]!r}"
            continue
        x, y = a.to_numpy(float), b.to_numpy(float)
        allowed = RELATIVE * np.abs(x) + 1e-9
        if column == "value" and "stderr" in published:
            allowed = np.maximum(allowed, STDERR * np.nan_to_num(published["stderr"].to_numpy(float)))
        if column == "stderr":  # of itself uncertain
            allowed = np.maximum(allowed, 0.1 * np.abs(x))
        fine = (np.abs(x - y) <= allowed) | (x == y) | (np.isnan(x) & np.isnan(y))
        if rows := np.flatnonzero(~fine).tolist():
            return f"differs in row {rows[0] + 2}, {column}: published {x[rows[0]]:.9g}, computed {y[rows[0]]:.9g}"
        gap = np.abs(x - y)[x != y]
        largest = max(largest, float(np.nanmax(gap / np.maximum(np.abs(x[x != y]), 1e-9), initial=0.0)))
    return f"within the tolerance (by {largest:.1e} at most)" if largest else "the same to the last digit"
