"""How far a model is from the truth: KL to the true conditional, and the cross-entropy that samples show."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sameloss.errors import UserError
from sameloss.learners.contexts import Contexts
from sameloss.measures.estimate import Estimate


@torch.no_grad()
def log_probs(model: nn.Module, contexts: Contexts, chunk: int = 4096) -> Float[Tensor, "n V"]:
    """log f(x_-t)[v] for every context, float64."""
    device = next(model.parameters()).device
    parts = [
        model(contexts.tokens[i : i + chunk].to(device), contexts.position[i : i + chunk].to(device))
        for i in range(0, len(contexts), chunk)
    ]
    return torch.cat(parts).double().log_softmax(-1).cpu()


def kl_to_truth(model: nn.Module, contexts: Contexts) -> Estimate:
    """E KL(true conditional || model) in nats: 0 exactly at saturation (Liu et al. 2022, A.6)."""
    _truth(contexts)  # contexts without it are refused before the model is asked
    return Estimate.of(kl_each(log_probs(model, contexts), contexts).numpy())


def kl_each(log_f: Float[Tensor, "n V"], contexts: Contexts) -> Float[Tensor, " n"]:
    """KL(true conditional || model) of every context by itself, nats; log_f: of `log_probs`."""
    truth = _truth(contexts)
    return (truth * (truth.clamp_min(1e-300).log() - log_f)).sum(-1)


def cross_entropy(model: nn.Module, contexts: Contexts) -> Estimate:
    """E -log f(x_-t)[x_t] in nats on the masked words themselves: the loss as the paper could see it."""
    return Estimate.of(cross_entropy_each(log_probs(model, contexts), contexts).numpy())


def cross_entropy_each(log_f: Float[Tensor, "n V"], contexts: Contexts) -> Float[Tensor, " n"]:
    """-log f(x_-t)[x_t] of every context by itself, nats; log_f: of `log_probs`."""
    return -log_f.gather(1, contexts.target[:, None]).squeeze(1)


def expected_cross_entropy(model: nn.Module, contexts: Contexts) -> Estimate:
    """The same mean with the word averaged out by the true conditional: far less variance (Liu et al. 2022, A.2)."""
    return Estimate.of(-(_truth(contexts) * log_probs(model, contexts)).sum(-1).numpy())


def _truth(contexts: Contexts) -> Float[Tensor, "n V"]:
    if contexts.conditional is None:
        raise UserError("these contexts carry no true conditionals; draw them with `contexts(language, ...)`")
    return contexts.conditional.double()
