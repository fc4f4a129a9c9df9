"""Somebody else's masked or causal language model: its losses, contexts and features on lines of text."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sameloss.errors import UserError
from sameloss.languages import checkpoint_folder
from sameloss.languages.checkpoint_folder import ENCODER
from sameloss.seeds import stream

PAD = -1  # behind the end of a line; no token of any tokenizer
CAUSAL = "causal language model"
BATCH = 32  # lines together: with a large vocabulary the logits are what takes memory
Lines = list[list[int]]


@dataclass(frozen=True)
class Checkpoint:
    """A model as read, with its tokenizer. kind: a key of `checkpoint_folder.KINDS`, or an encoder without outputs."""

    folder: Path
    kind: str
    model: Any
    tokenizer: Any

    @property
    def predicts(self) -> bool:
        """Whether it has an output layer, and with it a loss."""
        return self.kind != ENCODER

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter: what a trace is taken over."""
        return {name: tuple(p.shape) for name, p in self.model.named_parameters()}

    @property
    def longest(self) -> int:
        """Tokens that it can read; two positions are kept back, where some architectures start to count at two."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        return max(3, int(positions) - 2) if positions else 1 << 20


def load(folder: str | Path) -> Checkpoint:
    """The checkpoint in a folder, in float32 and evaluation mode.

    UserError for a folder that lacks something, holds pickled weights only, weights that are not finite, or a masked
    model whose tokenizer has no mask.
    """
    path = checkpoint_folder.resolve(folder)
    kind = checkpoint_folder.kind_of(checkpoint_folder.check_files(path))
    model, tokenizer = checkpoint_folder.read(path, kind)
    for name, p in model.state_dict().items():
        if not torch.isfinite(p).all():
            raise UserError(f"{path}: {int((~torch.isfinite(p)).sum())} weights of {name} are not finite numbers")
    if kind not in (CAUSAL, ENCODER) and tokenizer.mask_token_id is None:
        raise UserError(f"{path}: a masked language model, but its tokenizer has no mask token")
    return Checkpoint(path, kind, _plain(model.float().eval()), tokenizer)


class Positions(nn.Module):
    """OPT's table of positions, looked up as a plain Embedding is: by numbers that the caller can see."""

    def __init__(self, old: Any) -> None:
        super().__init__()
        self.offset = int(old.offset)
        self.table = nn.Embedding(*old.weight.shape)
        self.table.weight = old.weight

    def forward(self, attention_mask: Tensor, *_: Any, position_ids: Tensor | None = None) -> Tensor:
        if position_ids is None:
            position_ids = (attention_mask.cumsum(1) * attention_mask - 1).long()
        return self.table(position_ids + self.offset)


def _linear(old: Any) -> nn.Linear:
    """GPT-2's Conv1D: a Linear with its matrix transposed."""
    inputs, outputs = old.weight.shape
    new = nn.Linear(inputs, outputs)
    new.weight, new.bias = nn.Parameter(old.weight.detach().T.contiguous()), old.bias
    return new


def _plain(model: nn.Module) -> nn.Module:
    """The same function of the same numbers in layers whose gradients have cheap norms."""
    known = {"Conv1D": _linear, "OPTLearnedPositionalEmbedding": Positions}
    for parent in list(model.modules()):
        for name, old in list(parent.named_children()):
            if type(old).__name__ in known:
                setattr(parent, name, known[type(old).__name__](old))
    return model


def unlike(a: Checkpoint, b: Checkpoint, lines: Sequence[str]) -> str:
    """Why the losses of two checkpoints are not the loss of one question, or "" where they are."""
    for c in (a, b):
        if not c.predicts:
            return f"{c.folder} has no output layer over the vocabulary, so it has no loss"
    if a.kind != b.kind:
        return f"one is a {a.kind}, the other a {b.kind}: they predict different things"
    words = [c.tokenizer.get_vocab() for c in (a, b)]
    if words[0] != words[1]:
        differ = len(set(words[0].items()) ^ set(words[1].items()))
        return f"their vocabularies differ ({len(words[0])} and {len(words[1])} tokens, {differ} entries not shared)"
    outputs = [c.model.get_output_embeddings().weight.shape[0] for c in (a, b)]
    if outputs[0] != outputs[1]:
        return f"their output layers differ ({outputs[0]} and {outputs[1]} tokens)"
    for number, line in enumerate(lines, 1):
        if a.tokenizer(line)["input_ids"] != b.tokenizer(line)["input_ids"]:
            return f"their tokenizers cut the text differently (first at usable line {number})"
    return ""


def encode(c: Checkpoint, lines: Sequence[str], length: int) -> tuple[Lines, list[list[int]], int]:
    """Token ids of every line, the positions that can be predicted in it, and how many lines were cut to `length`.

    Special and unknown tokens are no words to predict; a causal model predicts nothing at the first position.
    """
    length, special = min(length, c.longest), set(c.tokenizer.all_special_ids)
    whole = [c.tokenizer(line)["input_ids"] for line in lines]
    cut = [c.tokenizer(line, truncation=True, max_length=length)["input_ids"] for line in lines]
    first = 1 if c.kind == CAUSAL else 0
    places = [[t for t in range(first, len(row)) if row[t] not in special] for row in cut]
    return cut, places, sum(len(a) > len(b) for a, b in zip(whole, cut, strict=True))


def places(positions: Sequence[Sequence[int]], rounds: int, seed: int) -> Int[np.ndarray, "rounds n"]:
    """One position of every line in each round, all different as long as there are enough of them."""
    draws = stream(seed, "mask/foreign")
    orders = [draws.permutation(row) for row in positions]
    return np.array([[order[r % len(order)] for order in orders] for r in range(rounds)])


def contexts(
    c: Checkpoint, ids: Lines, at: Int[np.ndarray, " n"]
) -> tuple[tuple[Int[Tensor, "n T"], Int[Tensor, " n"]], Int[Tensor, " n"]]:
    """Contexts (tokens, position to read) with the token at `at` hidden, and that token as the target (n,).

    A masked model reads the mask; a causal one reads what stands before and answers there.
    """
    rows, place = torch.arange(len(ids)), torch.from_numpy(np.asarray(at))
    tokens = _padded(ids)
    target = tokens[rows, place]
    if c.kind == CAUSAL:
        tokens[torch.arange(tokens.shape[1])[None] >= place[:, None]] = PAD
        return (tokens, place - 1), target
    tokens[rows, place] = c.tokenizer.mask_token_id
    return (tokens, place), target


def predict(model: Any, tokens: Int[Tensor, "B T"], position: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
    """Logits at one position of each context: how `fisher_trace` and `adaptive_sharpness` call a checkpoint.

    What the output layer reads is cut down to that position: it acts on each by itself, and costs more than all the
    rest where the vocabulary is large. `check_predict` refuses a model that is not made like that.
    """

    def crop(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0][torch.arange(len(position)), position][:, None],)

    handle = model.get_output_embeddings().register_forward_pre_hook(crop)
    try:
        return model(**_inputs(model, tokens), **_no_cache(model)).logits[:, 0]
    finally:
        handle.remove()


def check_predict(c: Checkpoint, ids: Lines, at: Int[np.ndarray, " n"]) -> None:
    """UserError unless the short way of `predict` gives what the whole model gives, on the first lines."""
    (tokens, position), _ = contexts(c, ids[:4], at[:4])
    try:
        with torch.no_grad():
            whole = c.model(**_inputs(c.model, tokens)).logits[torch.arange(len(tokens)), position]
            same = torch.allclose(predict(c.model, tokens, position), whole, rtol=1e-3, atol=1e-3)
    except Exception as error:  # architectures fail in ways of their own
        raise UserError(f"{c.folder}: the model cannot be run on the text ({error})".splitlines()[0]) from error
    finite = bool(torch.isfinite(whole).all())
    if not same or not finite:
        why = "the output layer looks at more than one position" if finite else "predictions are not finite"
        raise UserError(f"{c.folder}: {why}; such a model cannot be compared")


@torch.no_grad()
def losses(
    c: Checkpoint, ids: Lines, positions: Sequence[Sequence[int]], at: Int[np.ndarray, "rounds n"]
) -> Float[np.ndarray, " n"]:
    """Cross-entropy of each line in nats a token: mean over its tokens, for a masked model over the rounds in `at`."""
    total = np.zeros(len(ids))
    if c.kind == CAUSAL:
        for rows, tokens in _batches(ids):
            log_p = c.model(**_inputs(c.model, tokens), **_no_cache(c.model)).logits.log_softmax(-1)
            own = log_p[:, :-1].gather(2, tokens[:, 1:, None].clamp_min(0))[..., 0]
            for k, row in enumerate(rows):
                total[row] = -float(own[k, [t - 1 for t in positions[row]]].double().mean())
        return total
    for hidden in at:
        (tokens, position), target = contexts(c, ids, hidden)
        for rows, batch in _batches(ids):
            log_p = predict(c.model, tokens[rows, : batch.shape[1]], position[rows]).log_softmax(-1)
            total[rows] -= log_p.gather(1, target[rows, None])[:, 0].double().numpy() / len(at)
    return total


@torch.no_grad()
def features(c: Checkpoint, ids: Lines) -> Float[Tensor, "n d"]:
    """Last-layer vectors of a line (nothing hidden), averaged over its tokens that are no special ones."""
    special = torch.tensor(sorted({PAD, *c.tokenizer.all_special_ids}))
    found: dict[int, Tensor] = {}
    for rows, tokens in _batches(ids):
        vectors = c.model.base_model(**_inputs(c.model, tokens)).last_hidden_state
        weight = (~torch.isin(tokens, special)).float()[..., None]
        found |= dict(zip(rows.tolist(), (vectors * weight).sum(1) / weight.sum(1), strict=True))
    return torch.stack([found[i] for i in range(len(ids))])


def _inputs(model: Any, tokens: Int[Tensor, "B T"]) -> dict[str, Tensor]:
    pad = model.config.pad_token_id
    return {"input_ids": torch.where(tokens < 0, pad or 0, tokens), "attention_mask": (tokens >= 0).long()}


def _no_cache(model: Any) -> dict[str, bool]:
    # Keys and values kept for a next token would hold on to the graph.
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def _padded(ids: Lines) -> Int[Tensor, "n T"]:
    tokens = torch.full((len(ids), max(map(len, ids))), PAD)
    for i, row in enumerate(ids):
        tokens[i, : len(row)] = torch.tensor(row)
    return tokens


def _batches(ids: Lines) -> Iterator[tuple[Int[np.ndarray, " b"], Int[Tensor, "b T"]]]:
    """Rows of similar length, and their tokens."""
    order = np.argsort([len(row) for row in ids], kind="stable")
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        yield rows, _padded([ids[i] for i in rows])
