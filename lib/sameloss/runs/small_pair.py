"""Two small checkpoints of one language whose losses meet: one trained slowly, one fast until its loss is the same."""

from pathlib import Path

import numpy as np

from sameloss.errors import UserError
from sameloss.languages.lm_text import LMText
from sameloss.learners import foreign, small_bert
from sameloss.runs.settings import CheckpointSettings

MASKED = 8  # every word of a sentence in turn, where the loss decides which checkpoint is taken


def write_text(language: LMText, folder: Path, n: int, seed: int) -> tuple[Path, Path]:
    """A text of `n` sentences of the language, one a line, and the topic that was drawn for each as its label."""
    sentences, topics = language.sample_with_topics(n, seed)
    names = list(language.prompts)
    text, labels = folder / "text.txt", folder / "labels.txt"
    folder.mkdir(parents=True, exist_ok=True)
    text.write_text("".join(line + "\n" for line in _lines(language, sentences.tokens)), encoding="utf-8")
    labels.write_text("".join(names[topic] + "\n" for topic in topics), encoding="utf-8")
    return text, labels


def train_pair(language: LMText, folder: Path, settings: CheckpointSettings, seed: int) -> tuple[Path, Path]:
    """The slow checkpoint, and of the fast ones the nearest in loss on sentences that serve no other purpose.

    Both start from the same weights and see the same sentences. UserError for a language that ends sentences early.
    """
    if language.ends:
        raise UserError("a small pair needs a language whose sentences have one length; ends=False is allowed")
    data = language.sample(settings.sentences, 3 * seed).tokens
    steps = settings.steps

    def train(name: str, at: list[int], lr: float) -> list[Path]:
        return small_bert.train(folder / name, language.vocab, data, settings.width, at, settings.batch, lr, seed)

    (slow,) = train("slow", [steps], settings.slow)
    every = max(1, steps // settings.checkpoints)
    fast = train("fast", list(range(every, steps + 1, every)), settings.fast)
    choice = _lines(language, language.sample(settings.lines, 3 * seed + 1).tokens)
    wanted = _loss(slow, choice)
    return slow, min(fast, key=lambda path: abs(_loss(path, choice) - wanted))


def _loss(folder: Path, lines: list[str]) -> float:
    c = foreign.load(folder)
    ids, positions, _ = foreign.encode(c, lines, 1 << 20)
    return float(foreign.losses(c, ids, positions, foreign.places(positions, MASKED, 0)).mean())


def _lines(language: LMText, tokens: np.ndarray) -> list[str]:
    return [" ".join(language.vocab[v] for v in row) for row in tokens]
