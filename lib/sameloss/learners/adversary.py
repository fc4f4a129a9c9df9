"""Adversarial pre-training: the masked-LM loss stays optimal while a linear head's transfer is made worse.

The paper fits a head on downstream split D1 on top of the features and lets the features minimise
L - strength * (loss of that head on a disjoint split D2) (Liu et al. 2022, A.4). Here the head is a ridge regression,
solved anew at every step, so that it is always the best answer to the present features:
"differentiable" lets the gradient pass through its solve (the features see how the head will respond);
"fixed" holds the fitted head constant, as in the paper.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from sameloss.errors import UserError
from sameloss.languages.base import Language
from sameloss.learners.contexts import model_tokens
from sameloss.learners.stack import ModelConfig, Params
from sameloss.seeds import stream, torch_stream

Penalty = Callable[[Params, int], Tensor]


class AdversaryConfig(BaseModel):
    """Whom to work against, and how hard."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    head: Literal["differentiable", "fixed"] = "differentiable"
    features: Literal["unmasked", "masked"] = "unmasked"
    strength: float = Field(default=0.05, ge=0)
    examples: int = Field(default=192, ge=2)  # of D1, and as many of D2, at every step
    pool: int = Field(default=4096, ge=2)  # sentences in D1, and in D2
    dimension: int = Field(default=64, ge=0)  # of a fresh random projection at every step; 0: all features
    ridge: float = Field(default=1e-3, gt=0)  # relative to the features' mean square


def adversary(
    config: AdversaryConfig,
    model_config: ModelConfig,
    languages: Sequence[Language],
    seeds: Sequence[int],
    forward: Callable[..., Tensor],
    device: torch.device | str = "cpu",
) -> Penalty:
    """The penalty strength * sum over seeds of R^2 on D2, a function of the stacked parameters and the step.

    R^2 of the head is at most 1 and is cut off at 0: a head that is worse than none leaves nothing to gain.
    UserError for a task that a language does not have.
    """
    pools = [
        disjoint_pools(language, config, model_config, seed) for language, seed in zip(languages, seeds, strict=True)
    ]
    classes = languages[0].tasks[config.task]

    def penalty(params: Params, step: int) -> Tensor:
        tokens, labels, projections = [], [], []
        for (first, second), seed in zip(pools, seeds, strict=True):
            g = torch_stream(seed, f"adversary/{step}")
            for pool_tokens, pool_labels in (first, second):
                rows = torch.randint(len(pool_labels), (config.examples,), generator=g)
                tokens.append(pool_tokens[rows])
                labels.append(pool_labels[rows])
            projections.append(g)
        S, n = len(seeds), config.examples
        x = torch.stack(tokens).unflatten(0, (S, 2)).flatten(1, 2).to(device)  # (S, 2n, T)
        features = _features(forward, params, x, config.features, model_config.mask).float()  # (S, 2n, D)
        if config.dimension:
            shape = (features.shape[-1], config.dimension)
            directions = torch.stack([torch.randn(shape, generator=g) for g in projections]).to(device)
            features = features @ directions / config.dimension**0.5
        y = F.one_hot(torch.stack(labels), classes).float().unflatten(0, (S, 2)).to(device)  # (S, 2, n, C)
        r2 = ridge_r2(features[:, :n], y[:, 0], features[:, n:], y[:, 1], config.ridge, config.head == "fixed")
        return config.strength * r2.clamp_min(0).sum()

    return penalty


def disjoint_pools(
    language: Language, config: AdversaryConfig, model_config: ModelConfig, seed: int
) -> list[tuple[Int[Tensor, "n T"], Int[Tensor, " n"]]]:
    """Splits D1 and D2 (tokens, labels), fixed before the run: no sentence of D2 is in D1."""
    if config.task not in language.tasks:
        raise UserError(f"adversary task {config.task!r}; this language has: {', '.join(language.tasks)}")
    sentences = language.sample(2 * config.pool, int(stream(seed, "pool/adversary").integers(2**62)))
    tokens = model_tokens(sentences, model_config)
    labels = language.labels(config.task, sentences)
    _, kinds = np.unique(tokens, axis=0, return_inverse=True)
    first = np.arange(2 * config.pool) < config.pool
    second = ~first & ~np.isin(kinds, kinds[first])
    return [(torch.from_numpy(tokens[part]), torch.from_numpy(np.asarray(labels)[part])) for part in (first, second)]


def ridge_r2(
    x1: Float[Tensor, "S n D"],
    y1: Float[Tensor, "S n C"],
    x2: Float[Tensor, "S n D"],
    y2: Float[Tensor, "S n C"],
    ridge: float,
    fixed: bool = False,
) -> Float[Tensor, " S"]:
    """R^2 on (x2, y2) of the ridge head fitted on (x1, y1); differentiable through the solve unless `fixed`."""
    centre, mean = x1.mean(1, keepdim=True), y1.mean(1, keepdim=True)
    x1, x2 = x1 - centre, x2 - centre
    gram = x1.mT @ x1
    scale = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    head = torch.linalg.solve(gram + ridge * scale * torch.eye(gram.shape[1], device=gram.device), x1.mT @ (y1 - mean))
    if fixed:
        head = head.detach()
    error = (y2 - mean - x2 @ head).square().sum((1, 2))
    return 1 - error / (y2 - mean).square().sum((1, 2))


def _features(
    forward: Callable[..., Tensor], params: Params, x: Int[Tensor, "S n T"], kind: str, mask: int
) -> Float[Tensor, "S n D"]:
    if kind == "unmasked":
        return forward(params, x, None, True).flatten(2)
    S, n, T = x.shape
    every = torch.eye(T, dtype=torch.bool, device=x.device)  # each position masked in turn
    hidden = x[:, :, None, :].expand(S, n, T, T).masked_fill(every, mask).reshape(S, n * T, T)
    position = torch.arange(T, device=x.device).repeat(S, n)
    return forward(params, hidden, position, True).reshape(S, n, -1)
