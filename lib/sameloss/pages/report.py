"""What the pages around the chapters show: the ledger of all claims, and how the book was executed."""

import html
import re
from typing import Any

import nbformat
import pandas as pd

from sameloss import paths
from sameloss.pages import book, code_links, ledger
from sameloss.pages.claims import CLAIMS, Claim
from sameloss.pages.table import Table, badge
from sameloss.runs.provenance import here


def ledger_table(profile: str) -> Table:
    """Every claim with what the paper says, what was found at this profile, the verdict and how to run it again."""
    rows = ledger.read(profile)
    frame = pd.DataFrame(
        [_ledger_row(claim, [row for row in rows if row["claim"] == claim.id], profile) for claim in CLAIMS.values()]
    )
    stamps = "\n".join(dict.fromkeys(row["stamp"] for row in rows))
    ids = [claim.id.lower() for claim in CLAIMS.values()]
    return Table(frame, note=stamps, markup=list(frame.columns), ids=ids, label="Ledger of claims")


def verdict_counts(profile: str) -> dict[str, int]:
    """How many claims have each verdict (a claim with several rows counts in each of its verdicts once)."""
    rows = ledger.read(profile)
    found = [(claim, row["verdict"]) for claim in CLAIMS for row in rows if row["claim"] == claim]
    seen = {claim for claim, _ in found}
    pairs = dict.fromkeys([*found, *((claim, "not run") for claim in CLAIMS if claim not in seen)])
    counts: dict[str, int] = {}
    for _, verdict in pairs:
        counts[verdict] = counts.get(verdict, 0) + 1
    return counts


def contents_table(profile: str) -> Table:
    """The chapters in the order of _toc.yml: title, what each asks, and the claims it tests at this profile."""
    from sameloss.pages import site  # which asks this module for nothing, but imports the checks of the built pages

    rows = ledger.read(profile)
    lines = []
    for name in [name for name in site.pages() if name[0].isdigit()]:
        title, question = heading(name)
        claims = dict.fromkeys(row["claim"] for row in rows if row["chapter"] == name)
        links = ", ".join(f'<a href="ledger.html#{key.lower()}">{key}</a>' for key in claims)
        page = f'<a href="{name}.html">{html.escape(title)}</a>'
        lines.append({"chapter": page, "question": html.escape(question), "claims": links})
    return Table(pd.DataFrame(lines), markup=("chapter", "question", "claims"), label="Chapters of the book")


def heading(name: str) -> tuple[str, str]:
    """Title of a page and, in a chapter, the question it opens with: up to the first question mark of its paragraph."""
    text = (book.sources() / f"{name}.md").read_text(encoding="utf-8")
    title = re.search(r"^# (.+)$", text, re.M)
    question = re.search(r"^\*\*The question\.\*\*\s+((?:(?!\n\n).)+?\?)(?=\s)", text, re.M | re.S)
    cited = re.sub(r" ?\(\{cite:\w\}[^)]*\)", "", " ".join(question[1].split())) if question else ""
    plain = re.sub(r"[*`]|\{[\w:]+\}", "", cited)
    return title[1] if title else name, plain


def effort(profile: str) -> dict[str, float]:
    """What this copy rests on: claims, published tables of the profile, minutes that its chapters took."""
    tables = len(list((paths.root() / "book" / "results" / profile).glob("*/*.csv")))
    seconds = sum(_about(name, profile).get("seconds", 0.0) for name in book.chapters() if name[0].isdigit())
    return {"claims": sum(key[0] == "C" for key in CLAIMS), "tables": tables, "minutes": seconds / 60}


def _about(name: str, profile: str) -> dict[str, Any]:
    path = book.executed(name, profile)
    found: dict[str, Any] = nbformat.read(path, as_version=4).metadata.get("sameloss", {}) if path.is_file() else {}
    return found


def execution_table(profile: str) -> Table:
    """Each executed chapter: seconds, profile, code cells."""
    rows = []
    for name in book.chapters():
        path = book.executed(name, profile)
        if path.is_file():
            notebook = nbformat.read(path, as_version=4)
            about = notebook.metadata.get("sameloss", {})
            cells = sum(cell.cell_type == "code" for cell in notebook.cells)
            rows.append({"chapter": name, "profile": profile, "code cells": cells, "seconds": about.get("seconds")})
    frame = pd.DataFrame(rows or [{"chapter": "none yet", "profile": profile, "code cells": "", "seconds": ""}])
    return Table(frame, label="Execution times")


def machine_table() -> Table:
    """Processor, cores, revision and versions of what made this page."""
    facts = here()
    pairs = {"processor": facts["machine"], "revision": facts["revision"], "date": facts["date"][:10]}
    rows = [{"what": name, "value": value} for name, value in (pairs | facts["versions"]).items()]
    return Table(pd.DataFrame(rows), label="Machine and versions")


def _ledger_row(claim: Claim, rows: list[dict[str, Any]], profile: str) -> dict[str, str]:
    paper = f"{html.escape(claim.statement)} <small>{html.escape(claim.place)}: {html.escape(claim.number)}</small>"
    found, where = [], []
    for row in rows:
        parts = [
            row["statistic"],
            ledger.shown_value(row),
            f"seeds {row['seeds']}" if row["seeds"] else "",
            row["note"],
        ]
        text = html.escape("; ".join(part for part in parts if part))
        found.append(f'<p class="finding">{badge(row["verdict"])} {text}</p>')
        anchor = f"#{row['figure']}" if row["figure"] else ""
        where.append(f'<a href="{row["chapter"]}.html{anchor}">{"figure" if anchor else "chapter"}</a>')
        if code_links.decides((book.sources() / f"{row['chapter']}.md").read_text(encoding="utf-8")):
            where.append(f'<a href="{row["chapter"]}.html#{code_links.VERDICTS}">code</a>')
        where.append(f"<code>.venv/bin/sameloss run {row['chapter'].split('_')[0]} --profile {profile}</code>")
    return {
        "claim": claim.id,
        "the paper": paper,
        "here": "".join(found) or f'<p class="finding">{badge("not run")} no chapter tests it at this profile</p>',
        "where": "<br>".join(dict.fromkeys(where)),
    }
