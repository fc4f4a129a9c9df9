"""Sentences of a grammar by alias tables and a stack, one sentence after the other."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numba import njit

from sameloss.languages.alias import alias, uniform
from sameloss.languages.base import PAD
from sameloss.languages.grammar import Grammar

NOTHING = np.iinfo(np.int64).min


class AliasTables(NamedTuple):
    """What each symbol can become: entries start[a], ..., start[a] + size[a] - 1 of symbol a are equally probable.

    Entry j is outcome[j, 0] with probability keep[j], else outcome[j, 1]: a choice costs one random number and one
    row of memory. An outcome holds two numbers (`unpack`): a symbol or -1 - word, and a second symbol or -1.
    """

    start: Int[np.ndarray, " N"]
    size: Float[np.ndarray, " N"]
    keep: Float[np.ndarray, " J"]
    outcome: Int[np.ndarray, "J 2"]


def pack(first: Int[np.ndarray, " J"], second: Int[np.ndarray, " J"]) -> Int[np.ndarray, " J"]:
    """Two small numbers in one."""
    return (first.astype(np.int64) << 32) | (second.astype(np.int64) & 0xFFFFFFFF)


@njit(cache=True)
def unpack(outcome):
    """The two numbers of an outcome."""
    return np.int64(outcome >> 32), np.int64(np.int32(outcome & 0xFFFFFFFF))


def alias_tables(g: Grammar) -> AliasTables:
    """Alias tables of every symbol over its binary rules, its unary rules and its words."""
    size, keep, outcome = [], [], []
    for a in range(len(g.symbols)):
        pairs, chain = g.binary[:, 0] == a, g.unary[:, 0] == a
        words = np.flatnonzero(g.emission[a])
        p = np.r_[g.binary_p[pairs], g.unary_p[chain], g.emission[a, words]]
        first = np.r_[g.binary[pairs, 1], g.unary[chain, 1], -1 - words]
        second = np.r_[g.binary[pairs, 2], np.full(len(p) - int(pairs.sum()), -1)]
        kept, other = alias(p)
        size.append(len(p))
        keep.append(kept)
        outcome.append(np.column_stack([pack(first, second), pack(first[other], second[other])]))
    start = np.cumsum([0, *size[:-1]])
    return AliasTables(
        start.astype(np.uint64), np.array(size, dtype=np.float64), np.concatenate(keep), np.concatenate(outcome)
    )


@njit(cache=True)
def sample(tables, n, max_length, state, record):
    """n sentences of at most max_length words (longer ones are drawn again), and the choices made if `record` > 0.

    `state` begins the random numbers. Returns tokens (n, max_length), lengths (n,), choices (n, record): the outcomes
    taken, a parent before its children and left before right, NOTHING behind the end.
    """
    # Unsigned numbers: indexing with them costs no test for a negative index.
    one = np.uint64(1)
    limit = np.uint64(max_length)
    tokens = np.full((n, max_length), PAD, dtype=np.int64)
    lengths = np.empty(n, dtype=np.int64)
    choices = np.full((n, record), NOTHING, dtype=np.int64)
    stack = np.empty(max_length + 2, dtype=np.uint64)
    for i in range(n):
        words, depth, taken = np.uint64(0), one, 0
        stack[0] = np.uint64(0)
        while depth > np.uint64(0):
            depth -= one
            a = stack[depth]
            state, u = uniform(state)
            u *= tables.size[a]
            k = np.uint64(u)
            j = tables.start[a] + k
            chosen = tables.outcome[j, np.uint64(u - np.float64(k) >= tables.keep[j])]
            first, second = unpack(chosen)
            if taken < record:
                choices[i, taken] = chosen
            taken += 1
            if first < 0:
                tokens[i, words] = -1 - first
                words += one
                continue
            if second >= 0:
                stack[depth] = np.uint64(second)
                depth += one
            stack[depth] = np.uint64(first)
            depth += one
            if words + depth > limit:  # too long whatever follows: begin again
                tokens[i] = PAD
                choices[i] = NOTHING
                words, depth, taken = np.uint64(0), one, 0
                stack[0] = np.uint64(0)
        lengths[i] = words
    return tokens, lengths, choices
