"""The downstream task: count brackets with a least-norm linear head fitted on a few examples, and how often that works.

Downstream rows are uniform over {±1}^T and the target is 1·x, the number of ( minus the number of ). A head sits on the
attention output z ("attention") or on the hidden layer ("relu"); it has no bias. (Liu et al. 2022, §6.)
"""

import math
from itertools import combinations_with_replacement
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from sameloss.errors import UserError
from sameloss.languages.dyck import mismatch
from sameloss.theory.dyck_net import DyckNet, attended, features

Head = Literal["attention", "relu"]
HEADS: tuple[Head, ...] = ("attention", "relu")
RCOND = 1e-8  # singular values below it, relative to the largest, are rounding
SUCCESS = 1e-8  # population error that counts as zero
MOST_ROWS = 2**16
MOST_SAMPLES = 400_000
BLOCK = 2**22  # numbers that the examples of all samples fitted at once hold


def all_rows(length: int) -> Float[np.ndarray, "2^T T"]:
    """Every row of {±1}^T; UserError above 2^16 of them."""
    if 2**length > MOST_ROWS:
        raise UserError(
            f"T = {length}: 2^{length} = {2**length:,} rows to enumerate, more than the {MOST_ROWS:,} allowed"
        )
    return 1.0 - 2.0 * ((np.arange(2**length)[:, None] >> np.arange(length)[::-1]) & 1)


def representation(net: DyckNet, rows: Float[np.ndarray, "n T"], head: Head) -> Float[np.ndarray, "n k"]:
    """What the head sees."""
    if head not in HEADS:
        raise UserError(f"head {head!r} is unknown; allowed: {', '.join(HEADS)}")
    return attended(net, rows) if head == "attention" else features(net, rows)


def minimum_norm(
    inputs: Float[np.ndarray, "... n k"], targets: Float[np.ndarray, "... n"]
) -> Float[np.ndarray, "... k"]:
    """The head of least norm among those of least squared error: pinv(inputs) targets, for any leading batch."""
    if inputs.shape[-2] >= inputs.shape[-1]:
        return (np.linalg.pinv(inputs, rcond=RCOND) @ targets[..., None])[..., 0]
    # Few examples of many features: an orthonormal basis of their span first leaves a small square problem.
    basis, corner = np.linalg.qr(np.swapaxes(inputs, -1, -2))
    inside = np.linalg.pinv(np.swapaxes(corner, -1, -2), rcond=RCOND) @ targets[..., None]
    return (basis @ inside)[..., 0]


def head_errors(
    heads: Float[np.ndarray, "b k"], inputs: Float[np.ndarray, "n k"], targets: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " b"]:
    """Mean squared error of each head over the rows given: over all of `all_rows` it is the population error."""
    if inputs.shape[1] > len(inputs):  # more features than rows: their products would not fit into memory
        return ((inputs @ heads.T - targets[:, None]) ** 2).mean(axis=0)
    # A quadratic form in k + 1 numbers, so that rows are summed once and not once a head.
    table = np.column_stack([inputs, targets])
    vectors = np.column_stack([heads, -np.ones(len(heads))])
    return np.maximum((vectors @ (table.T @ table / len(table)) * vectors).sum(axis=1), 0)


def errors_after(
    samples: Int[np.ndarray, "s n"], inputs: Float[np.ndarray, "N k"], targets: Float[np.ndarray, " N"]
) -> Float[np.ndarray, " s"]:
    """Error over all rows of the head fitted on each sample of row numbers; memory for a block of samples at a time."""
    size = max(1, BLOCK // (samples.shape[1] * inputs.shape[1]))
    parts = [samples[first : first + size] for first in range(0, len(samples), size)]
    return np.concatenate([head_errors(minimum_norm(inputs[p], targets[p]), inputs, targets) for p in parts])


def sampled_errors(
    net: DyckNet, head: Head, n: int, trials: int, rng: np.random.Generator
) -> Float[np.ndarray, " trials"]:
    """Population error (exact, by enumeration) of the head fitted on `n` uniform rows, once a trial."""
    rows = all_rows(net.attention.shape[1])
    inputs, targets = representation(net, rows, head), mismatch(rows)
    return errors_after(rng.integers(len(rows), size=(trials, n)), inputs, targets)


def exact_head(net: DyckNet, head: Head, n: int) -> tuple[float, float]:
    """P(population error is zero) and E[population error] after `n` examples, over *all* samples there are.

    Rows with the same representation and target are one row with a weight, and a sample is a multiset of them: of 2^T
    rows T + 1 remain for the flattest nets. UserError when more than 400 000 multisets are left.
    """
    rows = all_rows(net.attention.shape[1])
    inputs, targets = representation(net, rows, head), mismatch(rows)
    _, first, times = np.unique(
        np.column_stack([inputs, targets]).round(9) + 0.0, axis=0, return_index=True, return_counts=True
    )
    samples = math.comb(len(first) + n - 1, n)
    if samples > MOST_SAMPLES:
        raise UserError(f"n = {n}: {samples:,} different samples to enumerate, more than the {MOST_SAMPLES:,} allowed")
    picked = np.array(list(combinations_with_replacement(range(len(first)), n)), dtype=np.int64).reshape(samples, n)
    probability = orderings(picked) * np.prod(times[picked] / len(rows), axis=1)
    error = errors_after(first[picked], inputs, targets)
    return float(probability[error < SUCCESS].sum()), float(probability @ error)


def orderings(picked: Int[np.ndarray, "s n"]) -> Float[np.ndarray, " s"]:
    """In how many orders each sorted row can be drawn: n! over the factorials of its repetitions."""
    run = np.ones(len(picked))
    repeats = np.ones(len(picked))
    for j in range(1, picked.shape[1]):
        run = np.where(picked[:, j] == picked[:, j - 1], run + 1, 1)
        repeats *= run
    return math.factorial(picked.shape[1]) / repeats


def balance_probability(length: int) -> float:
    """p₀ = C(T, T/2) / 2^T: a uniform row has target 0 and teaches the head nothing."""
    return math.comb(length, length // 2) / 2**length


def flattest_success(length: int, n: int, head: Head) -> float:
    """P(zero population error) for A = r v 1ᵀ after `n` examples.

    Attention: some target is not 0, 1 - p₀ⁿ. ReLU: one target above and one below 0, 1 - 2 ((1+p₀)/2)ⁿ + p₀ⁿ.
    """
    p0 = balance_probability(length)
    return 1 - p0**n if head == "attention" else 1 - 2 * ((1 + p0) / 2) ** n + p0**n


def flattest_error(length: int, n: int, head: Head) -> float:
    """E[population error] for A = r v 1ᵀ after `n` examples: T p₀ⁿ (attention), T ((1+p₀)/2)ⁿ (ReLU)."""
    p0 = balance_probability(length)
    return length * (p0 if head == "attention" else (1 + p0) / 2) ** n
