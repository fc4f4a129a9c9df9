"""Probabilities of sentences under a restricted causal model, and exact masked conditionals by substitution.

p(x_t = v | x_-t) is proportional to p(x_1 .. x_{t-1} v x_{t+1} .. x_T): for every word v the words behind t are scored
again, while what stands before t is computed once and shared through its keys and values.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from sameloss.languages.base import PAD
from sameloss.languages.teacher import Cache

# Largest number of logits of one pass of the model: 8 MB in float64, which a core's caches hold in part, and 64 times
# that on an accelerator, which a small pass would leave idle.
_LOGITS = 1 << 20


class CausalLM(Protocol):
    """What this module asks of a model; its outputs are the words kept and, where sentences end early, the end."""

    context: int
    device: torch.device

    def __call__(
        self, tokens: Int[Tensor, "n m"], past: Cache | None = None, keep: bool = True
    ) -> tuple[Float[Tensor, "n m K"], Cache]:
        """Logits (n, m, K) behind each token, and keys and values of everything read (empty without `keep`).

        Row i continues row i // (n / c) of the c rows of `past`.
        """
        ...


@dataclass(frozen=True)
class Prompts:
    """Prompts of one length, read: their topics, their cache (Z rows) and log p(first word | prompt) (Z, K)."""

    topics: list[int]
    cache: Cache
    first: Float[Tensor, "Z K"]

    def each(self) -> "Iterator[Prompts]":
        """The same prompts one by one."""
        for i, z in enumerate(self.topics):
            row = slice(i, i + 1)
            yield Prompts([z], [(keys[row], values[row]) for keys, values in self.cache], self.first[row])


class Restricted:
    """A model at a temperature, the tokens of its words and its prompts.

    Outcomes are numbered 0 .. K-1 (words) and K (the end, where sentences may end before `max_length`).
    """

    def __init__(
        self,
        model: CausalLM,
        ids: Sequence[int],
        prompts: Sequence[Sequence[int]],
        max_length: int,
        temperature: float,
        ends: bool,
    ) -> None:
        self.model, self.max_length, self.temperature, self.ends = model, max_length, temperature, ends
        self.words, self.topics = len(ids), len(prompts)
        self.budget = _LOGITS if model.device.type == "cpu" else _LOGITS << 6
        self.log_prior = -math.log(len(prompts))
        self.ids = torch.tensor(ids, device=model.device)
        self.prompts: list[Prompts] = []
        with torch.inference_mode():
            for length in sorted({len(prompt) for prompt in prompts}):
                topics = [z for z, prompt in enumerate(prompts) if len(prompt) == length]
                logits, cache = model(torch.tensor([list(prompts[z]) for z in topics], device=model.device))
                # A sentence has at least one word: it cannot end at once.
                self.prompts.append(Prompts(topics, cache, self.log_steps(self.going_on(logits[:, -1]))))

    def log_steps(self, logits: Float[Tensor, "... K"]) -> Float[Tensor, "... K"]:
        """Logits to log-probabilities, normalised in float64."""
        return (logits.double() / self.temperature).log_softmax(-1)

    def going_on(self, logits: Float[Tensor, "n K"]) -> Float[Tensor, "n K"]:
        """Logits (or log-probabilities, then not normalised) where the sentence does not end."""
        return (
            logits.index_fill(-1, torch.tensor([self.words], device=logits.device), -torch.inf) if self.ends else logits
        )

    def read(self, prompts: Prompts, outcomes: Int[Tensor, "n M"]) -> tuple[Float[Tensor, "Z n M K"], Cache]:
        """log p of every possible outcome at every place given the topic and those before it, and their cache.

        The cache (Z n rows) holds the prompt and all outcomes but the last, which nothing depends on.
        """
        (n, m), z = outcomes.shape, len(prompts.topics)
        first = prompts.first[:, None, None].expand(-1, n, -1, -1)
        if m == 1:
            return first, [(k.repeat_interleave(n, 0), v.repeat_interleave(n, 0)) for k, v in prompts.cache]
        logits, cache = self.model(self.ids[outcomes[:, :-1]].repeat(z, 1), prompts.cache)
        return torch.cat([first, self.log_steps(logits).view(z, n, m - 1, -1)], 2), cache

    def continued(self, words: Int[Tensor, "n m"], past: Cache, outcomes: Int[Tensor, "n m"]) -> Float[Tensor, " n"]:
        """log p(outcomes | past, words so far): outcome i follows word i. Each row of `past` serves n / c rows."""
        logits, _ = self.model(self.ids[words], past, keep=False)
        logits = logits.double().div_(self.temperature)
        return (logits.gather(-1, outcomes[..., None]).squeeze(-1) - logits.logsumexp(-1)).sum(-1)

    def outcomes(self, tokens: Int[np.ndarray, "n T"], length: int, then: int | None = None) -> Int[Tensor, "n M"]:
        """What makes up sentences of one length: their words, and the end where it came early, or `then`."""
        words = torch.from_numpy(tokens[:, :length].astype(np.int64)).to(self.model.device)
        if then is None and self.ends and length < self.max_length:
            then = self.words
        return words if then is None else F.pad(words, (0, 1), value=then)


@torch.inference_mode()
def sample(
    lm: Restricted, topics: Int[np.ndarray, " n"], numbers: Float[np.ndarray, "n T"], rows: int = 4096
) -> Int[np.ndarray, "n T"]:
    """Sentences of given topics, word t drawn by inverting the distribution function at numbers[:, t] in [0, 1)."""
    tokens = np.full(numbers.shape, PAD, dtype=np.int64)
    for prompt in (one for prompts in lm.prompts for one in prompts.each()):
        members = np.flatnonzero(topics == prompt.topics[0])
        for part in (members[i : i + rows] for i in range(0, len(members), rows)):
            tokens[part] = _sample_topic(lm, prompt, torch.from_numpy(numbers[part]).to(lm.model.device)).cpu().numpy()
    return tokens


def _sample_topic(lm: Restricted, prompt: Prompts, numbers: Float[Tensor, "n T"]) -> Int[Tensor, "n T"]:
    n, length = numbers.shape
    drawn = torch.empty((n, length), dtype=torch.int64, device=numbers.device)
    log_p, cache = prompt.first.expand(n, -1), prompt.cache
    for t in range(length):
        cumulative = log_p.exp().cumsum(-1)
        # Scaled by the last sum, which rounding may leave below 1, so that the draw stays inside.
        at = torch.searchsorted(cumulative, numbers[:, t, None] * cumulative[:, -1:], right=True)[:, 0]
        drawn[:, t] = at.clamp(max=log_p.shape[1] - 1)
        if t + 1 < length:
            word = drawn[:, t].clamp(max=lm.words - 1)  # behind an end anything may be read
            logits, cache = lm.model(lm.ids[word][:, None], cache)
            log_p = lm.log_steps(logits)[:, 0]
    return drawn.masked_fill((drawn == lm.words).cumsum(1) > 0, PAD)


def batches(
    lm: Restricted, lengths: Int[np.ndarray, " n"], logits_each: Callable[[int], int]
) -> Iterator[tuple[int, Int[np.ndarray, " k"]]]:
    """(length, rows) with rows of one length, so many that a pass keeps to the budget of logits, but one at least."""
    for length in np.unique(lengths).tolist():
        members = np.flatnonzero(lengths == length)
        size = max(1, lm.budget // logits_each(length))
        for i in range(0, len(members), size):
            yield length, members[i : i + size]


@torch.inference_mode()
def topic_log_probs(
    lm: Restricted, tokens: Int[np.ndarray, "n T"], lengths: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "n Z"]:
    """log p(topic, sentence), (n, Z) nats."""
    result = np.empty((len(tokens), lm.topics))
    for length, rows in batches(lm, lengths, lambda length: lm.topics * length * lm.words):
        outcomes = lm.outcomes(tokens[rows], length)
        for prompts in lm.prompts:
            steps, _ = lm.read(prompts, outcomes)
            result[rows[:, None], prompts.topics] = lm.log_prior + reached(steps, outcomes)[..., -1].T.cpu().numpy()
    return result


def reached(steps: Float[Tensor, "Z n M K"], outcomes: Int[Tensor, "n M"]) -> Float[Tensor, "Z n M"]:
    """log p(outcomes up to each place | topic)."""
    return steps.gather(-1, outcomes[..., None].expand(len(steps), -1, -1, 1)).squeeze(-1).cumsum(-1)


def conditionals(
    lm: Restricted, tokens: Int[np.ndarray, "n T"], lengths: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "n T V"]:
    """p(x_t = v | x_-t) at all positions, 0 behind the end."""
    result = np.zeros((*tokens.shape, lm.words))
    for length, rows in batches(lm, lengths, lambda length: lm.topics * length * lm.words**2):
        result[rows, :length] = _substitute(lm, tokens[rows], length, range(length))
    return result


def conditionals_at(
    lm: Restricted,
    tokens: Int[np.ndarray, "n T"],
    lengths: Int[np.ndarray, " n"],
    positions: Int[np.ndarray, " n"],
) -> Float[np.ndarray, "n V"]:
    """p(x_t = v | x_-t) at one position of each sentence."""
    result = np.empty((len(tokens), lm.words))
    for t in np.unique(positions).tolist():
        members = np.flatnonzero(positions == t)
        for length, rows in batches(lm, lengths[members], lambda length: lm.topics * length * lm.words**2):
            result[members[rows]] = _substitute(lm, tokens[members[rows]], length, [t])[:, 0]
    return result


@torch.inference_mode()
def _substitute(
    lm: Restricted, tokens: Int[np.ndarray, "c T"], length: int, positions: Sequence[int]
) -> Float[np.ndarray, "c P V"]:
    """Conditionals of sentences of one length at the same positions: (c, P, V)."""
    outcomes = lm.outcomes(tokens, length)  # (c, M)
    c, last = len(outcomes), outcomes.shape[1] - 1
    every_word = torch.arange(lm.words, device=outcomes.device)
    joint = torch.empty((lm.topics, c, len(positions), lm.words), dtype=torch.float64, device=outcomes.device)
    for prompts in lm.prompts:
        steps, cache = lm.read(prompts, outcomes)  # (Z, c, M, K)
        up_to = reached(steps, outcomes)
        prompt = cache[0][0].shape[2] - last  # the prompt's share of the cache
        for i, t in enumerate(positions):
            score = steps[:, :, t, : lm.words] + (up_to[:, :, t - 1, None] if t else 0.0)
            # Where one sentence with all its substitutions exceeds the budget, they come in parts.
            part = max(1, lm.budget // (len(steps) * c * max(1, last - t) * lm.words))
            for some in every_word.split(part) if t < last else ():
                behind = outcomes[:, None, t + 1 :].expand(len(steps), c, len(some), -1)  # (Z, c, k, M - t - 1)
                words = torch.cat([some.expand(len(steps), c, -1)[..., None], behind[..., :-1]], -1)
                past = [(keys[:, :, : prompt + t], values[:, :, : prompt + t]) for keys, values in cache]
                rest = lm.continued(words.flatten(0, 2), past, behind.flatten(0, 2))
                score[..., some] += rest.view(len(steps), c, -1)
            joint[prompts.topics, :, i] = score
    return joint.logsumexp(0).softmax(-1).cpu().numpy()
