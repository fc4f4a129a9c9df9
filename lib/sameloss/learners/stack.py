"""One module, many seeds: parameters carry a leading seed dimension, the modules know nothing of it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sameloss.errors import UserError
from sameloss.learners import lstm, transformer
from sameloss.learners.lstm import LSTM, LSTMConfig
from sameloss.learners.transformer import Transformer, TransformerConfig
from sameloss.seeds import torch_stream

ModelConfig = TransformerConfig | LSTMConfig
Model = Transformer | LSTM
Params = dict[str, Tensor]


def build(config: ModelConfig, seed: int) -> Model:
    """The untrained model of `seed`: its stream "init" draws every parameter."""
    generator = torch_stream(seed, "init")
    # Constructors of torch.nn draw from the global generator; those numbers are overwritten, its state is restored.
    with torch.random.fork_rng(devices=[]):
        if isinstance(config, LSTMConfig):
            recurrent = LSTM(config)
            lstm.reset(recurrent, generator)
            return recurrent
        model = Transformer(config)
    transformer.reset(model, generator)
    return model


def stack(models: Sequence[nn.Module]) -> Params:
    """Parameters of equal models, each (S, ...); a tied parameter appears once."""
    named = [dict(model.named_parameters()) for model in models]
    return {name: torch.stack([member[name].detach() for member in named]) for name in named[0]}


def member(config: ModelConfig, params: Params, index: int) -> Model:
    """The model number `index` of a stack, as a plain module in evaluation mode (parameters are copies)."""
    model = build(config, 0).to(dtype=next(iter(params.values())).dtype)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name not in params or params[name].shape[1:] != value.shape:
                found = tuple(params[name].shape[1:]) if name in params else "nothing"
                raise UserError(f"parameter {name}: found {found}; this model needs {tuple(value.shape)}")
            value.copy_(params[name][index])
    return model.to(next(iter(params.values())).device).eval()


def apply(config: ModelConfig) -> Callable[..., Tensor]:
    """f(params, tokens (S, B, T), position (S, B) or None, features=False): every seed on its own batch."""
    model = build(config, 0)

    def one(params: Params, tokens: Tensor, position: Tensor | None, features: bool) -> Tensor:
        return functional_call(model, params, (tokens, position, features))

    def many(params: Params, tokens: Tensor, position: Tensor | None = None, features: bool = False) -> Tensor:
        if len(tokens) == 1:  # no stack, no vmap: a quarter faster for one larger model
            only = {name: value[0] for name, value in params.items()}
            return one(only, tokens[0], None if position is None else position[0], features)[None]
        batched = (0, 0, None if position is None else 0, None)
        return vmap(one, in_dims=batched)(params, tokens, position, features)

    return many
