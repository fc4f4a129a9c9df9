"""Chapter 7's comparisons: what an intervention does to flatness and transfer at equal KL, and whether one follows the
other from intervention to intervention."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import optimize, stats

from sameloss.measures.estimate import Estimate
from sameloss.runs import flatness_tables as tables
from sameloss.runs.zoom_tables import over_seeds

FAR = "shifted "  # before what was measured on the shifted language
TRACES = ("trace", "least_trace", "sharpness")  # compared by their ratio: the columns hold its logarithm


def wide(table: pd.DataFrame, conditions: Sequence[str], weights: str = "ema") -> pd.DataFrame:
    """As `flatness_tables.wide`, with the accuracy of the same probes under the shift as "shifted accuracy TASK"."""
    near = tables.wide(table, conditions, weights)
    far = tables.wide(table, conditions, weights, "unmasked-shifted")
    keys, names = ["condition", "seed", "step"], [f"{tables.ACCURACY}{task}" for task in tables.tasks(far)]
    return near.merge(far[keys + names].rename(columns={name: FAR + name for name in names}), on=keys, how="left")


def effects(frame: pd.DataFrame, path: Sequence[str], runs: Mapping[str, str], names: Sequence[str]) -> pd.DataFrame:
    """What each run has at its last checkpoint beyond the twin's trajectory at the same KL.

    frame: of `wide`. path: start and twin. runs: words -> condition. One row a run and seed: intervention, condition,
    seed, kl and `names`; differences, of TRACES in the logarithm; nan where the trajectory never has that KL.
    """
    parts = []
    for words, run in runs.items():
        pairs = tables.against(_logarithms(frame, names), path, run, names)
        twin, own = (pairs[pairs["condition"] == name].set_index("seed") for name in ("path", run))
        parts.append((own[list(names)] - twin[list(names)]).assign(intervention=words, condition=run, kl=own["kl"]))
    found = pd.concat(parts).reset_index()
    return found[["intervention", "condition", "seed", "kl", *names]].astype(dict.fromkeys(names, float))


def beyond(frame: pd.DataFrame, run: str, other: str, names: Sequence[str], step: int | None = None) -> pd.DataFrame:
    """The last checkpoint of a run (or that at `step`) minus the last one of another, whatever their KL; by seed."""
    logs = _logarithms(frame, names)
    own = logs[(logs["condition"] == run) & ((logs["step"] == step) if step is not None else True)]
    last = [of.sort_values("step").groupby("seed").last() for of in (own, logs[logs["condition"] == other])]
    return (last[0][list(names)] - last[1][list(names)]).dropna(how="all").reset_index()


def _logarithms(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    return frame.assign(**{name: np.log(frame[name]) for name in names if name in TRACES})


def mean(rows: pd.DataFrame, name: str) -> Estimate:
    """Mean over the seeds that could be compared."""
    return over_seeds(rows[name])


def slope(rows: pd.DataFrame, x: str, y: str) -> Estimate:
    """Slope of y on x over interventions, a line through the twin (0, 0) for each seed; mean over seeds.

    rows: of `effects`. A seed counts when at least two interventions could be compared on it. Seeds are the n: the
    interventions of one seed share its language, start and twin.
    """
    found = []
    for _, of in rows.dropna(subset=[x, y]).groupby("seed"):
        square = float((of[x] ** 2).sum())
        if len(of) > 1 and square > 0:
            found.append(float((of[x] * of[y]).sum()) / square)
    return over_seeds(pd.Series(found, dtype=float))


def common(rows: pd.DataFrame) -> pd.DataFrame:
    """The seeds on which every intervention was run, whether or not it could be compared."""
    runs = rows.groupby("seed")["intervention"].nunique()
    return rows[rows["seed"].isin(runs.index[runs == rows["intervention"].nunique()])]


def least_effect(spread: float, n: int, power: float = 0.8) -> float:
    """The mean difference that a two-sided paired t test on n seeds finds with this probability."""
    # By the F of the squared t: scipy's noncentral t is nan where a tail is tiny.
    cut = stats.t.ppf(0.975, n - 1) ** 2
    shift = optimize.brentq(lambda s: stats.ncf.sf(cut, 1, n - 1, s * s) - power, 0.0, 100.0)
    return float(shift * spread / math.sqrt(n))
