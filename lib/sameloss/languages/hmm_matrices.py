"""The matrices of a hidden Markov model: checked where they enter, and where its chain settles."""

import numpy as np
from jaxtyping import Float

from sameloss.errors import UserError


def stochastic(name: str, matrix: Float[np.ndarray, "r c"], shape: tuple[int, int | None]) -> Float[np.ndarray, "r c"]:
    """A float64 copy with rows that sum to 1; UserError names the matrix and row."""
    table = np.array(matrix, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != shape[0] or shape[1] not in (None, table.shape[1]) or table.size == 0:
        wanted = f"({shape[0]}, {shape[1] or 'words'})"
        raise UserError(f"{name} has shape {table.shape}; {wanted} is needed")
    bad = ~(np.isfinite(table) & (table >= 0)).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        found = table[row][~(np.isfinite(table[row]) & (table[row] >= 0))][0]
        raise UserError(f"{name}, row {row}: holds {found}; numbers from 0 to 1 are needed")
    total = table.sum(axis=1, keepdims=True)
    if (np.abs(total - 1) > 1e-6).any():
        row = int(np.argmax(np.abs(total - 1)))
        raise UserError(f"{name}, row {row}: sums to {total[row, 0]:.6g}; 1 is needed")
    return table / total


def stationary(transition: Float[np.ndarray, "S S"]) -> Float[np.ndarray, " S"]:
    """The distribution that one step of a chain with positive entries leaves as it is, (S,)."""
    states = len(transition)
    system = np.vstack([transition.T - np.eye(states), np.ones(states)])
    solution = np.linalg.lstsq(system, np.r_[np.zeros(states), 1.0], rcond=None)[0]
    return np.maximum(solution, 0) / np.maximum(solution, 0).sum()
