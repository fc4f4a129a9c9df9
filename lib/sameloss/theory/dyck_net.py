"""The one-layer network of the bracket theorem, and how flat it is: the exact trace by enumeration.

z = A x (attention map), f = Σ_j u_j relu(w_j · z), loss E(f - y)². Every weight of A, W and u is trained, so that at
zero loss the trace of the loss Hessian is 2 E‖∇f‖². The functions here give E‖∇f‖², half the trace, over any inputs.
(Liu et al. 2022, §6 and D.1.)
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from sameloss.errors import UserError

KINK = 1e-9  # a pre-activation below it is a rounded 0 on the kink, where the neuron counts as off
INTERPOLATES = 1e-9  # largest |f - y| that counts as zero loss


@dataclass(frozen=True)
class DyckNet:
    """Weights of the network: `attention` A (d, T), `hidden` W (m, d), `output` u (m,)."""

    attention: Float[np.ndarray, "d T"]
    hidden: Float[np.ndarray, "m d"]
    output: Float[np.ndarray, " m"]


def attended(net: DyckNet, x: Float[np.ndarray, "n T"]) -> Float[np.ndarray, "n d"]:
    """The attention output z = A x."""
    return x @ net.attention.T


def features(net: DyckNet, x: Float[np.ndarray, "n T"]) -> Float[np.ndarray, "n m"]:
    """The hidden layer relu(W z)."""
    return np.maximum(attended(net, x) @ net.hidden.T, 0)


def forward(net: DyckNet, x: Float[np.ndarray, "n T"]) -> Float[np.ndarray, " n"]:
    """The network's answer f(x)."""
    return features(net, x) @ net.output


def loss(net: DyckNet, x: Float[np.ndarray, "n T"], y: Float[np.ndarray, " n"]) -> float:
    """Mean squared error E(f - y)² over the rows given."""
    return float(np.mean((forward(net, x) - y) ** 2))


def worst_error(net: DyckNet, x: Float[np.ndarray, "n T"], y: Float[np.ndarray, " n"]) -> float:
    """The largest |f - y|: below `INTERPOLATES` the net is called a zero-loss solution."""
    return float(np.abs(forward(net, x) - y).max())


def active(net: DyckNet, x: Float[np.ndarray, "n T"]) -> Bool[np.ndarray, "n m"]:
    """Which neurons are on; a pre-activation that is zero but for rounding is off."""
    return attended(net, x) @ net.hidden.T > KINK


def gradient_terms(net: DyckNet, x: Float[np.ndarray, "n T"]) -> Float[np.ndarray, "n 3"]:
    """Per input, the squared gradient of f in u, W and A.

    Σ_S (w_j·z)², |z|² Σ_S u_j² and |x|² |Σ_S u_j w_j|², S the active neurons of that input.
    """
    z, on = attended(net, x), active(net, x)
    pulled = (on * net.output) @ net.hidden  # Σ_S u_j w_j, (n, d)
    to_output = (np.where(on, z @ net.hidden.T, 0) ** 2).sum(axis=1)
    to_hidden = (z**2).sum(axis=1) * (on @ net.output**2)
    to_attention = (x**2).sum(axis=1) * (pulled**2).sum(axis=1)
    return np.stack([to_output, to_hidden, to_attention], axis=1)


def half_trace(net: DyckNet, x: Float[np.ndarray, "n T"]) -> float:
    """E‖∇f‖² over the inputs given: ½ Tr ∇²L at zero loss."""
    return float(gradient_terms(net, x).sum(axis=1).mean())


def half_trace_frozen(net: DyckNet, x: Float[np.ndarray, "n T"]) -> float:
    """The same with the attention map held fixed: only W and u are trained."""
    return float(gradient_terms(net, x)[:, :2].sum(axis=1).mean())


def cancellation(net: DyckNet, x: Float[np.ndarray, "n T"]) -> float:
    """E[Σ_S |u_j| w_j·z - |f|]: how much active neurons say against each other. 0: all have the sign of the answer."""
    hidden = features(net, x)
    return float((hidden @ np.abs(net.output) - np.abs(hidden @ net.output)).mean())


def bound(length: int) -> float:
    """The smallest E‖∇f‖² of a zero-loss solution, 3 (T-1)^{1/3}."""
    return 3 * (length - 1) ** (1 / 3)


def bound_frozen(length: int) -> float:
    """The smallest E‖∇f‖² with the attention map frozen at the identity, 2 √(T-1)."""
    return 2 * (length - 1) ** 0.5


def rescale(net: DyckNet, x: Float[np.ndarray, "n T"]) -> DyckNet:
    """The flattest net with the same function that scaling whole layers reaches; its E‖∇f‖² is 3 (P Q R)^{1/3}.

    Factors α, β, γ with αβγ = 1 on A, W, u turn the means P, Q, R of `gradient_terms` into P/γ², Q/β², R/α²; by the
    inequality of arithmetic and geometric means the sum is least when the three are equal. A comparison of two traces
    that leaves this out compares accidents of scale.
    """
    means = gradient_terms(net, x).mean(axis=0)
    if not (means > 0).all():
        raise UserError("the net answers 0 to every input, so its layers have no best scale")
    gamma, beta, alpha = np.sqrt(means / np.prod(means) ** (1 / 3))
    return DyckNet(alpha * net.attention, beta * net.hidden, gamma * net.output)


def rank_one_share(matrix: Float[np.ndarray, "d T"]) -> float:
    """Share of the squared singular values that the largest one holds: 1 for a matrix of rank one."""
    squared = np.linalg.svd(matrix, compute_uv=False) ** 2
    return float(squared[0] / squared.sum())
