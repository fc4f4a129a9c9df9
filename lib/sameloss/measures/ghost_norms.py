"""Squared gradient norms of every context in a batch, without ever forming a gradient ("ghost norms").

The gradient of a weight matrix for one context is sum_t L_t R_t^T: for a Linear, L is the gradient at its output and R
its input; for an Embedding, L is one-hot in the token and R the gradient at its output. Its squared norm is therefore
sum_{t,s} <L_t, L_s> <R_t, R_s>: two small Gram matrices. A weight with several uses (a tied head, a cell called at
every step) has the cross terms between them too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

KNOWN = (nn.Linear, nn.Embedding, nn.LayerNorm)


@dataclass
class Site:
    """One layer in a forward pass: what went in (all its calls side by side) and its outputs, still in the graph."""

    module: nn.Module
    inputs: Tensor  # Linear (B, T, in), Embedding ids (B, T), LayerNorm normalised input (B, T, d)
    outputs: list[Tensor]

    @property
    def weight(self) -> Tensor:
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight

    def together(self, gradients: Sequence[Tensor]) -> Float[Tensor, "B T out"]:
        """Gradients at the outputs, in the order of `inputs`."""
        rows = [_rows(gradient, len(self.inputs)) for gradient in gradients]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def gram(self) -> Tensor | None:
        """The Gram matrix (B, T, T) that does not depend on the gradients; None for LayerNorm."""
        if isinstance(self.module, nn.Linear):
            product = self.inputs @ self.inputs.mT
            return product if self.module.bias is None else product + 1
        if isinstance(self.module, nn.Embedding):
            return (self.inputs[:, :, None] == self.inputs[:, None, :]) & self.counted()[:, :, None]
        return None

    def counted(self) -> Tensor:
        """Tokens of an Embedding that receive a gradient: all but its padding index."""
        index = self.module.padding_idx
        if not isinstance(index, int):
            return torch.ones_like(self.inputs, dtype=torch.bool)
        return self.inputs != index


def unknown_layers(model: nn.Module) -> list[str]:
    """Layers that own trainable parameters the norms below cannot see."""
    seen = {id(p) for m in model.modules() if type(m) in KNOWN for p in m.parameters(recurse=False)}
    names = []
    for name, module in model.named_modules():
        if any(p.requires_grad and id(p) not in seen for p in module.parameters(recurse=False)):
            names.append(f"{name or 'the model itself'} ({type(module).__name__})")
    return names


@contextmanager
def recording(model: nn.Module, batch: int) -> Iterator[list[Site]]:
    """Record every known layer of the forward passes inside, for a batch of that many contexts.

    Parameters do not ask for gradients meanwhile: the backward pass is for the data only, a third cheaper.
    """
    sites: dict[nn.Module, Site] = {}
    found: list[Site] = []

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        inputs = args[0].detach()
        if isinstance(module, nn.Embedding):
            # Ids shared by the batch (positions) become ids of every context, or their gradients would be summed.
            inputs = inputs.reshape(-1, inputs.shape[-1]).expand(batch, -1)
            output = output.reshape(-1, *output.shape[-2:]).expand(batch, -1, -1)
        elif isinstance(module, nn.LayerNorm):
            inputs = _rows(F.layer_norm(inputs, module.normalized_shape, eps=module.eps), batch)
        else:
            inputs = _rows(inputs, batch)
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        if module in sites:
            sites[module].inputs = torch.cat([sites[module].inputs, inputs], dim=1)
            sites[module].outputs.append(output)
        else:
            sites[module] = Site(module, inputs, [output])
            found.append(sites[module])
        return output

    handles = [module.register_forward_hook(hook) for module in model.modules() if type(module) in KNOWN]
    trainable = [p for p in model.parameters() if p.requires_grad]
    try:
        for p in trainable:
            p.requires_grad_(False)
        yield found
    finally:
        for p in trainable:
            p.requires_grad_(True)
        for handle in handles:
            handle.remove()


class Norms:
    """Squared norms for one recorded forward pass: the fixed Gram matrices once, then one call a cotangent."""

    def __init__(self, sites: list[Site]):
        self.sites = sites
        self.outputs = [output for site in sites for output in site.outputs]
        self.grams = [site.gram() for site in sites]
        shared: dict[int, list[int]] = {}
        for i, site in enumerate(sites):
            if not isinstance(site.module, nn.LayerNorm):
                shared.setdefault(id(site.weight), []).append(i)
        self.pairs = [(a, b) for group in shared.values() for k, a in enumerate(group) for b in group[k + 1 :]]

    def __call__(self, logits: Tensor, cotangent: Tensor) -> Float[Tensor, "sites B"]:
        """Squared norm of the gradient of <logits, cotangent> by layer; the last row holds the cross terms."""
        found = torch.autograd.grad(logits, self.outputs, cotangent, retain_graph=True, materialize_grads=True)
        flat = iter(found)
        gradients = [site.together([next(flat) for _ in site.outputs]) for site in self.sites]
        rows = [self._own(i, gradient) for i, gradient in enumerate(gradients)]
        cross = torch.zeros_like(rows[0])
        for a, b in self.pairs:
            cross = cross + 2 * _cross(self.sites[a], self.sites[b], gradients[a], gradients[b])
        return torch.stack([*rows, cross])

    def _own(self, i: int, gradient: Float[Tensor, "B T out"]) -> Float[Tensor, " B"]:
        gram, site = self.grams[i], self.sites[i]
        if gram is not None:
            return ((gradient @ gradient.mT) * gram).sum((1, 2))
        bias, weight = gradient.sum(1), (gradient * site.inputs).sum(1)  # LayerNorm: gradients are vectors
        return weight.square().sum(1) + (0 if site.module.bias is None else bias.square().sum(1))


def _cross(a: Site, b: Site, at_a: Tensor, at_b: Tensor) -> Float[Tensor, " B"]:
    """<gradient from use a, gradient from use b> of one shared weight."""
    if isinstance(a.module, nn.Linear) and isinstance(b.module, nn.Linear):
        return ((at_a @ at_b.mT) * (a.inputs @ b.inputs.mT)).sum((1, 2))
    if isinstance(a.module, nn.Embedding) and isinstance(b.module, nn.Embedding):
        same = (a.inputs[:, :, None] == b.inputs[:, None, :]) & a.counted()[:, :, None]
        return ((at_a @ at_b.mT) * same).sum((1, 2))
    if isinstance(a.module, nn.Embedding):
        a, b, at_a, at_b = b, a, at_b, at_a
    ids = b.inputs[:, None, :].expand(-1, at_a.shape[1], -1)  # (B, T_a, T_b)
    return (at_a.gather(2, ids) * (a.inputs @ at_b.mT) * b.counted()[:, None, :]).sum((1, 2))


def _rows(x: Tensor, batch: int) -> Float[Tensor, "B T d"]:
    return x.reshape(batch, -1, x.shape[-1])  # some architectures hand all tokens of a batch over as one list
