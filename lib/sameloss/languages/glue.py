"""SST-2 and QNLI, the downstream tasks of the paper's LM text (Liu et al. 2022, §3.1), from local files or `datasets`.

The files are those of GLUE (Wang et al. 2019): one example a line, tabs between the columns, names in the first line.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from sameloss.errors import UserError
from sameloss.languages.base import PAD, Sentences
from sameloss.languages.lm_text import LMText


@dataclass(frozen=True)
class Task:
    """Columns with the texts, spellings of the labels in class order, and the name that `datasets` gives the task."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    hub_name: str


TASKS = {
    "SST-2": Task(("sentence",), ("0", "1"), "sst2"),  # negative, positive
    "QNLI": Task(("question", "sentence"), ("entailment", "not_entailment"), "qnli"),
}
_HUB_SPLITS = {"train": "train", "dev": "validation"}  # the test splits have no labels


@dataclass(frozen=True)
class Examples:
    """Texts (one or two strings each) and labels (n,), indices into `TASKS[task].labels`."""

    task: str
    texts: list[tuple[str, ...]]
    labels: Int[np.ndarray, " n"]


def read(path: str | Path, task: str, split: str = "dev") -> Examples:
    """Examples of a task from a GLUE file, or from `split`.tsv in a folder (or in its subfolder named by the task).

    UserError names file and line: a missing file or column, a line with another number of columns, an unknown label,
    an empty text.
    """
    columns = _task(task)
    file = _file(Path(path), task, split)
    try:
        # Not splitlines: it also splits at separators that occur inside sentences.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read as UTF-8 text ({error})") from error
    names = lines[0].rstrip("\r").split("\t")
    for name in (*columns.texts, "label"):
        if name not in names:
            raise UserError(f"{file}, line 1: no column {name!r} found among {', '.join(names)}; {task} needs it")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        cells = line.rstrip("\r").split("\t")
        if cells == [""]:
            continue
        if len(cells) != len(names):
            raise UserError(f"{file}, line {number}: {len(cells)} columns found, allowed is {len(names)} as in line 1")
        rows.append((f"{file}, line {number}", dict(zip(names, cells, strict=True))))
    return _examples(task, rows, str(file))


def from_datasets(task: str, split: str = "dev", path: str | Path | None = None) -> Examples:
    """Examples of a task through the package `datasets`: from a folder written by `save_to_disk`, or from the hub.

    UserError where the package is missing, nothing can be loaded, or columns and labels are not those of the task.
    """
    columns = _task(task)
    if split not in _HUB_SPLITS:
        raise UserError(f"split of {task}: found {split!r}, allowed is {', '.join(_HUB_SPLITS)}")
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            "GLUE needs the package datasets, which is not installed: pip install 'sameloss[lm]'"
        ) from error
    where = str(path or f"nyu-mll/glue, {columns.hub_name}")
    try:
        if path is None:
            data = datasets.load_dataset("nyu-mll/glue", columns.hub_name, split=_HUB_SPLITS[split])
        else:
            data = datasets.load_from_disk(str(path))
            data = data[_HUB_SPLITS[split]] if isinstance(data, datasets.DatasetDict) else data
    except Exception as error:  # a dozen kinds, from a missing folder to a network that is down
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{where}: datasets cannot load it ({reason})") from error
    for name in (*columns.texts, "label"):
        if name not in data.column_names:
            raise UserError(f"{where}: no column {name!r} found among {', '.join(data.column_names)}; {task} needs it")
    rows = (
        (f"{where}, row {number}", {name: _spelled(columns, name, value) for name, value in row.items()})
        for number, row in enumerate(data, 1)
    )
    return _examples(task, rows, where)


def encode(examples: Examples, language: LMText) -> tuple[Sentences, Int[np.ndarray, " n"], float]:
    """Sentences of the language, their labels, and the share of words that it knows.

    Words that the language lacks are left out, and texts are cut: one text to the language's length, two texts to half
    of it each. Examples of which no word is left are dropped.
    """
    index = {word: i for i, word in enumerate(language.vocab)}
    room = language.max_length // len(TASKS[examples.task].texts)
    rows, labels, words, known = [], [], 0, 0
    for texts, label in zip(examples.texts, examples.labels.tolist(), strict=True):
        row: list[int] = []
        for text in texts:
            found = language.tokenize(text)
            kept = [index[word] for word in found if word in index]
            words, known = words + len(found), known + len(kept)
            row += kept[:room]
        if row:
            rows.append(row)
            labels.append(label)
    if not rows:
        raise UserError(f"{examples.task}: none of {words} words is among the {len(index)} of the language")
    tokens = np.full((len(rows), language.max_length), PAD, dtype=np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return Sentences(tokens, np.array([len(row) for row in rows])), np.array(labels), known / words


def _task(task: str) -> Task:
    if task not in TASKS:
        raise UserError(f"GLUE task: found {task!r}, allowed is {', '.join(TASKS)}")
    return TASKS[task]


def _file(path: Path, task: str, split: str) -> Path:
    if path.is_file():
        return path
    for file in (path / f"{split}.tsv", path / task / f"{split}.tsv"):
        if file.is_file():
            return file
    raise UserError(f"{path}: no file {split}.tsv found there or in {task}/; allowed is a GLUE file or its folder")


def _spelled(columns: Task, name: str, value: object) -> str:
    """Labels of `datasets` are class numbers: spell them as the files do."""
    if name == "label" and isinstance(value, int) and 0 <= value < len(columns.labels):
        return columns.labels[value]
    return str(value)


def _examples(task: str, rows: Iterable[tuple[str, dict[str, str]]], source: str) -> Examples:
    columns = TASKS[task]
    texts, labels = [], []
    for where, row in rows:
        if row["label"] not in columns.labels:
            raise UserError(f"{where}: label {row['label']!r} found, allowed is {' or '.join(columns.labels)}")
        found = tuple(row[name].strip() for name in columns.texts)
        if not all(found):
            raise UserError(f"{where}: an empty text found; {task} needs {' and '.join(columns.texts)}")
        texts.append(found)
        labels.append(columns.labels.index(row["label"]))
    if not texts:
        raise UserError(f"{source}: no example found behind the first line")
    return Examples(task, texts, np.array(labels, dtype=np.int64))
