"""Sharpness-aware minimisation: the gradient is taken where the loss is highest nearby (Foret et al. 2021, eq. 2-3)."""

import torch
from torch import Tensor

from sameloss.learners.stack import Params


def ascended(loss: Tensor, params: Params, rho: float) -> Params:
    """theta + rho g / |g|, one step uphill for every seed by itself, g the gradient of its own part of `loss`.

    loss: a sum over seeds. The step is held constant, as in the paper: the gradient of a loss at what is returned,
    taken in `params`, is the gradient there. The norm is over all parameters (S, ...) of a seed.
    """
    gradients = torch.autograd.grad(loss, list(params.values()))
    norm = torch.stack([g.square().flatten(1).sum(1) for g in gradients]).sum(0).sqrt().clamp_min(1e-12)  # (S,)
    return {
        name: value + rho * g / norm.view(-1, *[1] * (g.dim() - 1))
        for (name, value), g in zip(params.items(), gradients, strict=True)
    }
