"""Standard errors that stay honest under heavy tails."""

import math

import numpy as np
from jaxtyping import Float
from scipy import stats

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate
from sameloss.seeds import stream


def robust(samples: Float[np.ndarray, " n"], seed: int = 0, resamples: int = 1000) -> Estimate:
    """Mean with the standard error whose t interval is the symmetric bootstrap-t interval (Hall 1988).

    For light tails that is s/sqrt(n). For skewed ones s itself is unsure, and small when the mean is too small;
    studentising every resample by its own s sees that. UserError for no samples.
    """
    x = np.asarray(samples, dtype=np.float64).ravel()
    n = x.size
    if n == 0:
        raise UserError("an estimate needs at least one sample; found none")
    plain = Estimate.of(x)
    if n < 3 or plain.stderr == 0 or not np.isfinite(plain.stderr):
        return plain
    rng = stream(seed, "estimator/bootstrap")
    ratios, block = [], max(1, 2**20 // n)
    for done in range(0, resamples, block):
        again = x[rng.integers(n, size=(min(block, resamples - done), n))]
        spread = again.std(axis=1, ddof=1) / np.sqrt(n)
        distance = np.abs(again.mean(axis=1) - plain.value)
        ratios.append(np.divide(distance, spread, out=np.full(len(spread), np.inf), where=spread > 0))
    distances = np.sort(np.concatenate(ratios))
    if np.isinf(distances[math.ceil(0.95 * (resamples - 1))]):
        return plain  # of three samples, or with many ties, too many resamples have no spread to be studentised by
    inflation = float(np.quantile(distances, 0.95)) / float(stats.t.ppf(0.975, n - 1))
    return Estimate(plain.value, plain.stderr * max(1.0, inflation), n)
