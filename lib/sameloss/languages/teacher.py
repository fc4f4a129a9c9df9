"""The OPT architecture in plain torch: the decoder behind the language of LM text, and its trainable weights.

A pre-LN decoder with learned positions (offset by two), ReLU, biases everywhere and an output layer tied to the
word embeddings (Zhang et al. 2022, arXiv 2205.01068). Weights are a flat dict under the names that
`transformers.OPTForCausalLM` gives them, so that a file written here loads there and the other way round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

# Keys and values of every layer: a pair of (rows, heads, positions, head width).
Cache = list[tuple[Tensor, Tensor]]
Weights = dict[str, Tensor]

_STEM = "model.decoder"
_POSITION_OFFSET = 2  # OPT keeps the first two rows of its position table for padding.
_EPS = 1e-5


@dataclass(frozen=True)
class OPTShape:
    """Size of a decoder; `positions` counts everything it can read, the topic token included."""

    vocab: int
    width: int
    layers: int
    heads: int
    positions: int

    @property
    def hidden(self) -> int:
        """Width of the feed-forward layer: four times the width, as in every published OPT."""
        return 4 * self.width


def shapes(shape: OPTShape) -> dict[str, tuple[int, ...]]:
    """Name and size of every weight of a decoder, in the order in which they are drawn."""
    d, f = shape.width, shape.hidden
    sizes: dict[str, tuple[int, ...]] = {
        f"{_STEM}.embed_tokens.weight": (shape.vocab, d),
        f"{_STEM}.embed_positions.weight": (shape.positions + _POSITION_OFFSET, d),
    }
    for i in range(shape.layers):
        layer = f"{_STEM}.layers.{i}"
        for name, (rows, columns) in {
            "self_attn.q_proj": (d, d),
            "self_attn.k_proj": (d, d),
            "self_attn.v_proj": (d, d),
            "self_attn.out_proj": (d, d),
            "fc1": (f, d),
            "fc2": (d, f),
        }.items():
            sizes |= {f"{layer}.{name}.weight": (rows, columns), f"{layer}.{name}.bias": (rows,)}
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            sizes |= {f"{layer}.{name}.weight": (d,), f"{layer}.{name}.bias": (d,)}
    sizes |= {f"{_STEM}.final_layer_norm.weight": (d,), f"{_STEM}.final_layer_norm.bias": (d,)}
    return sizes


def initial_weights(shape: OPTShape, generator: torch.Generator, std: float = 0.02) -> Weights:
    """Weights as OPT draws them: matrices normal with deviation `std`, biases 0, LayerNorm gains 1."""
    weights = {}
    for name, size in shapes(shape).items():
        if len(size) == 2:
            weights[name] = std * torch.randn(size, generator=generator)
        else:
            weights[name] = torch.full(size, float(name.endswith("layer_norm.weight")))
    return weights


def hidden_states(
    weights: Weights, heads: int, tokens: Int[Tensor, "n m"], past: Cache | None = None
) -> tuple[Float[Tensor, "n m d"], Cache]:
    """Last-layer vectors (n, m, d) after the final LayerNorm, and the keys and values of the new tokens alone.

    past: keys and values of what stands before, with c rows where c divides n: row i of `tokens` continues row
        i // (n / c) of it. A shared prefix is thus computed and held once for all its continuations.
    """
    n, m = tokens.shape
    before = past[0][0].shape[2] if past else 0
    at = before + _POSITION_OFFSET
    x = weights[f"{_STEM}.embed_tokens.weight"][tokens] + weights[f"{_STEM}.embed_positions.weight"][at : at + m]
    new: Cache = []
    for i in range(sum(name.endswith(".fc1.weight") for name in weights)):
        layer = f"{_STEM}.layers.{i}"
        h = _layer_norm(weights, f"{layer}.self_attn_layer_norm", x)
        q, k, v = (
            _linear(weights, f"{layer}.self_attn.{part}_proj", h).view(n, m, heads, -1).transpose(1, 2)
            for part in "qkv"
        )  # (n, H, m, dh)
        new.append((k, v))
        mixed = _attend(q, k, v, past[i] if past else None).transpose(1, 2).reshape(n, m, -1)
        x = x + _linear(weights, f"{layer}.self_attn.out_proj", mixed)
        h = _layer_norm(weights, f"{layer}.final_layer_norm", x)
        x = x + _linear(weights, f"{layer}.fc2", F.relu(_linear(weights, f"{layer}.fc1", h)))
    return _layer_norm(weights, f"{_STEM}.final_layer_norm", x), new


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _layer_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], _EPS)


def _attend(q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, Tensor] | None) -> Tensor:
    """Causal attention of m new tokens to themselves and to the p tokens of a shared past -> (n, H, m, dh)."""
    n, heads, m, width = q.shape
    q = q * width**-0.5
    future = torch.ones(m, m, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-1, -2)).masked_fill(future, -torch.inf)  # (n, H, m, m)
    if past is None:
        return _softmax(scores) @ v
    # All continuations of one past row meet its keys in one product: (c, H, r m, dh) @ (c, H, dh, p).
    c, p = past[0].shape[0], past[0].shape[2]
    grouped = q.reshape(c, n // c, heads, m, width).transpose(1, 2).reshape(c, heads, -1, width)
    old = (grouped @ past[0].transpose(-1, -2)).view(c, heads, n // c, m, p).transpose(1, 2).reshape(n, heads, m, p)
    share = _softmax(torch.cat([old, scores], -1))
    weight = share[..., :p].reshape(c, n // c, heads, m, p).transpose(1, 2).reshape(c, heads, -1, p)
    carried = (weight @ past[1]).view(c, heads, n // c, m, width).transpose(1, 2).reshape(n, heads, m, width)
    return carried + share[..., p:] @ v


def _softmax(scores: Tensor) -> Tensor:
    # Five times faster than torch's own on a last dimension as short as a sentence.
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def extend(past: Cache | None, new: Cache, rows: int) -> Cache:
    """Past (c rows) and new keys and values (`rows`) as one cache of `rows` rows."""
    if past is None:
        return new
    repeat = rows // past[0][0].shape[0]
    return [
        (torch.cat([a.repeat_interleave(repeat, 0), c], 2), torch.cat([b.repeat_interleave(repeat, 0), d], 2))
        for (a, b), (c, d) in zip(past, new, strict=True)
    ]


class Teacher:
    """A decoder restricted to some outputs: the `CausalLM` that the language of LM text asks of a model."""

    def __init__(
        self, weights: Weights, heads: int, outputs: Sequence[int], device: torch.device | str = "cpu"
    ) -> None:
        # float64: conditionals are compared with enumeration to 1e-9 and better.
        self.weights = {name: value.to(device, torch.float64) for name, value in weights.items()}
        self.heads = heads
        self.context = self.weights[f"{_STEM}.embed_positions.weight"].shape[0] - _POSITION_OFFSET
        self.device = torch.device(device)
        self._head = self.weights[f"{_STEM}.embed_tokens.weight"][list(outputs)]

    def __call__(
        self, tokens: Int[Tensor, "n m"], past: Cache | None = None, keep: bool = True
    ) -> tuple[Float[Tensor, "n m K"], Cache]:
        """Logits (n, m, K) over the outputs, and the cache with the new tokens in it (empty without `keep`)."""
        h, new = hidden_states(self.weights, self.heads, tokens, past)
        return h @ self._head.T, extend(past, new, len(tokens)) if keep else []
