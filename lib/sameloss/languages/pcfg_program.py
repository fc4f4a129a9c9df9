"""The chart of one sentence length as a straight list of operations over the few spans that can occur."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numba import njit

from sameloss.languages.grammar import Grammar

ONE = 0  # a slot whose inside value is always 1: a unary rule is a pair with it


class Program(NamedTuple):
    """Everything the kernels need to fill the chart of sentences with T words.

    A slot is a (symbol, first word, number of words) that some sentence of this length can contain. Slot 0 is ONE,
    slot 1 + t * len(emitters) + e is emitter e over word t, `slot` has all. Operation o adds, for its splits s and
    its rules r, p[r] * sum_s inside[left[s]] * inside[right[s]] to inside[parent[r]]; shorter spans come first.
    """

    length: int
    slots: int
    emitters: Int[np.ndarray, " E"]  # symbols that emit words
    slot: Int[np.ndarray, "N T T+1"]  # symbol, first word, number of words -> slot, or -1
    split_start: Int[np.ndarray, " O+1"]
    left: Int[np.ndarray, " S"]
    right: Int[np.ndarray, " S"]
    rule_start: Int[np.ndarray, " O+1"]
    parent: Int[np.ndarray, " R"]
    p: Float[np.ndarray, " R"]
    log_p: Float[np.ndarray, " R"]


def compile_program(g: Grammar, can: Bool[np.ndarray, "N L"], length: int, roots: Int[np.ndarray, " K"]) -> Program:
    """The program for sentences of `length` words whose whole is derived by one of `roots`.

    can: (N, at least length + 1) whether a symbol derives that many words (`grammar.derivable`).
    """
    pairs = np.flatnonzero(np.r_[True, (g.binary[1:, 1:] != g.binary[:-1, 1:]).any(axis=1)] if len(g.binary) else [])
    emitters = np.flatnonzero(g.emission.sum(axis=1) > 0)
    emits = np.full(len(g.symbols), -1, dtype=np.int64)
    emits[emitters] = np.arange(len(emitters))
    slots, slot, split_start, left, right, rule_start, parent, p = _compile(
        length,
        roots,
        np.ascontiguousarray(can[:, : length + 1]),
        emits,
        len(emitters),
        np.r_[pairs, len(g.binary)],
        g.binary,
        g.binary_p,
        g.unary,
        g.unary_p,
    )
    return Program(length, slots, emitters, slot, split_start, left, right, rule_start, parent, p, np.log(p))


@njit(cache=True)
def _needed(length, roots, can, binary, unary):
    """need[a, i, n]: can symbol a stand over the n words from i in a sentence derived from one of the roots?"""
    need = np.zeros((can.shape[0], length, length + 1), dtype=np.bool_)
    for a in roots:
        need[a, 0, length] = can[a, length]
    for n in range(length, 0, -1):
        for i in range(length - n + 1):
            for u in range(len(unary)):  # parents first
                if need[unary[u, 0], i, n] and can[unary[u, 1], n]:
                    need[unary[u, 1], i, n] = True
            for r in range(len(binary)):
                a, b, c = binary[r]
                if need[a, i, n]:
                    for k in range(1, n):
                        if can[b, k] and can[c, n - k]:
                            need[b, i, k] = True
                            need[c, i + k, n - k] = True
    return need


@njit(cache=True)
def _compile(length, roots, can, emits, n_emit, pair_start, binary, binary_p, unary, unary_p):
    need = _needed(length, roots, can, binary, unary)
    slot = np.full(need.shape, -1, dtype=np.int32)
    slots = 1 + length * n_emit
    for n in range(1, length + 1):
        for i in range(length - n + 1):
            for a in range(need.shape[0]):
                if need[a, i, n]:
                    if n == 1 and emits[a] >= 0:
                        slot[a, i, n] = 1 + i * n_emit + emits[a]
                    else:
                        slot[a, i, n] = slots
                        slots += 1
    # First round counts, second round fills.
    split_start = np.zeros(1, dtype=np.int32)
    rule_start = np.zeros(1, dtype=np.int32)
    left = np.zeros(0, dtype=np.int32)
    right = np.zeros(0, dtype=np.int32)
    parent = np.zeros(0, dtype=np.int32)
    p = np.zeros(0)
    for fill in range(2):
        ops, splits, rules = 0, 0, 0
        for n in range(1, length + 1):
            for i in range(length - n + 1):
                for q in range(len(pair_start) - 1):
                    b, c = binary[pair_start[q], 1], binary[pair_start[q], 2]
                    first_rule, first_split = rules, splits
                    for r in range(pair_start[q], pair_start[q + 1]):
                        if need[binary[r, 0], i, n]:
                            if fill:
                                parent[rules] = slot[binary[r, 0], i, n]
                                p[rules] = binary_p[r]
                            rules += 1
                    if rules == first_rule:
                        continue
                    for k in range(1, n):
                        if can[b, k] and can[c, n - k]:
                            if fill:
                                left[splits] = slot[b, i, k]
                                right[splits] = slot[c, i + k, n - k]
                            splits += 1
                    if splits == first_split:
                        rules = first_rule
                        continue
                    ops += 1
                    if fill:
                        split_start[ops] = splits
                        rule_start[ops] = rules
                for u in range(len(unary) - 1, -1, -1):  # children first
                    if need[unary[u, 0], i, n] and can[unary[u, 1], n]:
                        if fill:
                            left[splits] = slot[unary[u, 1], i, n]
                            right[splits] = 0
                            parent[rules] = slot[unary[u, 0], i, n]
                            p[rules] = unary_p[u]
                            split_start[ops + 1] = splits + 1
                            rule_start[ops + 1] = rules + 1
                        ops += 1
                        splits += 1
                        rules += 1
        if not fill:
            split_start = np.zeros(ops + 1, dtype=np.int32)
            rule_start = np.zeros(ops + 1, dtype=np.int32)
            left = np.zeros(splits, dtype=np.int32)
            right = np.zeros(splits, dtype=np.int32)
            parent = np.zeros(rules, dtype=np.int32)
            p = np.zeros(rules)
    return slots, slot, split_start, left, right, rule_start, parent, p
