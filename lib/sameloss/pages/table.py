"""Generated tables: HTML for the page, plain text for everything else."""

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import pandas as pd

FEW = 2  # lines below a table that are shown at once


class Table:
    """Rows with a line below them; `markup` names columns that hold HTML, `ids` gives rows an anchor each."""

    def __init__(
        self,
        frame: pd.DataFrame,
        note: str = "",
        markup: Sequence[str] = (),
        ids: Sequence[str] = (),
        label: str = "Table",
    ) -> None:
        self.frame, self.note, self.markup, self.ids, self.label = frame, note, markup, ids, label

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(str(name))}</th>' for name in self.frame.columns)
        body = ""
        for i, (_, row) in enumerate(self.frame.iterrows()):
            cells = [(str(k), str(v) if k in self.markup else html.escape(str(v))) for k, v in row.items()]
            anchor = f' id="{self.ids[i]}"' if self.ids else ""
            body += f"<tr{anchor}>"
            # On a phone a row is a card, and a cell carries its column's name (book.css).
            body += (
                "".join(f'<td data-label="{html.escape(name)}"><div>{_whole(cell)}</div></td>' for name, cell in cells)
                + "</tr>\n"
            )
        lines = self.note.splitlines()
        notes = "".join(f'<p class="stamp">{html.escape(line)}</p>' for line in lines)
        if len(lines) > FEW:  # many lines that nobody reads in passing
            words = f"Where these numbers come from ({len(lines)} lines)"
            notes = f'<details class="stamps"><summary>{words}</summary>{notes}</details>'
        table = f'<table class="dataframe book-table"><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>'
        return f'<div class="table-scroll" tabindex="0" role="group" aria-label="{self.label}">{table}</div>{notes}'

    def __repr__(self) -> str:
        plain = self.frame.copy()
        for name in self.markup:
            plain[name] = [html.unescape(re.sub(r"<[^>]*>", " ", str(v))) for v in plain[name]]
        return plain.to_string(index=False) + (f"\n{self.note}" if self.note else "")


def _whole(cell: str) -> str:
    """A cell whose errors stay with their sign, and counts with what they count, where a line breaks."""
    return cell.replace("± ", "±\u00a0").replace(" × ", "\u00a0×\u00a0")


def badge(verdict: str) -> str:
    """A verdict as a coloured word (the word alone says it, too)."""
    return f'<span class="verdict verdict-{verdict.replace(" ", "-")}">{html.escape(verdict)}</span>'


def badges(verdicts: Iterable[str]) -> str:
    """Each verdict once, in order of appearance, with how often it was given."""
    counts = Counter(verdicts)
    return ", ".join(f"{badge(verdict)} × {n}" for verdict, n in counts.items())


def with_small(text: str, more: str) -> str:
    """Text of a cell as HTML, with more of it below in small letters."""
    return html.escape(text) + (f" <small>{html.escape(more)}</small>" if more else "")
