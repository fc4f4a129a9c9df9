"""The downstream task "continuation" of LM text: does the second half continue the first?

The label is the sign of the log-likelihood ratio log p(second | first) - log p(second). Its numerator is exact. Its
denominator is a sum over all first halves, p(s) = sum_f p(f) p(s | f): exact where there are few first halves, and
otherwise an unbiased mean over a bank of first halves drawn from the language, with the standard error of that mean.
Halves are cut behind `max_length // 2` words, and everything is conditional on the sentence going on there.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from sameloss.errors import UserError
from sameloss.languages import lm_text_scores as scores
from sameloss.languages.base import PAD, Sentences
from sameloss.languages.lm_text_scores import Prompts, Restricted
from sameloss.languages.teacher import Cache
from sameloss.seeds import stream

BANK = 768
_ENUMERATED = 4096  # with so many first halves or fewer the sum is exact


def pairs(sample: Callable[[int, int], Sentences], n: int, seed: int, half: int) -> Sentences:
    """`n` sentences, each with probability 1/2 its own second half or else that of an independent sentence.

    Sentences without a second half are left out.
    """
    coins = stream(seed, "data/continuation")
    tokens = sample(2 * n, int(coins.integers(1 << 31))).tokens
    tokens = tokens[tokens[:, half] != PAD]
    while len(tokens) < 2 * n:
        more = sample(2 * n, int(coins.integers(1 << 31))).tokens
        tokens = np.concatenate([tokens, more[more[:, half] != PAD]])
    first, other = tokens[:n], tokens[n : 2 * n]
    own = coins.random(n) < 0.5
    mixed = np.concatenate([first[:, :half], np.where(own[:, None], first, other)[:, half:]], 1)
    return Sentences(mixed, (mixed != PAD).sum(1))


@torch.inference_mode()
def continuation_log_ratio(
    lm: Restricted, sentences: Sentences, bank: int
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """log p(second | first) - log p(second) of each sentence (n,) in nats, and its standard error (n,)."""
    half = lm.max_length // 2
    if (sentences.lengths <= half).any():
        row = int(np.argmax(sentences.lengths <= half))
        raise UserError(f"sentence {row + 1}: {sentences.lengths[row]} words; a second half needs more than {half}")
    joint = np.logaddexp.reduce(scores.topic_log_probs(lm, sentences.tokens, sentences.lengths), 1)
    first = np.logaddexp.reduce(_going_on(lm, sentences.tokens[:, :half]), 1)
    if lm.words**half <= _ENUMERATED:
        halves = np.indices((lm.words,) * half).reshape(half, -1).T
        weights = _going_on(lm, halves)
        weights -= np.logaddexp.reduce(weights, None)
        marginal, _ = _second(lm, sentences, [halves] * lm.topics, list(weights.T))
        return joint - first - marginal, np.zeros(len(sentences))
    firsts = _drawn(lm, half, bank)
    marginal, stderr = _second(lm, sentences, firsts, [np.full(len(f), -np.log(bank)) for f in firsts])
    return joint - first - marginal, stderr


def _drawn(lm: Restricted, half: int, bank: int) -> list[Int[np.ndarray, "b h"]]:
    """`bank` first halves of sentences of the language that go on, by topic."""
    draws = stream(0, "estimator/continuation")  # one bank for a language, whatever the sentences
    drawn = np.empty((0, 1 + lm.max_length), dtype=np.int64)
    while len(drawn) < bank:
        topics = draws.integers(lm.topics, size=bank)
        tokens = scores.sample(lm, topics, draws.random((bank, lm.max_length)))
        more = np.concatenate([topics[:, None], tokens], 1)
        drawn = np.concatenate([drawn, more[tokens[:, half] != PAD]])
    drawn = drawn[:bank]
    return [drawn[drawn[:, 0] == z, 1 : 1 + half] for z in range(lm.topics)]


def _going_on(lm: Restricted, halves: Int[np.ndarray, "n h"]) -> Float[np.ndarray, "n Z"]:
    """log p(topic, first half, the sentence goes on) in nats."""
    result = np.empty((len(halves), lm.topics))
    n, half = halves.shape
    for _, rows in scores.batches(lm, np.full(n, half), lambda length: lm.topics * (length + 1) * lm.words):
        outcomes = lm.outcomes(halves[rows], half, then=0)  # the word behind it is not looked at
        for prompts in lm.prompts:
            steps, _ = lm.read(prompts, outcomes)
            score = lm.log_prior + scores.reached(steps, outcomes)[..., half - 1]  # (Z, n)
            if lm.ends:
                score = score + torch.log1p(-steps[:, :, half, lm.words].exp())
            result[rows[:, None], prompts.topics] = score.T.cpu().numpy()
    return result


def _second(
    lm: Restricted, sentences: Sentences, firsts: list[Int[np.ndarray, "b h"]], log_weights: list[np.ndarray]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """log sum_f w_f p(second | f) of each sentence, and the standard error were the f draws of equal weight."""
    half = lm.max_length // 2
    opened = [
        _open(lm, prompt, firsts[prompt.topics[0]])
        for prompts in lm.prompts
        for prompt in prompts.each()
        if len(firsts[prompt.topics[0]])
    ]
    order = [z for prompts in lm.prompts for z in prompts.topics]
    log_weight = torch.from_numpy(np.concatenate([log_weights[z] for z in order])).to(lm.model.device)[:, None]
    largest = max(map(len, firsts))
    value, stderr = np.empty((2, len(sentences)))
    for length, rows in scores.batches(lm, sentences.lengths, lambda length: largest * (length - half) * lm.words):
        outcomes = lm.outcomes(sentences.tokens[rows], length)[:, half:]
        terms = log_weight + torch.cat([_given(lm, *half_read, outcomes) for half_read in opened])  # (b, n)
        total = terms.logsumexp(0)
        value[rows] = total.cpu().numpy()
        # Relative to the sum the terms have mean 1: their spread is the relative error, that of the logarithm.
        relative = len(terms) * (terms - total).exp()
        stderr[rows] = (relative.std(0) / len(terms) ** 0.5).cpu().numpy()
    return value, stderr


def _open(lm: Restricted, prompt: Prompts, halves: Int[np.ndarray, "b h"]) -> tuple[Float[Tensor, "b K"], Cache]:
    """First halves of one topic, read: log p(next word | it goes on), and their cache."""
    half = halves.shape[1]
    steps, cache = lm.read(prompt, lm.outcomes(halves, half, then=0))
    return lm.going_on(steps[0, :, half]).log_softmax(-1), cache


def _given(
    lm: Restricted, opening: Float[Tensor, "b K"], cache: Cache, outcomes: Int[Tensor, "n m"]
) -> Float[Tensor, "b n"]:
    """log p(second half | first half) of every pair."""
    score = opening[:, outcomes[:, 0]]
    if outcomes.shape[1] > 1:
        every = outcomes.expand(len(opening), -1, -1).flatten(0, 1)
        score = score + lm.continued(every[:, :-1], cache, every[:, 1:]).view(score.shape)
    return score
