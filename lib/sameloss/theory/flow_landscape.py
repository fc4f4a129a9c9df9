"""Exact loss, gradient, Hessian, gradient covariance and Fisher matrix of the toy models, and the geometry of Gamma."""

import numpy as np
import torch
from jaxtyping import Float

from sameloss.theory.flow_models import Toy, join, log_probabilities, split


def loss(toy: Toy, theta: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n"]:
    """L(theta) = E_c E_{v ~ pi_c} [-log f(v | c)] in nats."""
    return -(toy.weights[:, None] * toy.truth * log_probabilities(toy, theta)).sum(axis=(-1, -2))


def floor(toy: Toy) -> float:
    """The entropy floor E_c H(pi_c) in nats: the loss everywhere on the manifold."""
    return float(-(toy.weights[:, None] * toy.truth * np.log(toy.truth)).sum())


def torch_loss(toy: Toy, theta: torch.Tensor) -> torch.Tensor:
    """The same loss as `loss` for automatic differentiation; theta (d,) float64, nats."""
    cut = toy.outputs * toy.rank
    logits = (theta[:cut].reshape(toy.outputs, toy.rank) @ theta[cut:].reshape(toy.rank, -1)).T
    if toy.reference:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
    target = torch.from_numpy(toy.weights[:, None] * toy.truth)
    return -(target * torch.log_softmax(logits, dim=1)).sum()


def logit_jacobian(toy: Toy, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, "C V d"]:
    """Derivative of every logit: z_cv = sum_k W2[v, k] W1[k, c] (a row of zeros for a reference word)."""
    w2, w1 = split(toy, theta)
    contexts, rows = len(toy.weights), toy.outputs
    d_w2 = np.einsum("vw,kc->cvwk", np.eye(rows), w1).reshape(contexts, rows, -1)
    d_w1 = np.einsum("vk,bc->cvkb", w2, np.eye(contexts)).reshape(contexts, rows, -1)
    jacobian = np.concatenate([d_w2, d_w1], axis=2)
    return np.concatenate([np.zeros((contexts, 1, toy.dim)), jacobian], axis=1) if toy.reference else jacobian


def sample_gradients(
    toy: Toy, theta: Float[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, "s d"]]:
    """Every possible training example (context, word): its probability and the gradient of its loss; s = C V."""
    f = np.exp(log_probabilities(toy, theta))
    words = f.shape[1]
    residual = f[:, None, :] - np.eye(words)  # (C, V labels, V logits)
    gradients = np.einsum("cyv,cvd->cyd", residual, logit_jacobian(toy, theta))
    return (toy.weights[:, None] * toy.truth).ravel(), gradients.reshape(-1, toy.dim)


def gradient(toy: Toy, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """Gradient of the population loss."""
    probability, gradients = sample_gradients(toy, theta)
    return probability @ gradients


def covariance(toy: Toy, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, "d d"]:
    """Sigma(theta): covariance of the gradient of one random example, by enumeration of all examples."""
    probability, gradients = sample_gradients(toy, theta)
    centred = gradients - probability @ gradients
    return (probability[:, None] * centred).T @ centred


def fisher(toy: Toy, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, "d d"]:
    """Fisher matrix: E_c J_c^T (diag f_c - f_c f_c^T) J_c, words drawn from the model."""
    f, jacobian = np.exp(log_probabilities(toy, theta)), logit_jacobian(toy, theta)
    softmax = np.einsum("cv,vw->cvw", f, np.eye(f.shape[1])) - f[:, :, None] * f[:, None, :]
    return np.einsum("c,cvd,cvw,cwe->de", toy.weights, jacobian, softmax, jacobian)


def hessian(toy: Toy, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, "d d"]:
    """Exact Hessian of the loss: the Fisher matrix plus the residuals times the curvature of the logits W2 W1."""
    f = np.exp(log_probabilities(toy, theta))
    residual = (toy.weights[:, None] * (f - toy.truth))[:, toy.reference :].T  # (O, C)
    cross = np.einsum("vc,kl->vklc", residual, np.eye(toy.rank)).reshape(toy.outputs * toy.rank, -1)
    result = fisher(toy, theta)
    cut = toy.outputs * toy.rank
    result[:cut, cut:] += cross
    result[cut:, :cut] += cross.T
    return result


def softmax_curvature(toy: Toy) -> tuple[Float[np.ndarray, "O O"], Float[np.ndarray, "C C"]]:
    """(S, D): S = E_c [diag pi_c - pi_c pi_c^T] on the trained logits; D = diag of p_c tr(diag pi_c - pi_c pi_c^T)."""
    pi = toy.truth[:, toy.reference :]
    per_context = np.einsum("cv,vw->cvw", pi, np.eye(pi.shape[1])) - pi[:, :, None] * pi[:, None, :]
    per_context *= toy.weights[:, None, None]
    return per_context.sum(axis=0), np.diag(np.trace(per_context, axis1=1, axis2=2))


def manifold_trace(toy: Toy, theta: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n"]:
    """Tr of the Hessian for theta on the manifold: tr(W2^T S W2) + tr(W1 D W1^T)."""
    (s, d), (w2, w1) = softmax_curvature(toy), split(toy, theta)
    return np.einsum("...vk,vw,...wk->...", w2, s, w2) + np.einsum("...kc,cb,...kb->...", w1, d, w1)


def least_trace(toy: Toy) -> float:
    """The smallest trace on the manifold, 2 |S^(1/2) Z* D^(1/2)| in the nuclear norm (needs rank >= rank of Z*)."""
    s, d = softmax_curvature(toy)
    values, vectors = np.linalg.eigh(s)
    root = vectors @ np.diag(np.sqrt(np.maximum(values, 0))) @ vectors.T
    return float(2 * np.linalg.norm(root @ toy.target @ np.sqrt(d), "nuc"))


def trace_gradient(toy: Toy, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """Gradient of `manifold_trace`; its tangential part is that of Tr of the Hessian, whatever happens off Gamma."""
    (s, d), (w2, w1) = softmax_curvature(toy), split(toy, theta)
    return join(2 * s @ w2, 2 * w1 @ d)


def tangent_projector(toy: Toy, theta: Float[np.ndarray, " d"]) -> Float[np.ndarray, "d d"]:
    """P: orthogonal projector onto the tangent space of Gamma = the null space of all logit differences."""
    jacobian = logit_jacobian(toy, theta)
    differences = (jacobian - jacobian.mean(axis=1, keepdims=True)).reshape(-1, toy.dim)
    _, values, right = np.linalg.svd(differences)
    normal = right[: int((values > 1e-9 * values[0]).sum())]
    return np.eye(toy.dim) - normal.T @ normal


def onto_manifold(toy: Toy, theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Points of Gamma near the given ones, by Newton's method with the smallest steps (nearest to second order)."""
    target = np.log(toy.truth) - np.log(toy.truth).mean(axis=1, keepdims=True)
    landed = np.array(theta, dtype=np.float64)
    for point in landed:
        for _ in range(50):
            now = log_probabilities(toy, point)
            gap = (now - now.mean(axis=1, keepdims=True) - target).ravel()
            if np.abs(gap).max() < 1e-11:
                break
            jacobian = logit_jacobian(toy, point)
            differences = (jacobian - jacobian.mean(axis=1, keepdims=True)).reshape(-1, toy.dim)
            point -= np.linalg.lstsq(differences, gap, rcond=1e-9)[0]
    return landed


def imbalance(toy: Toy, theta: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n r r"]:
    """Delta = W2^T W2 - W1 W1^T, which gradient flow conserves (u^2 - |e|^2 for U and E)."""
    w2, w1 = split(toy, theta)
    return np.swapaxes(w2, -1, -2) @ w2 - w1 @ np.swapaxes(w1, -1, -2)
