"""Embedding a model in a larger one without changing its function (Liu et al. 2022, B.3-B.4).

Two methods, because the trace depends on which. "replicate": features, heads and units appear k times and incoming
weights are divided by k; LayerNorm's statistics survive replication. "zero-gain": the residual stream is replicated
too (for those statistics), but the copies have LayerNorm gain 0 and all new heads and units have weight 0.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from sameloss.errors import UserError
from sameloss.learners.lstm import LSTM
from sameloss.learners.stack import Model, build

Method = Literal["replicate", "zero-gain"]
METHODS: tuple[Method, ...] = get_args(Method)
Rule = tuple[int, str, int, str]  # blocks and action for rows, blocks and action for columns

# keep: as it is; tile: k copies; share: k copies divided by k; pad: zeros behind.
TRANSFORMER: dict[Method, dict[str, Rule]] = {
    "replicate": {
        "token": (1, "keep", 1, "tile"),
        "position": (1, "keep", 1, "tile"),
        "norm": (1, "tile", 1, "keep"),
        "norm_attention": (1, "tile", 1, "keep"),
        "norm_mlp": (1, "tile", 1, "keep"),
        "qkv": (3, "tile", 1, "share"),
        "out": (1, "tile", 1, "share"),
        "up": (1, "tile", 1, "share"),
        "down": (1, "tile", 1, "share"),
        "head": (1, "keep", 1, "share"),
    },
    "zero-gain": {
        "token": (1, "keep", 1, "tile"),
        "position": (1, "keep", 1, "tile"),
        "norm": (1, "pad", 1, "keep"),
        "norm_attention": (1, "pad", 1, "keep"),
        "norm_mlp": (1, "pad", 1, "keep"),
        "qkv": (3, "pad", 1, "pad"),
        "out": (1, "tile", 1, "pad"),
        "up": (1, "pad", 1, "pad"),
        "down": (1, "tile", 1, "pad"),
        "head": (1, "keep", 1, "pad"),
    },
}
RECURRENT: dict[Method, dict[str, Rule]] = {
    "replicate": {
        "token": (1, "keep", 1, "tile"),
        "input": (4, "tile", 1, "share"),
        "recurrent": (4, "tile", 1, "share"),
        "head": (1, "keep", 2, "share"),
    },
    "zero-gain": {
        "token": (1, "keep", 1, "pad"),
        "input": (4, "pad", 1, "pad"),
        "recurrent": (4, "pad", 1, "pad"),
        "head": (1, "keep", 2, "pad"),
    },
}


def widen(model: Model, width: int | None = None, layers: int | None = None, method: Method = "replicate") -> Model:
    """The same function in a model of `width` (a multiple of its own) and `layers`; new blocks have zero parameters.

    UserError for a width that is no multiple, a smaller size, or layers asked of an LSTM.
    """
    config = model.config
    width = config.width if width is None else width
    if width < config.width or width % config.width:
        raise UserError(f"width {width}: allowed are multiples of the model's own {config.width}")
    if method not in METHODS:
        raise UserError(f"method {method!r}; allowed: {', '.join(METHODS)}")
    k, changes = width // config.width, {"width": width}
    if isinstance(model, LSTM):
        if layers not in (None, 1):
            raise UserError(f"layers {layers}: the LSTM has one layer")
        rules = RECURRENT[method]
    else:
        layers = model.config.layers if layers is None else layers
        if layers < model.config.layers:
            raise UserError(f"layers {layers}: the model has {model.config.layers} already")
        changes |= {"layers": layers, "heads": k * model.config.heads}
        rules = dict(TRANSFORMER[method])
        if model.config.tied and method == "replicate":
            rules["norm"] = (1, "share", 1, "keep")  # k copies of the embedding read it: they would add up
    first = next(model.parameters())
    larger = build(config.model_copy(update=changes), 0).to(first.device, first.dtype).train(model.training)
    small = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in larger.named_parameters():
            if name in small:
                layer, is_bias = name.split(".")[-2], name.endswith(".bias")
                rule = rules[layer]
                value.copy_(_grow(small[name], (*rule[:2], 1, "keep") if is_bias else rule, k))
            else:
                value.zero_()
    return larger


def trace_factor(model: Model, name: str, k: int) -> float:
    """By how much "replicate" to k times the width multiplies parameter `name`'s share of the Fisher trace.

    A copy of an activation receives 1/k of its gradient: k x k blocks of a matrix keep the share, k copies of a vector
    or of embedding rows have 1/k of it. What reads the final features without being divided has k times its share.
    """
    layer, is_bias = name.split(".")[-2], name.endswith(".bias")
    tied = not isinstance(model, LSTM) and model.config.tied
    if layer == "head":
        return 1.0 if is_bias else float(k)
    if layer == "norm" and tied:
        return float(k)
    one_sided = is_bias or layer.startswith("norm") or layer in ("token", "position")
    return 1 / k if one_sided else 1.0


def _grow(t: Tensor, rule: Rule, k: int) -> Tensor:
    row_blocks, row_action, column_blocks, column_action = rule
    if t.dim() == 1:
        return _spread(t.unflatten(0, (row_blocks, -1)), 1, row_action, k).flatten()
    parts = t.unflatten(1, (column_blocks, -1)).unflatten(0, (row_blocks, -1))  # (rb, r, cb, c)
    parts = _spread(_spread(parts, 1, row_action, k), 3, column_action, k)
    return parts.flatten(2).flatten(0, 1)


def _spread(t: Tensor, dim: int, action: str, k: int) -> Tensor:
    if action == "keep":
        return t
    if action == "pad":
        return torch.cat([t, *[torch.zeros_like(t)] * (k - 1)], dim)
    copies = torch.cat([t] * k, dim)
    return copies / k if action == "share" else copies
