"""The trace of the Fisher matrix, which at saturation is the trace of the Hessian (Liu et al. 2022, §5, B.1)."""

import warnings
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate
from sameloss.measures.ghost_norms import Norms, Site, recording, unknown_layers
from sameloss.measures.robust import robust
from sameloss.seeds import torch_stream

Contexts = tuple[Int[Tensor, "n T"], Int[Tensor, " n"]]
Call = Callable[[nn.Module, Tensor, Tensor], Tensor]
Vocabulary = Literal["exact", "sampled"]

MIX = 0.3  # share of p kept in the proposal: without it one rare token can carry an unbounded weight


def direct(model: nn.Module, tokens: Int[Tensor, "B T"], position: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
    """How the models of this library are called."""
    return model(tokens, position)


def hugging_face(model: nn.Module, tokens: Int[Tensor, "B T"], position: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
    """How a masked LM of `transformers` is called: `fisher_trace(model, contexts, call=hugging_face)`."""
    return model(input_ids=tokens).logits[torch.arange(len(position), device=position.device), position]


def fisher_trace(
    model: nn.Module,
    contexts: Contexts,
    vocabulary: Vocabulary = "exact",
    seed: int = 0,
    chunk: int = 256,
    call: Call = direct,
    pad: int | None = None,
) -> Estimate:
    """Tr F = E_x,t E_v~f |grad log f(x_-t)[v]|^2 over all trainable parameters (nats), contexts as the samples.

    contexts: tokens (n, T) with the mask in place, position (n,). "exact" sums over the vocabulary, "sampled" draws
    one token a context. `pad`: the token behind the end of sentences, for models that do not look at it; chunks are
    then cut to their longest sentence, which saves time and changes nothing. See `fisher_per_context`, also for the
    errors. The standard error is the robust one.
    """
    return robust(fisher_per_context(model, contexts, vocabulary, seed, chunk, call, pad), seed)


def fisher_per_context(
    model: nn.Module,
    contexts: Contexts,
    vocabulary: Vocabulary = "exact",
    seed: int = 0,
    chunk: int = 256,
    call: Call = direct,
    pad: int | None = None,
) -> Float[np.ndarray, " n"]:
    """E_v |grad log f_v|^2 of every context (n,), or an unbiased one-token estimate of it, for paired comparisons.

    A layer other than Linear, Embedding and LayerNorm means slow per-context autograd, and a warning that says so.
    UserError for zero contexts, and for a model in training mode with dropout.
    """
    tokens, position = checked(model, contexts)
    generator = torch_stream(seed, "estimator")
    uniform = torch.rand(len(tokens), generator=generator, dtype=torch.float64).to(tokens.device)
    reason = why_not_fast(model, (tokens, position), call)
    if reason:
        warnings.warn(f"per-context autograd instead of gradient norms by layer (slow): {reason}", stacklevel=2)
    lengths = torch.full_like(position, tokens.shape[1]) if pad is None else (tokens != pad).sum(1)
    order = lengths.argsort(stable=True)
    found = torch.empty(len(tokens), dtype=torch.float64, device=tokens.device)
    for rows in order.split(1 if reason else chunk):
        batch, at = tokens[rows, : int(lengths[rows].max())], position[rows]
        if reason:
            found[rows] = _by_autograd(model, batch, at, vocabulary, uniform[rows], call).double()
            continue
        with recording(model, len(rows)) as sites:
            logits = call(model, batch, at)
            total = _exact if vocabulary == "exact" else _sampled
            found[rows] = total(logits, Norms(sites), uniform[rows]).double()
    return found.cpu().numpy()


def checked(model: nn.Module, contexts: Contexts) -> Contexts:
    """The contexts on the model's device, or the UserError that says what is wrong."""
    tokens, position = contexts
    if len(tokens) == 0:
        raise UserError("zero contexts; a trace needs at least one masked sentence")
    if len(tokens) != len(position):
        raise UserError(f"{len(tokens)} sentences and {len(position)} masked positions; they must match")
    for name, module in model.named_modules():
        if module.training and getattr(module, "p", 0) and "Dropout" in type(module).__name__:
            raise UserError(f"{name} drops out in training mode: the trace would be of a random network; call .eval()")
    device = next(model.parameters()).device
    return tokens.to(device), position.to(device)


def _exact(logits: Float[Tensor, "B V"], norms: Norms, _: Tensor) -> Float[Tensor, " B"]:
    p = logits.detach().softmax(-1)
    total = torch.zeros_like(p[:, 0])
    for v in range(p.shape[1]):
        cotangent = -p.clone()
        cotangent[:, v] += 1  # d log f_v / d logits
        total += p[:, v] * norms(logits, cotangent).sum(0)
    return total


def _sampled(logits: Float[Tensor, "B V"], norms: Norms, uniform: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """One token a context from a proposal that favours large gradients; the output layer's own share exactly.

    That layer's gradient is u (h, 1)^T with u = e_v - p, and E_v |u|^2 = 1 - |p|^2.
    """
    p = logits.detach().softmax(-1)
    head = _head(logits, norms.sites)
    proposal = p if head is None else _proposal(p, norms.sites[head].weight.detach()[: p.shape[1]])
    token = (proposal.double().cumsum(1) < uniform[:, None] * proposal.double().sum(1, keepdim=True)).sum(1)
    token = token.clamp_max(p.shape[1] - 1)[:, None]
    cotangent = (-p).scatter_add(1, token, torch.ones_like(p[:, :1]))
    by_layer = norms(logits, cotangent)
    weight = (p / proposal).gather(1, token).squeeze(1)
    if head is None:
        return weight * by_layer.sum(0)
    own = by_layer[head].clone()
    by_layer[head] = 0
    expected = own / cotangent.square().sum(1).clamp_min(1e-30) * (1 - p.square().sum(1))
    return weight * by_layer.sum(0) + expected


def _proposal(p: Float[Tensor, "B V"], head: Float[Tensor, "V d"]) -> Float[Tensor, "B V"]:
    """q = 0.3 p + 0.7 (p |W^T (e_v - p)|^2, normalised): the square of what a token sends into the body."""
    mean = p @ head
    square = head.square().sum(1) - 2 * mean @ head.T + mean.square().sum(1, keepdim=True)
    wanted = p * square.clamp_min(0)
    return MIX * p + (1 - MIX) * wanted / wanted.sum(1, keepdim=True).clamp_min(1e-30)


def _head(logits: Float[Tensor, "B V"], sites: list[Site]) -> int | None:
    """Index of the output layer: the last Linear, if its outputs are the logits as they stand."""
    last = sites[-1]
    if not isinstance(last.module, nn.Linear) or last.module.out_features < logits.shape[1] or len(last.outputs) > 1:
        return None
    probe = torch.arange(1.0, logits.shape[1] + 1, device=logits.device, dtype=logits.dtype)
    (back,) = torch.autograd.grad(logits, last.outputs, probe.expand_as(logits), retain_graph=True)
    same = torch.allclose(back.square().flatten(1).sum(1), probe.square().sum(), rtol=1e-4)
    return len(sites) - 1 if same else None


def _by_autograd(
    model: nn.Module, tokens: Tensor, position: Tensor, vocabulary: Vocabulary, uniform: Tensor, call: Call
) -> Float[Tensor, " 1"]:
    """The same for one context with whole gradients: any model, slowly. Sampled tokens come from f itself."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    log_p = call(model, tokens, position).log_softmax(-1)[0]
    p = log_p.detach().exp()
    choices, weights = list(range(len(p))), p
    if vocabulary == "sampled":
        choices, weights = [min(int((p.cumsum(0) < uniform[0]).sum()), len(p) - 1)], torch.ones_like(p)
    total = torch.zeros_like(p[0])
    for v in choices:
        gradients = torch.autograd.grad(log_p[v], parameters, retain_graph=True, allow_unused=True)
        total += weights[v] * sum(g.square().sum() for g in gradients if g is not None)
    return total[None]


def why_not_fast(model: nn.Module, contexts: Contexts, call: Call = direct) -> str:
    """Why the norms by layer cannot be used for this model, or "" when they agree with autograd on two contexts.

    The comparison also catches what hooks cannot see: a weight used outside its layer, contexts that mix in a batch.
    """
    unknown = unknown_layers(model)
    if unknown:
        return f"unknown layer {unknown[0]}" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "")
    tokens, position = contexts[0][:2], contexts[1][:2]
    parameters = [p for p in model.parameters() if p.requires_grad]
    try:
        with recording(model, len(tokens)) as sites:
            logits = call(model, tokens, position)
            weights = torch.linspace(-1, 1, logits.shape[1], device=logits.device, dtype=logits.dtype)
            cotangent = weights.expand_as(logits)
            by_layer = Norms(sites)(logits, cotangent)
    except RuntimeError as error:  # shapes in which no context can be told from another
        return f"a layer is called in another way than context by context ({str(error).splitlines()[0]})"
    for i in range(len(tokens)):
        scalar = (call(model, tokens[i : i + 1], position[i : i + 1]) * cotangent[:1]).sum()
        gradients = [g for g in torch.autograd.grad(scalar, parameters, allow_unused=True) if g is not None]
        whole = float(sum(g.double().square().sum() for g in gradients))
        if abs(float(by_layer[:, i].sum()) - whole) > 1e-3 * whole:
            return "a parameter is used outside the layer that owns it"
    return ""
