"""The inner loop of the replicas, compiled: everything here is scalar code over flat arrays."""

import math
from typing import Literal

import numba
import numpy as np

Noise = Literal["labels", "full", "soft", "self", "isotropic"]
Optimiser = Literal["sgd", "momentum", "adam", "adamw"]
_FULL, _SOFT, _SELF, _ISOTROPIC = 1, 2, 3, 4
_MOMENTUM = 1


@numba.njit(cache=True, nogil=True)
def _softmax(theta, c, rank, outputs, contexts, reference, f):
    """f <- softmax of context c's logits (W2 W1)[:, c]."""
    top = 0.0 if reference else -math.inf
    for v in range(outputs):
        z = 0.0
        for k in range(rank):
            z += theta[v * rank + k] * theta[outputs * rank + k * contexts + c]
        f[v + reference] = z
        top = max(top, z)
    total = 0.0
    if reference:
        f[0] = 0.0
    for v in range(outputs + reference):
        f[v] = math.exp(f[v] - top)
        total += f[v]
    for v in range(outputs + reference):
        f[v] /= total


@numba.njit(cache=True, nogil=True)
def _add_gradient(theta, c, scale, residual, rank, outputs, contexts, reference, g):
    """g += scale times the gradient of context c's loss, whose derivative by the logits is `residual`."""
    cut = outputs * rank
    for v in range(outputs):
        r = scale * residual[v + reference]
        for k in range(rank):
            g[v * rank + k] += r * theta[cut + k * contexts + c]
            g[cut + k * contexts + c] += r * theta[v * rank + k]


@numba.njit(cache=True, nogil=True)
def _draw(probability, rng):
    """An index with these probabilities."""
    u, last = rng.random(), len(probability) - 1
    for i in range(last):
        u -= probability[i]
        if u < 0:
            return i
    return last


@numba.njit(cache=True, nogil=True)
def _trace_of_covariance(theta, weights, truth, rank, outputs, contexts, reference, f, g):
    """Tr Sigma at theta: E |gradient of an example|^2 - |g|^2, g the full gradient."""
    cut, words = outputs * rank, outputs + reference
    total = 0.0
    for c in range(contexts):
        _softmax(theta, c, rank, outputs, contexts, reference, f)
        embedding = 0.0
        for k in range(rank):
            embedding += theta[cut + k * contexts + c] ** 2
        for y in range(words):
            square = 0.0
            for v in range(outputs):
                square += (f[v + reference] - (1.0 if v + reference == y else 0.0)) ** 2 * embedding
            for k in range(rank):
                back = 0.0
                for v in range(outputs):
                    back += (f[v + reference] - (1.0 if v + reference == y else 0.0)) * theta[v * rank + k]
                square += back**2
            total += weights[c] * truth[c, y] * square
    for i in range(len(g)):
        total -= g[i] ** 2
    return total


@numba.njit(cache=True, nogil=True)
def _gradient(theta, weights, truth, rank, outputs, reference, noise, batch, rng, f, g):
    """g <- one stochastic gradient of the kind `noise`."""
    contexts = len(weights)
    g[:] = 0.0
    if noise in (_FULL, _ISOTROPIC):
        for c in range(contexts):
            _softmax(theta, c, rank, outputs, contexts, reference, f)
            f -= truth[c]
            _add_gradient(theta, c, weights[c], f, rank, outputs, contexts, reference, g)
        if noise == _ISOTROPIC:
            total = _trace_of_covariance(theta, weights, truth, rank, outputs, contexts, reference, f, g)
            scale = math.sqrt(total / (len(g) * batch))
            for i in range(len(g)):
                g[i] += scale * rng.standard_normal()
        return
    for _ in range(batch):
        c = _draw(weights, rng)
        _softmax(theta, c, rank, outputs, contexts, reference, f)
        if noise == _SOFT:
            f -= truth[c]
        else:
            f[_draw(f if noise == _SELF else truth[c], rng)] -= 1.0
        _add_gradient(theta, c, 1.0 / batch, f, rank, outputs, contexts, reference, g)


@numba.njit(cache=True, nogil=True)
def run(starts, out, marks, weights, truth, rank, reference, noise, optimiser, batch, numbers, rng):
    """Train every row of `starts` and write its parameters at the step counts `marks` into out (n, R, d)."""
    eta, momentum, beta1, beta2, decay = numbers
    outputs, dim = truth.shape[1] - reference, starts.shape[1]
    f, g, m, v = np.empty(truth.shape[1]), np.empty(dim), np.empty(dim), np.empty(dim)
    for row in range(starts.shape[0]):
        theta = starts[row]
        m[:], v[:] = 0.0, 0.0
        step, power1, power2 = 0, 1.0, 1.0
        for mark in range(len(marks)):
            while step < marks[mark]:
                step += 1
                _gradient(theta, weights, truth, rank, outputs, reference, noise, batch, rng, f, g)
                if optimiser == 0:
                    for i in range(dim):
                        theta[i] -= eta * g[i]
                elif optimiser == _MOMENTUM:
                    for i in range(dim):
                        m[i] = momentum * m[i] + g[i]
                        theta[i] -= eta * m[i]
                else:
                    power1, power2 = power1 * beta1, power2 * beta2
                    for i in range(dim):
                        m[i] = beta1 * m[i] + (1 - beta1) * g[i]
                        v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i]
                        move = m[i] / (1 - power1) / (math.sqrt(v[i] / (1 - power2)) + 1e-8)
                        theta[i] -= eta * (move + decay * theta[i])
            out[mark, row] = theta
