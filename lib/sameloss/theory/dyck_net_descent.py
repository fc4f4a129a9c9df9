"""Walking to flatter solutions without leaving zero loss: projected descent on the trace, and a trace penalty."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve

from sameloss.errors import UserError
from sameloss.languages.dyck import Kind, count
from sameloss.theory.dyck_net import INTERPOLATES, DyckNet, active, attended, forward, half_trace, worst_error

RIDGE = 1e-9
NEWTON = 10
MOST_INPUTS = 600  # each step solves systems of this size: about half a second at the limit


def require_size(length: int, kind: Kind) -> None:
    """UserError when the language has too many masked words for a descent that solves for all of them at each step."""
    inputs = length * count(length, kind)
    if inputs > MOST_INPUTS:
        raise UserError(
            f"T = {length}: descent solves {inputs:,} equations a step, one for each masked {kind} word, more than the "
            f"{MOST_INPUTS} allowed; take a smaller T"
        )


@dataclass(frozen=True)
class Snapshot:
    """A net on the way, after `step` steps."""

    step: int
    net: DyckNet


def combine(net: DyckNet, other: DyckNet, factor: float) -> DyckNet:
    """net + factor * other, weight by weight."""
    return DyckNet(
        net.attention + factor * other.attention,
        net.hidden + factor * other.hidden,
        net.output + factor * other.output,
    )


def half_trace_gradient(net: DyckNet, x: Float[np.ndarray, "n T"]) -> DyckNet:
    """Gradient of E‖∇f‖² in A, W and u, the active sets held (it is smooth between kinks)."""
    z, on = attended(net, x), active(net, x).astype(np.float64)
    w, u, n = net.hidden, net.output, len(x)
    squared_z, squared_x = (z**2).sum(axis=1), (x**2).sum(axis=1)
    answers = on * (z @ w.T)  # w_j·z of the active neurons, (n, m)
    pulled = (on * u) @ w  # Σ_S u_j w_j, (n, d)
    by_z = answers @ w + z * (on @ u**2)[:, None]
    weighted = on * squared_x[:, None]
    by_hidden = answers.T @ z + u[:, None] * (weighted.T @ pulled)
    by_output = u * (squared_z @ on) + (weighted * (pulled @ w.T)).sum(axis=0)
    return DyckNet(2 / n * by_z.T @ x, 2 / n * by_hidden, 2 / n * by_output)


def pull_back(net: DyckNet, x: Float[np.ndarray, "n T"], weight: Float[np.ndarray, " n"]) -> DyckNet:
    """Jᵀ weight: the gradient of Σ_i weight_i f(x_i)."""
    z, on = attended(net, x), active(net, x).astype(np.float64)
    weighted = on * weight[:, None]
    pulled = (on * net.output) @ net.hidden
    return DyckNet(
        (pulled * weight[:, None]).T @ x,
        net.output[:, None] * (weighted.T @ z),
        ((z @ net.hidden.T) * weighted).sum(axis=0),
    )


def push_forward(net: DyckNet, x: Float[np.ndarray, "n T"], move: DyckNet) -> Float[np.ndarray, " n"]:
    """J move: how fast f(x_i) changes when the weights move that way."""
    z, on = attended(net, x), active(net, x).astype(np.float64)
    pulled = (on * net.output) @ net.hidden
    moved = (on * net.output) * (z @ move.hidden.T) + on * (z @ net.hidden.T) * move.output
    return moved.sum(axis=1) + (pulled * (x @ move.attention.T)).sum(axis=1)


def kernel(net: DyckNet, x: Float[np.ndarray, "n T"]) -> Float[np.ndarray, "n n"]:
    """J Jᵀ, the inner products of the gradients of f at each pair of inputs (the neural tangent kernel)."""
    z, on = attended(net, x), active(net, x).astype(np.float64)
    answers, gated = on * (z @ net.hidden.T), on * net.output
    pulled = gated @ net.hidden
    return answers @ answers.T + (z @ z.T) * (gated @ gated.T) + (x @ x.T) * (pulled @ pulled.T)


def solve(gram: Float[np.ndarray, "n n"], right: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """(gram + ridge)⁻¹ right, the ridge a billionth of the mean diagonal.

    The zero-loss set is singular at its flattest point: there the kernel loses rank, and a plain solve would shoot.
    """
    ridge = RIDGE * np.trace(gram) / len(gram)
    return cho_solve(cho_factor(gram + ridge * np.eye(len(gram))), right)


def back_to_zero_loss(net: DyckNet, x: Float[np.ndarray, "n T"], y: Float[np.ndarray, " n"]) -> DyckNet:
    """Gauss-Newton steps of least length until every answer is right: one, or more where a neuron crosses its kink."""
    for _ in range(NEWTON):
        if worst_error(net, x, y) < INTERPOLATES:
            break
        net = combine(net, pull_back(net, x, solve(kernel(net, x), forward(net, x) - y)), -1)
    return net


def downhill(
    net: DyckNet,
    x: Float[np.ndarray, "n T"],
    y: Float[np.ndarray, " n"],
    rate: float,
) -> DyckNet:
    """One step down the gradient of E‖∇f‖², without the part that would change an answer.

    Then back to zero loss.
    """
    down = half_trace_gradient(net, x)
    off_the_set = pull_back(net, x, solve(kernel(net, x), push_forward(net, x, down)))
    along = combine(down, off_the_set, -1)
    return back_to_zero_loss(combine(net, along, -rate), x, y)


def flatten(
    net: DyckNet, x: Float[np.ndarray, "n T"], y: Float[np.ndarray, " n"], rate: float, steps: int, every: int
) -> list[Snapshot]:
    """Descent on E‖∇f‖² along the zero-loss set: `steps` steps that each last the time `rate`.

    Where the net is sharp a step is cut into several, because one longer than about 1 / E‖∇f‖² would overshoot.
    Snapshots every `every` steps, the start and the end among them.
    """
    snapshots = [Snapshot(0, net)]
    for step in range(1, steps + 1):
        pieces = math.ceil(rate * half_trace(net, x))
        for _ in range(pieces):
            net = downhill(net, x, y, rate / pieces)
        if step % every == 0 or step == steps:
            snapshots.append(Snapshot(step, net))
    return snapshots


def penalise(
    net: DyckNet,
    x: Float[np.ndarray, "n T"],
    y: Float[np.ndarray, " n"],
    weight: float,
    rate: float,
    steps: int,
    every: int,
) -> list[Snapshot]:
    """Plain gradient descent on E(f - y)² + weight · E‖∇f‖²: what `flatten` does exactly, softly.

    It pays for its simplicity with a loss of order weight² (`dyck_net_noise.settle` maps back).
    """
    snapshots = [Snapshot(0, net)]
    for step in range(1, steps + 1):
        fit = pull_back(net, x, 2 / len(y) * (forward(net, x) - y))
        net = combine(net, combine(fit, half_trace_gradient(net, x), weight), -rate)
        if step % every == 0 or step == steps:
            snapshots.append(Snapshot(step, net))
    return snapshots
