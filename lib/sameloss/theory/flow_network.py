"""The theorem's drift at a real network: exact curvature, gradient flow back to the manifold, kicks of SGD.

The network is made its own truth: on a fixed set of contexts the labels are drawn from the predictions that it makes at
`theta`. There it is saturated by construction, whatever it was trained on, and Lemma 4.2 and Theorem 4.3 (Liu et al.
2022) apply without any gap to the floor. The network comes in as a plain function of a flat parameter vector.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.func import grad, jacrev, vmap

from sameloss.errors import UserError

Model = Callable[[Tensor, Tensor], Tensor]
UNTIL = 1e6  # time of gradient flow after the last kick
BLOCK = 16  # contexts worked on at once where every context needs a Jacobian


@dataclass(frozen=True)
class Network:
    """A saturated network.

    log_probs(theta (d,), rows (n,)) -> (n, V): log-predictions in the contexts `rows`, differentiable, float64.
    theta: (d,) the point. truth: (C, V) its own predictions there, all contexts equally likely.
    """

    log_probs: Model
    theta: Float[Tensor, " d"]
    truth: Float[Tensor, "C V"]

    @classmethod
    def own_truth(cls, log_probs: Model, theta: Float[Tensor, " d"], contexts: int) -> "Network":
        """The network at theta on `contexts` contexts, with its own predictions as the truth."""
        if theta.dtype != torch.float64:
            raise UserError(
                f"network parameters: found {theta.dtype}; allowed: torch.float64 (the drift is of order 1e-6)"
            )
        truth = log_probs(theta, torch.arange(contexts)).exp().detach()
        return cls(log_probs, theta.detach(), truth)

    def loss(self, theta: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """Population cross-entropy in nats."""
        rows = torch.arange(len(self.truth))
        return -(self.truth * self.log_probs(theta, rows)).sum() / len(self.truth)


@dataclass(frozen=True)
class Curvature:
    """Hessian = Fisher matrix at a saturated network, in its eigenbasis.

    values: (d,) ascending, exactly 0 on the tangent space; vectors: (d, d) columns; tangent: (d,) mask of that space.
    slope: (d,) gradient of the trace in the eigenbasis. trace: sum of the values.
    """

    values: Float[Tensor, " d"]
    vectors: Float[Tensor, "d d"]
    tangent: Bool[Tensor, " d"]
    slope: Float[Tensor, " d"]
    trace: float

    def predicted(self, batch: int = 1) -> float:
        """The theorem's drift of the trace in one step, divided by eta^2: -|P grad Tr|^2 / (4B)."""
        return -float((self.slope[self.tangent] ** 2).sum()) / (4 * batch)

    def predicted_within(self, time: float, batch: int = 1) -> float:
        """The same when gradient flow only lasts for `time`: a direction counts as far as it has not come back.

        What a kick leaves in a direction of curvature lambda decays as exp(-lambda time): with 1 / time far below all
        eigenvalues but the zeros this is `predicted`.
        """
        return -float((self.slope**2 * torch.exp(-self.values * time)).sum()) / (4 * batch)


def jacobian(net: Network, theta: Float[Tensor, " d"], rows: Int[Tensor, " n"]) -> Float[Tensor, "n V d"]:
    """Derivative of every log-prediction in the contexts `rows`."""
    return vmap(jacrev(lambda t, row: net.log_probs(t, row[None])[0]), (None, 0))(theta, rows)


def fisher_trace(net: Network, theta: Float[Tensor, " d"], rows: Int[Tensor, " n"]) -> Float[Tensor, ""]:
    """The share of `rows` in E_c sum_v f_v |grad log f_v|^2: differentiable, exact in the words."""
    squares = (jacobian(net, theta, rows) ** 2).sum(-1)
    return (net.log_probs(theta, rows).exp() * squares).sum() / len(net.truth)


def trace(net: Network, theta: Float[Tensor, " d"]) -> float:
    """Exact trace of the Fisher matrix at theta: on the manifold that of the Hessian."""
    return sum(float(fisher_trace(net, theta, rows)) for rows in torch.arange(len(net.truth)).split(BLOCK))


def curvature(net: Network, null: float = 1e-13) -> Curvature:
    """Exact eigenvalues, eigenvectors and gradient of the trace.

    null: an eigenvalue below this share of the largest counts as 0: rounding leaves 1e-16 of it on exact symmetries.
    UserError when the gradient of the trace, a third derivative, fails against a difference of two traces.
    """
    size, slope = len(net.theta), torch.zeros_like(net.theta)
    fisher = torch.zeros(size, size, dtype=torch.float64)
    for rows in torch.arange(len(net.truth)).split(BLOCK):
        weighted = (jacobian(net, net.theta, rows) * net.truth[rows].sqrt()[..., None]).reshape(-1, size)
        fisher += weighted.T @ weighted / len(net.truth)
        slope += grad(lambda t, rows=rows: fisher_trace(net, t, rows))(net.theta)
    _check_slope(net, slope)
    values, vectors = torch.linalg.eigh(fisher)
    tangent = values < null * values[-1]
    return Curvature(values * ~tangent, vectors, tangent, vectors.T @ slope, float(fisher.trace()))


def _check_slope(net: Network, slope: Float[Tensor, " d"], step: float = 1e-4) -> None:
    """Automatic third derivatives can be wrong: those of torch's fused layer norm are (pytorch issue 175754)."""
    size = float(slope.norm())
    move = step * slope / size
    difference = (trace(net, net.theta + move) - trace(net, net.theta - move)) / (2 * step)
    if abs(difference - size) > 1e-3 * size:
        raise UserError(
            f"network: its slope of the trace is {size:.5g} by automatic differentiation and {difference:.5g} by "
            "differences; allowed: a model whose third derivatives are right (write layer norms out)"
        )


def lemma_gap(
    net: Network, theta: Float[Tensor, " d"], truth: Float[Tensor, "C V"], chunk: int = 16
) -> tuple[float, float]:
    """Lemma 4.2 at theta for labels from `truth`: |H - Sigma| and |H| (Frobenius), H by automatic differentiation."""
    rows = torch.arange(len(truth))

    def loss(t: Tensor) -> Tensor:
        return -(truth * net.log_probs(t, rows)).sum() / len(truth)

    exact = jacrev(grad(loss), chunk_size=chunk)(theta)
    mean = grad(loss)(theta)
    second = torch.zeros_like(exact)
    for part in rows.split(BLOCK):
        weighted = (jacobian(net, theta, part) * truth[part].sqrt()[..., None]).reshape(-1, len(theta))
        second += weighted.T @ weighted / len(truth)
    covariance = second - mean[:, None] * mean
    return float((exact - covariance).norm()), float(exact.norm())


def sgd(
    net: Network, eta: float, steps: int, batch: int, replicas: int, generator: torch.Generator
) -> Float[Tensor, "R d"]:
    """Displacements of `replicas` runs of SGD from theta, with fresh contexts and words of the truth at each step."""

    def example_loss(theta: Tensor, rows: Tensor, words: Tensor) -> Tensor:
        picked = net.log_probs(theta, rows).gather(1, words[:, None])
        return -picked.mean()

    gradients = vmap(grad(example_loss), (0, 0, 0))
    theta = net.theta.repeat(replicas, 1)
    for _ in range(steps):
        rows = torch.randint(len(net.truth), (replicas * batch,), generator=generator)
        words = torch.multinomial(net.truth[rows], 1, generator=generator)
        theta = theta - eta * gradients(theta, rows.view(replicas, batch), words.view(replicas, batch))
    return theta - net.theta


def flow_back(
    net: Network, shape: Curvature, moved: Float[Tensor, "R d"], growth: float, until: float = UNTIL
) -> Float[Tensor, "R d"]:
    """Phi(theta + moved) - theta in the eigenbasis: gradient flow for a time `until`, from stiff to slow.

    Exponential time differencing, second order (Cox and Matthews 2002, equation 22): the linear part of the flow is
    exact, so the steps may grow with time while ever slower directions come to rest.
    """
    flow = vmap(grad(net.loss))
    rate = -shape.values

    def rest(y: Tensor) -> Tensor:
        return -(flow(net.theta + y @ shape.vectors.T) @ shape.vectors) - rate * y

    # Steps are a fixed share of the time gone by, counted from half the fastest relaxation time.
    y, time, step = moved @ shape.vectors, 0.0, (growth - 1) / (2 * float(shape.values[-1]))
    while time < until:
        x = rate * step
        small = x.abs() < 1e-3
        safe = torch.where(small, 1.0, x)
        phi1 = torch.where(small, 1 + x / 2 + x**2 / 6, torch.expm1(safe) / safe)
        phi2 = torch.where(small, 0.5 + x / 6 + x**2 / 24, (torch.expm1(safe) - safe) / safe**2)
        force = rest(y)
        middle = torch.exp(x) * y + step * phi1 * force
        y = middle + step * phi2 * (rest(middle) - force)
        time, step = time + step, step * growth
    return y


def returned(
    net: Network, shape: Curvature, moved: Float[Tensor, "R d"], growth: float = 1.5, until: float = UNTIL
) -> Float[Tensor, "R d"]:
    """`flow_back` with two step sizes combined (Richardson): the integration's error of second order drops out."""
    fine, coarse = (flow_back(net, shape, moved, g, until) for g in (growth, growth**2))
    return fine + (fine - coarse) / 3


def trace_change(shape: Curvature, displaced: Float[Tensor, "R d"], tangent_only: bool = True) -> Float[Tensor, " R"]:
    """Change of the trace, to first order in Phi's displacement (itself of second order in eta)."""
    return (displaced * (shape.tangent | (not tangent_only))) @ shape.slope


def replicas_needed(cv: float, half_width: float) -> int:
    """Replicas for a 95 % interval of +- half_width (share of the mean), given their coefficient of variation."""
    return math.ceil((1.96 * cv / half_width) ** 2)
