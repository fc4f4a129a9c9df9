"""From a figure, and from the ledger, to the code that made it; from the ledger to the figure, by its number."""

import re
from typing import Any

from docutils import nodes

DRAWN = re.compile(r"""chapter\.figure\([^"']*["']([\w-]+)["']""")
DECIDED = "chapter.verdict("
VERDICTS = "code-verdicts"
SHOWN = re.compile(r'(<a href="(\w+)\.html#(fig-[\w-]+)">)figure(</a>)')


def anchor(figure: str) -> str:
    """The anchor of the cell that draws a figure."""
    return f"code-{figure}"


def link_code(app: Any, doctree: nodes.document) -> None:
    """Give the cells of a page their anchors, and each figure drawn by one of them a link to it in its stamp.

    Cells that the page does not show have none. The first cell with a verdict is where the ledger's "code" leads.
    """
    decided = False
    drawn = set()
    for block in doctree.findall(nodes.literal_block):
        code = block.astext()
        for name in DRAWN.findall(code):
            drawn.add(name)
            block["ids"].append(anchor(name))
        if DECIDED in code and not decided:
            decided = True
            block["ids"].append(VERDICTS)
    for figure in doctree.findall(nodes.figure):
        name = next((name for name in figure["names"] if name in drawn), None)
        for line in figure.findall(nodes.paragraph) if name else ():
            if "stamp" in line["classes"]:
                line += nodes.Text(" · ")
                line += nodes.reference("", "code of this figure", refid=anchor(str(name)), internal=True)


def decides(source: str) -> bool:
    """Whether the text of a chapter has a cell that hands over verdicts, and shows it."""
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", source, re.M | re.S)
    first = next((cell for cell in cells if DECIDED in cell), "")
    return bool(first) and not re.search(r"remove-(cell|input)", first.split("\n\n")[0])


def name_figures(app: Any, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Name the figures that the ledger leads to by their numbers, which Sphinx gives after the ledger was made."""

    def named(link: re.Match[str]) -> str:
        numbers = app.env.toc_fignumbers.get(f"book/{link[2]}", {}).get("figure", {})
        number = ".".join(map(str, numbers.get(link[3], ())))
        return f"{link[1]}{f'Figure {number}' if number else 'figure'}{link[4]}"

    if "body" in context:
        context["body"] = SHOWN.sub(named, context["body"])
