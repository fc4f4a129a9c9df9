"""Alias tables (Walker 1977) and a fast source of random numbers for compiled loops.

Compiled callers are cached by their own file alone: after a change here, touch the files that import it.
"""

import numpy as np
from jaxtyping import Float, Int
from numba import njit

from sameloss import seeds


def alias(p: Float[np.ndarray, " k"]) -> tuple[Float[np.ndarray, " k"], Int[np.ndarray, " k"]]:
    """Walker's tables of a distribution: entry j is kept with probability keep[j], else replaced by other[j]."""
    keep = p / p.sum() * len(p)
    other = np.arange(len(p))
    low = [j for j in range(len(p)) if keep[j] < 1]
    high = [j for j in range(len(p)) if keep[j] >= 1]
    while low and high:
        small, large = low.pop(), high[-1]
        other[small] = large
        keep[large] -= 1 - keep[small]
        if keep[large] < 1:
            low.append(high.pop())
    for j in low + high:  # what rounding left over
        keep[j] = 1.0
    return keep, other


def beginning(seed: int, purpose: str) -> np.uint64:
    """The state from which `uniform` starts in the stream `purpose` of `seed`."""
    return seeds.stream(seed, purpose).integers(2**64, dtype=np.uint64)


@njit(cache=True, inline="always")
def uniform(state):
    """The next state and a number in [0, 1): splitmix64 (Steele, Lea and Flood 2014), without a call to a generator."""
    state += np.uint64(0x9E3779B97F4A7C15)
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return state, np.float64(np.int64(z >> np.uint64(11))) * 2.0**-53
