"""Ground truth for tiny models: traces by enumeration and plain autograd, one gradient at a time."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian

from sameloss.errors import UserError
from sameloss.measures.flatness import Contexts, checked
from sameloss.measures.flatness_hessian import cross_entropy

LARGEST = 3000  # parameters: the Hessian is formed in full


def exact_fisher_trace(model: nn.Module, contexts: Contexts) -> float:
    """Mean over contexts of sum_v f_v |grad log f_v|^2, every gradient formed."""
    tokens, position = checked(model, contexts)
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = 0.0
    for i in range(len(tokens)):
        log_p = model(tokens[i : i + 1], position[i : i + 1]).log_softmax(-1)[0]
        for v in range(len(log_p)):
            gradients = torch.autograd.grad(log_p[v], parameters, retain_graph=True, allow_unused=True)
            norm = sum(float(g.double().square().sum()) for g in gradients if g is not None)
            total += float(log_p[v].detach().exp()) * norm
    return total / len(tokens)


def exact_hessian_trace(model: nn.Module, contexts: Contexts, targets: Tensor) -> float:
    """Trace of the full Hessian matrix of the mean cross-entropy (targets as for `hessian_trace`).

    UserError above 3 000 parameters.
    """
    tokens, position = checked(model, contexts)
    named = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    sizes = [p.numel() for p in named.values()]
    if sum(sizes) > LARGEST:
        raise UserError(f"{sum(sizes)} parameters; the exact Hessian is formed up to {LARGEST} only")

    def loss(flat: Tensor) -> Tensor:
        parts = zip(named.items(), flat.split(sizes), strict=True)
        params = {name: part.view_as(p) for (name, p), part in parts}
        return cross_entropy(functional_call(model, params, (tokens, position)), targets).mean()

    return float(hessian(loss)(torch.cat([p.flatten() for p in named.values()])).diagonal().sum())
