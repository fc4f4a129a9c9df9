"""Train the teachers of LM text on the standard library's docstrings: `python -m sameloss.languages.train_teacher`.

A teacher reads a topic token, drawn first, and then a window of words of that topic. It is trained on the 800 most
frequent words and "unknown"; the language keeps the most frequent K of its outputs afterwards, as the paper restricts
OPT (Liu et al. 2022, A.1). Deleting the other words from the corpus instead would spoil the text.
"""

import argparse
import math
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch.nn import functional as F
from tqdm import trange

from sameloss.languages import docstrings, teacher_files
from sameloss.languages.docstrings import Corpus
from sameloss.languages.teacher import OPTShape, Weights, hidden_states, initial_weights
from sameloss.seeds import stream, torch_stream

WORDS = 800  # beside "unknown"; they cover 80 % of the text


@dataclass(frozen=True)
class Recipe:
    """How a teacher is trained: `window` words are read after the topic token."""

    width: int
    layers: int
    heads: int
    window: int
    batch: int
    steps: int
    lr: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.01
    seed: int = 0


RECIPES = {
    # The language of the experiments: small enough that students come close to it.
    "small": Recipe(width=16, layers=1, heads=2, window=8, batch=256, steps=1500),
    # Reads better, and is shown in the chapter on languages.
    "large": Recipe(width=64, layers=2, heads=4, window=16, batch=128, steps=1200),
}


@dataclass(frozen=True)
class Text:
    """The corpus in numbers: topics one behind the other in `stream`, the word that is not in the vocabulary = WORDS.

    starts: where a sentence begins; topic: the topic of each position; held_out: positions kept for validation.
    """

    words: list[str]
    counts: list[int]
    stream: Int[np.ndarray, " n"]
    topic: Int[np.ndarray, " n"]
    starts: Int[np.ndarray, " s"]
    held_out: np.ndarray


def number(corpus: Corpus) -> Text:
    """Number the words of a corpus by frequency (ties in alphabetical order); one sentence block in 20 is held out."""
    ranked = sorted(corpus.counts().items(), key=lambda item: (-item[1], item[0]))[:WORDS]
    index = {word: i for i, (word, _) in enumerate(ranked)}
    tokens: list[int] = []
    topics: list[int] = []
    starts: list[int] = []
    held_out: list[bool] = []
    for topic, sentences in enumerate(corpus.topics.values()):
        for i, sentence in enumerate(sentences):
            starts.append(len(tokens))
            tokens += [index.get(word, WORDS) for word in sentence]
            topics += [topic] * len(sentence)
            # Blocks of 40 neighbouring sentences: single sentences would repeat what stands beside them.
            held_out += [(i // 40) % 20 == 19] * len(sentence)
    return Text(
        list(index), [n for _, n in ranked], np.array(tokens), np.array(topics), np.array(starts), np.array(held_out)
    )


def windows(text: Text, length: int, held_out: bool) -> list[Int[np.ndarray, " n"]]:
    """Positions at which a window of `length` words may begin: any position, and beginnings of sentences."""
    fits = np.arange(len(text.stream) - length + 1)
    same = text.topic[fits] == text.topic[fits + length - 1]
    inside = (text.held_out[fits] == held_out) & (text.held_out[fits + length - 1] == held_out)
    anywhere = fits[same & inside]
    return [anywhere, np.intersect1d(anywhere, text.starts)]


def batch_at(text: Text, at: Int[np.ndarray, " n"], length: int) -> Int[np.ndarray, "n m"]:
    """Topic token and words: (n, 1 + length)."""
    words = text.stream[at[:, None] + np.arange(length)]
    return np.concatenate([WORDS + 1 + text.topic[at, None], words], 1)


def loss_of(weights: Weights, heads: int, tokens: Int[np.ndarray, "n m"]) -> torch.Tensor:
    """Cross-entropy (nats a word) of all words behind the topic token; topic tokens are never predicted."""
    batch = torch.from_numpy(tokens)
    h, _ = hidden_states(weights, heads, batch[:, :-1])
    logits = h @ weights["model.decoder.embed_tokens.weight"][: WORDS + 1].T
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def train(
    text: Text, recipe: Recipe, steps: int | None = None, progress: Callable[[int], Iterable[int]] = range
) -> tuple[Weights, list[float]]:
    """Weights after `steps` (default: all of them) and the loss of every step; AdamW with a cosine schedule.

    Every second window of a batch begins at the beginning of a sentence: so do the sentences of the language.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several add up the gradients of the embedding in any order: other bytes each time
    try:
        return _train(text, recipe, recipe.steps if steps is None else steps, progress)
    finally:
        torch.set_num_threads(threads)


def _train(
    text: Text, recipe: Recipe, steps: int, progress: Callable[[int], Iterable[int]]
) -> tuple[Weights, list[float]]:
    shape = OPTShape(WORDS + 1 + len(docstrings.TOPICS), recipe.width, recipe.layers, recipe.heads, 1 + recipe.window)
    weights = initial_weights(shape, torch_stream(recipe.seed, "init/teacher"))
    for value in weights.values():
        value.requires_grad_()
    optimizer = torch.optim.AdamW(weights.values(), lr=recipe.lr, betas=(0.9, 0.99), weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / recipe.warmup, (1 + math.cos(math.pi * step / recipe.steps)) / 2),
    )
    data = stream(recipe.seed, "data/teacher")
    pools = windows(text, recipe.window, held_out=False)
    losses = []
    for _ in progress(steps):
        at = np.concatenate([data.choice(pool, recipe.batch // len(pools)) for pool in pools])
        loss = loss_of(weights, recipe.heads, batch_at(text, at, recipe.window))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return {name: value.detach() for name, value in weights.items()}, losses


def held_out_loss(text: Text, recipe: Recipe, weights: Weights) -> float:
    """Cross-entropy (nats a word) on every window of the held-out text that begins with a sentence."""
    _, starts = windows(text, recipe.window, held_out=True)
    with torch.no_grad():
        return loss_of(weights, recipe.heads, batch_at(text, starts, recipe.window)).item()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the teachers asked for and write them, with a record of how they were made and their checksums."""
    parser = argparse.ArgumentParser(prog="python -m sameloss.languages.train_teacher", description=__doc__)
    parser.add_argument(
        "names", nargs="*", default=list(RECIPES), help=f"which teachers (default: {' '.join(RECIPES)})"
    )
    parser.add_argument("--out", type=Path, default=teacher_files.FOLDER, help="folder to write to")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(RECIPES):
        parser.error(f"unknown teacher {', '.join(sorted(unknown))}; allowed are {', '.join(RECIPES)}")
    corpus = docstrings.read()
    text = number(corpus)
    for name in options.names:
        recipe, began = RECIPES[name], time.perf_counter()
        weights, losses = train(text, recipe, progress=partial(trange, desc=name, disable=None))
        record = {
            "recipe": asdict(recipe),
            "corpus": {
                "source": f"docstrings of the standard library of Python {platform.python_version()}",
                "sha256": corpus.digest,
                "words": len(text.stream),
                "covered": round(sum(text.counts) / len(text.stream), 4),
            },
            "losses": [round(loss, 5) for loss in losses[49::50]],
            "held_out_loss": round(held_out_loss(text, recipe, weights), 4),
            "topics": list(corpus.topics),
            "words": text.words,
            "counts": text.counts,
        }
        teacher_files.write(options.out, name, weights, record)
        print(f"{name}: {time.perf_counter() - began:.0f} s, held out {record['held_out_loss']} nats a word")


if __name__ == "__main__":
    main()
