"""Multinomial logistic regression to its optimum: L-BFGS in whitened coordinates.

Averaged over contrasts of classes the Hessian is mean x x^T (1 - |p|^2)/(C - 1) + l2. L-BFGS starts every step from
that metric instead of the identity, which is the same as whitening the features without the cost of doing so. It
takes the spread of the features' scales out of the problem: that is what makes plain L-BFGS slow on representations.
Logits are kept class by example: for few classes that is several times faster than example by class.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

MEMORY = 20  # curvature pairs kept
MOST = 1000  # iterations; a probe of the book takes 10 to 100

Pair = tuple[Tensor, Tensor, float]  # change of weights s, change of gradient y, 1 / <s, y>


@dataclass(frozen=True)
class Logistic:
    """A fitted model: log p = log_softmax(W x + b), with the training objective and the iterations it took."""

    weight: Float[Tensor, "C D"]
    bias: Float[Tensor, " C"]
    objective: float
    iterations: int

    def log_probs(self, x: Float[Tensor, "n D"]) -> Float[Tensor, "n C"]:
        """log p(class | x), (n, C) in nats."""
        return torch.nn.functional.linear(x, self.weight, self.bias).log_softmax(1)


def fit(x: Float[Tensor, "n D"], labels: Int[Tensor, " n"], classes: int, l2: float, tolerance: float) -> Logistic:
    """Minimise mean cross-entropy (nats) + l2/2 |W|^2, intercept free, to `tolerance` relative in the objective."""
    n = len(x)
    x = torch.cat([x, x.new_ones(n, 1)], dim=1)  # the last column carries the intercept
    decay = x.new_full((x.shape[1],), l2)
    decay[-1] = 0
    weight = x.new_zeros(classes, x.shape[1])
    weight[:, -1] = torch.bincount(labels, minlength=classes).to(x.dtype).div(n).log()
    logits = weight @ x.T  # (C, n)
    log_p = logits.log_softmax(0)
    value, gradient = _objective(x, log_p, labels, decay, weight)
    pairs: list[Pair] = []
    iterations, refresh = 0, 0
    while iterations < MOST:
        if iterations == refresh:  # 0, 5, 10, 20, 40, ...
            metric, refresh = _metric(x, log_p, decay), max(5, 2 * iterations)
        direction = _two_loops(gradient, pairs, metric)
        slope = _dot(gradient, direction)
        # -slope / 2 is what a Newton step would gain, by L-BFGS's own guess of the Hessian. The guess is up to 25
        # times too small where predictions are confident (measured), hence the margin.
        if -slope / 2 <= tolerance / 50 * value:
            break
        along = direction @ x.T  # logits are linear in the weights: the line search needs no further product
        step, log_p = _line_search(logits, along, labels, decay, weight, direction, slope)
        weight, logits, before = weight + step * direction, logits.add_(along, alpha=step), gradient
        value, gradient = _objective(x, log_p, labels, decay, weight)
        s, y = step * direction, gradient - before
        curvature = _dot(s, y)
        if curvature > 0:
            pairs = [*pairs[-MEMORY + 1 :], (s, y, 1 / curvature)]
        iterations += 1
    return Logistic(weight[:, :-1], weight[:, -1], value, iterations)


def _metric(x: Float[Tensor, "n D"], log_p: Float[Tensor, "C n"], decay: Float[Tensor, " D"]) -> Tensor:
    """Cholesky factor (D, D) of the Hessian averaged over contrasts of classes; a part of the examples will do."""
    every = max(1, len(x) // (8 * x.shape[1]))
    some, p = x[::every], log_p[:, ::every].exp()
    curvature = (1 - (p * p).sum(0)).clamp_min(0) / (len(p) - 1)
    matrix = (some * curvature[:, None]).T @ some / len(some)
    # The ridge keeps float32 rounding from making a flat direction negative.
    return torch.linalg.cholesky(matrix + torch.diag(decay + 1e-5 * matrix.diagonal().mean() + 1e-9))


def _objective(
    x: Float[Tensor, "n D"], log_p: Float[Tensor, "C n"], labels: Tensor, decay: Tensor, weight: Float[Tensor, "C D"]
) -> tuple[float, Float[Tensor, "C D"]]:
    nll = -log_p.gather(0, labels[None]).mean(dtype=torch.float64)
    value = float(nll) + 0.5 * float((decay * weight * weight).sum(dtype=torch.float64))
    return value, torch.addmm(decay * weight, _residual(log_p, labels), x, alpha=1 / len(x))


def _residual(log_p: Float[Tensor, "C n"], labels: Int[Tensor, " n"]) -> Float[Tensor, "C n"]:
    return log_p.exp().scatter_add_(0, labels[None], log_p.new_full((1, len(labels)), -1.0))


def _line_search(
    logits: Tensor, along: Tensor, labels: Tensor, decay: Tensor, weight: Tensor, direction: Tensor, slope: float
) -> tuple[float, Float[Tensor, "C n"]]:
    """A step at which the slope has fallen to a third, and log p there; the objective is convex along the line."""
    n = len(labels)
    linear, square = _dot(decay * weight, direction), _dot(decay * direction, direction)
    low, high, low_slope, high_slope, step = 0.0, float("inf"), slope, 0.0, 1.0
    for _ in range(30):
        log_p = torch.add(logits, along, alpha=step).log_softmax(0)
        here = _dot(_residual(log_p, labels), along) / n + linear + step * square
        if abs(here) <= abs(slope) / 3:
            break
        if here < 0:
            low, low_slope = step, here
        else:
            high, high_slope = step, here
        step = 2 * step if high == float("inf") else low + (high - low) * low_slope / (low_slope - high_slope)
    return step, log_p


def _two_loops(gradient: Float[Tensor, "C D"], pairs: list[Pair], metric: Float[Tensor, "D D"]) -> Tensor:
    """-H gradient with the inverse Hessian of L-BFGS (Nocedal & Wright 2006, algorithm 7.4), started from `metric`."""
    q, alphas = -gradient, []
    for s, y, rho in reversed(pairs):
        alphas.append(rho * _dot(s, q))
        q = q.sub(y, alpha=alphas[-1])
    q = torch.cholesky_solve(q.T, metric).T
    if pairs:
        _, y, rho = pairs[-1]
        q = q / (rho * _dot(y, torch.cholesky_solve(y.T, metric).T))
    for (s, y, rho), alpha in zip(pairs, reversed(alphas), strict=True):
        q = q.add(s, alpha=alpha - rho * _dot(y, q))
    return q


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.reshape(-1), b.reshape(-1)))
