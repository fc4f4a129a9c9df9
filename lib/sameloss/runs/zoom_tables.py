"""Chapter 6's measures of what a loss tells about a score: at equal loss, along the loss, and in order; seed by seed.

A region is (lowest, highest) KL in nats. The untrained network (step 0) is no checkpoint of any trajectory.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from sameloss.errors import UserError
from sameloss.measures import matched
from sameloss.measures.estimate import Estimate
from sameloss.seeds import stream

Region = tuple[float, float]
LEAST = 3  # checkpoints behind a slope


def points(
    table: pd.DataFrame, conditions: Sequence[str], task: str, features: str, weights: str = "ema"
) -> pd.DataFrame:
    """One row a condition, seed and step: every quantity as a column, scores of one task and kind of features; log_kl.

    table: of `experiment.table`. Rows in the order of the conditions, the seeds and the training. UserError for a
    condition that was not measured so.
    """
    rows = table[table["condition"].isin(conditions) & (table["weights"] == weights)]
    rows = rows[(rows["task"] == "") | ((rows["task"] == task) & (rows["features"] == features))]
    probed = set(rows.loc[rows["task"] == task, "condition"])
    if missing := [name for name in conditions if name not in probed]:
        raise UserError(f"{missing[0]}: task {task!r} was not probed on {features!r} features; allowed: {probed}")
    found = rows.pivot(index=["condition", "seed", "step"], columns="quantity", values="value").reset_index()
    order = found["condition"].map({name: i for i, name in enumerate(conditions)})
    found = found.assign(order=order, log_kl=np.log(found["kl"])).sort_values(["order", "seed", "step"])
    return found.drop(columns="order").rename_axis(columns=None).reset_index(drop=True)


def within(frame: pd.DataFrame, region: Region) -> pd.DataFrame:
    """The checkpoints of a region."""
    return frame[(frame["step"] > 0) & frame["kl"].between(*region)]


def reaching(frame: pd.DataFrame, models: Sequence[str], kl: float) -> list[str]:
    """The models that come to `kl` or below in every seed: the loss decides, no score is looked at."""
    least = within(frame, (0.0, math.inf)).groupby(["condition", "seed"])["kl"].min().groupby("condition").max()
    return [name for name in models if least.get(name, math.inf) <= kl]


def windows(frame: pd.DataFrame, models: Sequence[str], region: Region) -> pd.DataFrame:
    """The part of a region that all models cover, by seed: low, high; nan where there is none."""
    rows = {}
    for seed, of in within(frame, (0.0, math.inf)).groupby("seed"):
        low, high = matched.span(*(of.loc[of["condition"] == name, "kl"].to_numpy() for name in models))
        covered = max(region[0], low), min(region[1], high)
        rows[seed] = covered if not math.isnan(low) and covered[0] < covered[1] else (math.nan, math.nan)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["low", "high"])


def heights(frame: pd.DataFrame, models: Sequence[str], column: str, region: Region) -> pd.DataFrame:
    """Each model's mean of a column over the part of a region that all cover, seeds by models; nan without one.

    Means over log KL, read off between checkpoints: every model at the same losses.
    """
    trained, rows = within(frame, (0.0, math.inf)), {}
    for seed, low, high in windows(frame, models, region).itertuples():
        curves = [trained[(trained["seed"] == seed) & (trained["condition"] == name)] for name in models]
        rows[seed] = [matched.mean_over(c["kl"].to_numpy(), c[column].to_numpy(), low, high) for c in curves]
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(models))


def slopes(frame: pd.DataFrame, models: Sequence[str], column: str, region: Region) -> pd.DataFrame:
    """Least-squares slope of a column on log KL (per factor e), seeds by models; nan under LEAST checkpoints."""
    inside = within(frame, region)

    def slope(of: pd.DataFrame) -> float:
        enough = len(of) >= LEAST and of["log_kl"].nunique() > 1
        return float(np.polyfit(of["log_kl"], of[column], 1)[0]) if enough else math.nan

    seeds = sorted(frame["seed"].unique())
    rows = [[slope(inside[(inside["seed"] == s) & (inside["condition"] == m)]) for m in models] for s in seeds]
    return pd.DataFrame(rows, index=seeds, columns=list(models))


def pairs_within(values: pd.DataFrame, margin: float) -> tuple[int, int]:
    """How many pairs of models are alike, and how many there are: the 95 % interval of their paired difference lies
    within +- margin (equivalence by interval inclusion, Schuirmann 1987). values: seeds by models, as of `heights`."""
    pairs = list(itertools.combinations(values.columns, 2))
    found = (over_seeds(values[b] - values[a]).interval() for a, b in pairs)
    return sum(-margin < low and high < margin for low, high in found), len(pairs)


def indistinguishable(values: Float[np.ndarray, "n k"], seed: int = 0, draws: int = 9999) -> float:
    """p of the hypothesis that k models on n seeds are one: a permutation test in blocks (Pitman 1938).

    If the models are alike, their values within a seed may be exchanged. The statistic is the variance of the models'
    means, which orders arrangements as the F of blocks does. nan for fewer than two seeds or models.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known).all(axis=1)]
    if len(known) < 2 or known.shape[1] < 2:
        return math.nan
    centred = known - known.mean(axis=1, keepdims=True)
    rng = stream(seed, "estimator/permutation")
    again = rng.permuted(np.broadcast_to(centred, (draws, *centred.shape)), axis=2).mean(axis=1).var(axis=1)
    found = centred.mean(axis=0).var()
    return float((1 + np.count_nonzero(again >= found * (1 - 1e-9))) / (1 + draws))


def told(frame: pd.DataFrame, column: str, region: Region, loss: str = "kl") -> pd.Series:
    """How often the lower loss has the better score, among pairs of checkpoints of different models; by seed.

    Half: the loss tells nothing. Pairs of equal loss (protocol: within 3e-4 nats) ask nothing and are left out.
    """
    found = {}
    for seed, of in within(frame, region).groupby("seed"):
        model, value, score = (of[name].to_numpy() for name in ("condition", loss, column))
        i, j = np.triu_indices(len(of), 1)
        asks = (model[i] != model[j]) & (np.abs(value[i] - value[j]) > matched.EQUAL)
        agrees = np.sign(value[i] - value[j]) * np.sign(score[j] - score[i])
        found[seed] = float((1 + agrees[asks].mean()) / 2) if asks.any() else math.nan
    return pd.Series(found, dtype=float).reindex(sorted(frame["seed"].unique()))


def alike(first: pd.DataFrame, second: pd.DataFrame) -> pd.Series:
    """The share of pairs of models that two scores (seeds by models, as of `heights`) put into one order; by seed."""
    pairs = list(itertools.combinations(first.columns, 2))
    same = [np.sign(first[a] - first[b]) * np.sign(second[a] - second[b]) for a, b in pairs]
    return pd.Series((1 + np.mean(same, axis=0)) / 2, index=first.index) if pairs else pd.Series(dtype=float)


def steepness(frame: pd.DataFrame, models: Sequence[str], column: str, factor: float = 3.0) -> pd.DataFrame:
    """The largest share of a score's whole rise that falls into one factor of KL, seeds by models.

    The rise is that from a model's highest KL to its lowest, read off between checkpoints. A straight line over a range
    of KL by R has log(factor) / log(R), a jump 1. nan where the range is narrower than the factor, or nothing rises.
    """
    trained = within(frame, (0.0, math.inf))

    def steepest(of: pd.DataFrame) -> float:
        kl, score = of["kl"].to_numpy(), of[column].to_numpy()
        if len(kl) < 2 or kl.max() <= factor * kl.min():
            return math.nan
        levels = np.clip(np.geomspace(kl.max(), kl.min(), 129), kl.min(), kl.max())
        curve = np.array([matched.at_kl(kl, score, level) for level in levels])
        step = round(math.log(factor) / math.log(kl.max() / kl.min()) * 128)
        whole = curve[-1] - curve[0]
        return float((curve[step:] - curve[:-step]).max() / whole) if whole > 0 and step else math.nan

    seeds = sorted(frame["seed"].unique())
    rows = [[steepest(trained[(trained["seed"] == s) & (trained["condition"] == m)]) for m in models] for s in seeds]
    return pd.DataFrame(rows, index=seeds, columns=list(models))


def at_equal_loss(frame: pd.DataFrame, a: tuple[str, str], b: tuple[str, str], column: str) -> pd.DataFrame:
    """Two conditions at the lowest value of a loss that both reach, each by its own column; seed, loss, a, b.

    a, b: (condition, the column of its loss), such as the loss on fresh sentences of one and on its pool of the other.
    """
    trained, rows = within(frame, (0.0, math.inf)), []
    for seed, of in trained.groupby("seed"):
        curves = [
            (own[loss].to_numpy(), own[column].to_numpy())
            for name, loss in (a, b)
            for own in (of[of["condition"] == name],)
        ]
        rows.append((seed, *matched.at_equal_kl(*curves)))
    return pd.DataFrame(rows, columns=["seed", "loss", "a", "b"])


def over_seeds(values: pd.Series) -> Estimate:
    """Mean over the seeds that have a value; n 0 where none has."""
    known = values.dropna().to_numpy(dtype=np.float64)
    return Estimate.of(known) if known.size else Estimate(math.nan, math.nan, 0)
