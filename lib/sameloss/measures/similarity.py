"""How far two models' representations of the same sentences are apart, whatever basis each of them has chosen."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate

BLOCKS = 16  # of the jackknife


def representation_change(x: Float[Tensor, "n ..."], y: Float[Tensor, "n ..."]) -> Estimate:
    """1 - linear CKA of two feature sets on the same n examples (Kornblith et al. 2019, eq. 4).

    CKA = |Y^T X|^2 / (|X^T X| |Y^T Y|) for centred features and Frobenius norms: 1 where y is x up to a rotation, a
    shift and a scale. The standard error is the jackknife's over blocks of examples. UserError for sets of unequal
    size or fewer examples than blocks.
    """
    if len(x) != len(y) or len(x) < BLOCKS:
        raise UserError(f"{len(x)} and {len(y)} examples; allowed: as many of each, at least {BLOCKS}")
    sets = [t.flatten(1).double() for t in (x, y)]
    both = torch.cat([t - t.mean(0) for t in sets], dim=1)  # (n, Dx + Dy); centred for the digits' sake
    split, parts = sets[0].shape[1], both.tensor_split(BLOCKS)
    counts = torch.tensor([len(part) for part in parts])
    sums, products = torch.stack([p.sum(0) for p in parts]), torch.stack([p.T @ p for p in parts])

    def distance(keep: Tensor) -> float:
        n, total = counts[keep].sum(), sums[keep].sum(0)
        c = products[keep].sum(0) - torch.outer(total, total) / n
        scale = c[:split, :split].norm() * c[split:, split:].norm()
        return float(1 - c[:split, split:].square().sum() / scale)

    every = torch.arange(BLOCKS)
    without = np.array([distance(every[every != i]) for i in range(BLOCKS)])
    stderr = float(np.sqrt((BLOCKS - 1) / BLOCKS * np.square(without - without.mean()).sum()))
    return Estimate(distance(every), stderr, len(x))
