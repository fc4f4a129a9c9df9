"""What a probe is given: token vectors of a model, the true conditionals, or a random projection of either."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sameloss.errors import UserError
from sameloss.seeds import torch_stream


@torch.no_grad()
def features(model: nn.Module, tokens: Int[Tensor, "n T"], chunk: int = 2048) -> Float[Tensor, "n T d"]:
    """All last-layer token vectors of the unmasked sentences (Liu et al. 2022, §3.1: the linear probe)."""
    device = next(model.parameters()).device
    return torch.cat([model(block.to(device), features=True).cpu() for block in tokens.split(chunk)])


@torch.no_grad()
def masked_features(
    model: nn.Module, tokens: Int[Tensor, "n T"], mask: int, positions: Sequence[int] | None = None, chunk: int = 2048
) -> Float[Tensor, "n P d"]:
    """The vector at each position while that position is masked (all, or `positions`): inputs as in training."""
    device = next(model.parameters()).device
    columns = []
    for t in range(tokens.shape[1]) if positions is None else positions:
        hidden = tokens.clone()
        hidden[:, t] = mask
        rows = []
        for block in hidden.split(chunk):
            at = torch.full((len(block),), t, device=device)
            rows.append(model(block.to(device), at, features=True).cpu())
        columns.append(torch.cat(rows))
    return torch.cat(columns, dim=1)


def lookup_features(conditionals: Float[np.ndarray, "n T V"], log: bool = False) -> Float[Tensor, "n TV"]:
    """The lookup table's representation (Liu et al. 2022, §3.3): the true conditionals, or their logarithm."""
    p = torch.from_numpy(np.ascontiguousarray(conditionals)).flatten(1)
    return (p.clamp_min(1e-6).log() if log else p).float()


def one_hot_features(tokens: Int[Tensor, "n T"], symbols: int) -> Float[Tensor, "n TS"]:
    """The input itself: what a probe can do without any model."""
    return torch.nn.functional.one_hot(tokens, symbols).flatten(1).float()


def project(x: Float[Tensor, "n ..."], dimension: int, seed: int) -> Float[Tensor, "n k"]:
    """A random subspace of exactly `dimension` directions, the same for equal input sizes and seeds.

    UserError when the features have fewer dimensions than that.
    """
    flat = x.flatten(1).float()
    if flat.shape[1] < dimension:
        raise UserError(f"{flat.shape[1]} features cannot be projected to {dimension} dimensions")
    gaussian = torch.randn(flat.shape[1], dimension, generator=torch_stream(seed, "projection"), dtype=torch.float64)
    return flat @ torch.linalg.qr(gaussian).Q.float().to(flat.device)
