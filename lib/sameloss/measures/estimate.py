"""Numbers with their uncertainty: every estimate carries its standard error and its n."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

from sameloss.errors import UserError


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error (same unit) and the number of independent observations behind it."""

    value: float
    stderr: float
    n: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Two-sided Student-t interval with n - 1 degrees of freedom; infinitely wide for n = 1."""
        if self.n < 2:
            return (-math.inf, math.inf) if self.stderr else (self.value, self.value)
        half = float(stats.t.ppf(0.5 + level / 2, self.n - 1)) * self.stderr
        return self.value - half, self.value + half

    def __sub__(self, other: "Estimate") -> "Estimate":
        """Difference of two *independent* estimates (paired data: `paired_difference`)."""
        return Estimate(self.value - other.value, math.hypot(self.stderr, other.stderr), min(self.n, other.n))

    def __str__(self) -> str:
        """`0.9310 ± 0.0021`: two significant digits of the standard error, the value to the same place."""
        if not math.isfinite(self.stderr) or self.stderr <= 0:
            return f"{self.value:.6g}"
        places = max(0, 1 - math.floor(math.log10(self.stderr)))
        return f"{self.value:.{places}f} ± {self.stderr:.{places}f}"

    @classmethod
    def of(cls, samples: Float[np.ndarray, " n"]) -> "Estimate":
        """Mean of independent samples with its standard error s/sqrt(n)."""
        x = np.asarray(samples, dtype=np.float64).ravel()
        if x.size == 0:
            raise UserError("an estimate needs at least one sample; found none")
        stderr = float(x.std(ddof=1) / math.sqrt(x.size)) if x.size > 1 else math.nan
        return cls(float(x.mean()), stderr, x.size)


def paired_difference(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> Estimate:
    """Mean of a - b over pairs (one pair a seed) with the standard error of that mean."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.shape != b.shape:
        raise UserError(f"paired values need equal shapes; found {a.shape} and {b.shape}")
    return Estimate.of(a - b)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given (Holm 1979)."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    worst = 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted.tolist()


def paired_p(difference: Estimate) -> float:
    """Two-sided p-value of Student's t for a mean difference of 0; nan for fewer than two pairs, or equal ones.

    Pairs that all differ by the same amount have no spread to compare it with: t does not exist.
    """
    if difference.n < 2 or not math.isfinite(difference.stderr) or difference.stderr == 0:
        return math.nan
    return float(2 * stats.t.sf(abs(difference.value) / difference.stderr, difference.n - 1))


def page_trend(values: Float[np.ndarray, "n k"]) -> tuple[float, float]:
    """Page's L and its one-sided p for a rise along k conditions that n seeds rank (Page 1963).

    Seeds with a value that is not finite are left out. nan for fewer than two seeds or three conditions.
    """
    ranked = values[np.isfinite(values).all(axis=1)]
    if len(ranked) < 2 or ranked.shape[1] < 3:
        return math.nan, math.nan
    result = stats.page_trend_test(ranked)
    return float(result.statistic), float(result.pvalue)
