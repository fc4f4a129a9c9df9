"""Training that pays for the trace of the Fisher matrix, or is paid for it: a cheap estimate with a gradient.

For a softmax f of logits z with Jacobian J_b at context b, Tr F = mean_b Tr J_b^T (diag f_b - f_b f_b^T) J_b (chapter
4). Let r_b be a vector of random signs and u_b = sqrt(f_b) r_b - f_b <sqrt(f_b), r_b>. Its mean is 0 and its covariance
diag f_b - f_b f_b^T. One backward pass for a whole batch gives g = (1/B) sum_b J_b^T u_b, and B |g|^2 has the mean

    (1/B) sum_b E |J_b^T u_b|^2 + (1/B) sum_{b != c} <J_b^T E u_b, J_c^T E u_c> = Tr F:

the squares are what is wanted, the cross terms vanish because signs of different contexts are independent of mean 0.
Tokens drawn from the model (u = e_v - f) have the same mean and covariance, but their law moves with the weights, and
the derivative of a drawn token's term misses that part. Signs do not move: here the gradient is unbiased as well.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from sameloss.learners.contexts import Contexts
from sameloss.learners.stack import Params
from sameloss.seeds import torch_stream

Penalty = Callable[[Params, Contexts, int], Tensor]


class TracePenaltyConfig(BaseModel):
    """What a factor e in the trace costs, in nats; a negative price makes the model sharper.

    The logarithm is priced, so that one price suits models of any sharpness and a sharpened one does not run away: its
    gain per step falls as the trace grows. draws: sign vectors a step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    price: float = Field(ge=-1, le=1)
    draws: int = Field(default=1, ge=1)


def trace_penalty(config: TracePenaltyConfig, forward: Callable[..., Tensor], seeds: Sequence[int]) -> Penalty:
    """The penalty price * sum over seeds of log of the estimated trace, a function of the parameters and the batch."""

    def penalty(params: Params, batch: Contexts, step: int) -> Tensor:
        logits = forward(params, batch.tokens, batch.position).float()  # (S, B, V)
        of_seed = [torch_stream(seed, f"estimator/trace/{step}") for seed in seeds]
        shape = (config.draws, *logits.shape[1:])
        signs = torch.stack([torch.randint(2, shape, generator=g) for g in of_seed], dim=1) * 2 - 1  # (draws, S, B, V)
        estimates = [batch_trace(logits, r, params) for r in signs.to(logits)]
        return config.price * torch.stack(estimates).mean(0).log().sum()

    return penalty


def batch_trace(logits: Float[Tensor, "S B V"], signs: Float[Tensor, "S B V"], params: Params) -> Float[Tensor, " S"]:
    """An unbiased estimate of every seed's Tr F (nats) at the contexts of its batch, differentiable in `params`."""
    root = (0.5 * logits.log_softmax(-1)).exp()  # by the logarithm: a square root has no derivative at 0
    u = root * signs - root.square() * (root * signs).sum(-1, keepdim=True)
    B = logits.shape[1]
    gradients = torch.autograd.grad(logits, list(params.values()), u / B, create_graph=True)
    return B * torch.stack([g.square().flatten(1).sum(1) for g in gradients]).sum(0)
