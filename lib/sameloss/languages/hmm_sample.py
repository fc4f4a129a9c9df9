"""Sentences of a hidden Markov model by alias tables, with the states they were made by."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numba import njit

from sameloss.languages.alias import alias, uniform


class Rows(NamedTuple):
    """Alias tables of the rows of a stochastic matrix: entry [r, k] is kept with probability keep[r, k]."""

    keep: Float[np.ndarray, "R C"]
    other: Int[np.ndarray, "R C"]


def rows(matrix: Float[np.ndarray, "R C"]) -> Rows:
    """The tables of every row."""
    tables = [alias(row) for row in matrix]
    return Rows(np.stack([keep for keep, _ in tables]), np.stack([other for _, other in tables]))


@njit(cache=True)
def _draw(table, row, u):
    columns = table.keep.shape[1]
    k = np.uint64(u * columns)
    return np.int64(k) if u * columns - np.float64(k) < table.keep[row, k] else table.other[row, k]


@njit(cache=True)
def sample(tables, n, length, state):
    """States and words, (n, length) each, of n sentences from the tables of start, transition and emission.

    `state` begins the random numbers.
    """
    start, transition, emission = tables
    states = np.empty((n, length), dtype=np.int64)
    words = np.empty((n, length), dtype=np.int64)
    for i in range(n):
        z = np.int64(0)
        for t in range(length):
            state, u = uniform(state)
            z = _draw(transition, z, u) if t else _draw(start, z, u)
            states[i, t] = z
            state, u = uniform(state)
            words[i, t] = _draw(emission, z, u)
    return states, words
