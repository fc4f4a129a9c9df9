"""Rows of a table: one number with its error, and what a probe scores."""

from collections.abc import Iterator, Sequence
from typing import Any

from sameloss.measures.downstream import ProbeResult
from sameloss.measures.estimate import Estimate

Row = dict[str, Any]


def row(quantity: str, estimate: Estimate, task: str = "", features: str = "") -> Row:
    """One row of a table, but for what it shares with the others of its checkpoint."""
    values = {"value": estimate.value, "stderr": estimate.stderr, "n": estimate.n}
    return {"quantity": quantity, "task": task, "features": features, **values}


def scores(thresholds: Sequence[float] | None, result: ProbeResult, task: str, features: str) -> Iterator[Row]:
    """Rows of one probe; with thresholds its mean probability of the right answer and how often that is above each."""
    yield row("accuracy", result.accuracy, task, features)
    yield row("probe_cross_entropy", result.cross_entropy, task, features)
    yield row("brier", result.brier, task, features)
    if thresholds is not None:
        yield row("probability", Estimate.of(result.right), task, features)
        for level in thresholds:
            yield row(f"above_{level:g}", Estimate.of(result.right > level), task, features)
