"""One run on several devices: each process takes its rows of every batch, gradients are averaged.

DistributedDataParallel wraps a module and its parameters; here the parameters of a stack of seeds are plain tensors and
the module is a function of them, so the average it takes after each backward pass is taken directly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sameloss.errors import UserError
from sameloss.learners.contexts import Contexts


@dataclass(frozen=True)
class Share:
    """Process number `rank` of `ranks`, all of them in torch's default process group."""

    rank: int
    ranks: int

    def of(self, batch: Contexts) -> Contexts:
        """This process's rows of a batch (S, B, ...); UserError where the batch cannot be dealt out evenly."""
        rows = batch.position.shape[1]
        if rows % self.ranks:
            raise UserError(f"a batch of {rows} cannot be shared by {self.ranks} processes; allowed: multiples of that")
        mine = slice(self.rank, None, self.ranks)
        truth = None if batch.conditional is None else batch.conditional[:, mine]
        return Contexts(batch.tokens[:, mine], batch.position[:, mine], batch.target[:, mine], truth)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over the processes: means of equal shares, so the mean over the batch."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])  # one message, not one a tensor
        dist.all_reduce(flat)
        flat /= self.ranks
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))
