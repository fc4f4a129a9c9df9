"""Parts of a language by which a loss is split: rare and frequent words, short and long sentences."""

from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Bool, Float
from torch import nn

from sameloss.errors import UserError
from sameloss.languages.base import Language
from sameloss.learners import evaluate
from sameloss.learners.contexts import Contexts
from sameloss.measures.estimate import Estimate
from sameloss.runs.measure_rows import Row, row


def part_rows(model: nn.Module, language: Language, seen: Contexts, pad: int, share: float) -> Iterator[Row]:
    """The loss on each part of the language: rows kl_PART and cross_entropy_PART, n: its contexts."""
    return loss_rows(model, seen, parts(language, seen, pad, share))


def loss_rows(model: nn.Module, seen: Contexts, of: Mapping[str, Bool[np.ndarray, " n"] | slice]) -> Iterator[Row]:
    """KL to the truth and cross-entropy (nats) over parts of `seen`, from one pass through the model."""
    log_f = evaluate.log_probs(model, seen)
    kl, cross_entropy = (each(log_f, seen).numpy() for each in (evaluate.kl_each, evaluate.cross_entropy_each))
    for part, inside in of.items():
        yield row(f"kl_{part}", Estimate.of(kl[inside]))
        yield row(f"cross_entropy_{part}", Estimate.of(cross_entropy[inside]))


def parts(language: Language, seen: Contexts, pad: int, share: float) -> dict[str, Bool[np.ndarray, " n"]]:
    """Which contexts belong to each part, by name: rare and frequent, and where lengths differ short and long.

    rare: the hidden word is one of the least frequent words that together make at most `share` of the text, by the
    language's own unigram probabilities. short: the sentence is shorter than the median one; every length is as it is
    in the language. UserError for a language that does not know its unigram, or where no word is that rare.
    """
    unigram = getattr(language, "unigram", None)
    if unigram is None:
        raise UserError("rare: this language has no unigram probabilities; leave rare out")
    rare = rare_words(unigram(), share)[seen.target.numpy()]
    found = {"rare": rare, "frequent": ~rare}
    lengths = (seen.tokens != pad).sum(1).numpy()
    if lengths.min() < lengths.max():
        # The median cut upwards where the shortest sentences are half of all: neither part is empty.
        short = lengths < max(np.median(lengths), lengths.min() + 1)
        found |= {"short": short, "long": ~short}
    return found


def rare_words(unigram: Float[np.ndarray, " V"], share: float) -> Bool[np.ndarray, " V"]:
    """Whether each word is among the least frequent ones that together make at most `share` of the text."""
    order = np.argsort(unigram, kind="stable")
    rare = np.zeros(len(unigram), dtype=bool)
    rare[order[np.cumsum(unigram[order]) <= share * unigram.sum()]] = True
    if not rare.any():
        raise UserError(f"rare: found {share:g}; the rarest word makes {unigram.min() / unigram.sum():.2g} of the text")
    return rare
