"""LM text from a Hugging Face causal model: `facebook/opt-125m`, or any other that lies in a folder.

How the folder is read, and what is refused: see `checkpoint_folder`.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from sameloss.errors import UserError
from sameloss.languages import checkpoint_folder, lm_text_tasks
from sameloss.languages.lm_text import LMText, check_settings
from sameloss.languages.teacher import Cache
from sameloss.seeds import stream


def load(
    folder: str | Path,
    words: int = 2000,
    length: int = 24,
    temperature: float = 1.0,
    prompts: Mapping[str, str] | None = None,
    counts: Sequence[float] | np.ndarray | None = None,
    ends: bool = True,
    bank: int = lm_text_tasks.BANK,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> LMText:
    """The language of a causal model, restricted to its `words` most frequent tokens (Liu et al. 2022, A.1).

    folder: config, safetensors and tokenizer; or a name such as facebook/opt-125m that is in the local cache.
    prompts: topic -> text before the sentence; by default one topic, the token that begins a text.
    counts: how often each token of the model occurs, in a text of your choice. By default the model itself says: the
        probability it gives each token, summed over sentences that it samples (`expected_counts`). Special tokens
        never count; equal counts go by the token's number.
    ends: whether sentences may end early, with the token that ends a text.
    dtype: of the model's arithmetic; probabilities are normalised in float64 in any case. float32 halves the time and
        leaves errors of about 1e-6.
    UserError for a folder that lacks something or holds something else.
    """
    check_settings(length, temperature, bank)
    folder = checkpoint_folder.resolve(folder)
    checkpoint_folder.check_files(folder, "causal language model")
    model, tokenizer = checkpoint_folder.read(folder, "causal language model")
    model = model.to(device=device, dtype=dtype).eval()
    special = set(tokenizer.all_special_ids)
    tokens = {topic: tokenizer(text)["input_ids"] for topic, text in (prompts or {}).items()}
    if not prompts:
        begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if begin is None:
            raise UserError(f"{folder}: the tokenizer has no token that begins a text; give prompts")
        tokens = {"text": [begin]}
    if ends and tokenizer.eos_token_id is None:
        raise UserError(f"{folder}: the tokenizer has no token that ends a text; ends=False is allowed")
    whole = HuggingFace(model)
    _check_causal(whole, folder)
    possible = [i for i in range(min(len(tokenizer), whole.vocab)) if i not in special]
    if not 2 <= words <= len(possible):
        raise UserError(f"{folder}: {words} words asked for, allowed is 2 to {len(possible)}, the tokens of the model")
    if counts is None:
        counts = expected_counts(whole, list(tokens.values()), length, temperature)
    counts = np.asarray(counts, dtype=np.float64)
    if counts.shape != (whole.vocab,) or not np.isfinite(counts).all():
        raise UserError(
            f"{folder}: counts of shape {counts.shape} found, allowed is one number a token, ({whole.vocab},)"
        )
    ids = sorted(possible, key=lambda i: (-counts[i], i))[:words]
    return LMText(
        model=_restrict(whole, [*ids, tokenizer.eos_token_id] if ends else ids, folder),
        vocab=tuple(tokenizer.convert_ids_to_tokens(ids)),
        ids=tuple(ids),
        prompts=tokens,
        max_length=length,
        temperature=temperature,
        ends=ends,
        bank=bank,
        tokenize=tokenizer.tokenize,
    )


class HuggingFace:
    """A causal model of transformers as the `CausalLM` that the language of LM text asks for."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.vocab: int = model.get_output_embeddings().weight.shape[0]
        # transformers renamed the argument in its fifth version.
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        config = model.config.get_text_config()
        # Models without a table of positions read texts of any length.
        self.context = int(getattr(config, "max_position_embeddings", None) or 1 << 30)

    def __call__(
        self, tokens: Int[Tensor, "n m"], past: Cache | None = None, keep: bool = True
    ) -> tuple[Float[Tensor, "n m K"], Cache]:
        """Logits (n, m, K) and the cache of everything read; each row of `past` serves n / c rows of tokens."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(past or []):
            repeat = len(tokens) // len(keys)
            cache.update(keys.repeat_interleave(repeat, 0), values.repeat_interleave(repeat, 0), layer)
        logits = self.model(input_ids=tokens, use_cache=True, **{self._cache_name: cache}).logits
        return logits, [(layer[0], layer[1]) for layer in cache] if keep else []


@torch.inference_mode()
def expected_counts(
    model: HuggingFace, prompts: Sequence[Sequence[int]], length: int, temperature: float, n: int = 256, seed: int = 0
) -> Float[np.ndarray, " V"]:
    """Sum over sampled texts of the probability of every token: what their counts would be on average, with less noise.

    `n` texts of `length` tokens, the prompts in turn, from the unrestricted model.
    """
    draws = stream(seed, "pool/lm_text")
    total = torch.zeros(model.vocab, dtype=torch.float64, device=model.device)
    for i, prompt in enumerate(prompts):
        rows = len(range(i, n, len(prompts)))
        tokens, cache = torch.tensor([list(prompt)] * rows, device=model.device).view(rows, -1), None
        for _ in range(length if rows else 0):
            logits, cache = model(tokens, cache)
            p = (logits[:, -1].double() / temperature).softmax(-1)
            total += p.sum(0)
            cumulative = p.cumsum(-1)
            numbers = torch.from_numpy(draws.random((rows, 1))).to(model.device) * cumulative[:, -1:]
            tokens = torch.searchsorted(cumulative, numbers, right=True).clamp(max=model.vocab - 1)
    return total.cpu().numpy()


@torch.inference_mode()
def _check_causal(model: HuggingFace, folder: Path) -> None:
    """UserError unless a text read at once, growing word by word, and resumed from keys and values is the same."""
    text = torch.arange(4, device=model.device)[None] % model.vocab
    try:
        growing = torch.stack([model(text[:, : m + 1])[0][0, m] for m in range(4)])
        once, _ = model(text)
        begun, cache = model(text[:, :1])
        resumed, _ = model(text[:, 1:], cache)
    except Exception as error:  # models that take no such cache fail in ways of their own
        raise UserError(f"{folder}: not a causal language model with keys and values to resume from") from error
    if not (_close(once[0], growing) and _close(torch.cat([begun, resumed], 1)[0], growing)):
        raise UserError(f"{folder}: not a causal language model: words to the right change what stands to the left")


@torch.inference_mode()
def _restrict(model: HuggingFace, ids: Sequence[int], folder: Path) -> HuggingFace:
    """The model with its output layer cut down to `ids`, so that nothing of the size of the vocabulary is computed."""
    text = torch.tensor([list(ids[:4])], device=model.device)
    wanted = model(text)[0][..., list(ids)]
    old = model.model.get_output_embeddings()
    new = torch.nn.Linear(old.weight.shape[1], len(ids), bias=old.bias is not None)
    new.weight = torch.nn.Parameter(old.weight[list(ids)])
    if old.bias is not None:
        new.bias = torch.nn.Parameter(old.bias[list(ids)])
    model.model.set_output_embeddings(new)
    restricted = HuggingFace(model.model)
    if not _close(restricted(text)[0], wanted):
        raise UserError(f"{folder}: the output layer of this kind of model cannot be restricted to some words")
    return restricted


def _close(found: Tensor, wanted: Tensor) -> bool:
    tolerance = 1e-8 if wanted.dtype == torch.float64 else 1e-2
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=tolerance, atol=tolerance)
