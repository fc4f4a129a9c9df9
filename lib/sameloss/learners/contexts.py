"""Sentences with one masked position each: fixed contexts for measuring, chunks of batches for training."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from sameloss.errors import UserError
from sameloss.languages.base import PAD, Language, Sentences
from sameloss.languages.lm_text import LMText
from sameloss.learners.stack import ModelConfig
from sameloss.seeds import stream


@dataclass(frozen=True)
class Contexts:
    """n masked sentences: what goes in, what was masked and what the language says about it.

    tokens: (n, T) with the mask token in place; position: (n,); target: (n,); conditional: (n, V) float64 or None.
    """

    tokens: Int[Tensor, "n T"]
    position: Int[Tensor, " n"]
    target: Int[Tensor, " n"]
    conditional: Float[Tensor, "n V"] | None = None

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, rows: slice) -> "Contexts":
        conditional = None if self.conditional is None else self.conditional[rows]
        return Contexts(self.tokens[rows], self.position[rows], self.target[rows], conditional)

    @property
    def inputs(self) -> tuple[Tensor, Tensor]:
        """(tokens, position): the arguments of a model, and what the measures of flatness take."""
        return self.tokens, self.position


def model_tokens(sentences: Sentences, config: ModelConfig) -> Int[np.ndarray, "n length"]:
    """Token ids of a model: padding becomes its pad token, and rows are filled up to its length.

    UserError for a sentence that is too long, a word the model does not know, or padding where `config.padded` is off.
    """
    tokens, longest = sentences.tokens, int(sentences.lengths.max(initial=1))
    if longest > config.length:
        raise UserError(f"a sentence has {longest} words; the model allows at most {config.length}")
    if tokens.max(initial=0) >= config.vocab:
        raise UserError(f"a sentence holds word {int(tokens.max())}; the model knows words 0 to {config.vocab - 1}")
    if not config.padded and sentences.lengths.min(initial=config.length) < config.length:
        raise UserError(f"a sentence is shorter than length {config.length}; set padded: true in the model's settings")
    full = np.full((len(tokens), config.length), config.pad, dtype=np.int64)
    width = min(config.length, tokens.shape[1])
    full[:, :width] = np.where(tokens[:, :width] == PAD, config.pad, tokens[:, :width])
    return full


def draw(language: Language, n: int, rng: np.random.Generator) -> tuple[Sentences, Int[np.ndarray, " n"]]:
    """`n` fresh sentences and one position in each, uniform within the sentence (Liu et al. 2022, §3.1)."""
    sentences = language.sample(n, int(rng.integers(2**62)))
    return sentences, (rng.random(n) * sentences.lengths).astype(np.int64)


def contexts(language: Language, n: int, seed: int, config: ModelConfig, purpose: str = "eval") -> Contexts:
    """`n` fixed contexts of a language with their true conditionals, from the stream `purpose` of `seed`."""
    return _masked(language, *draw(language, n, stream(seed, purpose)), config)


def pool(language: Language, n: int, seed: int) -> Sentences:
    """The `n` sentences that a run on a finite pool is trained on."""
    return language.sample(n, int(stream(seed, "pool").integers(2**62)))


def pool_contexts(language: Language, size: int, n: int, seed: int, config: ModelConfig) -> Contexts:
    """`n` fixed contexts out of the pool of `size` sentences on which a run was trained: for its training loss."""
    sentences, rng = pool(language, size, seed), stream(seed, "eval/pool")
    some = sentences[rng.integers(size, size=n)]
    return _masked(language, some, (rng.random(n) * some.lengths).astype(np.int64), config)


def _masked(language: Language, sentences: Sentences, position: Int[np.ndarray, " n"], config: ModelConfig) -> Contexts:
    tokens = torch.from_numpy(model_tokens(sentences, config))
    at, rows = torch.from_numpy(position), torch.arange(len(position))
    target = tokens[rows, at].clone()
    tokens[rows, at] = config.mask
    return Contexts(tokens, at, target, torch.from_numpy(conditionals_at(language, sentences, position)))


def conditionals_at(language: Language, sentences: Sentences, position: np.ndarray) -> Float[np.ndarray, "n V"]:
    """p(x_t = . | x_-t) at one position a sentence, streamed so that memory stays bounded."""
    if isinstance(language, LMText):  # substitution at one position is a fraction of the work; others get all at once
        return language.masked_conditionals_at(sentences, position)
    rows, start = [], 0
    for block in language.iter_masked_conditionals(sentences):
        rows.append(block[np.arange(len(block)), position[start : start + len(block)]])
        start += len(block)
    return np.concatenate(rows)


class TrainingData:
    """Batches of one seed in chunks: chunk c is drawn from its own stream, so that a resumed run sees the same bytes.

    `size` > 0 draws that many sentences once and trains on them only: for languages that are slow to sample, and where
    a loss on what was trained on is to part from one on fresh sentences.
    """

    def __init__(self, language: Language, seed: int, config: ModelConfig, stage: str, oracle: bool, size: int):
        self.language, self.seed, self.config, self.stage, self.oracle = language, seed, config, stage, oracle
        self.pool: Sentences | None = None
        if size:
            self.pool = pool(language, size, seed)
            blocks = language.iter_masked_conditionals(self.pool) if oracle else []
            self.truth = np.concatenate([block.astype(np.float32) for block in blocks]) if oracle else None

    def chunk(self, number: int, n: int) -> Contexts:
        """Chunk `number`: `n` contexts; `conditional` (n, V) float32 with the oracle objective only."""
        rng = stream(self.seed, f"data/{self.stage}/{number}")
        if self.pool is None:
            sentences, position = draw(self.language, n, rng)
            truth = conditionals_at(self.language, sentences, position).astype(np.float32) if self.oracle else None
        else:
            rows = rng.integers(len(self.pool), size=n)
            sentences = self.pool[rows]
            position = (rng.random(n) * sentences.lengths).astype(np.int64)
            truth = self.truth[rows, position] if self.truth is not None else None
        tokens = model_tokens(sentences, self.config)
        target = tokens[np.arange(n), position]
        tokens[np.arange(n), position] = self.config.mask
        conditional = None if truth is None else torch.from_numpy(truth)
        return Contexts(torch.from_numpy(tokens), torch.from_numpy(position), torch.from_numpy(target), conditional)
