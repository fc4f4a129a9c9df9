"""The limit map Phi of gradient flow, and the flow d theta = -(1/4B) grad_Gamma Tr dt that SGD follows along Gamma.

Source: Liu et al. 2022, Theorem 4.3; the coefficient 1/(4B) for batches of B, section 4.
"""

import itertools
import math

import numpy as np
import torch
from jaxtyping import Float
from scipy import integrate, optimize

from sameloss.errors import UserError
from sameloss.theory.flow_landscape import (
    covariance,
    gradient,
    imbalance,
    sample_gradients,
    softmax_curvature,
    tangent_projector,
    trace_gradient,
)
from sameloss.theory.flow_models import Toy, check_on_manifold


def is_scalar(toy: Toy) -> bool:
    """True for U and E: one decoder number u, so that Gamma is the curve e_c = z_c / u and Phi has a closed form."""
    return toy.outputs == toy.rank == 1


def check_batch(batch: int) -> None:
    """UserError unless the batch size is a whole number of at least 1."""
    if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
        raise UserError(f"batch size B: found {batch!r}; allowed: a whole number of at least 1")


def on_curve(toy: Toy, h: Float[np.ndarray, "*n"], sign: Float[np.ndarray, "*n"] | float = 1.0) -> np.ndarray:
    """The point (*n, d) of Gamma with u^2 - |e|^2 = h: x = u^2 solves x - Z2/x = h. U and E only."""
    z = toy.target[0]
    h = np.asarray(h, dtype=np.float64)
    u = sign * np.sqrt((h + np.sqrt(h**2 + 4 * (z @ z))) / 2)
    return np.concatenate([u[..., None], z / u[..., None]], axis=-1)


def limit(toy: Toy, theta: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n d"]:
    """Phi(theta): where gradient flow from theta ends on Gamma.

    U and E: closed form, because h is conserved and Gamma is a curve; valid while u keeps its sign, as it does near
    Gamma. M: the flow itself, integrated until the gradient is gone (one point at a time, (d,) or (n, d)).
    """
    theta = np.asarray(theta, dtype=np.float64)
    if is_scalar(toy):
        return on_curve(toy, imbalance(toy, theta)[..., 0, 0], np.sign(theta[..., 0]))
    if theta.ndim > 1:
        return np.stack([limit(toy, point) for point in theta])
    return _descend(toy, theta)


def _descend(toy: Toy, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    while np.linalg.norm(gradient(toy, theta)) > 1e-13:
        leg = integrate.solve_ivp(
            lambda _, x: -gradient(toy, x), (0.0, 200.0), theta, method="LSODA", rtol=1e-12, atol=1e-15
        )
        theta = leg.y[:, -1]
    return theta


def velocity(toy: Toy, theta: Float[np.ndarray, " d"], batch: int = 1) -> Float[np.ndarray, " d"]:
    """-(1/4B) P grad Tr at a point of Gamma."""
    return -tangent_projector(toy, theta) @ trace_gradient(toy, theta) / (4 * batch)


def elapsed(toy: Toy, h_start: float, h: Float[np.ndarray, "*n"] | float) -> Float[np.ndarray, "*n"]:
    """The time that the flow with B = 1 needs from h_start to h (U and E, closed form; nan where it never gets).

    U: h = h_start exp(-pq t). E: dx/dt = x (M2 - A x^2) / (x^2 + Z2) integrates to logarithms.
    """
    (a,), (weights,) = softmax_curvature(toy)[0], np.diag(softmax_curvature(toy)[1])[None]
    with np.errstate(invalid="ignore", divide="ignore"):
        if len(toy.weights) == 1:
            return np.log(h_start / np.asarray(h, dtype=np.float64)) / a[0]
        z = toy.target[0]
        z2, m2 = z @ z, weights @ z**2

        def antiderivative(value: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
            x = (value + np.sqrt(value**2 + 4 * z2)) / 2
            return z2 / m2 * np.log(x) - (1 + a[0] * z2 / m2) / (2 * a[0]) * np.log(np.abs(m2 - a[0] * x**2))

        return antiderivative(np.asarray(h, dtype=np.float64)) - antiderivative(np.asarray(h_start))


def resting_imbalance(toy: Toy) -> float:
    """h at the flattest point of the curve: 0 for U; x* - Z2/x* with x*^2 = M2/A for E."""
    z, (s, d) = toy.target[0], softmax_curvature(toy)
    x = math.sqrt(float(np.diag(d) @ z**2) / s[0, 0])
    return x - float(z @ z) / x if len(z) > 1 else 0.0


def resting_points(toy: Toy, decay: float) -> dict[str, float]:
    """x = u^2 at which SGD, Adam and AdamW come to rest on the curve of U and E at small learning rates.

    SGD minimises Tr H. Adam divides by the root s_i of its second moments, on Gamma those of diag Sigma = diag H; where
    they are slow it minimises (1/4) sum_i H_ii / s_i with s held fixed, hence sum_i H_ii^(1/2). AdamW adds
    (decay / 2) sum_i s_i theta_i^2. decay: its weight decay divided by its learning rate.
    """
    z, a = toy.target[0], np.diag(softmax_curvature(toy)[1])
    spread, roots, pull = math.sqrt(float(a @ z**2)), float(np.sqrt(a).sum()), float(np.sqrt(a) @ z**2)
    return {
        "sgd": spread / math.sqrt(float(a.sum())),
        "adam": spread / roots,
        "adamw": (2 * decay * pull + spread) / (2 * decay * spread + roots),
    }


def slow_plane(toy: Toy, start: Float[np.ndarray, " d"], horizon: float) -> Float[np.ndarray, "3 d"]:
    """(end, slow, rest): the flow's end point, the unit vector along which it arrives, and a second one across it.

    end: the flow at 5 horizons. slow: its direction at one horizon, by when only the slowest coordinate is left. rest:
    what remains of the way from end to start.
    """
    late, end = flow(toy, start, np.array([horizon, 5 * horizon]))
    slow = (late - end) / np.linalg.norm(late - end)
    rest = (start - end) - slow * (slow @ (start - end))
    return np.stack([end, slow, rest / np.linalg.norm(rest)])


def flow(
    toy: Toy, theta: Float[np.ndarray, " d"], times: Float[np.ndarray, " n"], batch: int = 1
) -> Float[np.ndarray, "n d"]:
    """The flow of Theorem 4.3 from a point of Gamma, at increasing `times` >= 0 (n, d).

    Closed form for U, the closed form of t(h) inverted for E, integrated on Gamma for M. UserError off Gamma or B < 1.
    """
    check_batch(batch)
    check_on_manifold(toy, theta)
    times = np.asarray(times, dtype=np.float64)
    if is_scalar(toy):
        h = float(imbalance(toy, theta)[0, 0])
        return on_curve(toy, np.array([_advance(toy, h, t / batch) for t in times]), np.sign(theta[0]))
    path = integrate.solve_ivp(
        lambda _, x: velocity(toy, x, batch),
        (0.0, max(float(times.max()), 1e-9)),
        theta,
        method="DOP853",
        t_eval=times,
        rtol=1e-12,
        atol=1e-13,
    )
    return path.y.T


def _advance(toy: Toy, h: float, time: float) -> float:
    """h after `time` of the flow with B = 1."""
    if len(toy.weights) == 1:
        return h * math.exp(-softmax_curvature(toy)[0][0, 0] * time)
    rest = resting_imbalance(toy)
    if time == 0 or h == rest:
        return h
    # The distance to the resting point only shrinks: search for the logarithm of the factor it has shrunk by.
    log_factor = optimize.brentq(
        lambda s: float(elapsed(toy, h, rest + (h - rest) * math.exp(s))) - time, -20.0, 0.0, xtol=1e-14, rtol=1e-14
    )
    return rest + (h - rest) * math.exp(log_factor)


def second_order_drift(toy: Toy, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """(1/2) d^2 Phi [Sigma] at a point of Gamma, from the closed form of Phi by automatic differentiation (U and E)."""
    z, sign = torch.from_numpy(toy.target[0]), float(np.sign(theta[0]))

    def phi(x: torch.Tensor) -> torch.Tensor:
        h = x[0] ** 2 - (x[1:] ** 2).sum()
        u = sign * torch.sqrt((h + torch.sqrt(h**2 + 4 * (z @ z))) / 2)
        return torch.cat([u[None], z / u])

    # Twice in reverse: forward mode compiles for a second before its first derivative.
    curvature = torch.func.jacrev(torch.func.jacrev(phi))(torch.from_numpy(np.asarray(theta))).numpy()
    return np.einsum("ijk,jk->i", curvature, covariance(toy, theta)) / 2


def one_step_drift(toy: Toy, theta: Float[np.ndarray, " d"], eta: float, batch: int = 1) -> Float[np.ndarray, " d"]:
    """(E Phi(theta - eta g) - Phi(theta)) / eta^2, the expectation over every possible batch: no sampling.

    UserError if there are more than 200 000 different ordered batches.
    """
    check_batch(batch)
    check_on_manifold(toy, theta)
    probability, gradients = sample_gradients(toy, theta)
    if len(probability) ** batch > 200_000:
        raise UserError(
            f"batch size B: found {batch}, which makes {len(probability) ** batch} batches; allowed: up to 200000"
        )
    rows = np.array(list(itertools.product(range(len(probability)), repeat=batch)))
    landed = limit(toy, theta - eta * gradients[rows].mean(axis=1))
    return (np.prod(probability[rows], axis=1) @ (landed - theta)) / eta**2
