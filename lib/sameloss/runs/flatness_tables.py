"""Chapter 4's comparisons: flatness and accuracy along training, given the loss, and across sizes at equal loss."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import stats

from sameloss.errors import UserError
from sameloss.measures import estimate, matched
from sameloss.measures.estimate import Estimate

ACCURACY = "accuracy "


def wide(
    table: pd.DataFrame, conditions: Sequence[str], weights: str = "ema", features: str = "unmasked"
) -> pd.DataFrame:
    """One row a condition, seed and step: every measured quantity as a column, probes' as "accuracy TASK"; log_kl.

    table: of `experiment.table`. Rows in the order of the conditions, the seeds and the training. UserError for a
    condition without rows of these weights.
    """
    rows = table[table["condition"].isin(conditions) & (table["weights"] == weights)]
    if missing := [name for name in conditions if name not in set(rows["condition"])]:
        raise UserError(f"no rows of {missing[0]!r} with {weights} weights; allowed: {', '.join(set(table.condition))}")
    probed = rows[(rows["quantity"] == "accuracy") & (rows["features"] == features)]
    plain = rows[rows["task"] == ""]
    names = pd.concat([plain["quantity"], ACCURACY + probed["task"]])
    frame = pd.concat([plain, probed]).assign(name=names)
    found = frame.pivot(index=["condition", "seed", "step"], columns="name", values="value").reset_index()
    order = found["condition"].map({name: i for i, name in enumerate(conditions)})
    found = found.assign(order=order, log_kl=np.log(found["kl"])).sort_values(["order", "seed", "step"])
    return found.drop(columns="order").rename_axis(columns=None).dropna(axis=1, how="all").reset_index(drop=True)


def tasks(frame: pd.DataFrame, everywhere: bool = False) -> list[str]:
    """Tasks whose accuracy is in a table of `wide`; `everywhere`: in every condition of it."""
    names = [name for name in map(str, frame) if name.startswith(ACCURACY)]
    if everywhere:
        names = [name for name in names if (frame.groupby("condition")[name].count() > 0).all()]
    return [name.removeprefix(ACCURACY) for name in names]


def change(frame: pd.DataFrame, name: str) -> Estimate:
    """Last checkpoint minus first, paired within seeds; of one condition."""
    by_seed = frame.sort_values("step").groupby("seed")[name]
    return Estimate.of((by_seed.last() - by_seed.first()).to_numpy())


def correlation(frame: pd.DataFrame, x: str, y: str, given: Sequence[str] = ()) -> Estimate:
    """Correlation of x and y along the checkpoints within seeds, of what is left of both after `given` (linear).

    Every seed has its own level: means of seeds are taken out. The standard error is the jackknife's over seeds, which
    are the n; nan for fewer than three.
    """
    columns = [x, y, *given]
    centred = frame[columns] - frame.groupby("seed")[columns].transform("mean")
    seeds = frame["seed"].unique()
    whole = _partial(centred.to_numpy())
    if len(seeds) < 3:
        return Estimate(whole, math.nan, len(seeds))
    without = np.array([_partial(centred[frame["seed"] != seed].to_numpy()) for seed in seeds])
    n = len(seeds)
    return Estimate(whole, float(np.sqrt((n - 1) / n * np.square(without - without.mean()).sum())), n)


def _partial(data: Float[np.ndarray, "m k"]) -> float:
    x, y, given = data[:, 0], data[:, 1], data[:, 2:]
    if given.shape[1]:
        x, y = (v - given @ np.linalg.lstsq(given, v, rcond=None)[0] for v in (x, y))
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / size if size > 0 else math.nan


def at_common_kl(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Conditions at the lowest KL that all of them reach, seed by seed: condition, seed, kl and `names`; nan if none.

    Read off in log KL between checkpoints; the untrained network (step 0) is none.
    """
    rows, trained = [], frame[frame["step"] > 0]
    conditions = list(dict.fromkeys(frame["condition"]))
    for seed, of in trained.groupby("seed"):
        curves = {name: of[of["condition"] == name] for name in conditions}
        if any(curve.empty for curve in curves.values()):
            continue
        level = matched.common_kl(*(curve["kl"].to_numpy() for curve in curves.values()))
        for name, curve in curves.items():
            kl = curve["kl"].to_numpy()
            values = {column: matched.at_kl(kl, curve[column].to_numpy(), level) for column in names}
            rows.append({"condition": name, "seed": seed, "kl": level, **values})
    return pd.DataFrame(rows, columns=["condition", "seed", "kl", *names])


def against(frame: pd.DataFrame, path: Sequence[str], run: str, names: Sequence[str]) -> pd.DataFrame:
    """The last checkpoint of `run` against a trajectory, a run and what continues it, read at that checkpoint's KL.

    Columns: condition (`run`, or "path"), seed, kl and `names`. Where the trajectory never passes that KL, its nearest
    checkpoint if that is equal to it, else nan. The untrained network is no checkpoint of it.
    """
    order = frame["condition"].map({name: i for i, name in enumerate(path)})
    trained = frame.assign(order=order)[(order > 0) | (frame["step"] > 0)].sort_values(["order", "step"])
    rows = []
    for seed, own in frame[frame["condition"] == run].groupby("seed"):
        last = own.sort_values("step").iloc[-1]
        curve = trained[trained["seed"] == seed].dropna(subset=["order"])
        read = {n: matched.near_kl(curve["kl"].to_numpy(), curve[n].to_numpy(), last["kl"]) for n in names}
        rows.append({"condition": "path", "seed": seed, "kl": last["kl"], **read})
        rows.append({"condition": run, "seed": seed, "kl": last["kl"], **last[list(names)]})
    return pd.DataFrame(rows, columns=["condition", "seed", "kl", *names])


def gap(pairs: pd.DataFrame, small: Sequence[str], large: str, name: str, of: str = "") -> Estimate:
    """`name` of the large condition minus the least `of` (the same if absent) among the small ones, within seeds.

    pairs: of `at_common_kl`; seeds without a common KL are left out.
    """
    least = pairs[pairs["condition"].isin(small)].groupby("seed")[of or name].min()
    largest = pairs[pairs["condition"] == large].set_index("seed")[name]
    difference = (largest - least).dropna().to_numpy()
    return Estimate.of(difference) if difference.size else Estimate(math.nan, math.nan, 0)


def page_trend(pairs: pd.DataFrame, conditions: Sequence[str], name: str, falls: bool) -> float:
    """One-sided p of Page's test for a trend along three or more conditions (`measures.estimate.page_trend`)."""
    order = list(reversed(conditions)) if falls else list(conditions)
    return estimate.page_trend(pairs.pivot(index="seed", columns="condition", values=name)[order].to_numpy())[1]


def power(effect: float, spread: float, n: int, level: float = 0.05) -> float:
    """Probability that a two-sided paired t test on n seeds finds a mean difference `effect` of that spread."""
    shift, cut = effect * math.sqrt(n) / spread, stats.t.ppf(1 - level / 2, n - 1)
    return float(stats.nct.sf(cut, n - 1, shift) + stats.nct.cdf(-cut, n - 1, shift))
