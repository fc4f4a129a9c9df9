"""Balanced brackets: the language whose every masked token is certain (Liu et al. 2022, §6).

A word is a row of T steps, +1 for `(` and -1 for `)`, that sum to 0. *Equal-count* words need no more than that;
*strict* (Dyck) words never close a bracket that was not opened: no prefix sum is negative.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from sameloss.errors import UserError
from sameloss.languages import base
from sameloss.languages.base import PAD, Sentences
from sameloss.measures.estimate import Estimate
from sameloss.seeds import stream

Kind = Literal["strict", "equal-count"]
KINDS: tuple[Kind, ...] = ("strict", "equal-count")
STEPS = np.array([1, -1], dtype=np.int8)  # token 0 is "(", token 1 is ")"
LONGEST = 10_000
MOST_ENTRIES = 2**23  # of one enumerated array: 64 MiB in float64


def check(length: int, kind: str) -> None:
    """UserError unless words of `length` brackets of this `kind` exist."""
    if kind not in KINDS:
        raise UserError(f"language {kind!r} is not a bracket language; allowed: {', '.join(KINDS)}")
    if not isinstance(length, bool) and isinstance(length, int | np.integer) and length > LONGEST:
        raise UserError(f"T = {length}: at most {LONGEST} brackets are allowed")
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 2 or length % 2:
        raise UserError(f"T = {length!r}: balanced words have as many ( as ), so T is an even integer of at least 2")


def count(length: int, kind: Kind) -> int:
    """Number of words: C(T, T/2) for equal counts, the Catalan number C(T, T/2) / (T/2 + 1) for strict ones."""
    check(length, kind)
    half = length // 2
    return math.comb(length, half) // (half + 1 if kind == "strict" else 1)


def enumerate_words(length: int, kind: Kind) -> Int[np.ndarray, "n T"]:
    """All words, (n, T) int8, in lexicographic order with `(` first.

    UserError when that is more than 2^23 numbers.
    """
    entries = count(length, kind) * length
    if entries > MOST_ENTRIES:
        raise UserError(
            f"T = {length}: the {count(length, kind):,} {kind} words make {entries:,} numbers to enumerate, more than "
            f"the {MOST_ENTRIES:,} allowed; take a smaller T or sample"
        )
    words = np.zeros((1, 0), dtype=np.int8)
    for _ in range(length):
        n, t = words.shape
        words = np.concatenate([np.repeat(words, 2, axis=0), np.tile(STEPS, n)[:, None]], axis=1)
        height = words.sum(axis=1, dtype=np.int64)
        # A prefix of t + 1 brackets is kept while neither kind of bracket is used up.
        possible = np.abs(height) <= length - t - 1
        if kind == "strict":
            possible &= height >= 0
        words = words[possible]
    return words


def sample_words(n: int, length: int, kind: Kind, rng: np.random.Generator) -> Int[np.ndarray, "n T"]:
    """`n` words, each uniform over the language, (n, T) int8; O(T) a word at any length.

    Strict words come from the cycle lemma (Dvoretzky and Motzkin 1947): of the T + 1 rotations of a row with T/2 steps
    up and T/2 + 1 down, exactly one stays at or above 0 until its last step, and it starts behind the first minimum.
    """
    check(length, kind)
    strict = kind == "strict"
    row = np.repeat(STEPS, (length // 2, length // 2 + strict))
    rows = rng.permuted(np.broadcast_to(row, (n, len(row))), axis=1)
    if not strict:
        return rows
    lowest = rows.cumsum(axis=1, dtype=np.int64).argmin(axis=1)  # argmin takes the first of equals
    turn = (lowest[:, None] + 1 + np.arange(length)) % (length + 1)
    return np.take_along_axis(rows, turn, axis=1)


def masked_inputs(words: Int[np.ndarray, "n T"]) -> tuple[Float[np.ndarray, "N T"], Float[np.ndarray, " N"]]:
    """Every word with every position masked: inputs x = s - s_i e_i and labels y = s_i, N = n T rows, word by word."""
    n, length = words.shape
    x = np.repeat(words[:, None, :], length, axis=1).astype(np.float64)
    x[:, np.arange(length), np.arange(length)] = 0
    return x.reshape(n * length, length), words.reshape(n * length).astype(np.float64)


def mismatch(rows: Float[np.ndarray, "... T"]) -> Float[np.ndarray, "..."]:
    """Number of `(` minus number of `)` of any row of steps: 0 on the language, -y on a word masked at a bracket y."""
    return np.asarray(rows).sum(axis=-1, dtype=np.float64)


@dataclass(frozen=True)
class Dyck:
    """The uniform distribution over balanced words of one length; satisfies `languages.base.Language`."""

    length: int
    kind: Kind = "strict"
    vocab: Sequence[str] = ("(", ")")

    def __post_init__(self) -> None:
        check(self.length, self.kind)

    @property
    def max_length(self) -> int:
        return self.length

    @property
    def tasks(self) -> Mapping[str, int]:
        """`depth`: the largest distance from balance; `partner`: the bracket at which the word first balances."""
        return {"depth": self.length // 2, "partner": self.length // 2}

    def words(self) -> Sentences:
        """The whole language; UserError where it would not fit."""
        return self._sentences(enumerate_words(self.length, self.kind))

    def sample(self, n: int, seed: int) -> Sentences:
        """`n` independent uniform words."""
        base.check_count(n)
        return self._sentences(sample_words(n, self.length, self.kind, stream(seed, "data")))

    def encode(self, sentences: Sequence[Sequence[str]]) -> Sentences:
        """Brackets to tokens; UserError for another sign, an empty or a too long row."""
        rows = [list(row) if isinstance(row, str) else row for row in sentences]  # "(())" is a word too
        return base.encode(rows, self.vocab, self.length)

    def log_prob(self, sentences: Sentences) -> Float[np.ndarray, " n"]:
        """-log(number of words) in nats on the language, -inf off it."""
        base.check(sentences, len(self.vocab), self.length)
        return np.where(self._is_word(sentences), -math.log(count(self.length, self.kind)), -np.inf)

    def masked_conditionals(self, sentences: Sentences) -> Float[np.ndarray, "n T 2"]:
        """p(x_t = v | x_-t), (n, T, 2): certain wherever defined; UserError where neither bracket makes a word."""
        steps = self._steps(sentences)
        height = steps.cumsum(axis=1)
        # Another bracket at t moves every prefix from t on: the lowest point before t and the lowest from t on decide.
        before = np.minimum.accumulate(np.pad(height, ((0, 0), (1, 0)))[:, :-1], axis=1)
        behind = np.minimum.accumulate(height[:, ::-1], axis=1)[:, ::-1]
        shift = STEPS.astype(np.int64) - steps[:, :, None]
        fits = height[:, -1:, None] + shift == 0
        if self.kind == "strict":
            fits &= (before >= 0)[:, :, None] & (behind[:, :, None] + shift >= 0)
        if not fits.any(axis=2).all():
            i, t = np.argwhere(~fits.any(axis=2))[0]
            raise UserError(f"sentence {i + 1}, position {t + 1}: neither bracket makes a {self.kind} word of it")
        return fits.astype(np.float64)

    def iter_masked_conditionals(self, sentences: Sentences, chunk: int = 1024) -> Iterator[Float[np.ndarray, "c T 2"]]:
        """The same in chunks of sentences."""
        base.check_count(chunk, "chunk")
        for start in range(0, len(sentences), chunk):
            yield self.masked_conditionals(sentences[slice(start, start + chunk)])

    def floor(self, n: int, seed: int) -> Estimate:
        """The entropy floor in nats, from `n` sampled words: exactly 0, for balance decides every masked bracket."""
        p = self.masked_conditionals(self.sample(n, seed))
        return Estimate.of(-np.log(p, where=p > 0, out=np.zeros_like(p)).sum(axis=2).mean(axis=1))

    def labels(self, task: str, sentences: Sentences) -> Int[np.ndarray, " n"]:
        """Classes from 0: depth - 1 for `depth`, (position of the partner) / 2 - 1 for `partner`."""
        if task not in self.tasks:
            raise UserError(f"task {task!r} is unknown; allowed: {', '.join(self.tasks)}")
        height = self._steps(sentences).cumsum(axis=1)
        if task == "depth":
            return np.abs(height).max(axis=1) - 1
        return (height == 0).argmax(axis=1) // 2

    def posteriors(self, task: str, sentences: Sentences) -> Float[np.ndarray, "n C"]:
        """One class has probability 1: the whole word decides its label."""
        return np.eye(self.tasks[task])[self.labels(task, sentences)]

    def _sentences(self, words: Int[np.ndarray, "n T"]) -> Sentences:
        return Sentences((words < 0).astype(np.int64), np.full(len(words), self.length, dtype=np.int64))

    def _steps(self, sentences: Sentences) -> Int[np.ndarray, "n T"]:
        base.check(sentences, len(self.vocab), self.length)
        if (short := np.flatnonzero(sentences.lengths != self.length)).size:
            i = int(short[0])
            raise UserError(f"sentence {i + 1} has {sentences.lengths[i]} brackets; every word has {self.length}")
        return STEPS[sentences.tokens].astype(np.int64)

    def _is_word(self, sentences: Sentences) -> Bool[np.ndarray, " n"]:
        steps = np.where(sentences.tokens == PAD, 0, STEPS[sentences.tokens]).astype(np.int64)
        height = steps.cumsum(axis=1)
        balanced = (height[:, -1] == 0) & (sentences.lengths == self.length)
        return balanced & (height.min(axis=1) >= 0) if self.kind == "strict" else balanced
