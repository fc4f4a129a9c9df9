"""Downstream tasks of a grammar: which symbol stands over the sentence, over a prefix of it (Liu et al. 2022, A.2).

A     the rule of the start that made the sentence.
B, C  the symbol over the first half, the first quarter of the longest sentence (max_length // 2 and // 4 words,
      cut to the sentence when it is shorter): 16 and 8 words for the paper's sizes.
left  the start's left child, where all rules of the start are pairs.

Two definitions of a label:
inside     the class with the largest probability of *producing the words of the span*, argmax p(words | class). It
           looks at the span alone and needs no prior. Default of B and C.
posterior  the most probable class *given the whole sentence*, argmax p(class | x). Default of A and left.

The class "none" says that no symbol can produce the words (inside), or that most probably no symbol stands over
exactly these words (posterior); it is left out where that cannot happen. The start itself is no class of B and C.

The code released with the paper labels A by the best root among its S1..S9, and B and C by the best inside score over
the first 4 and 2 words: the quarter and the eighth of its longest sentence (16 words), not the half and the quarter of
the paper's text, and without a class for a span that no symbol covers. `prefixes={"B": 4, "C": 2}` has its spans.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from sameloss.errors import UserError
from sameloss.languages.base import Sentences
from sameloss.languages.grammar import Grammar
from sameloss.languages.pcfg_charts import Charts, by_length

NONE = "none"
DEFAULT = {"A": "posterior", "left": "posterior"}


class Tasks:
    """The tasks of one grammar. `prefixes`: name -> number of first words (B and C as above, when not given)."""

    def __init__(self, grammar: Grammar, max_length: int, prefixes: Mapping[str, int] | None = None) -> None:
        self._grammar = grammar
        rooted, self._root_names, self._left = with_root_rules(grammar)
        self._charts = Charts(rooted, max_length)
        self._rules = np.arange(len(grammar.symbols), len(rooted.symbols))
        self._prefixes = dict(prefixes or {"B": max(1, max_length // 2), "C": max(1, max_length // 4)})
        lengths = np.flatnonzero(self._charts.can[0])
        self._symbols: dict[str, Int[np.ndarray, " K"]] = {}
        self._none: dict[str, bool] = {}
        for task, prefix in self._prefixes.items():
            spans = np.minimum(lengths, prefix)
            fits = self._charts.can[1 : len(grammar.symbols), spans].any(axis=1)
            self._symbols[task] = 1 + np.flatnonzero(fits)
            self._none[task] = self._can_fail(task, lengths)
        self._lefts = np.unique(self._left) if (self._left >= 0).all() else np.zeros(0, dtype=np.int64)

    def _can_fail(self, task: str, lengths: Int[np.ndarray, " L"]) -> bool:
        """Whether some sentence has no symbol of the task over its prefix, or may have none."""
        g = self._charts.grammar
        if (g.emission[self._charts.emitters] == 0).any():
            return True
        # With all emissions positive only the shape of trees matters: a grammar that has a single word.
        shape = Charts(replace(g, emission=g.emission.sum(axis=1, keepdims=True)), int(lengths.max()))
        for length in lengths.tolist():
            words = np.zeros((1, length), dtype=np.int64)
            prefix = min(length, self._prefixes[task])
            if shape.prefix_posteriors(words, self._symbols[task], prefix).sum() < 1 - 1e-9:
                return True
        return False

    @property
    def sizes(self) -> dict[str, int]:
        """Task -> number of classes."""
        names = ["A", *self._prefixes] + (["left"] if len(self._lefts) else [])
        return {name: len(self.classes(name)) for name in names}

    def classes(self, task: str) -> tuple[str, ...]:
        """The names of a task's classes, in the order of its labels."""
        if task == "A":
            return self._root_names
        if task in self._prefixes:
            names = tuple(self._grammar.symbols[a] for a in self._symbols[task])
            return (*names, NONE) if self._none[task] else names
        if task == "left" and len(self._lefts):
            return tuple(self._grammar.symbols[a] for a in self._lefts)
        known = ["A", *self._prefixes] + (["left"] if len(self._lefts) else [])
        raise UserError(f"unknown task {task!r}; known: {', '.join(known)}")

    def labels(self, task: str, sentences: Sentences, definition: str | None = None) -> Int[np.ndarray, " n"]:
        """The label of each sentence, (n,); UserError for a sentence of probability 0."""
        definition = definition or DEFAULT.get(task, "inside")
        if definition not in ("inside", "posterior") or (task == "left" and definition == "inside"):
            allowed = "posterior" if task == "left" else "inside, posterior"
            raise UserError(f"definition {definition!r} of task {task!r}; allowed: {allowed}")
        if definition == "posterior":
            return self.posteriors(task, sentences).argmax(axis=1)
        size = len(self.classes(task))
        symbols = self._rules if task == "A" else self._symbols[task]
        result = np.empty(len(sentences), dtype=np.int64)
        for length, rows in by_length(sentences, self._prefixes.get(task)):
            scores = self._charts.log_inside(sentences.tokens[rows, :length], symbols)
            nowhere = np.isneginf(scores).all(axis=1)
            if nowhere.any() and task == "A":
                _refuse(rows[nowhere])
            scores = np.column_stack([scores, np.where(nowhere, 0.0, -np.inf)])
            result[rows] = np.minimum(scores.argmax(axis=1), size - 1)
        return result

    def posteriors(self, task: str, sentences: Sentences) -> Float[np.ndarray, "n C"]:
        """p(class | sentence), (n, C); UserError for a sentence of probability 0.

        Where unary rules put several symbols over one span their probabilities are scaled to sum to at most 1.
        """
        result = np.zeros((len(sentences), len(self.classes(task))))
        symbols = self._symbols.get(task, self._rules)
        for length, rows in by_length(sentences):
            words = sentences.tokens[rows, :length]
            p = self._charts.prefix_posteriors(words, symbols, min(length, self._prefixes.get(task, length)))
            if np.isnan(p).any():
                _refuse(rows[np.isnan(p).any(axis=1)])
            if task == "left":
                p = p @ (self._left[:, None] == self._lefts).astype(np.float64)
            p = p / np.maximum(p.sum(axis=1, keepdims=True), 1.0)
            result[rows, : p.shape[1]] = p
            if self._none.get(task):
                result[rows, -1] = np.maximum(1 - p.sum(axis=1), 0.0)
        return result


def _refuse(rows: Int[np.ndarray, " m"]) -> None:
    raise UserError(f"sentence {rows[0] + 1} has probability 0 under this grammar; it has no label")


def with_root_rules(g: Grammar) -> tuple[Grammar, tuple[str, ...], Int[np.ndarray, " R"]]:
    """The same language with a symbol of its own for each rule of the start: start -> rule -> what the rule makes.

    Returns the grammar (new symbols behind the old), the names of the rules and the left child of each (-1: no pair).
    """
    pairs, chains = np.flatnonzero(g.binary[:, 0] == 0), np.flatnonzero(g.unary[:, 0] == 0)
    emits = g.emission[0].sum() > 0
    names = [f"{g.symbols[b]} {g.symbols[c]}" for _, b, c in g.binary[pairs].tolist()]
    names += [g.symbols[b] for _, b in g.unary[chains].tolist()] + (["a word"] if emits else [])
    new = np.arange(len(g.symbols), len(g.symbols) + len(names))
    binary, binary_p = g.binary.copy(), g.binary_p.copy()
    unary, unary_p = g.unary.copy(), g.unary_p.copy()
    emission = np.vstack([g.emission, np.zeros((len(new), len(g.vocab)))])
    weight = np.r_[binary_p[pairs], unary_p[chains], emission[0].sum() if emits else []]
    binary[pairs, 0], binary_p[pairs] = new[: len(pairs)], 1.0
    unary[chains, 0], unary_p[chains] = new[len(pairs) : len(pairs) + len(chains)], 1.0
    if emits:
        emission[new[-1]] = emission[0] / emission[0].sum()
        emission[0] = 0.0
    rooted = replace(
        g,
        symbols=(*g.symbols, *(f"{g.symbols[0]} -> {name}" for name in names)),
        binary=binary,
        binary_p=binary_p,
        unary=np.vstack([np.column_stack([np.zeros_like(new), new]), unary]),
        unary_p=np.r_[weight, unary_p],
        emission=emission,
    )
    return rooted, tuple(names), np.r_[binary[pairs, 1], np.full(len(names) - len(pairs), -1)]
