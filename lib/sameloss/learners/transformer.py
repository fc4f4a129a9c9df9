"""A pre-LN masked transformer for one seed, plain enough that vmap and a second backward pass go through it."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from sameloss.errors import UserError


class TransformerConfig(BaseModel):
    """Shape of a transformer; token ids are 0..vocab-1 for words, then mask, pad and the classification token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab: int = Field(ge=2)
    length: int = Field(ge=1)
    width: int = Field(ge=1)
    layers: int = Field(default=2, ge=1)
    heads: int = Field(default=2, ge=1)
    mlp: int = Field(default=4, ge=1)
    tied: bool = False
    padded: bool = False  # sentences of several lengths: keys behind the end are masked

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "TransformerConfig":
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads; found width {self.width}, heads {self.heads}")
        return self

    @property
    def mask(self) -> int:
        return self.vocab

    @property
    def pad(self) -> int:
        return self.vocab + 1

    @property
    def cls(self) -> int:
        return self.vocab + 2


class Block(nn.Module):
    """x + attention(norm x), then x + mlp(norm x) (Liu et al. 2022, A.2: pre-LN, BERT's GELU)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.scale = (d // config.heads) ** -0.5
        self.norm_attention = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm_mlp = nn.LayerNorm(d)
        self.up = nn.Linear(d, config.mlp * d)
        self.down = nn.Linear(config.mlp * d, d)

    def forward(self, x: Float[Tensor, "B T d"], pad: Tensor | None, position: Tensor | None) -> Tensor:
        """(B, T, d), or (B, 1, d) at `position` (B,): only the masked position is needed after the last keys."""
        B, T, d = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(B, T, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, h, T, d/h)
        if position is not None:
            q = q.gather(2, position.view(B, 1, 1, 1).expand(B, self.heads, 1, d // self.heads))  # (B, h, 1, d/h)
            x = x.gather(1, position.view(B, 1, 1).expand(B, 1, d))  # (B, 1, d)
        # Written out: the fused kernel has no double backward on the CPU.
        scores = q @ k.transpose(-2, -1) * self.scale  # (B, h, T or 1, T)
        if pad is not None:
            scores = scores.masked_fill(pad[:, None, None, :], -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm_mlp(x))))


class Transformer(nn.Module):
    """Masked language model p(x_t | x_-t) with learned positions and one masked position a sentence."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocab + 3, config.width)
        # One row more than the length: the classification token sits there, and the words keep their positions.
        self.position = nn.Embedding(config.length + 1, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        # A tied head has a row for the special tokens too, so that it is the same Parameter; they get no logit.
        self.head = nn.Linear(config.width, config.vocab + 3 if config.tied else config.vocab)
        if config.tied:
            self.head.weight = self.token.weight

    def forward(
        self, tokens: Int[Tensor, "B T"], position: Int[Tensor, " B"] | None = None, features: bool = False
    ) -> Tensor:
        """Logits (B, V) at `position`, or (B, T, V) everywhere; with `features` the token vectors (B, T, d) instead."""
        pad = tokens == self.config.pad if self.config.padded else None
        x = self.token(tokens) + self._positions(tokens)
        for block in self.blocks[:-1]:
            x = block(x, pad, None)
        x = self.norm(self.blocks[-1](x, pad, position))  # (B, T or 1, d)
        if features:
            return x if pad is None else x.masked_fill(pad[..., None], 0.0)
        logits = self.head(x)[..., : self.config.vocab]
        return logits if position is None else logits.squeeze(1)

    def features(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """Last-layer token vectors (B, T, d), zero at padding: what the linear probe sees."""
        return self(tokens, features=True)

    def _positions(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "T d"]:
        T = tokens.shape[1]
        if self.config.length + 1 < T:
            raise UserError(f"sentences have {T} tokens; this model allows at most {self.config.length}")
        rows = torch.arange(T, device=tokens.device)
        # T = length + 1: the classification token is prepended and takes the last row.
        return self.position(rows if self.config.length >= T else rows.roll(1))


def reset(model: Transformer, generator: torch.Generator) -> None:
    """Draw every parameter of `model` afresh: variance 1/fan-in, residual branches scaled by 1/sqrt(2 layers)."""
    depth = (2 * model.config.layers) ** -0.5
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                std = module.in_features**-0.5 * (depth if name.endswith(("out", "down")) else 1.0)
                module.weight.normal_(0.0, std, generator=generator)
                module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(0.0, module.embedding_dim**-0.5, generator=generator)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
