"""Hidden Markov models with exact masked conditionals (Liu et al. 2022, §3.1 and A.1).

p(x_t | x_-t) is p(x) divided by its sum over x_t, and p(x) is a *sum* over all paths of hidden states. The paper's
text names the Viterbi algorithm, which gives the probability of the single best path: maxima in the place of the
sums do not add up to p(x), and what they give after normalisation is another distribution, not the conditional.
Here forward and backward sums are used. Position t's own emission is never multiplied in, so it need not be divided
out again: with f_t(z) = p(z_t | x_<t) and b_t(z) ∝ p(x_>t | z_t), p(x_t | x_-t) ∝ sum_z f_t(z) b_t(z) p(x_t | z).
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.special import entr

from sameloss import seeds
from sameloss.errors import UserError
from sameloss.languages import base, floors, hmm_sample
from sameloss.languages.alias import beginning
from sameloss.languages.base import Sentences
from sameloss.languages.hmm_matrices import stationary, stochastic
from sameloss.measures.estimate import Estimate

BLOCK = 64  # sentences whose forward and backward values stay in cache


class HMM:
    """Sentences of exactly `length` words from a chain of hidden states.

    start: (S,), transition: (S, S), emission: (S, V); rows sum to 1 within 1e-6 and are normalised.
    positions: the positions (counting from 1) whose state is a task; 6 and 10, where the sentence reaches them, when
    not given. UserError names the matrix and row.
    """

    def __init__(
        self,
        start: Float[np.ndarray, " S"],
        transition: Float[np.ndarray, "S S"],
        emission: Float[np.ndarray, "S V"],
        length: int = 16,
        positions: Sequence[int] | None = None,
        vocab: Sequence[str] | None = None,
    ) -> None:
        states = len(np.atleast_1d(np.asarray(start)))
        self.start = stochastic("start", np.atleast_2d(np.asarray(start, dtype=np.float64)), (1, states))[0]
        self.transition = stochastic("transition", transition, (states, states))
        self.emission = stochastic("emission", emission, (states, None))
        self._start_rows = hmm_sample.rows(self.start[None])
        self._transition_rows = hmm_sample.rows(self.transition)
        self._emission_rows = hmm_sample.rows(self.emission)
        words = self.emission.shape[1]
        self.vocab: Sequence[str] = tuple(vocab or (f"w{v:0{len(str(words - 1))}d}" for v in range(words)))
        if len(self.vocab) != words or len(set(self.vocab)) != words:
            raise UserError(f"vocab holds {len(set(self.vocab))} different words; emission has {words} columns")
        if length < 1:
            raise UserError(f"length is {length}; at least 1 is needed")
        self.max_length = length
        self.positions = tuple(positions if positions is not None else (p for p in (6, 10) if p <= length))
        for position in self.positions:
            if not 1 <= position <= length:
                raise UserError(f"position {position} is outside the sentence; allowed are 1 to {length}")

    @classmethod
    def random(
        cls,
        states: int,
        vocab: int,
        length: int,
        concentration: float = 0.1,
        emission_concentration: float = 0.5,
        smoothing: float = 0.01,
        positions: Sequence[int] | None = None,
        seed: int = 0,
    ) -> "HMM":
        """A random chain that starts in its stationary distribution.

        Rows are (1 - smoothing) * Dirichlet(concentration) + smoothing / size. UserError for a bad parameter.
        """
        for name, number in (("states", states), ("vocab", vocab)):
            if number < 1:
                raise UserError(f"{name} is {number}; at least 1 is needed")
        for name, weight in (("concentration", concentration), ("emission_concentration", emission_concentration)):
            if not 0 < weight < np.inf:
                raise UserError(f"{name} is {weight}; a number above 0 is needed")
        if not 0 < smoothing <= 1:
            raise UserError(f"smoothing is {smoothing}; a number above 0, at most 1, is needed")
        rng = seeds.stream(seed, "language")

        def rows(columns: int, weight: float) -> Float[np.ndarray, "S C"]:
            return (1 - smoothing) * rng.dirichlet(np.full(columns, weight), states) + smoothing / columns

        transition, emission = rows(states, concentration), rows(vocab, emission_concentration)
        return cls(stationary(transition), transition, emission, length, positions)

    @classmethod
    def twelve_state_chain(cls, seed: int) -> "HMM":
        """The laptop language: 12 states, 24 words, sentences of 8; tasks are the states at positions 3 and 5."""
        return cls.random(12, 24, 8, positions=(3, 5), seed=seed)

    @classmethod
    def paper_shape(cls, seed: int) -> "HMM":
        """The paper's sizes (A.1): 100 states, 200 words, sentences of 16; tasks: the states at positions 6 and 10.

        The concentrations are ours, chosen so that the floor lies near the paper's 3.758.
        """
        return cls.random(100, 200, 16, concentration=0.03, emission_concentration=0.045, positions=(6, 10), seed=seed)

    def __str__(self) -> str:
        return f"{len(self.start)} states, {len(self.vocab)} words, sentences of {self.max_length} words"

    def sample(self, n: int, seed: int) -> Sentences:
        """`n` independent sentences, tokens (n, length)."""
        return self.sample_with_states(n, seed)[0]

    def sample_with_states(self, n: int, seed: int) -> tuple[Sentences, Int[np.ndarray, "n T"]]:
        """The same sentences with the states (n, T) they were made by: the sampled labels of the tasks."""
        base.check_count(n)
        tables = self._start_rows, self._transition_rows, self._emission_rows
        states, words = hmm_sample.sample(tables, n, self.max_length, beginning(seed, "data"))
        return Sentences(words, np.full(n, self.max_length)), states

    def encode(self, sentences: Sequence[Sequence[str]]) -> Sentences:
        """Words to indices, tokens (n, length); UserError for unknown words or another length."""
        encoded = base.encode(sentences, self.vocab, self.max_length)
        self._check(encoded)
        return encoded

    def log_prob(self, sentences: Sentences) -> Float[np.ndarray, " n"]:
        """log p(x) in nats, (n,); -inf for sentences of probability 0."""
        self._check(sentences)
        total = np.zeros(len(sentences))
        predicted = np.tile(self.start, (len(sentences), 1))
        with np.errstate(divide="ignore"):
            for t in range(self.max_length):
                predicted *= self.emission.T[sentences.tokens[:, t]]
                mass = predicted.sum(axis=1)
                total += np.log(mass)
                predicted = (predicted / np.where(mass > 0, mass, 1)[:, None]) @ self.transition
        return total

    def state_weights(self, sentences: Sentences) -> Float[np.ndarray, "n T S"]:
        """p(z_t | x_-t), (n, T, S), the state at t given all *other* words; nan where these are impossible."""
        self._check(sentences)
        n, length = sentences.tokens.shape
        emitted = self.emission.T[sentences.tokens]  # (n, T, S)
        weights = np.empty_like(emitted)
        weights[:, 0] = self.start
        for t in range(1, length):
            np.matmul(_scaled(weights[:, t - 1] * emitted[:, t - 1]), self.transition, out=weights[:, t])
        after = np.ones((n, len(self.start)))
        for t in range(length - 2, -1, -1):
            after = _scaled(after * emitted[:, t + 1]) @ self.transition.T
            weights[:, t] *= after
        return _scaled(weights)

    def _state_weights_at(self, sentences: Sentences, positions: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n S"]:
        """`state_weights` at one position a sentence, block by block so that memory stays bounded."""
        self._check(sentences)
        result = np.empty((len(sentences), len(self.start)))
        for start in range(0, len(sentences), BLOCK):
            rows = slice(start, start + BLOCK)
            weights = self.state_weights(sentences[rows])
            result[rows] = weights[np.arange(len(weights)), positions[rows]]
        return result

    def masked_conditionals(self, sentences: Sentences) -> Float[np.ndarray, "n T V"]:
        """p(x_t = v | x_-t), (n, T, V), by forward and backward sums; UserError for a sentence of probability 0."""
        result = np.empty((*sentences.tokens.shape, len(self.vocab)))
        for start in range(0, len(sentences), BLOCK):
            weights = self.state_weights(sentences[start : start + BLOCK])
            # p(x) = p(x_-t) p(x_t | x_-t), here for the first word; nan when x_-t is already impossible.
            first = (weights[:, 0] * self.emission.T[sentences.tokens[start : start + BLOCK, 0]]).sum(axis=1)
            if not (first > 0).all():
                self._refuse(start + int(np.argmin(first > 0)))
            rows = result[start : start + BLOCK].reshape(-1, len(self.vocab))
            np.matmul(weights.reshape(-1, len(self.start)), self.emission, out=rows)
        return result

    def masked_conditionals_at(
        self, sentences: Sentences, positions: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, "n V"]:
        """p(x_t = v | x_-t) at one position a sentence (counting from 0), (n, V).

        The word that stands there is ignored. UserError for a position outside or impossible words around it.
        """
        base.check_positions(sentences, positions)
        weights = self._state_weights_at(sentences, positions)
        if np.isnan(weights).any():
            self._refuse(int(np.argmax(np.isnan(weights).any(axis=1))))
        return weights @ self.emission

    def iter_masked_conditionals(self, sentences: Sentences, chunk: int = 1024) -> Iterator[Float[np.ndarray, "c T V"]]:
        """The same as `masked_conditionals` for `chunk` sentences at a time, in order."""
        base.check_count(chunk, "chunk")
        for start in range(0, len(sentences), chunk):
            yield self.masked_conditionals(sentences[start : start + chunk])

    def floor(self, n: int, seed: int) -> Estimate:
        """E[H(x_t | x_-t)] in nats, t uniform within the sentence, from `n` sampled sentences."""
        return floors.floor(self, n, seed)

    def unigram(self) -> Float[np.ndarray, " V"]:
        """p(v) of a word at a uniformly drawn position, (V,), exact."""
        state, total = self.start, np.zeros_like(self.start)
        for _ in range(self.max_length):
            total += state / self.max_length
            state = state @ self.transition
        return total @ self.emission

    def unigram_entropy(self) -> float:
        """The entropy of `unigram` in nats: the floor of a model without context."""
        return float(entr(self.unigram()).sum())

    @property
    def tasks(self) -> Mapping[str, int]:
        """The state at each of `positions`, as "state-6" (counting from 1); `labels` takes any position."""
        return {f"state-{position}": len(self.start) for position in self.positions}

    def labels(self, task: str, sentences: Sentences) -> Int[np.ndarray, " n"]:
        """The most probable state given the whole sentence, (n,) (the sampled one: `sample_with_states`)."""
        return self.posteriors(task, sentences).argmax(axis=1)

    def posteriors(self, task: str, sentences: Sentences) -> Float[np.ndarray, "n S"]:
        """p(z_t | x), (n, S), for the task "state-t", any t; UserError for a sentence of probability 0."""
        known = [f"state-{position}" for position in range(1, self.max_length + 1)]
        if task not in known:
            raise UserError(f"unknown task {task!r}; known: {known[0]} to {known[-1]}")
        t = known.index(task)
        weights = self._state_weights_at(sentences, np.full(len(sentences), t))
        joint = weights * self.emission.T[sentences.tokens[:, t]]
        total = joint.sum(axis=1, keepdims=True)
        if not (total > 0).all():
            self._refuse(int(np.argmin(np.nan_to_num(total))))
        return joint / total

    def _check(self, sentences: Sentences) -> None:
        base.check(sentences, len(self.vocab), self.max_length)
        if (sentences.lengths != self.max_length).any():
            i = int(np.argmax(sentences.lengths != self.max_length))
            raise UserError(
                f"sentence {i + 1} has {sentences.lengths[i]} words; this chain makes exactly {self.max_length}"
            )

    def _refuse(self, row: int) -> None:
        raise UserError(f"sentence {row + 1} has probability 0 under this chain; its conditionals are not defined")


def _scaled(rows: Float[np.ndarray, "... S"]) -> Float[np.ndarray, "... S"]:
    """Rows divided by their sum (a sum of 0 leaves nan): the scale cancels and nothing underflows."""
    with np.errstate(invalid="ignore"):
        rows /= rows.sum(axis=-1, keepdims=True)
    return rows
