"""The Hessian trace proper and the Gauss-Newton trace, both with Rademacher vectors (Hutchinson 1990).

Hessian = Gauss-Newton + a part that vanishes at saturation; Gauss-Newton = Fisher for a softmax (Liu et al. 2022, §5).
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate
from sameloss.measures.flatness import Call, Contexts, checked, direct
from sameloss.measures.robust import robust
from sameloss.seeds import torch_stream

Params = dict[str, Tensor]


def hessian_trace(
    model: nn.Module,
    contexts: Contexts,
    targets: Tensor,
    samples: int = 8,
    seed: int = 0,
    chunk: int = 32,
    call: Call = direct,
) -> Estimate:
    """Tr of the Hessian of the mean cross-entropy (nats) over all trainable parameters.

    targets: masked words (n,), or true conditionals (n, V), which leave out the label noise. Every chunk of contexts
    has `samples` vectors of its own, so that chunks are independent: they are the n of the estimate.
    UserError as for `fisher_trace`.
    """
    values = list(trainable(model).values())

    def one(rows: slice, tokens: Tensor, position: Tensor, vectors: Params) -> Tensor:
        logits = call(model, tokens, position)
        loss = cross_entropy(logits, targets[rows].to(logits.device)).mean()
        first = torch.autograd.grad(loss, values, create_graph=True, materialize_grads=True)
        slope = torch.stack([(g * v).sum() for g, v in zip(first, vectors.values(), strict=True)]).sum()
        second = torch.autograd.grad(slope, values, materialize_grads=True)
        return torch.stack([(h * v).sum() for h, v in zip(second, vectors.values(), strict=True)]).sum()

    return _chunks(model, contexts, one, samples, seed, chunk)


def gauss_newton_trace(
    model: nn.Module, contexts: Contexts, samples: int = 8, seed: int = 0, chunk: int = 32, call: Call = direct
) -> Estimate:
    """Tr of the Gauss-Newton matrix E J^T (diag p - p p^T) J: what the Fisher trace is, by another road.

    Forward mode: <J v, (diag p - p p^T) J v> averaged over vectors v. n and errors as for `hessian_trace`.
    """
    values = {name: p.detach() for name, p in trainable(model).items()}
    caller = Caller(model, call)

    def one(_: slice, tokens: Tensor, position: Tensor, vectors: Params) -> Tensor:
        def logits_of(moved: Params) -> Tensor:
            named = {f"model.{name}": value for name, value in moved.items()}
            return functional_call(caller, named, (tokens, position))

        both = jvp(logits_of, (values,), (vectors,))
        logits, tangent = both[0], both[1]
        p = logits.softmax(-1)
        return ((p * tangent.square()).sum(-1) - (p * tangent).sum(-1).square()).mean()

    return _chunks(model, contexts, one, samples, seed, chunk)


def cross_entropy(logits: Float[Tensor, "B V"], targets: Tensor) -> Float[Tensor, " B"]:
    """-log f[target] for words (B,), or its expectation under distributions (B, V); nats."""
    if targets.dim() == 1:
        return F.cross_entropy(logits, targets, reduction="none")
    return -(targets.to(logits.dtype) * logits.log_softmax(-1)).sum(-1)


class Caller(nn.Module):
    """`call(model, ...)` as a module, which is what functional_call replaces parameters in."""

    def __init__(self, model: nn.Module, call: Call):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        return self.call(self.model, tokens, position)


def _chunks(
    model: nn.Module,
    contexts: Contexts,
    one: Callable[[slice, Tensor, Tensor, Params], Tensor],
    samples: int,
    seed: int,
    chunk: int,
) -> Estimate:
    tokens, position = checked(model, contexts)
    if samples < 1:
        raise UserError(f"samples = {samples}; a trace needs at least one random vector")
    if len(tokens) % chunk:
        chunk = max(c for c in range(1, min(chunk, len(tokens)) + 1) if len(tokens) % c == 0)  # equal weights
    generator = torch_stream(seed, "estimator")
    params, found = trainable(model), []
    with sdpa_kernel(SDPBackend.MATH):  # the only attention backend with a double backward on the CPU
        for i in range(0, len(tokens), chunk):
            rows = slice(i, i + chunk)
            total = 0.0
            for _ in range(samples):
                total += float(one(rows, tokens[rows], position[rows], _rademacher(params, generator)).detach())
            found.append(total / samples)
    return robust(np.array(found), seed)


def _rademacher(params: Params, generator: torch.Generator) -> Params:
    return {
        name: (torch.randint(2, p.shape, generator=generator) * 2 - 1).to(p.device, p.dtype)
        for name, p in params.items()
    }


def trainable(model: nn.Module) -> Params:
    """Trainable parameters by name; a tied one appears once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
