"""Words chosen by numbers: sentences of a page that hold whatever comes out."""

import math

from sameloss.measures.estimate import Estimate


def compared(e: Estimate, more: str, less: str, neither: str) -> str:
    """`more` or `less` where the 95 % interval excludes 0, else `neither`."""
    low, high = e.interval() if e.n > 1 else (-math.inf, math.inf)
    return more if low > 0 else less if high < 0 else neither


def signed(e: Estimate) -> str:
    """A difference with its sign and 95 % interval: `+0.012 [0.004, 0.020]`; one seed has none; "no value" for NaN."""
    if not math.isfinite(e.value):
        return "no value"
    low, high = e.interval()
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{e.value:+.4f} (no interval)"
    return f"{e.value:+.4f} [{low:.4f}, {high:.4f}]"
