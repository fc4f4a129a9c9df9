"""The SGD ladder: learning rates eta = sqrt(K / n) with n steps, all compared with the flow at time n eta^2 = K."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate
from sameloss.theory.flow import elapsed, flow, is_scalar, limit
from sameloss.theory.flow_landscape import imbalance
from sameloss.theory.flow_models import Toy, check_on_manifold
from sameloss.theory.flow_sgd import Rule, train

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def coefficient(toy: Toy, h_start: float, h: Estimate, duration: float) -> Estimate:
    """The kappa for which d theta = -kappa grad_Gamma Tr dt leads from h_start to E h in the time `duration`.

    kappa = t(E h) / (4 K), with t the time that the flow with kappa = 1/4 needs; standard error by the delta method.
    """
    step = max(h.stderr, 1e-6)
    low, middle, high = elapsed(toy, h_start, np.array([h.value - step, h.value, h.value + step])) / (4 * duration)
    return Estimate(float(middle), float(abs(high - low)) / (2 * step) * h.stderr, h.n)


def rung(
    toy: Toy, start: Float[np.ndarray, " d"], duration: float, steps: int, replicas: int, batch: int, seed: int
) -> dict[str, object]:
    """One learning rate of the ladder for U or E: a row with the mean of h, the coefficient it implies, the distances

    of Phi(theta) and of theta itself from the flow (root mean squares over replicas) and quantiles of u^2 after Phi.
    """
    eta = math.sqrt(duration / steps)
    theta = train(toy, start, eta, [steps], replicas, seed, Rule(batch=batch))[0]
    goal, landed = flow(toy, start, np.array([duration]), batch)[0], limit(toy, theta)
    h0, h_flow = (float(imbalance(toy, point)[0, 0]) for point in (start, goal))
    h = Estimate.of(imbalance(toy, theta)[:, 0, 0])
    kappa = coefficient(toy, h0, h, duration)
    row: dict[str, object] = {
        "model": toy.name, "batch": batch, "steps": steps, "eta": eta, "duration": duration, "replicas": replicas,
        "seed": seed, "h": h.value, "h_stderr": h.stderr, "h_flow": h_flow, "kappa": kappa.value,
        "kappa_stderr": kappa.stderr, "rms_limit": _rms(landed - goal), "rms_raw": _rms(theta - goal),
        "x_flow": float(goal[0] ** 2),
    }  # fmt: skip
    row |= {
        f"x_{q:g}": float(value) for q, value in zip(QUANTILES, np.quantile(landed[:, 0] ** 2, QUANTILES), strict=True)
    }
    return row


def _rms(gap: Float[np.ndarray, "R d"]) -> float:
    return math.sqrt(float((gap**2).sum(axis=1).mean()))


def ladder(
    toys: Sequence[tuple[Toy, Float[np.ndarray, " d"]]],
    duration: float,
    steps: Sequence[int],
    batches: Sequence[int],
    replicas: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Every rung for every (model, start) and batch size, one row each; `progress(done, all)` counts SGD steps.

    UserError for a model without a closed-form flow, a start off Gamma, a duration that is not positive, no steps.
    """
    if not (0 < duration < math.inf):
        raise UserError(f"duration K: found {duration!r}; allowed: a finite number above 0")
    if len(steps) == 0 or min(steps) < 1:
        raise UserError(f"steps of the ladder: found {list(steps)}; allowed: whole numbers of at least 1")
    for toy, start in toys:
        if not is_scalar(toy):
            raise UserError(f"model of the ladder: found {toy.name}; allowed: U or E, whose flow has a closed form")
        check_on_manifold(toy, start)
    jobs = [(toy, start, batch, n) for toy, start in toys for batch in batches for n in steps]
    done, total, rows = 0, sum(batch * n for _, _, batch, n in jobs), []
    for toy, start, batch, n in jobs:
        rows.append(rung(toy, start, duration, n, replicas, batch, seed))
        done += batch * n
        if progress:
            progress(done, total)
    return pd.DataFrame(rows)


def extrapolate(
    eta: Float[np.ndarray, " n"], value: Float[np.ndarray, " n"], stderr: Float[np.ndarray, " n"], degree: int = 2
) -> tuple[list[Estimate], float]:
    """Weighted polynomial fit in eta: the coefficients (the first is the value at eta -> 0) and chi^2 per degree.

    Rungs are independent and their standard errors known, so the errors of the coefficients are not rescaled by the
    fit. A line is not enough: its curvature passes for a wrong limit. UserError with fewer rungs than degree + 2.
    """
    if len(eta) < degree + 2:
        raise UserError(f"learning rates of the ladder: found {len(eta)}; allowed: at least {degree + 2}")
    design = np.vander(eta, degree + 1, increasing=True) / stderr[:, None]
    covariance = np.linalg.inv(design.T @ design)
    fitted = covariance @ design.T @ (value / stderr)
    misfit = float((((value / stderr) - design @ fitted) ** 2).sum()) / (len(eta) - degree - 1)
    errors = np.sqrt(np.diag(covariance))
    # The standard errors come from thousands of replicas: n tells `Estimate.interval` that they are as good as known.
    return [Estimate(float(c), float(e), 10**6) for c, e in zip(fitted, errors, strict=True)], misfit


def order(eta: Float[np.ndarray, " n"], error: Float[np.ndarray, " n"]) -> float:
    """The exponent q of |error| ~ eta^q: slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(eta), np.log(np.abs(error)), 1)[0])
