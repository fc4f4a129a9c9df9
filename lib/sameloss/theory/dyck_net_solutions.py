"""Zero-loss solutions of the bracket network that one can write down: flat ones, and random ones that are not."""

import numpy as np
from jaxtyping import Float

from sameloss.errors import UserError
from sameloss.languages.dyck import Kind, check, count
from sameloss.seeds import stream
from sameloss.theory.dyck_net import INTERPOLATES, DyckNet, features, worst_error

MOST_FEATURES = 2**24  # numbers in a feature matrix: 128 MiB in float64, and descent holds several
DRAWS = 20


def two_neurons(length: int, width: int = 2) -> DyckNet:
    """The proof's flattest solution (D.1): add the brackets, a neuron for each sign of the sum.

    A = r 1ᵀ with r = (T-1)^{1/3}, w = ∓ r^{-1/2}, u = ± r^{-1/2}; more neurons are zero.
    """
    check(length, "equal-count")
    if width < 2:
        raise UserError(
            f"m = {width}: one ReLU neuron gives answers of one sign and the labels have two; m is at least 2"
        )
    r = (length - 1) ** (1 / 3)
    sign = np.zeros(width)
    sign[:2] = 1, -1
    return DyckNet(np.full((1, length), r), -sign[:, None] / r**0.5, sign / r**0.5)


def ends_apart(length: int) -> DyckNet:
    """A flattest solution of the *strict* language that is not of rank one: four neurons, two attention outputs.

    The first bracket of a strict word is always ( and the last always ), so z = r (x_1 + x_T, Σ of the others) has one
    zero coordinate on every masked word, and each coordinate alone tells the label of its own positions.
    """
    check(length, "strict")
    if length < 4:
        raise UserError(
            f"T = {length}: without brackets between the first and the last there is nothing to split; T >= 4"
        )
    r = (length - 1) ** (1 / 3)
    ends = np.zeros(length)
    ends[[0, -1]] = 1
    sign = np.array([1.0, -1.0, 1.0, -1.0])
    side = np.repeat(np.eye(2), 2, axis=0)
    return DyckNet(r * np.stack([ends, 1 - ends]), -sign[:, None] * side / r**0.5, sign / r**0.5)


def needed_width(length: int, kind: Kind) -> int:
    """How many random neurons interpolation needs at least.

    Strict: one for each of the N masked words. Equal-count: masked words come in pairs x and -x. On a pair relu(w·x)
    splits into an odd part, linear in x (T dimensions), and an even part |w·x| (one for each of the N/2 pairs).
    """
    inputs = length * count(length, kind)
    return inputs if kind == "strict" else inputs // 2 + length


def require_width(width: int, length: int, kind: Kind) -> None:
    """UserError when `width` random neurons cannot interpolate, or when their feature matrix would not fit."""
    inputs, needed = length * count(length, kind), needed_width(length, kind)
    if width < needed:
        reason = (
            "one for each" if kind == "strict" else f"one for each pair x, -x, and T = {length} for the linear part"
        )
        raise UserError(
            f"m = {width}: random neurons must fit the labels of {inputs:,} masked {kind} words of T = {length}, "
            f"which needs at least {needed:,} of them ({reason}); m >= {2 * inputs:,} is safe"
        )
    if inputs * width > MOST_FEATURES:
        raise UserError(
            f"T = {length}, m = {width}: {inputs:,} masked words times {width:,} neurons make a matrix of "
            f"{inputs * width:,} numbers, more than the {MOST_FEATURES:,} allowed; take a smaller T or m"
        )


def random_features(
    x: Float[np.ndarray, "N T"], y: Float[np.ndarray, " N"], width: int, rng: np.random.Generator
) -> DyckNet:
    """W ~ N(0, 1), A = I, and the least-squares output weights of least norm (D.2); it may or may not interpolate."""
    length = x.shape[1]
    drawn = DyckNet(np.eye(length), rng.standard_normal((width, length)), np.zeros(width))
    output = np.linalg.lstsq(features(drawn, x), y, rcond=1e-10)[0]
    return DyckNet(drawn.attention, drawn.hidden, output)


def random_solution(
    x: Float[np.ndarray, "N T"], y: Float[np.ndarray, " N"], kind: Kind, width: int, seed: int
) -> DyckNet:
    """The first draw of `random_features` that interpolates, from stream(seed, "theory/features/0"), ".../1" and so on.

    UserError if `width` is too small, or if none of 20 draws interpolates.
    """
    length = x.shape[1]
    require_width(width, length, kind)
    for draw in range(DRAWS):
        net = random_features(x, y, width, stream(seed, f"theory/features/{draw}"))
        if worst_error(net, x, y) < INTERPOLATES:
            return net
    raise UserError(
        f"m = {width}: none of {DRAWS} draws of random neurons fits all {len(y):,} masked words, because some neurons "
        f"are idle or linear on all of them; m >= {2 * len(y):,} is safe"
    )
