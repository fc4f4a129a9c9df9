"""Adaptive sharpness: how the loss rises when every weight moves in proportion to its own size."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate
from sameloss.measures.flatness import Call, Contexts, checked, direct
from sameloss.measures.flatness_hessian import Caller, cross_entropy, trainable
from sameloss.measures.robust import robust
from sameloss.seeds import torch_stream


@torch.no_grad()
def adaptive_sharpness(
    model: nn.Module,
    contexts: Contexts,
    targets: Tensor,
    rho: float = 0.05,
    samples: int = 64,
    seed: int = 0,
    call: Call = direct,
) -> Estimate:
    """E [L(w + rho |w| e) + L(w - rho |w| e)]/2 - L(w) over Gaussian e (nats); to second order rho^2/2 sum w_i^2 H_ii.

    Scaling a layer up and the next one down changes the trace but not this (Kwon et al. 2021; average case as in
    Andriushchenko et al. 2023). targets: words (n,) or true conditionals (n, V). The directions are the samples.
    UserError as for `fisher_trace`, and for rho or samples that are not positive.
    """
    tokens, position = checked(model, contexts)
    if not rho > 0 or samples < 1:
        raise UserError(f"rho = {rho}, samples = {samples}; both must be positive")
    caller, params = Caller(model, call), trainable(model)
    generator = torch_stream(seed, "estimator")

    def loss(moved: dict[str, Tensor]) -> Float[Tensor, ""]:
        logits = functional_call(caller, {f"model.{name}": p for name, p in moved.items()}, (tokens, position))
        return cross_entropy(logits, targets.to(logits.device)).mean()

    centre, rises = loss(params), []
    for _ in range(samples):
        step = {name: rho * p.abs() * torch.randn(p.shape, generator=generator).to(p) for name, p in params.items()}
        up = loss({name: p + step[name] for name, p in params.items()})
        down = loss({name: p - step[name] for name, p in params.items()})
        rises.append(float((up + down) / 2 - centre))
    return robust(torch.tensor(rises, dtype=torch.float64).numpy(), seed)
