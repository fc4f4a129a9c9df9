"""A probabilistic context-free grammar as arrays: checked, normalised, known to end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse.csgraph import connected_components

from sameloss.errors import UserError


class Rule(NamedTuple):
    """`left -> right` with probability p; `line` is where it stands in its file (0: not from a file)."""

    left: str
    right: tuple[str, ...]
    p: float
    line: int = 0


@dataclass(frozen=True)
class Grammar:
    """Rules as arrays; symbol 0 is the start.

    binary: (R, 3) parent, left, right, sorted by (left, right); binary_p: (R,).
    unary: (U, 2) parent, child, a parent before its children; unary_p: (U,).
    emission: (N, V) p(symbol -> word). For every symbol its three kinds of rules sum to 1.
    correction: the largest |row sum - 1| before rows were normalised; corrected: the symbol it belongs to.
    """

    symbols: tuple[str, ...]
    vocab: tuple[str, ...]
    binary: Int[np.ndarray, "R 3"]
    binary_p: Float[np.ndarray, " R"]
    unary: Int[np.ndarray, "U 2"]
    unary_p: Float[np.ndarray, " U"]
    emission: Float[np.ndarray, "N V"]
    correction: float
    corrected: str


def from_rules(rules: Sequence[Rule], where: str = "grammar") -> Grammar:
    """Checked, normalised arrays of `rules`; the left side of the first rule is the start.

    Whatever appears on a left side is a symbol, everything else a word. Equal rules add up.
    UserError names `where`, the line, what was found and what is allowed.
    """
    if not rules:
        raise UserError(f"{where}: no rule found; at least one is needed")
    first_line: dict[str, int] = {}
    for rule in rules:
        first_line.setdefault(rule.left, rule.line)
        if not (np.isfinite(rule.p) and 0 <= rule.p <= 1):
            raise UserError(f"{_at(where, rule.line)}: the probability is {rule.p}; allowed is 0 to 1")
    symbols = tuple(first_line)
    number = {name: a for a, name in enumerate(symbols)}
    words: dict[str, int] = {}
    binary: dict[tuple[int, int, int], float] = {}
    unary: dict[tuple[int, int], float] = {}
    emitted: dict[tuple[int, int], float] = {}
    for left, right, p, line in rules:
        a = number[left]
        if len(right) == 2:
            for name in right:
                if name not in number:
                    raise UserError(
                        f"{_at(where, line)}: unknown symbol {name!r}; a pair needs two symbols with rules of their own"
                    )
            pair = (number[right[0]], number[right[1]], a)
            binary[pair] = binary.get(pair, 0.0) + p
        elif right[0] in number:
            unary[a, number[right[0]]] = unary.get((a, number[right[0]]), 0.0) + p
        else:
            key = (a, words.setdefault(right[0], len(words)))
            emitted[key] = emitted.get(key, 0.0) + p
    pairs = sorted((b, c, a) for (b, c, a), p in binary.items() if p > 0)
    chains = [key for key, p in unary.items() if p > 0]
    emission = np.zeros((len(symbols), len(words)))
    for (a, v), p in emitted.items():
        emission[a, v] = p
    grammar = Grammar(
        symbols,
        tuple(words),
        np.array([(a, b, c) for b, c, a in pairs], dtype=np.int64).reshape(-1, 3),
        np.array([binary[pair] for pair in pairs], dtype=np.float64),
        np.array(chains, dtype=np.int64).reshape(-1, 2),
        np.array([unary[chain] for chain in chains], dtype=np.float64),
        emission,
        0.0,
        symbols[0],
    )
    grammar = _normalised(grammar, where, first_line)
    _refuse_endless(grammar, where, first_line)
    order = _parents_first(grammar.unary)
    return replace(grammar, unary=grammar.unary[order], unary_p=grammar.unary_p[order])


def _at(where: str, line: int) -> str:
    return f"{where}, line {line}" if line else where


def _normalised(g: Grammar, where: str, first_line: dict[str, int]) -> Grammar:
    total = g.emission.sum(axis=1)
    np.add.at(total, g.binary[:, 0], g.binary_p)
    np.add.at(total, g.unary[:, 0], g.unary_p)
    if (total <= 0).any():
        name = g.symbols[int(np.argmax(total <= 0))]
        raise UserError(f"{_at(where, first_line[name])}: the rules of {name!r} sum to 0; a sum above 0 is needed")
    worst = int(np.argmax(np.abs(total - 1)))
    return replace(
        g,
        binary_p=g.binary_p / total[g.binary[:, 0]],
        unary_p=g.unary_p / total[g.unary[:, 0]],
        emission=g.emission / total[:, None],
        correction=float(abs(total[worst] - 1)),
        corrected=g.symbols[worst],
    )


def mean_children(g: Grammar) -> Float[np.ndarray, "N N"]:
    """The mean number of symbols b that one rewriting of symbol a puts in its place."""
    mean = np.zeros((len(g.symbols), len(g.symbols)))
    np.add.at(mean, (g.binary[:, 0], g.binary[:, 1]), g.binary_p)
    np.add.at(mean, (g.binary[:, 0], g.binary[:, 2]), g.binary_p)
    np.add.at(mean, (g.unary[:, 0], g.unary[:, 1]), g.unary_p)
    return mean


def _refuse_endless(g: Grammar, where: str, first_line: dict[str, int]) -> None:
    """UserError for symbols that never end, unary cycles and a mean sentence length that is infinite."""
    ends = g.emission.sum(axis=1) > 0
    for _ in g.symbols:
        ends[g.binary[ends[g.binary[:, 1]] & ends[g.binary[:, 2]], 0]] = True
        ends[g.unary[ends[g.unary[:, 1]], 0]] = True
    if not ends.all():
        name = g.symbols[int(np.argmin(ends))]
        raise UserError(f"{_at(where, first_line[name])}: the rules of {name!r} never end in words")
    chain = np.zeros((len(g.symbols), len(g.symbols)), dtype=np.int64)
    chain[g.unary[:, 0], g.unary[:, 1]] = 1
    mean = mean_children(g)
    for matrix, what in ((chain, "unary"), (mean, "all")):
        _, group = connected_components(matrix > 0, connection="strong")
        for k in np.unique(group):
            members = np.flatnonzero(group == k)
            block = matrix[np.ix_(members, members)]
            name = g.symbols[members[0]]
            if what == "unary" and block.any():
                cycle = " -> ".join([g.symbols[m] for m in members] + [name])
                raise UserError(
                    f"{_at(where, first_line[name])}: the cycle {cycle} of single-symbol rules is not allowed"
                )
            radius = float(np.abs(np.linalg.eigvals(block)).max())
            if what == "all" and radius > 1 - 1e-9:
                raise UserError(
                    f"{_at(where, first_line[name])}: the rule cycle through {name!r} never ends on average "
                    f"({radius:.4g} new symbols of its kind for each one; under 1 is needed)"
                )


def _parents_first(unary: Int[np.ndarray, "U 2"]) -> list[int]:
    """An order of the rules (they have no cycle) in which a symbol has been a child before it is a parent."""
    depth: dict[int, int] = {}
    for _ in unary:
        for a, b in unary.tolist():
            depth[b] = max(depth.get(b, 0), depth.get(a, 0) + 1)
    return sorted(range(len(unary)), key=lambda u: depth.get(int(unary[u, 0]), 0))


def longest(g: Grammar) -> int | None:
    """The length of the longest sentence; None when there is none because the grammar is recursive."""
    graph = mean_children(g) > 0
    groups, _ = connected_components(graph, connection="strong")
    if groups < len(g.symbols) or graph.diagonal().any():
        return None
    most = [int(emits) for emits in g.emission.sum(axis=1) > 0]  # whole numbers of any size
    for _ in g.symbols:
        for a, b, c in g.binary.tolist():
            most[a] = max(most[a], most[b] + most[c])
        for a, b in g.unary.tolist():
            most[a] = max(most[a], most[b])
    return most[0]


def length_distribution(g: Grammar, max_length: int) -> Float[np.ndarray, "N L"]:
    """p(a symbol derives exactly l words), (N, max_length + 1)."""
    q = np.zeros((len(g.symbols), max_length + 1))
    for n in range(1, max_length + 1):
        if n == 1:
            q[:, 1] = g.emission.sum(axis=1)
        else:
            both = (q[g.binary[:, 1], 1:n] * q[g.binary[:, 2], n - 1 : 0 : -1]).sum(axis=1)
            np.add.at(q[:, n], g.binary[:, 0], g.binary_p * both)
        for (a, b), p in zip(g.unary[::-1], g.unary_p[::-1], strict=True):
            q[a, n] += p * q[b, n]
    return q


def derivable(g: Grammar, max_length: int) -> Bool[np.ndarray, "N L"]:
    """Whether a symbol can derive l words, (N, max_length + 1); free of underflow."""
    can = np.zeros((len(g.symbols), max_length + 1), dtype=bool)
    for n in range(1, max_length + 1):
        if n == 1:
            can[:, 1] = g.emission.sum(axis=1) > 0
        else:
            both = (can[g.binary[:, 1], 1:n] & can[g.binary[:, 2], n - 1 : 0 : -1]).any(axis=1)
            can[g.binary[both, 0], n] = True
        for a, b in g.unary[::-1]:
            can[a, n] |= can[b, n]
    return can


def word_counts(g: Grammar, max_length: int) -> Float[np.ndarray, "L V"]:
    """E[number of times word v occurs; the sentence has l words], (max_length + 1, V)."""
    q = length_distribution(g, max_length)
    counts = np.zeros((len(g.symbols), max_length + 1, len(g.vocab)))
    for n in range(1, max_length + 1):
        if n == 1:
            counts[:, 1] = g.emission
        else:
            left, right = g.binary[:, 1], g.binary[:, 2]
            both = np.einsum("rkv,rk->rv", counts[left, 1:n], q[right, n - 1 : 0 : -1])
            both += np.einsum("rkv,rk->rv", counts[right, 1:n], q[left, n - 1 : 0 : -1])
            np.add.at(counts[:, n], g.binary[:, 0], g.binary_p[:, None] * both)
        for (a, b), p in zip(g.unary[::-1], g.unary_p[::-1], strict=True):
            counts[a, n] += p * counts[b, n]
    return counts[0]
