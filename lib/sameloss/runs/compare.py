"""Conditions of an experiment's table side by side, seed by seed.

Comparisons are tables of one row a seed: seed, kl (where they are made), a, b; nan where there is no equal loss.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from sameloss.errors import UserError
from sameloss.measures import matched
from sameloss.measures.estimate import Estimate, page_trend, paired_difference

PAIRS = ["seed", "kl", "a", "b"]


def select(
    table: pd.DataFrame, condition: str, quantity: str, task: str = "", features: str = "", weights: str = "ema"
) -> pd.DataFrame:
    """Rows of one quantity of one condition, by seed and step. UserError names what the table holds instead."""
    rows = table[table["condition"] == condition]
    if rows.empty:
        raise UserError(f"no condition {condition!r} in this table; allowed: {', '.join(sorted(set(table.condition)))}")
    wanted = {"quantity": quantity, "task": task, "features": features}
    if (rows["weights"] != "").any():  # baselines have no weights
        wanted["weights"] = weights
    for column, value in wanted.items():
        kept = rows[rows[column] == value]
        if kept.empty:
            found = ", ".join(sorted({repr(v) for v in rows[column]}))
            raise UserError(f"{condition}: no rows with {column} = {value!r}; found {found}")
        rows = kept
    return rows.sort_values(["seed", "step"], kind="stable")


def path(
    table: pd.DataFrame, conditions: Sequence[str], quantity: str, task: str = "", features: str = ""
) -> pd.DataFrame:
    """Checkpoints of a run and of what continues it, in the order of training: seed, part, step, kl, value.

    The untrained network (step 0) is no checkpoint of a trajectory: nothing is interpolated between it and the first.
    """
    parts = []
    for i, name in enumerate(conditions):
        kl = select(table, name, "kl").set_index(["seed", "step"])["value"].rename("kl")
        values = select(table, name, quantity, task, features).set_index(["seed", "step"])["value"]
        parts.append(pd.concat([kl, values], axis=1, join="inner").reset_index().assign(part=i))
    rows = pd.concat(parts)
    return rows[rows["step"] > 0].sort_values(["seed", "part", "step"], kind="stable")


def curves(table: pd.DataFrame, conditions: Sequence[str], *what: str) -> dict[int, matched.Trajectory]:
    """The same as trajectories (kl, value), one a seed."""
    rows = path(table, conditions, *what)
    parts = ((seed, rows[rows["seed"] == seed]) for seed in rows["seed"].unique())
    return {int(seed): (of["kl"].to_numpy(), of["value"].to_numpy()) for seed, of in parts}


def at_equal_kl(table: pd.DataFrame, a: str, b: str, *what: str) -> pd.DataFrame:
    """Two conditions at the lowest KL to the truth that both reach, read off in log KL between their checkpoints."""
    first, second = curves(table, [a], *what), curves(table, [b], *what)
    rows = [(seed, *matched.at_equal_kl(first[seed], second[seed])) for seed in sorted(first.keys() & second.keys())]
    return pd.DataFrame(rows, columns=PAIRS)


def over_common_kl(table: pd.DataFrame, a: str, b: str, *what: str) -> pd.DataFrame:
    """Means of two curves over the whole range of log KL that both cover; kl is its lower end."""
    first, second = curves(table, [a], *what), curves(table, [b], *what)
    rows = []
    for seed in sorted(first.keys() & second.keys()):
        low, high = matched.span(first[seed][0], second[seed][0])
        rows.append((seed, low, *(matched.mean_over(*curve[seed], low, high) for curve in (first, second))))
    return pd.DataFrame(rows, columns=PAIRS)


def against_path(table: pd.DataFrame, conditions: Sequence[str], b: str, *what: str) -> pd.DataFrame:
    """The last checkpoint of b against a trajectory (a run and what continues it), read at b's KL."""
    kl, last = final(table, b, "kl"), final(table, b, *what)
    of = curves(table, conditions, *what)
    rows = [(seed, kl[seed], matched.near_kl(*of[seed], kl[seed]), last[seed]) for seed in last.index if seed in of]
    return pd.DataFrame(rows, columns=PAIRS)


def no_worse_loss(table: pd.DataFrame, a: str, b: str, *what: str) -> pd.DataFrame:
    """The last checkpoint of b against a, which must not have the lower loss: a's last, or a read at b's KL."""
    found = against_path(table, [a], b, *what)
    kl, last = (final(table, a, *of).reindex(found["seed"]).to_numpy() for of in (("kl",), what))
    higher = kl >= found["kl"].to_numpy()
    return found.assign(kl=np.maximum(kl, found["kl"]), a=np.where(higher, last, found["a"]))


def last_checkpoints(table: pd.DataFrame, a: str, b: str, *what: str) -> pd.DataFrame:
    """Two conditions at their last checkpoints, whatever their KL; kl is that of b, delta how much it is above a's."""
    of = {"a": final(table, a, *what), "b": final(table, b, *what), "kl": final(table, b, "kl")}
    rows = pd.concat(of | {"delta": final(table, b, "kl") - final(table, a, "kl")}, axis=1, join="inner")
    return rows.rename_axis("seed").reset_index()


def explained_by_kl(table: pd.DataFrame, run: str, control: str, *what: str) -> pd.DataFrame:
    """What a run and a control gain over one range of KL, the one both cover: seed, kl, high, a (control), b (run).

    The control gets from `high` to `kl` in fewer steps: what it gains goes with the loss, what the run gains beyond
    that with training on.
    """
    longer, shorter = curves(table, [run], *what), curves(table, [control], *what)
    rows = []
    for seed in sorted(longer.keys() & shorter.keys()):
        low, high = matched.span(longer[seed][0], shorter[seed][0])
        gains = (matched.at_kl(*c[seed], low) - matched.at_kl(*c[seed], high) for c in (shorter, longer))
        rows.append((seed, low, high, *gains))
    return pd.DataFrame(rows, columns=["seed", "kl", "high", "a", "b"])


def training_on(table: pd.DataFrame, run: str, *what: str, share: float = 0.25) -> pd.DataFrame:
    """The last checkpoint (b) against the first one after `share` of the steps (a), with the fall of KL between."""
    rows = path(table, [run], *what)
    early = rows[rows["step"] >= share * rows["step"].max()].groupby("seed").first()
    last = rows.groupby("seed").last()
    pairs = {"kl": last["kl"], "a": early["value"], "b": last["value"], "fall": early["kl"] - last["kl"]}
    return pd.DataFrame(pairs).reset_index()


def trend(table: pd.DataFrame, conditions: Sequence[str], *what: str) -> tuple[float, float]:
    """Page's L and its one-sided p for a rise along conditions, at the lowest KL common to all (`page_trend`)."""
    of = [curves(table, [name], *what) for name in conditions]
    rows = []
    for seed in sorted(set.intersection(*(set(curve) for curve in of))):
        level = matched.common_kl(*(curve[seed][0] for curve in of))
        rows.append([matched.at_kl(*curve[seed], level) for curve in of])
    return page_trend(np.array(rows).reshape(len(rows), len(of)))


def gap(pairs: pd.DataFrame) -> Estimate:
    """b - a, paired within seeds, over the seeds where both are known."""
    known = pairs.dropna(subset=["a", "b"])
    if known.empty:
        return Estimate(math.nan, math.nan, 0)
    return paired_difference(known["b"].to_numpy(), known["a"].to_numpy())


def comparable(pairs: pd.DataFrame) -> bool:
    """Whether every seed could be compared."""
    return len(pairs) > 0 and bool(pairs[["a", "b"]].notna().all(axis=None))


def final(
    table: pd.DataFrame, condition: str, quantity: str, task: str = "", features: str = "", weights: str = "ema"
) -> pd.Series:
    """The value at the last checkpoint, by seed."""
    return select(table, condition, quantity, task, features, weights).groupby("seed")["value"].last()


def untrained(table: pd.DataFrame, condition: str, *what: str) -> pd.Series:
    """The value before the first step, by seed."""
    rows = select(table, condition, *what)
    return rows[rows["step"] == 0].set_index("seed")["value"]
