"""Stochastic gradient descent on the bracket network with noise on its labels, one example a step."""

import numpy as np
from jaxtyping import Float, Int
from numba import njit

from sameloss.errors import UserError
from sameloss.seeds import stream
from sameloss.theory.dyck_net import DyckNet, gradient_terms
from sameloss.theory.dyck_net_descent import Snapshot


@njit(cache=True)
def walk(
    attention: Float[np.ndarray, "d T"],
    hidden: Float[np.ndarray, "m d"],
    output: Float[np.ndarray, " m"],
    x: Float[np.ndarray, "n T"],
    y: Float[np.ndarray, " steps"],
    rows: Int[np.ndarray, " steps"],
    rate: float,
) -> None:
    """One gradient step on (f(x[rows[k]]) - y[k])² after the other, in place: y holds the label of each *step*."""
    width, depth = hidden.shape
    length = x.shape[1]
    z, pulled = np.empty(depth), np.empty(depth)
    for k in range(len(rows)):
        row = x[rows[k]]
        for i in range(depth):
            z[i] = 0.0
            pulled[i] = 0.0
            for t in range(length):
                z[i] += attention[i, t] * row[t]
        answers = hidden @ z
        answer = 0.0
        for j in range(width):
            if answers[j] > 0:
                answer += output[j] * answers[j]
        slope = 2 * rate * (answer - y[k])
        for j in range(width):
            if answers[j] > 0:
                before = output[j]
                output[j] -= slope * answers[j]
                for i in range(depth):
                    pulled[i] += before * hidden[j, i]
                    hidden[j, i] -= slope * before * z[i]
        for i in range(depth):
            for t in range(length):
                attention[i, t] -= slope * pulled[i] * row[t]


def require_step(net: DyckNet, x: Float[np.ndarray, "n T"], rate: float) -> None:
    """UserError when steps of `rate` on single examples would diverge: each multiplies an error by 1 - 2 rate ‖∇f‖²."""
    worst = float(gradient_terms(net, x).sum(axis=1).max())
    if rate * worst > 1:
        raise UserError(
            f"SGD with steps of {rate:g} diverges from a net with squared gradients up to {worst:.0f}: steps of at "
            f"most {1 / worst:.1g}, or a flatter start, such as more random neurons m"
        )


def label_noise_sgd(
    net: DyckNet,
    x: Float[np.ndarray, "n T"],
    y: Float[np.ndarray, " n"],
    noise: float,
    rate: float,
    steps: int,
    every: int,
    seed: int,
) -> list[Snapshot]:
    """SGD with the label y + noise · (±1, a fair coin a step); stream(seed, "theory/noise").

    At zero loss the noise's covariance is 2 noise² times the Hessian, so by Theorem 4.3 a step moves like a step of
    length rate² noise² down the gradient of E‖∇f‖² along the zero-loss set. Without noise every gradient is zero there.
    Snapshots are the raw iterates, which sit beside the zero-loss set: `settle` them before comparing.
    """
    require_step(net, x, rate)
    rng = stream(seed, "theory/noise")
    attention, hidden, output = net.attention.copy(), net.hidden.copy(), net.output.copy()
    snapshots = [Snapshot(0, net)]
    for start in range(0, steps, every):
        size = min(every, steps - start)
        rows = rng.integers(len(x), size=size)
        labels = y[rows] + noise * rng.choice((-1.0, 1.0), size=size)
        walk(attention, hidden, output, x, labels, rows, rate)
        snapshots.append(Snapshot(start + size, DyckNet(attention.copy(), hidden.copy(), output.copy())))
    return snapshots


def settle(
    net: DyckNet, x: Float[np.ndarray, "n T"], y: Float[np.ndarray, " n"], rate: float, steps: int, seed: int
) -> DyckNet:
    """Where the net comes to rest when the noise stops: the map onto the zero-loss set along the loss (Φ of §4)."""
    return label_noise_sgd(net, x, y, 0.0, rate, steps, steps, seed)[-1].net
