"""LM text: the language of a causal language model restricted to its most frequent words, with exact conditionals.

p(x) = sum_z prior(z) prod_t p(x_t | prompt z, x_<t), where each factor is the model's softmax over the K words kept
(and the end, where sentences may end early), at a temperature. Everything below is exact for this p; only the
denominator of the task "continuation" may be an estimate, whose error is stated (Liu et al. 2022, §3.1 and A.1).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from sameloss.errors import UserError
from sameloss.languages import base, docstrings, teacher_files
from sameloss.languages import lm_text_scores as scores
from sameloss.languages import lm_text_tasks as truth
from sameloss.languages.base import PAD, Sentences
from sameloss.languages.lm_text_scores import CausalLM, Restricted
from sameloss.languages.teacher import Teacher
from sameloss.measures.estimate import Estimate
from sameloss.seeds import stream


def check_settings(length: int, temperature: float, bank: int) -> None:
    """UserError unless the length is 2 or more, the temperature above 0 and the bank of first halves 2 or more."""
    if length < 2:
        raise UserError(f"length of LM text: found {length}, allowed is 2 or more")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise UserError(f"temperature of LM text: found {temperature}, allowed is a number above 0")
    if bank < 2:
        raise UserError(f"bank of first halves of LM text: found {bank}, allowed is 2 or more")


@dataclass(frozen=True)
class LMText:
    """A `Language` made of a causal language model.

    model: the model with its outputs restricted to the words (and, last, the end).
    vocab: the K words; ids: their indices in the model.
    prompts: topic -> tokens of the model that stand before the sentence; more than one topic makes the task "topic".
    max_length: T. ends: whether the model's last output ends a sentence early; otherwise all have exactly this length.
    bank: first halves behind the denominator of the task "continuation", where there are too many for all of them.
    tokenize: text to words in the spelling of `vocab`, those that the language lacks included.
    """

    model: CausalLM
    vocab: tuple[str, ...]
    ids: tuple[int, ...]
    prompts: Mapping[str, Sequence[int]]
    max_length: int
    temperature: float = 1.0
    ends: bool = False
    bank: int = truth.BANK
    tokenize: Callable[[str], list[str]] = docstrings.words_of
    _restricted: Restricted = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 2 <= len(self.vocab) == len(self.ids):
            raise UserError(
                f"LM text needs at least 2 words and one model token for each; found {len(self.vocab)} words"
            )
        check_settings(self.max_length, self.temperature, self.bank)
        if not self.prompts or not all(len(prompt) for prompt in self.prompts.values()):
            raise UserError("LM text needs at least one prompt, and a prompt at least one token")
        longest = max(map(len, self.prompts.values()))
        if longest + self.max_length > self.model.context:
            raise UserError(
                f"length of LM text: {longest} tokens of prompt and {self.max_length} words found, "
                f"the model reads {self.model.context} tokens"
            )
        prompts = list(self.prompts.values())
        restricted = Restricted(self.model, self.ids, prompts, self.max_length, self.temperature, self.ends)
        object.__setattr__(self, "_restricted", restricted)

    @classmethod
    def embedded(
        cls,
        words: int = 96,
        length: int = 8,
        temperature: float = 0.8,
        teacher: str = "small",
        device: str = "cpu",
    ) -> "LMText":
        """The language of a teacher that ships with the project ("small" or "large"): no download, no transformers.

        Its words are the `words` most frequent ones of the text that the teacher was trained on.
        """
        shipped = teacher_files.read(teacher)
        if not 2 <= words <= len(shipped.words):
            raise UserError(f"words of LM text: found {words}, allowed is 2 to {len(shipped.words)}, the teacher's own")
        unknown = len(shipped.words)
        return cls(
            model=Teacher(shipped.weights, shipped.shape.heads, range(words), device),
            vocab=tuple(shipped.words[:words]),
            ids=tuple(range(words)),
            prompts={topic: [unknown + 1 + i] for i, topic in enumerate(shipped.topics)},
            max_length=length,
            temperature=temperature,
        )

    @classmethod
    def from_folder(cls, folder: str | Path, words: int = 2000, length: int = 24, **options: object) -> "LMText":
        """The language of a Hugging Face causal model: see `sameloss.languages.lm_text_folder.load`."""
        from sameloss.languages import lm_text_folder  # transformers is an optional extra

        return lm_text_folder.load(folder, words=words, length=length, **options)  # type: ignore[arg-type]

    def __str__(self) -> str:
        shortest = 1 if self.ends else self.max_length
        return f"{len(self.vocab)} words, {len(self.prompts)} topics, sentences of {shortest}-{self.max_length} words"

    @property
    def tasks(self) -> Mapping[str, int]:
        """Topic (which prompt, where there are several) and continuation (does the second half continue the first)."""
        return ({"topic": len(self.prompts)} if len(self.prompts) > 1 else {}) | {"continuation": 2}

    def sample(self, n: int, seed: int) -> Sentences:
        """`n` independent sentences; the same seed gives the same sentences."""
        return self.sample_with_topics(n, seed)[0]

    def sample_with_topics(self, n: int, seed: int) -> tuple[Sentences, Int[np.ndarray, " n"]]:
        """`n` sentences and the index of the topic that was drawn first for each, uniformly."""
        base.check_count(n)
        draws = stream(seed, "data/lm_text")
        topics = draws.integers(len(self.prompts), size=n)
        tokens = scores.sample(self._restricted, topics, draws.random((n, self.max_length)))
        return Sentences(tokens, (tokens != PAD).sum(1)), topics

    def log_prob(self, sentences: Sentences) -> Float[np.ndarray, " n"]:
        """log p(x) in nats; -inf for a length that the language does not have."""
        possible = self._possible(sentences)
        result = np.full(len(sentences), -np.inf)
        if possible.any():
            result[possible] = np.logaddexp.reduce(self._topic_log_probs(sentences[possible]), 1)
        return result

    def encode(self, sentences: Sequence[Sequence[str]]) -> Sentences:
        """Words to indices; UserError for a word outside the vocabulary, an empty or too long sentence."""
        return base.encode(sentences, self.vocab, self.max_length)

    def masked_conditionals(self, sentences: Sentences) -> Float[np.ndarray, "n T V"]:
        """p(x_t = v | x_-t) for every position: rows sum to 1, rows behind the end are 0.

        All K substitutions are scored, the words before t once for all of them. UserError for a sentence that the
        language cannot produce.
        """
        empty = np.zeros((0, sentences.tokens.shape[1], len(self.vocab)))
        return np.concatenate([empty, *self.iter_masked_conditionals(sentences)])

    def iter_masked_conditionals(self, sentences: Sentences, chunk: int = 1024) -> Iterator[Float[np.ndarray, "c T V"]]:
        """The same in chunks of sentences, in order, so that memory stays bounded."""
        if chunk < 1:
            raise UserError(f"chunk of sentences: found {chunk}, allowed is 1 or more")
        self._check_possible(sentences)
        for i in range(0, len(sentences), chunk):
            part = sentences[slice(i, i + chunk)]
            yield scores.conditionals(self._restricted, part.tokens, part.lengths)

    def masked_conditionals_at(
        self, sentences: Sentences, positions: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, "n V"]:
        """p(x_t = v | x_-t) at one position (counted from 0) of each sentence, (n, V); a fraction of the work."""
        self._check_possible(sentences)
        base.check_positions(sentences, positions)
        return scores.conditionals_at(self._restricted, sentences.tokens, sentences.lengths, positions)

    def unigram(self, n: int = 8192, seed: int = 0) -> Float[np.ndarray, " V"]:
        """p(x_t = v) with t uniform within the sentence, (V,): the mean frequency in `n` sampled sentences."""
        sentences = self.sample(n, seed)
        weights = np.repeat(1 / sentences.lengths, sentences.lengths)
        return np.bincount(sentences.tokens[sentences.tokens != PAD], weights, len(self.vocab)) / n

    def floor(self, n: int, seed: int) -> Estimate:
        """The entropy floor E[H(x_t | x_-t)] in nats from `n` sentences, each masked at one uniform position.

        One position a sentence gives less error for the same work than all of them, which are correlated.
        """
        sentences = self.sample(n, seed)
        positions = (stream(seed, "mask/lm_text").random(n) * sentences.lengths).astype(np.int64)
        p = self.masked_conditionals_at(sentences, positions)
        return Estimate.of(-np.sum(p * np.log(np.where(p > 0, p, 1.0)), 1))

    def labels(self, task: str, sentences: Sentences) -> Int[np.ndarray, " n"]:
        """The more probable class given the sentence (the argmax of `posteriors`)."""
        return self.posteriors(task, sentences).argmax(1)

    def classes(self, task: str) -> tuple[str, ...]:
        """Names of the classes of a task."""
        self._check_task(task)
        return tuple(self.prompts) if task == "topic" else ("other half", "continuation")

    def posteriors(self, task: str, sentences: Sentences) -> Float[np.ndarray, "n C"]:
        """p(class | sentence): of each topic by Bayes, or that two halves are (0) of two sentences, (1) of one.

        "continuation" takes halves to belong together with probability 1/2 beforehand: see `task_examples`.
        """
        self._check_task(task)
        if task == "topic":
            self._check_possible(sentences)
            joint = self._topic_log_probs(sentences)
            return np.exp(joint - np.logaddexp.reduce(joint, 1, keepdims=True))
        ratio, _ = self.continuation_log_ratio(sentences)
        return np.stack([1 / (1 + np.exp(ratio)), 1 / (1 + np.exp(-ratio))], 1)

    def continuation_log_ratio(self, sentences: Sentences) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """log p(second half | first half) - log p(second half) in nats, and the standard error of that difference.

        The denominator sums over every first half where there are few (the error is then 0), otherwise over `bank`
        first halves drawn from the language once.
        """
        self._check_possible(sentences)
        return truth.continuation_log_ratio(self._restricted, sentences, self.bank)

    def task_examples(
        self, task: str, n: int, seed: int
    ) -> tuple[Sentences, Int[np.ndarray, " n"], Float[np.ndarray, "n C"]]:
        """`n` sentences of a task, their labels and the posteriors these are the argmax of.

        topic: sentences of the language. continuation: in every second sentence, by a coin, the second half is the
        one of another sentence; the label says which is more probable, not which was drawn.
        """
        self._check_task(task)
        sentences = self.sample(n, seed) if task == "topic" else truth.pairs(self.sample, n, seed, self.max_length // 2)
        posteriors = self.posteriors(task, sentences)
        return sentences, posteriors.argmax(1), posteriors

    def _topic_log_probs(self, sentences: Sentences) -> Float[np.ndarray, "n Z"]:
        return scores.topic_log_probs(self._restricted, sentences.tokens, sentences.lengths)

    def _check_task(self, task: str) -> None:
        if task not in self.tasks:
            raise UserError(f"task of LM text: found {task!r}, allowed is {', '.join(self.tasks)}")

    def _possible(self, sentences: Sentences) -> np.ndarray:
        base.check(sentences, len(self.vocab), self.max_length)
        return (sentences.lengths == self.max_length) | self.ends

    def _check_possible(self, sentences: Sentences) -> None:
        possible = self._possible(sentences)
        if not possible.all():
            row = int(np.argmin(possible))
            raise UserError(
                f"sentence {row + 1}: {sentences.lengths[row]} words have probability 0 in this language, "
                f"whose sentences have exactly {self.max_length}"
            )
