"""How predictable a masked word is: the entropy floor, by length and by position (Liu et al. 2022, §3.1)."""

import numpy as np
from jaxtyping import Float
from scipy.special import entr

from sameloss.languages.base import Language, Sentences
from sameloss.measures.estimate import Estimate


def masked_entropies(language: Language, sentences: Sentences) -> Float[np.ndarray, "n T"]:
    """H(x_t | x_-t) in nats for every position of every sentence, (n, T); nan behind the end."""
    rows = [entr(p).sum(axis=2) for p in language.iter_masked_conditionals(sentences)]
    entropies = np.concatenate(rows)
    entropies[np.arange(entropies.shape[1]) >= sentences.lengths[:, None]] = np.nan
    return entropies


def floor(language: Language, n: int, seed: int) -> Estimate:
    """E[H(x_t | x_-t)] in nats, t uniform within the sentence, from `n` sampled sentences (one observation each)."""
    return Estimate.of(np.nanmean(masked_entropies(language, language.sample(n, seed)), axis=1))


def floor_by_length(language: Language, n: int, seed: int) -> dict[int, Estimate]:
    """The floor of the sentences of each length among `n` sampled ones, in nats: length -> estimate."""
    sentences = language.sample(n, seed)
    per_sentence = np.nanmean(masked_entropies(language, sentences), axis=1)
    return {
        int(length): Estimate.of(per_sentence[sentences.lengths == length]) for length in np.unique(sentences.lengths)
    }


def floor_by_position(language: Language, n: int, seed: int) -> dict[int, Estimate]:
    """E[H(x_t | x_-t)] in nats at each position t (counting from 1) over the sampled sentences that reach it."""
    entropies = masked_entropies(language, language.sample(n, seed))
    reached = ~np.isnan(entropies)
    return {t + 1: Estimate.of(entropies[reached[:, t], t]) for t in np.flatnonzero(reached.any(axis=0)).tolist()}
