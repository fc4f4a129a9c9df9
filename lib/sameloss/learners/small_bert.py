"""A small BERT trained on a language of the book and saved as others save theirs: a checkpoint to compare."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int

from sameloss.languages.checkpoint_folder import import_package
from sameloss.seeds import stream

SPECIAL = ("[PAD]", "[UNK]", "[MASK]")


def train(
    folder: Path,
    vocab: Sequence[str],
    sentences: Int[np.ndarray, "n T"],
    width: int,
    steps: Sequence[int],
    batch: int,
    lr: float,
    seed: int,
    layers: int = 2,
) -> list[Path]:
    """Train a masked LM with AdamW on sentences of equal length, one hidden word each; a checkpoint at each of `steps`.

    Warm-up over the first tenth, then a constant learning rate. The tokenizer takes words between spaces. Folders are
    named by their step.
    """
    transformers = import_package("transformers")
    transformers.utils.logging.disable_progress_bar()
    length = sentences.shape[1]
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(vocab),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=4 * width,
        max_position_embeddings=length + 2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    data = stream(seed, "data/small_bert")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "init/small_bert").integers(2**31)))  # transformers draws from torch's own
        model = transformers.BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    words = torch.from_numpy(sentences) + len(SPECIAL)
    saved = []
    for step in range(1, max(steps) + 1):
        tokens = words[data.integers(len(words), size=batch)]
        rows, place = torch.arange(batch), torch.from_numpy(data.integers(length, size=batch))
        target = tokens[rows, place]
        tokens[rows, place] = SPECIAL.index("[MASK]")
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, 10 * step / max(steps))
        loss = F.cross_entropy(model(input_ids=tokens).logits[rows, place], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step in steps:
            saved.append(folder / f"step-{step}")
            model.save_pretrained(saved[-1])
            _save_tokenizer(saved[-1], vocab)
    return saved


def _save_tokenizer(folder: Path, vocab: Sequence[str]) -> None:
    tokenizers, transformers = import_package("tokenizers"), import_package("transformers")
    words = {word: i for i, word in enumerate((*SPECIAL, *vocab))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    ).save_pretrained(folder)
