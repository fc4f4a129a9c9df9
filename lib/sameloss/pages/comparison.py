"""What a comparison of two checkpoints says: a page for the terminal, a table for a chapter, rows for programs."""

import math
import textwrap
from typing import Any

import pandas as pd

from sameloss.measures.estimate import Estimate
from sameloss.runs import compare_checkpoints as compared
from sameloss.runs.compare_checkpoints import Comparison

NAMES = {
    "loss": "loss (nats a token)",
    "trace": "Fisher trace",
    "sharpness": "adaptive sharpness (nats)",
    "probe": "probe accuracy",
}
WIDTH = 100


def answer(c: Comparison) -> str:
    """Are the losses matched? One sentence."""
    difference = c.differences["loss"]
    if difference is None:
        return f"The losses are not compared: {c.unlike}."
    low, high = difference.interval()
    about = f"the 95 % interval of A - B is {low:.4f} to {high:.4f} nats, against a margin of {c.margin:g}"
    if c.matched == "undecided":
        needed = compared.lines_needed(difference, c.margin)
        return f"Whether the losses are matched is undecided: {about}; about {needed} such lines would decide it."
    return f"The losses are {c.matched}: {about}."


def limits(c: Comparison) -> list[str]:
    """What this comparison can and what it cannot tell."""
    said = []
    if c.differences["loss"] is not None:
        said.append(
            "The difference of losses estimates the difference in KL from the text's true distribution, whose entropy "
            "drops out of it. How far either model is from that distribution stays unknown."
        )
    if any(m.trace is not None for m in c.both):
        said.append(
            "The Fisher trace is the trace of the Hessian only where a model's probabilities are right. It depends on "
            "how a function is written down: scaling one layer up and the next one down changes it and nothing else. "
            "Adaptive sharpness does not see such a rescaling."
        )
        if not c.same_shapes:
            said.append(
                "The parameters differ in name or shape (marked *): the traces add up different numbers of different "
                "weights, so that neither their difference nor its sign says which minimum is the flatter one."
            )
        if c.unlike:
            said.append(
                "Traces and sharpness (marked *) are of two different prediction problems; no difference is formed."
            )
    if c.baseline is not None:
        said.append(
            "The probe's interval is over lines, for these two models as they are; it leaves out how a new training "
            "run, or another set of labelled lines to fit on, would change them."
        )
    said.append("Two checkpoints are one pair: no cause can be read from their differences, flatness included.")
    return said


def how(c: Comparison) -> str:
    """What was measured, and on what."""
    parts = [f"{c.lines} lines" + "".join(f", {note}" for note in c.notes)]
    if any(m.loss is not None for m in c.both):
        parts.append(f"loss of masked models from up to {compared.MASKS} hidden words a line, of causal ones from all")
        parts.append("trace over all parameters, one token drawn from the model for each hidden word")
        parts.append(
            f"sharpness from {compared.DIRECTIONS} directions at rho {compared.RHO} on the first "
            f"{compared.SHARPNESS_LINES} lines, its error over directions alone"
        )
    if c.baseline is not None:
        parts.append(
            f"logistic probe (L2 {compared.L2:g}) on mean token vectors, {compared.FOLDS}-fold cross-validation; "
            f"always the most frequent label: {c.baseline:.3f}"
        )
    return "; ".join(parts) + ". ± is a standard error, brackets a 95 % interval."


def table(c: Comparison) -> pd.DataFrame:
    """One row a measure: A, B, and A - B with its interval."""
    mark = " *" if c.unlike or not c.same_shapes else ""
    rows = []
    for key, name in NAMES.items():
        a, b = (m.estimates()[key] for m in c.both)
        if a is None and b is None:
            continue
        label = name + (mark if key in ("trace", "sharpness") else "")
        rows.append({"measure": label, "A": _shown(a), "B": _shown(b), "A - B": _with_interval(c.differences[key])})
    return pd.DataFrame(rows, columns=["measure", "A", "B", "A - B"])


def page(c: Comparison) -> str:
    """The answer as a page for the terminal."""
    lines = []
    for letter, m in zip("AB", c.both, strict=True):
        size = sum(math.prod(shape) for shape in m.checkpoint.shapes.values())
        lines.append(f"{letter}  {m.checkpoint.folder}  ({m.checkpoint.kind}, {size:,} parameters)")
        lines += [f"   {note}" for note in m.notes]
    lines += ["", *textwrap.wrap(answer(c), WIDTH), "", *_columns(table(c)), ""]
    lines += [*textwrap.wrap(how(c), WIDTH), "", "What this can and cannot tell", ""]
    for text in limits(c):
        lines += textwrap.wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines)


def as_dict(c: Comparison) -> dict[str, Any]:
    """The answer for programs: plain numbers, null where something was not measured."""
    both = [
        {
            "folder": str(m.checkpoint.folder),
            "kind": m.checkpoint.kind,
            "parameters": sum(math.prod(shape) for shape in m.checkpoint.shapes.values()),
            "notes": m.notes,
            **{key: _plain(found) for key, found in m.estimates().items()},
        }
        for m in c.both
    ]
    return {
        "matched": c.matched,
        "margin": c.margin,
        "answer": answer(c),
        "lines": c.lines,
        "notes": c.notes,
        "same_shapes": c.same_shapes,
        "baseline": c.baseline,
        "a": both[0],
        "b": both[1],
        "difference": {key: _plain(found) for key, found in c.differences.items()},
        "how": how(c),
        "limits": limits(c),
    }


def _plain(e: Estimate | None) -> dict[str, float | int | None] | None:
    if e is None:
        return None
    numbers = {"value": e.value, "stderr": e.stderr, "low": e.interval()[0], "high": e.interval()[1]}
    return {key: x if math.isfinite(x) else None for key, x in numbers.items()} | {"n": e.n}


def _shown(e: Estimate | None) -> str:
    return "-" if e is None else str(e)


def _with_interval(e: Estimate | None) -> str:
    if e is None:
        return "-"
    low, high = e.interval()
    return f"{e} [{low:.3g}, {high:.3g}]"


def _columns(frame: pd.DataFrame) -> list[str]:
    rows = [list(frame.columns), *frame.to_numpy().tolist()]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
