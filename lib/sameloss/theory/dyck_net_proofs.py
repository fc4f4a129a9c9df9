"""The finite part of the bracket theorem's proofs: what equality in the bound leaves free, length by length."""

from itertools import product

import numpy as np
from jaxtyping import Float
from scipy.linalg import null_space

from sameloss.errors import UserError
from sameloss.languages.dyck import Kind, enumerate_words, masked_inputs

LONGEST = 10  # 2^T patterns of on and off, each tested on every input


def readable_patterns(length: int, kind: Kind) -> Float[np.ndarray, "k T"]:
    """Every linear function a·x, up to a factor, that is 0 or 1 on all inputs of label +; one row a each.

    At the bound a neuron of positive sign reads the same value on all its active inputs, and at most 0 on the others.
    On the equal-count language that is exactly 0, because with x the language also holds -x, so these are all it may
    read; on the strict language it may be negative, and these are only some. The row of zeros is a dead neuron. Rows
    are least-norm: on the strict language the inputs of label + leave one direction open.
    """
    if length > LONGEST:
        raise UserError(f"T = {length}: 2^{length} patterns to test on every input; at most T = {LONGEST}")
    x, y = masked_inputs(enumerate_words(length, kind))
    positive = x[y > 0]
    basis = independent_rows(positive)
    patterns = np.array(list(product((0.0, 1.0), repeat=len(basis))))
    functions = patterns @ np.linalg.pinv(basis).T
    values = functions @ positive.T
    return functions[(np.abs(values * (1 - values)) < 1e-9).all(axis=1)]


def independent_rows(rows: Float[np.ndarray, "n T"]) -> Float[np.ndarray, "r T"]:
    """The first rows that are linearly independent: a basis of the space they span."""
    kept: list[np.ndarray] = []
    for row in rows:
        if np.linalg.matrix_rank(np.array([*kept, row])) > len(kept):
            kept.append(row)
    return np.array(kept)


def freedom(length: int, kind: Kind, label: int) -> int:
    """Dimension of what may be added to AᵀA = r² 11ᵀ when one neuron serves all inputs of `label`.

    That neuron makes z the same for all of them, so that A vanishes on their differences;
    |z| = r for every input then gives linear equations for the symmetric matrix AᵀA on the
    rest. 0: the flattest net has one direction.
    """
    x, y = masked_inputs(enumerate_words(length, kind))
    same = x[y == label]
    # Orthonormal columns; the row of zeros is for T = 2, where there are no differences.
    rest = null_space(np.vstack([same - same[0], np.zeros(length)]))
    left = x @ rest
    unknowns = rest.shape[1] * (rest.shape[1] + 1) // 2
    upper = np.triu_indices(rest.shape[1])
    equations = left[:, upper[0]] * left[:, upper[1]]
    return unknowns - int(np.linalg.matrix_rank(equations))
