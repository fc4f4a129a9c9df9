"""The answer to the book's question, put into words from the ledger: no sentence says more than its verdicts do."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sameloss.pages import ledger
from sameloss.pages.claims import CLAIMS
from sameloss.pages.table import Table, badges

RESTRICTED = "verified with a restriction"
SUPPORT = ("reproduced", "verified", RESTRICTED)
OPEN = ("not run", "not comparable")
SHOWN = 2  # numbers of one claim in the summary; the ledger has all


@dataclass(frozen=True)
class Part:
    """One part of the answer: a statement, and the claims of the paper that it stands on."""

    title: str
    statement: str
    claims: tuple[str, ...]
    decided_by: tuple[str, ...] = ()  # words of the statistics that decide; the others are told beside them

    def decides(self, row: dict[str, Any]) -> bool:
        """Whether a row of one of its claims decides, or stands beside."""
        return all(word in row["statistic"] for word in self.decided_by)


PARTS = (
    Part(
        "Same loss, different transfer",
        "language models with equal pre-training loss differ downstream, and which is better depends on size, on "
        "training time and on the algorithm",
        ("C1", "C2", "C3", "C4", "C5", "C6"),
    ),
    Part(
        "SGD flows to flatness",
        "stochastic gradient descent, once the loss is at its floor, drifts towards solutions with a smaller trace of "
        "the Hessian",
        ("C7", "C8", "C9"),
    ),
    Part(
        "Flatter models transfer better",
        "of trained language models with equal loss, the flatter one is the one that transfers better",
        ("C10", "C11", "C12", "C15"),
        ("accuracy", "at equal KL"),
    ),
    Part(
        "A case that can be enumerated",
        "on a language of brackets the flattest perfect solution transfers best, and perfect random features do not",
        ("C16", "C17", "C18"),
    ),
)


def in_a_word(part: Part, rows: Sequence[dict[str, Any]]) -> str:
    """What the rows of a part come to; "Yes" only when every claim of it is decided, and none against it.

    A claim whose rows are all beside the point of the part (`decided_by`) need not be decided.
    """
    own = [row for row in rows if row["claim"] in part.claims]
    deciding = [row for row in own if part.decides(row)]
    beside = {row["claim"] for row in own} - {row["claim"] for row in deciding}
    decided = [row for row in deciding if row["verdict"] not in OPEN]
    if not decided:
        return "Not decided here"
    good = [row for row in decided if row["verdict"] in SUPPORT]
    if len(good) < len(decided):
        return "In part" if good else "No"
    if {row["claim"] for row in decided} != set(part.claims) - beside:
        return "Yes, as far as it is decided here"
    return "Yes, with a restriction" if any(row["verdict"] == RESTRICTED for row in good) else "Yes"


def sentence(part: Part, rows: Sequence[dict[str, Any]], profile: str) -> str:
    """One part of the answer as HTML: the word, the statement, and what it rests on, with links to the ledger."""
    rows = [row for row in rows if row["claim"] in part.claims]
    counts = pd.Series([row["verdict"] for row in rows], dtype=str).value_counts(sort=False)
    tested = list(dict.fromkeys(row["claim"] for row in rows))
    missing = [key for key in part.claims if key not in tested]
    found = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    evidence = f"{len(rows)} test{'s' * (len(rows) != 1)} of {_links(tested)}: {found}" if rows else ""
    if rows and part.decided_by:
        evidence += f"; those on {' '.join(part.decided_by)} decide: {sum(map(part.decides, rows))}"
    if missing:
        evidence += ("; " if evidence else "") + f"{_links(missing)} not tested by any chapter yet"
    said = f"{html.escape(part.statement)} ({evidence}; profile {html.escape(profile)})."
    return f"<strong>{in_a_word(part, rows)}</strong>: {said}"


class Answer:
    """The answer at a profile, a sentence for each part, as a numbered list."""

    def __init__(self, profile: str) -> None:
        rows = ledger.read(profile)
        self.sentences = [sentence(part, rows, profile) for part in PARTS]

    def _repr_html_(self) -> str:
        return '<ol class="answer">' + "".join(f"<li>{text}</li>" for text in self.sentences) + "</ol>"

    def __repr__(self) -> str:
        return f"<the answer in {len(self.sentences)} sentences>"


def findings_table(profile: str) -> Table:
    """Every claim in a line, in the order of the parts: the paper's number, the first numbers here, all verdicts."""
    rows = ledger.read(profile)
    ordered = dict.fromkeys([key for part in PARTS for key in part.claims] + list(CLAIMS))
    lines = []
    for key in ordered:
        own = [row for row in rows if row["claim"] == key]
        numbers = [f"{row['statistic']}: {ledger.shown_value(row)}" for row in own if row["here"] is not None]
        if len(numbers) > SHOWN:
            numbers[SHOWN:] = [f"and {len(numbers) - SHOWN} more"]
        lines.append(
            {
                "claim": _links([key]),
                "the paper": html.escape(f"{CLAIMS[key].number} ({CLAIMS[key].place})"),
                "here": "".join(f'<p class="finding">{html.escape(number)}</p>' for number in numbers),
                "verdicts": badges([row["verdict"] for row in own] or ["not run"]),
            }
        )
    frame = pd.DataFrame(lines)
    return Table(frame, markup=list(frame.columns), label="Results, claim by claim")


def _links(keys: Sequence[str]) -> str:
    return ", ".join(f'<a href="ledger.html#{key.lower()}">{key}</a>' for key in keys)
