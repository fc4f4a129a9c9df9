"""The same function with other weights: gain and bias of a layer norm times a, the weights that read it divided by a.

Dinh et al. 2017 made such rescalings the standing objection to sharpness. By powers of two they are exact in floating
point: every product keeps its digits, so logits and features keep every bit.
"""

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from sameloss.errors import UserError
from sameloss.learners.stack import Model, Params

Pair = tuple[str, str]  # a layer norm, and the only layer that reads it
READERS = {"norm_attention": "qkv", "norm_mlp": "up"}


def inner_pairs(names: Iterable[str]) -> list[Pair]:
    """The pairs inside the blocks of a transformer with these parameters; the probe sees nothing of them.

    The last norm is none of them: its output is what a probe reads. UserError for a model without such pairs.
    """
    modules = sorted({name.rsplit(".", 1)[0] for name in names})
    split = [name.rpartition(".") for name in modules]
    found = [(f"{block}.{norm}", f"{block}.{READERS[norm]}") for block, _, norm in split if norm in READERS]
    if not found:
        raise UserError("this model has no layer norm inside a block; only transformers can be rescaled")
    return found


def rescaled(params: Mapping[str, Tensor], factor: float, pairs: Iterable[Pair]) -> Params:
    """Parameters (of one model or a stack) with the gain and bias of each norm times `factor`, its reader's weights
    divided by it."""
    found = dict(params)
    for norm, reader in pairs:
        for name in (f"{norm}.weight", f"{norm}.bias"):
            found[name] = found[name] * factor
        found[f"{reader}.weight"] = found[f"{reader}.weight"] / factor
    return found


def rescale(model: Model, factor: float, *pairs: Pair) -> Model:
    """A copy of a model, rescaled at `pairs` (all inner ones where none is given)."""
    larger, named = copy.deepcopy(model), dict(model.named_parameters())
    with torch.no_grad():
        for name, value in rescaled(named, factor, pairs or inner_pairs(named)).items():
            larger.get_parameter(name).copy_(value)
    return larger
