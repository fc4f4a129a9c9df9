"""Two checkpoints on one text: are their losses matched, and do trace, sharpness and probe tell them apart?

The text's lines are the independent observations: both checkpoints read the same lines with the same words hidden, and
differences are paired by line. The entropy of the text drops out of a difference of losses, so that it estimates the
difference of the KL divergences from the truth, which for a real text nobody knows.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int

from sameloss.errors import UserError
from sameloss.learners import foreign
from sameloss.learners.foreign import Checkpoint
from sameloss.measures.downstream import fit_and_predict
from sameloss.measures.estimate import Estimate, paired_difference
from sameloss.measures.flatness import fisher_per_context, why_not_fast
from sameloss.measures.robust import robust
from sameloss.measures.sharpness import adaptive_sharpness
from sameloss.seeds import stream

MASKS = 4  # words hidden in each line for the loss of a masked model, and at most for the trace
PRECISION = 0.05  # relative standard error at which the trace takes no further round of hidden words
SLOW = 128  # lines behind a trace by whole gradients
SHARPNESS_LINES, DIRECTIONS, RHO = 128, 16, 0.05
FOLDS = 5
L2 = 1e-2  # of the probe: as strong as this because a few hundred lines stand against hundreds of features
MARGIN = 0.01  # nats: as close as the book calls a model saturated


@dataclass(frozen=True)
class Measured:
    """What was found for one checkpoint; values by line are kept for the paired differences."""

    checkpoint: Checkpoint
    loss: Float[np.ndarray, " n"] | None = None
    trace: Float[np.ndarray, " n"] | None = None
    sharpness: Estimate | None = None
    hits: Float[np.ndarray, " n"] | None = None
    notes: list[str] = field(default_factory=list)

    def estimates(self) -> dict[str, Estimate | None]:
        """Loss and adaptive sharpness (nats), trace, probe accuracy (share), each with its standard error."""
        return {
            "loss": None if self.loss is None else Estimate.of(self.loss),
            "trace": None if self.trace is None else robust(self.trace),
            "sharpness": self.sharpness,
            "probe": None if self.hits is None else Estimate.of(self.hits),
        }


@dataclass(frozen=True)
class Comparison:
    """Both checkpoints, their differences (first minus second), and why some of them are missing."""

    both: tuple[Measured, Measured]
    differences: dict[str, Estimate | None]
    matched: str
    margin: float
    unlike: str  # why the losses cannot be compared, or ""
    same_shapes: bool
    lines: int
    baseline: float | None  # accuracy of always saying the most frequent label
    notes: list[str]


def compare(
    first: str | Path,
    second: str | Path,
    text: str | Path,
    labels: str | Path | None = None,
    sentences: int = 1000,
    length: int = 64,
    margin: float = MARGIN,
    seed: int = 0,
) -> Comparison:
    """Compare two checkpoints of `transformers` in folders on the lines of a text file, with labels for a probe.

    sentences: lines used at most, drawn evenly where the text has more. length: tokens of a line that are read.
    margin: how far losses may be apart (nats a token) and still count as matched. UserError for whatever is wrong with
    folders, text or labels.
    """
    if not (margin > 0 and math.isfinite(margin)) or sentences < 2 or length < 3:
        raise UserError(f"margin {margin}, {sentences} lines of {length} tokens; allowed: above 0, at least 2 and 3")
    lines, names = read_lines(Path(text), Path(labels) if labels else None)
    models = foreign.load(first), foreign.load(second)
    usable = np.ones(len(lines), dtype=bool)
    for c in models:
        _, positions, _ = foreign.encode(c, lines, length)
        usable &= np.array([len(row) > 0 for row in positions])
    kept = np.flatnonzero(usable)
    if len(kept) < 2:
        raise UserError(f"{text}: {len(kept)} usable lines; at least 2 with a known word to predict are needed")
    notes = [f"{len(lines) - len(kept)} lines without a known word to predict left out"] * (len(kept) < len(lines))
    if len(kept) > sentences:
        notes.append(f"{sentences} of {len(kept)} lines drawn")
        kept = np.sort(stream(seed, "eval/lines").permutation(kept)[:sentences])
    chosen = [lines[i] for i in kept]
    y = _classes(Path(labels), [names[i] for i in kept]) if labels else None
    a, b = (_measure(c, chosen, y, length, seed) for c in models)
    reason = foreign.unlike(*models, chosen)
    differences = _differences(a, b, paired=not reason)
    return Comparison(
        both=(a, b),
        differences=differences,
        matched=verdict(differences["loss"], margin),
        margin=margin,
        unlike=reason,
        same_shapes=models[0].shapes == models[1].shapes,
        lines=len(chosen),
        baseline=None if y is None else float(np.bincount(y).max() / len(y)),
        notes=notes,
    )


def verdict(difference: Estimate | None, margin: float) -> str:
    """Are two losses matched? Judged by the 95 % interval of their paired difference against +-margin.

    matched: wholly inside; apart: wholly outside on one side; undecided: neither. A difference that is merely not
    significant is not equality.
    """
    if difference is None:
        return "not comparable"
    low, high = difference.interval()
    if -margin <= low and high <= margin:
        return "matched"
    return "apart" if low > margin or high < -margin else "undecided"


def lines_needed(difference: Estimate, margin: float) -> int:
    """About how many lines of such a text would bring the interval's half-width down to half the margin."""
    low, high = difference.interval()
    return math.ceil(difference.n * ((high - low) / margin) ** 2)


def read_lines(text: Path, labels: Path | None) -> tuple[list[str], list[str]]:
    """The lines of a text that are not blank, and their labels (one line each in their file; none without a file)."""
    lines = _read(text)
    names = _read(labels) if labels else []
    if labels and len(names) != len(lines):
        raise UserError(f"{labels}: {len(names)} labels for the {len(lines)} lines of {text}; one a line is needed")
    kept = [i for i, line in enumerate(lines) if line]
    if not kept:
        raise UserError(f"{text}: no usable line; a text with one sentence a line is needed")
    if labels and (blank := [i for i in kept if not names[i]]):
        raise UserError(f"{labels}: line {blank[0] + 1} is empty; each line of the text needs its label")
    return [lines[i] for i in kept], [names[i] for i in kept] if labels else []


def _read(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text in UTF-8 ({error.reason} at byte {error.start})") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def _classes(labels: Path, names: Sequence[str]) -> Int[np.ndarray, " n"]:
    classes, y = np.unique(names, return_inverse=True)
    counts = np.bincount(y)
    if len(counts) < 2:
        raise UserError(f"{labels}: a single label, {str(classes[0])!r}; a probe needs at least two")
    if counts.min() < FOLDS:
        raise UserError(
            f"{labels}: label {str(classes[counts.argmin()])!r} stands on {counts.min()} usable lines; each needs at "
            f"least {FOLDS}, one for every fold of the cross-validation"
        )
    return y


def _measure(c: Checkpoint, lines: list[str], y: Int[np.ndarray, " n"] | None, length: int, seed: int) -> Measured:
    ids, positions, cut = foreign.encode(c, lines, length)
    hits = None if y is None else probe_hits(foreign.features(c, ids), y, seed)
    notes = [f"{cut} lines cut to {min(length, c.longest)} tokens"] * (cut > 0)
    if not c.predicts:
        return Measured(c, hits=hits, notes=[*notes, "no output layer: token vectors and probe only"])
    at = foreign.places(positions, MASKS, seed)
    foreign.check_predict(c, ids, at[0])
    contexts, targets = foreign.contexts(c, ids, at[0])
    reason = why_not_fast(c.model, contexts, foreign.predict)
    if reason:
        notes.append(f"trace by whole gradients on {min(SLOW, len(ids))} lines only (slow): {reason}")
    some = slice(SHARPNESS_LINES)
    few = (contexts[0][some], contexts[1][some])
    sharpness = adaptive_sharpness(
        c.model, few, targets[some], rho=RHO, samples=DIRECTIONS, seed=seed, call=foreign.predict
    )
    trace = _trace(c, ids, at[:1, :SLOW] if reason else at, seed)
    return Measured(c, foreign.losses(c, ids, positions, at), trace, sharpness, hits, notes)


def _trace(c: Checkpoint, ids: foreign.Lines, at: Int[np.ndarray, "rounds n"], seed: int) -> Float[np.ndarray, " n"]:
    """Fisher trace by line, averaged over rounds; a round hides one word of each and draws one token from the model."""
    total = np.zeros(at.shape[1])
    for done, hidden in enumerate(at, 1):
        contexts, _ = foreign.contexts(c, ids[: len(total)], hidden)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is slow is said in the notes
            total += fisher_per_context(
                c.model, contexts, "sampled", seed + done, chunk=foreign.BATCH, call=foreign.predict, pad=foreign.PAD
            )
        found = robust(total / done)
        if found.stderr <= PRECISION * found.value:
            break
    return total / done


def probe_hits(features: torch.Tensor, y: Int[np.ndarray, " n"], seed: int) -> Float[np.ndarray, " n"]:
    """Whether a linear probe on the others is right about each line: stratified five-fold cross-validation."""
    order = stream(seed, "probe/folds").permutation(len(y))
    fold = np.empty(len(y), dtype=int)
    fold[order[np.argsort(y[order], kind="stable")]] = np.arange(len(y)) % FOLDS
    labels, hits = torch.from_numpy(y), np.empty(len(y))
    for k in range(FOLDS):
        held, rest = torch.from_numpy(fold == k), torch.from_numpy(fold != k)
        log_probs, _ = fit_and_predict(features[rest], labels[rest], features[held], int(y.max()) + 1, L2)
        hits[fold == k] = (log_probs.argmax(1) == labels[held]).numpy()
    return hits


def _differences(a: Measured, b: Measured, paired: bool) -> dict[str, Estimate | None]:
    """First minus second. Other tokenizers hide other words: then only the probe has a difference."""
    found: dict[str, Estimate | None] = dict.fromkeys(("loss", "trace", "sharpness", "probe"))
    if a.hits is not None and b.hits is not None:
        found["probe"] = paired_difference(a.hits, b.hits)
    if not paired or a.loss is None or b.loss is None or a.trace is None or b.trace is None:
        return found
    n = min(len(a.trace), len(b.trace))
    found |= {"loss": paired_difference(a.loss, b.loss), "trace": robust(a.trace[:n] - b.trace[:n])}
    if a.sharpness and b.sharpness:
        found["sharpness"] = a.sharpness - b.sharpness
    return found
