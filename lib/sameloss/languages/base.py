"""What a language is, whatever it is made of: sentences, their probability and the true masked conditionals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate

PAD = -1


@dataclass(frozen=True)
class Sentences:
    """A batch of sentences.

    tokens: (n, T) int64 indices into `Language.vocab`, `PAD` (-1) behind the end of a sentence.
    lengths: (n,) int64, at least 1.
    """

    tokens: Int[np.ndarray, "n T"]
    lengths: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice | np.ndarray) -> "Sentences":
        return Sentences(self.tokens[rows], self.lengths[rows])


@runtime_checkable
class Language(Protocol):
    """A distribution over sentences whose masked conditionals are known exactly. Logarithms are natural (nats)."""

    vocab: Sequence[str]
    max_length: int

    @property
    def tasks(self) -> Mapping[str, int]:
        """Downstream tasks: name -> number of classes."""
        ...

    def sample(self, n: int, seed: int) -> Sentences:
        """`n` independent sentences; the same seed gives the same sentences."""
        ...

    def log_prob(self, sentences: Sentences) -> Float[np.ndarray, " n"]:
        """log p(x), (n,) float64; -inf where the language cannot produce the sentence."""
        ...

    def encode(self, sentences: Sequence[Sequence[str]]) -> Sentences:
        """Words to indices; UserError for a word outside the vocabulary, an empty or too long sentence."""
        ...

    def masked_conditionals(self, sentences: Sentences) -> Float[np.ndarray, "n T V"]:
        """p(x_t = v | x_-t) for every position: float64, rows sum to 1, rows behind the end are 0.

        UserError for a sentence of probability 0 at which a conditional is not defined.
        """
        ...

    def iter_masked_conditionals(self, sentences: Sentences, chunk: int = 1024) -> Iterator[Float[np.ndarray, "c T V"]]:
        """The same in chunks of sentences, in order, so that memory stays bounded."""
        ...

    def floor(self, n: int, seed: int) -> Estimate:
        """The entropy floor E[H(x_t | x_-t)] in nats, t uniform within the sentence, from `n` sampled sentences."""
        ...

    def labels(self, task: str, sentences: Sentences) -> Int[np.ndarray, " n"]:
        """The label of each sentence for one of `tasks`."""
        ...

    def posteriors(self, task: str, sentences: Sentences) -> Float[np.ndarray, "n C"]:
        """p(class | whole sentence) for one of `tasks`: what the Bayes ceiling is computed from."""
        ...


def encode(sentences: Sequence[Sequence[str]], vocab: Sequence[str], max_length: int) -> Sentences:
    """Words to indices, (n, max_length) padded; UserError for an unknown word, an empty or a too long sentence."""
    index = {word: v for v, word in enumerate(vocab)}
    if len(sentences) == 0:
        raise UserError("no sentence given; at least one is needed")
    tokens = np.full((len(sentences), max_length), PAD, dtype=np.int64)
    for i, words in enumerate(sentences):
        if isinstance(words, str) or not isinstance(words, Sequence):
            raise UserError(f"sentence {i + 1} is {words!r}; a list of words is needed")
        if not 1 <= len(words) <= max_length:
            raise UserError(f"sentence {i + 1} has {len(words)} words; allowed are 1 to {max_length}")
        for t, word in enumerate(words):
            if not isinstance(word, str) or word not in index:
                raise UserError(f"sentence {i + 1}, word {t + 1}: {word!r} is not among the {len(vocab)} known words")
            tokens[i, t] = index[word]
    return Sentences(tokens, np.array([len(words) for words in sentences], dtype=np.int64))


def check(sentences: Sentences, vocab: int, max_length: int) -> None:
    """UserError unless every sentence has 1 to `max_length` words, each an index under `vocab`."""
    tokens, lengths = sentences.tokens, sentences.lengths
    if len(lengths) == 0:
        raise UserError("no sentence given; at least one is needed")
    if tokens.ndim != 2 or lengths.shape != tokens.shape[:1]:
        raise UserError(f"tokens of shape (n, T) and n lengths are needed; found {tokens.shape} and {lengths.shape}")
    if not (np.issubdtype(tokens.dtype, np.integer) and np.issubdtype(lengths.dtype, np.integer)):
        raise UserError(f"tokens and lengths are whole numbers; found {tokens.dtype} and {lengths.dtype}")
    bad = (lengths < 1) | (lengths > min(max_length, tokens.shape[1]))
    if bad.any():
        i = int(np.argmax(bad))
        allowed = min(max_length, tokens.shape[1])
        raise UserError(f"sentence {i + 1} has length {lengths[i]}; allowed are 1 to {allowed}")
    inside = np.arange(tokens.shape[1]) < lengths[:, None]
    bad = (inside & ((tokens < 0) | (tokens >= vocab))).any(axis=1)
    if bad.any():
        i = int(np.argmax(bad))
        raise UserError(f"sentence {i + 1} holds a token outside the vocabulary; allowed are 0 to {vocab - 1}")


def check_count(n: int, what: str = "the number of sentences", most: int = 10**9) -> None:
    """UserError unless `n` is a whole number from 1 to `most`."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= most:
        raise UserError(f"{what} is {n!r}; a whole number, at least 1 and at most {most}, is needed")


def check_positions(sentences: Sentences, positions: Int[np.ndarray, " n"]) -> None:
    """UserError unless there is one position (counting from 0) inside each sentence."""
    if positions.shape != sentences.lengths.shape:
        raise UserError(f"one position a sentence is needed; found {positions.shape} for {len(sentences)} sentences")
    bad = (positions < 0) | (positions >= sentences.lengths)
    if bad.any():
        i = int(np.argmax(bad))
        raise UserError(f"sentence {i + 1}: position {positions[i]}; allowed are 0 to {sentences.lengths[i] - 1}")


def task_examples(
    language: Language, task: str, n: int, seed: int
) -> tuple[Sentences, Int[np.ndarray, " n"], Float[np.ndarray, "n C"]]:
    """`n` sentences of a task with labels (n,) and posteriors (n, C).

    Sentences of the language, unless it has a method of this name: then the task has sentences of its own.
    """
    own = getattr(language, "task_examples", None)
    if own is not None:
        return own(task, n, seed)
    sentences = language.sample(n, seed)
    return sentences, language.labels(task, sentences), language.posteriors(task, sentences)
