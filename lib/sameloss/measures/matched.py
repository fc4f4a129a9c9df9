"""Models compared at one loss: interpolation in log KL inside both observed ranges, never outside."""

import math

import numpy as np
from jaxtyping import Float

from sameloss.errors import UserError

SATURATED = 0.01  # nats: a model this close to the floor counts as converged
EQUAL = 3e-4  # nats: two models this close to each other have one loss

Trajectory = tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]


def common_kl(*kls: Float[np.ndarray, " m"]) -> float:
    """The lowest KL (nats) that every trajectory reaches and starts at or above; nan where there is none.

    kls: the KL to the truth at each checkpoint of a trajectory, in the order of training.
    """
    for kl in kls:
        if len(kl) == 0 or not (np.isfinite(kl).all() and (np.asarray(kl) > 0).all()):
            raise UserError(f"a trajectory needs checkpoints with a KL above 0; found {np.asarray(kl).tolist()}")
    lowest = max(float(np.min(kl)) for kl in kls)
    return lowest if all(lowest <= np.max(kl) for kl in kls) else math.nan


def at_kl(kl: Float[np.ndarray, " m"], values: Float[np.ndarray, " m"], target: float) -> float:
    """`values` of a trajectory where its KL last passes `target`, linear in log KL between checkpoints; else nan.

    The last passage, because a trajectory may fluctuate: it is the one that the most training lies behind.
    """
    if math.isnan(target):
        return math.nan
    x, goal = np.log(np.asarray(kl, dtype=np.float64)), math.log(target)
    y = np.asarray(values, dtype=np.float64)
    for i in range(len(x) - 1, 0, -1):
        low, high = sorted((x[i - 1], x[i]))
        if low <= goal <= high:
            share = 0.0 if high == low else (goal - x[i]) / (x[i - 1] - x[i])
            return float(y[i] + share * (y[i - 1] - y[i]))
    return float(y[0]) if len(x) == 1 and math.isclose(x[0], goal) else math.nan


def at_equal_kl(a: Trajectory, b: Trajectory) -> tuple[float, float, float]:
    """(KL, value of a, value of b) at the lowest common KL of two trajectories (kl, values); nan for none."""
    target = common_kl(a[0], b[0])
    return target, at_kl(*a, target), at_kl(*b, target)


def near_kl(kl: Float[np.ndarray, " m"], values: Float[np.ndarray, " m"], target: float) -> float:
    """`values` where the trajectory passes `target`, else at its nearest checkpoint if that is EQUAL; else nan."""
    found = at_kl(kl, values, target)
    if not math.isnan(found) or math.isnan(target) or len(kl) == 0:
        return found
    distance = np.abs(np.asarray(kl) - target)
    return float(values[int(distance.argmin())]) if distance.min() <= EQUAL else math.nan


def span(*kls: Float[np.ndarray, " m"]) -> tuple[float, float]:
    """(lowest, highest) KL between which every trajectory was observed; nan where there is no such range."""
    low = common_kl(*kls)
    high = min(float(np.max(kl)) for kl in kls)
    return (low, high) if low < high else (math.nan, math.nan)


def mean_over(kl: Float[np.ndarray, " m"], values: Float[np.ndarray, " m"], low: float, high: float) -> float:
    """Mean of `values` over a range of log KL inside the observed one; nan without a range."""
    if math.isnan(low):
        return math.nan
    levels = np.clip(np.geomspace(low, high, 129), low, high)
    return float(np.mean([at_kl(kl, values, level) for level in levels]))
