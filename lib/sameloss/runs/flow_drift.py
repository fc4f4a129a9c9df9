"""Chapter 3's last experiment: the drift of the trace at a trained transformer against Theorem 4.3."""

import math
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call

from sameloss.learners.contexts import Contexts, contexts
from sameloss.learners.evaluate import kl_to_truth
from sameloss.learners.pretrain import pretrain
from sameloss.learners.stack import member
from sameloss.measures.estimate import Estimate
from sameloss.runs import build
from sameloss.runs.settings import DriftCondition, DriftSettings
from sameloss.seeds import torch_stream
from sameloss.theory import flow_network
from sameloss.theory.flow_network import Curvature, Network

TIMES = range(0, 17, 2)  # of the clean-up, as powers of ten
EXACT = 4  # replicas of a condition whose trace is also computed in full


@dataclass(frozen=True)
class Trained:
    """The transformer as its own truth, its curvature, what it was trained on and how far it is from that."""

    net: Network
    shape: Curvature
    contexts: Contexts
    kl: Estimate


class WrittenOut(nn.Module):
    """A layer norm in plain operations: torch's fused one has wrong third derivatives (pytorch issue 175754)."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * (centred.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight + self.bias


def written_out(model: nn.Module) -> nn.Module:
    """The model with every layer norm replaced, in place; names and order of the parameters stay."""
    for name, child in model.named_children():
        setattr(model, name, WrittenOut(child) if isinstance(child, nn.LayerNorm) else written_out(child))
    return model


@lru_cache(maxsize=1)
def trained(settings: DriftSettings, seed: int) -> Trained:
    """Draw the language, train the model (EMA weights), compute its exact curvature on fixed contexts."""
    language, _ = build.language(settings.language, seed)
    config = build.model_config(settings.model, [language])
    state = pretrain(config, [language], settings.train, [seed])
    model = written_out(member(config, state.ema, 0).double())
    seen = contexts(language, settings.contexts, seed, config)
    names, values = zip(*((name, p.detach()) for name, p in model.named_parameters()), strict=True)
    sizes, shapes = [v.numel() for v in values], [v.shape for v in values]

    def log_probs(theta: Tensor, rows: Tensor) -> Tensor:
        parts = theta.split(sizes)
        params = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return functional_call(model, params, (seen.tokens[rows], seen.position[rows])).log_softmax(-1)

    net = Network.own_truth(log_probs, torch.cat([v.reshape(-1) for v in values]), settings.contexts)
    return Trained(net, flow_network.curvature(net), seen, kl_to_truth(model, seen))


def facts(settings: DriftSettings, seed: int) -> pd.DataFrame:
    """One row: the curvature, Lemma 4.2 with both kinds of labels, and predicted drifts per step and eta^2 (B = 1).

    predicted: along the manifold; within_...: in all directions, after clean-ups of various times.
    """
    made = trained(settings, seed)
    net, shape = made.net, made.shape
    assert made.contexts.conditional is not None
    own, size = flow_network.lemma_gap(net, net.theta, net.truth)
    other, other_size = flow_network.lemma_gap(net, net.theta, made.contexts.conditional.double())
    normal = shape.values[~shape.tangent]
    row = {
        "parameters": len(net.theta), "contexts": settings.contexts, "tangent": int(shape.tangent.sum()),
        "trace": shape.trace, "largest": float(normal[-1]), "smallest": float(normal[0]),
        "slope2": float((shape.slope**2).sum()),
        "predicted": shape.predicted(), **{f"within_1e{k}": shape.predicted_within(10.0**k) for k in TIMES},
        "lemma_own": own / size, "lemma_language": other / other_size,
        "kl": made.kl.value, "kl_stderr": made.kl.stderr, "seed": seed,
    }  # fmt: skip
    return pd.DataFrame([row])


def drift(settings: DriftSettings, condition: DriftCondition, seed: int) -> pd.DataFrame:
    """A row a replica: changes of the trace, each divided by its prediction.

    ratio: along the manifold, over -(eta^2 / 4B) |P grad Tr|^2. within: in all directions, over the prediction for a
    clean-up of finite time. exact: the same with the trace computed in full (first replicas only, else nan).
    """
    made, parts = trained(settings, seed), []
    net, shape = made.net, made.shape
    scale = settings.kicks * condition.eta**2
    expected = scale * shape.predicted(condition.batch)
    within = scale * shape.predicted_within(flow_network.UNTIL, condition.batch)
    for first in range(0, settings.replicas, settings.together):
        replicas = range(first, min(first + settings.together, settings.replicas))
        generator = torch_stream(seed, f"theory/drift/{condition.eta!r}/{condition.batch}/{first}")
        moved = flow_network.sgd(net, condition.eta, settings.kicks, condition.batch, len(replicas), generator)
        landed = flow_network.returned(net, shape, moved)
        exact = [
            (flow_network.trace(net, net.theta + shape.vectors @ y) - shape.trace) / within if i < EXACT else math.nan
            for i, y in zip(replicas, landed, strict=True)
        ]
        ratio = (flow_network.trace_change(shape, landed) / expected).tolist()
        everywhere = (flow_network.trace_change(shape, landed, tangent_only=False) / within).tolist()
        columns = {"replica": replicas, "ratio": ratio, "within": everywhere, "exact": exact}
        parts.append(pd.DataFrame(columns))
    table = pd.concat(parts, ignore_index=True)
    return table.assign(eta=condition.eta, batch=condition.batch, seed=seed)
