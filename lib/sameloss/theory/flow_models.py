"""Three toy language models whose whole loss landscape is known: logits = W2 W1, the smallest masked language models.

Each predicts the hidden word of a short sentence from its context c: the logits are the c-th column of W2 W1, where W1
holds one embedding per context and W2 is the decoder that all contexts share. They are well specified: on the
manifold where the softmax equals the true conditional the loss is the entropy floor.
Parameters travel as one flat vector theta = (W2 row by row, W1 row by row).
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sameloss.errors import UserError


@dataclass(frozen=True)
class Toy:
    """A two-layer linear softmax model together with the language it is trained on.

    weights: (C,) how often each context occurs. truth: (C, V) true conditionals of the hidden word.
    rank: inner dimension of W2 W1. reference: the logit of word 0 is fixed at 0 and W2 has one row less.
    """

    name: str
    weights: Float[np.ndarray, " C"]
    truth: Float[np.ndarray, "C V"]
    rank: int
    reference: bool

    @property
    def outputs(self) -> int:
        """Rows of W2: the number of logits that are trained."""
        return self.truth.shape[1] - self.reference

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return self.rank * (self.outputs + len(self.weights))

    @property
    def target(self) -> Float[np.ndarray, "O C"]:
        """Z*, the logits on the manifold: log pi relative to word 0, or centred over words without a reference."""
        logits = np.log(self.truth).T
        return (logits - logits[0])[1:] if self.reference else logits - logits.mean(axis=0)


def one_context(p: float = 0.8) -> Toy:
    """Model U: one context, two words, logit z = u v, P(word 1) = p; theta = (u, v)."""
    if not (isinstance(p, int | float) and math.isfinite(p) and 0 < p < 1):
        raise UserError(f"p: found {p!r}; allowed: a probability strictly between 0 and 1")
    return Toy("U", np.ones(1), np.array([[1 - p, p]]), 1, True)


def two_word_sentences(joint: Float[np.ndarray, "V V"], name: str, rank: int, reference: bool) -> Toy:
    """The masked-language-model toy of two-word sentences with the given joint table; the mask position is uniform.

    Contexts: "word i stands first" (the second is hidden), then "word j stands second" (the first is hidden).
    """
    joint = np.asarray(joint, dtype=np.float64)
    if joint.ndim != 2 or joint.shape[0] != joint.shape[1] or not (joint > 0).all() or abs(joint.sum() - 1) > 1e-12:
        raise UserError(f"joint table: found {joint.tolist()}; allowed: a square table of positive numbers, sum 1")
    first, second = joint.sum(axis=1), joint.sum(axis=0)
    truth = np.concatenate([joint / first[:, None], (joint / second).T])
    return Toy(name, np.concatenate([first, second]) / 2, truth, rank, reference)


def shared_decoder() -> Toy:
    """Model E: two-word sentences over {a, b}, logit z_c = u e_c; theta = (u, e_0, ..., e_3)."""
    return two_word_sentences(np.array([[0.35, 0.15], [0.10, 0.40]]), "E", 1, True)


def matrix_model() -> Toy:
    """Model M: two-word sentences over three words, logits W2 W1 of inner dimension 3; 27 parameters."""
    return two_word_sentences(np.array([[0.20, 0.06, 0.04], [0.05, 0.15, 0.10], [0.03, 0.12, 0.25]]), "M", 3, False)


def start(toy: Toy, decoder: Float[np.ndarray, "O r"] | float) -> Float[np.ndarray, " d"]:
    """The point of the manifold with this decoder W2 (a number for U and E) and the smallest embeddings that fit."""
    w2 = np.asarray(decoder, dtype=np.float64).reshape(toy.outputs, toy.rank)
    theta = join(w2, np.linalg.pinv(w2) @ toy.target)
    check_on_manifold(toy, theta)
    return theta


M_START = np.array([[2.0, 0.0, 0.5], [-1.0, 1.0, -1.0], [-1.0, -1.0, 0.5]])


def split(
    toy: Toy, theta: Float[np.ndarray, "*n d"]
) -> tuple[Float[np.ndarray, "*n O r"], Float[np.ndarray, "*n r C"]]:
    """theta -> (W2, W1); leading dimensions are kept."""
    theta = np.asarray(theta, dtype=np.float64)
    cut, lead = toy.outputs * toy.rank, theta.shape[:-1]
    return (
        theta[..., :cut].reshape(*lead, toy.outputs, toy.rank),
        theta[..., cut:].reshape(*lead, toy.rank, len(toy.weights)),
    )


def join(w2: Float[np.ndarray, "*n O r"], w1: Float[np.ndarray, "*n r C"]) -> Float[np.ndarray, "*n d"]:
    """(W2, W1) -> theta; leading dimensions are kept."""
    lead = w2.shape[:-2]
    return np.concatenate([w2.reshape(*lead, -1), w1.reshape(*lead, -1)], axis=-1)


def log_probabilities(toy: Toy, theta: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n C V"]:
    """log f_theta(word | context) in nats."""
    w2, w1 = split(toy, theta)
    logits = np.swapaxes(w2 @ w1, -1, -2)
    if toy.reference:
        logits = np.concatenate([np.zeros((*logits.shape[:-1], 1)), logits], axis=-1)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def distance(toy: Toy, theta: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n"]:
    """Root mean square distance, in logits, between the model's and the true log-conditionals: 0 on the manifold."""
    gap = log_probabilities(toy, theta) - np.log(toy.truth)
    gap = gap - gap.mean(axis=-1, keepdims=True)
    return np.sqrt((toy.weights * (gap**2).sum(axis=-1)).sum(axis=-1))


def check_on_manifold(toy: Toy, theta: Float[np.ndarray, "*n d"]) -> None:
    """UserError unless theta has the right shape and lies on the minimiser manifold (to 1e-8 in logits)."""
    theta = np.asarray(theta)
    if theta.shape[-1:] != (toy.dim,):
        raise UserError(f"start of model {toy.name}: found shape {theta.shape}; allowed: {toy.dim} parameters")
    off = float(np.max(distance(toy, theta)))
    if not off < 1e-8:
        raise UserError(
            f"start of model {toy.name}: found a point off the minimiser manifold (logits differ by {off:.2g}); "
            "allowed: a point where the softmax equals the true conditionals"
        )
