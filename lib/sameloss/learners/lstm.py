"""A bidirectional LSTM masked language model for one seed: it reads the sentence with the mask in it, both ways."""

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn


class LSTMConfig(BaseModel):
    """Shape of an LSTM; `width` units in each direction. Token ids as in `TransformerConfig`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab: int = Field(ge=2)
    length: int = Field(ge=1)
    width: int = Field(ge=1)
    padded: bool = False

    @property
    def mask(self) -> int:
        return self.vocab

    @property
    def pad(self) -> int:
        return self.vocab + 1

    @property
    def cls(self) -> int:
        return self.vocab + 2


class Direction(nn.Module):
    """One reading direction. Plain layers in a loop: gradient norms by layer, vmap and double backward all work."""

    def __init__(self, width: int):
        super().__init__()
        self.input = nn.Linear(width, 4 * width)  # gates: input, forget, output, candidate
        self.recurrent = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Float[Tensor, "B T d"], keep: Tensor | None, reverse: bool) -> Float[Tensor, "B T d"]:
        """States h_t in the order of the sentence; where `keep` (B, T) is 0 the state is empty."""
        T = x.shape[1]
        driven = self.input(x).unbind(1)  # T times (B, 4d)
        h = c = torch.zeros_like(x[:, 0])
        states = []
        for t in reversed(range(T)) if reverse else range(T):
            opened, candidate = (driven[t] + self.recurrent(h)).split([3 * x.shape[-1], x.shape[-1]], dim=-1)
            i, f, o = opened.sigmoid().chunk(3, dim=-1)
            c = f * c + i * candidate.tanh()
            h = o * c.tanh()
            if keep is not None:
                c, h = c * keep[:, t, None], h * keep[:, t, None]
            states.append(h)
        return torch.stack(states[::-1] if reverse else states, dim=1)


class LSTM(nn.Module):
    """Masked language model p(x_t | x_-t): the states of both directions at t, then a linear layer."""

    def __init__(self, config: LSTMConfig):
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocab + 3, config.width)
        self.ahead, self.back = Direction(config.width), Direction(config.width)
        self.head = nn.Linear(2 * config.width, config.vocab)

    def forward(
        self, tokens: Int[Tensor, "B T"], position: Int[Tensor, " B"] | None = None, features: bool = False
    ) -> Tensor:
        """Logits (B, V) at `position`, or (B, T, V) everywhere; with `features` the vectors (B, T or 1, 2d) instead."""
        keep = (tokens != self.config.pad).to(self.head.weight.dtype) if self.config.padded else None
        x = self.token(tokens)
        x = torch.cat([self.ahead(x, keep, False), self.back(x, keep, True)], dim=-1)  # (B, T, 2d)
        if position is not None:
            x = x.gather(1, position.view(-1, 1, 1).expand(-1, 1, x.shape[-1]))
        if features:
            return x
        logits = self.head(x)
        return logits if position is None else logits.squeeze(1)

    def features(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T d2"]:
        """State vectors of both directions (B, T, 2d), zero at padding: what the linear probe sees."""
        return self(tokens, features=True)


def reset(model: LSTM, generator: torch.Generator) -> None:
    """Draw every parameter of `model` afresh: variance 1/fan-in, forget gates half open at first (bias 1)."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0.0, module.in_features**-0.5, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(0.0, 1.0, generator=generator)
        for direction in (model.ahead, model.back):
            direction.input.bias[model.config.width : 2 * model.config.width] = 1.0
