"""What is asked of a chapter's text before anything is executed: header, parameters, cell sizes, no typed results."""

import ast
import re
import statistics
from dataclasses import dataclass

CODE_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```\s*$", re.M | re.S)
OPTIONS = re.compile(r"\A((?:^:[\w-]+:.*\n)*)\n?", re.M)
# Numbers that name a place and are no result: "§3.3", "Theorem 4.3", "Fig. 3", "Python 3.11", "arXiv:2210.14199".
PLACES = re.compile(
    r"(§+|[Ss]ections?|[Tt]heorems?|[Ll]emmas?|[Ff]ig(?:ure)?s?\.?|[Tt]ables?|[Aa]ppendix|[Ee]xercises?|[Cc]hapters?|"
    r"Python|arXiv:?|[Vv]ersions?|CC BY)\s*[A-Z]?\.?\d+(\.\d+)*((,| and|-)\s*§?[A-Z]?\.?\d+(\.\d+)*)*"
)
INLINE = re.compile(r"`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", re.S)
RESULT = re.compile(r"(?<![\w.])\d+\.\d+|\b\d+\s*±|\b\d+\s*%")
CONVENTIONS = re.compile(r"\b9[05]\s*%(?=\s*(confidence\s|Student\s)?(intervals?|bands?|half-widths?))")
# What every chapter has, in this order; a box by its class.
PATTERN = (
    "**The question.**",
    ":class: objectives",
    "## Parameters",
    ":class: prediction",
    "would change our mind",
    "## Exercises",
    ":class: exercise",
    "## Summary",
)
# Boxes whose numbers come from somewhere else than a run: what was expected beforehand, what the paper says.
GIVEN = re.compile(r"^(`{3,}|:{3,})\{admonition\}[^\n]*\n:class: (prediction|paper)\b.*?^\1\s*$", re.M | re.S)


@dataclass(frozen=True)
class Cell:
    """A code cell: its options, its code, the line of the file it starts at."""

    options: str
    code: str
    line: int

    def tagged(self, tag: str) -> bool:
        return bool(re.search(rf":tags:\s*\[[^\]]*\b{re.escape(tag)}\b", self.options))


def cells(text: str) -> list[Cell]:
    """The code cells of a text notebook, in order."""
    found = []
    for match in CODE_CELL.finditer(text):
        options = OPTIONS.match(match[1])
        head = options[1] if options else ""
        code = match[1][len(options[0]) if options else 0 :]
        found.append(Cell(head, code, text.count("\n", 0, match.start()) + 1))
    return found


def header_faults(text: str) -> list[str]:
    """The jupytext header: there, and without versions that change with every save."""
    header = text.split("---", 2)[1] if text.startswith("---\n") and text.count("---") >= 2 else ""
    found = [] if "format_name: myst" in header and "name: python3" in header else ["no jupytext header"]
    return found + [f"{word} in the header" for word in ("jupytext_version", "format_version") if word in header]


def parameter_faults(text: str) -> list[str]:
    """Exactly one parameters cell, literals only, `profile = "smoke"` first, every name checked right after."""
    all_cells = cells(text)
    places = [i for i, cell in enumerate(all_cells) if cell.tagged("parameters")]
    if len(places) != 1:
        return [f"{len(places)} cells tagged parameters; there is exactly one"]
    body = ast.parse(all_cells[places[0]].code).body
    names = []
    for statement in body:
        if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
            return [f"parameters cell: {ast.unparse(statement)} is no `name = literal`"]
        try:
            ast.literal_eval(statement.value)
        except ValueError:
            return [f"parameters cell: {ast.unparse(statement)} is derived; literals only"]
        names.append(statement.targets[0].id)
    if not body or ast.unparse(body[0]) != "profile = 'smoke'":
        return ['parameters cell: the first is profile = "smoke"']
    # One cell of imports may stand between.
    after = "\n".join(cell.code for cell in all_cells[places[0] + 1 : places[0] + 3])
    return [
        f"parameter {name} is not checked by the next cells" for name in names if not re.search(rf"\b{name}\b", after)
    ]


def size_faults(text: str) -> list[str]:
    """Cells: the median at most 8 lines, none over 30; at least five words of prose for a line of code shown."""
    lengths = [len([line for line in cell.code.splitlines() if line.strip()]) for cell in cells(text)]
    shown = [
        len(cell.code.strip().splitlines()) for cell in cells(text) if not (cell.tagged("remove-cell") or _hidden(cell))
    ]
    words = len(re.findall(r"\w+", CODE_CELL.sub("", text)))
    found = [f"a cell of {length} lines; at most 30" for length in lengths if length > 30]
    if lengths and statistics.median(lengths) > 8:
        found.append(f"the median cell has {statistics.median(lengths):g} lines; at most 8")
    if words < 5 * sum(shown):
        found.append(f"{words} words of prose for {sum(shown)} lines of code; at least five a line")
    return found


def typed_numbers(text: str) -> list[str]:
    """Results typed into the prose: decimals, percentages and ± in a paragraph that cites no source.

    Generated numbers come through {glue:text}. Numbers in code, formulas, names of places, predictions and boxes with
    the paper's statements are no results, nor are settings: numbers that the chapter's code holds as literals.
    """
    settings = {float(word) for cell in cells(text) for word in re.findall(r"(?<![\w.])\d*\.?\d+(?![\w.])", cell.code)}
    body = CODE_CELL.sub("\n\n", text.split("---", 2)[-1] if text.startswith("---\n") else text)
    body = GIVEN.sub("\n\n", body)
    body = re.sub(r"^```+\{(math|literalinclude|bibliography)\}.*?^```+\s*$", "\n\n", body, flags=re.M | re.S)
    found = []
    for paragraph in re.split(r"\n\s*\n", body):
        if "{cite" in paragraph or "Liu et al" in paragraph:
            continue
        plain = CONVENTIONS.sub(" ", PLACES.sub(" ", INLINE.sub(" ", paragraph)))
        for match in RESULT.finditer(plain):
            value = float(re.match(r"[\d.]+", match[0])[0]) / (100 if "%" in match[0] else 1)
            if "±" in match[0] or value not in settings:
                found.append(f"typed number {match[0]!r} in: {plain.strip()[:70]}")
    return found


def pattern_faults(text: str) -> list[str]:
    """What a chapter owes its reader: the parts of PATTERN in order, its verdicts shown, exercises with solutions.

    A solution is a folded cell, executed like any other. Verdicts stand in a table, and counted in the summary.
    """
    places = [text.find(part) for part in PATTERN]
    found = [f"no {part!r}" for part, place in zip(PATTERN, places, strict=True) if place < 0]
    if not found and places != sorted(places):
        found.append(f"the parts are not in the order {', '.join(PATTERN)}")
    if "chapter.verdict(" in text and "chapter.verdict_table()" not in text:
        found.append("verdicts that no table shows")
    if "chapter.verdict(" in text and "chapter.outcome()" not in text.split("\n## Summary")[-1]:
        found.append("a summary that does not say what came out")
    exercises = re.split(r"^`{3,}\{admonition\} (?=Exercise)", text.split("\n## Summary")[0], flags=re.M)[1:]
    solved = [any(cell.tagged("hide-cell") for cell in cells(part)) for part in exercises]
    unsolved = [part.splitlines()[0] for part, is_solved in zip(exercises, solved, strict=True) if not is_solved]
    return found + [f"{name} has no solution" for name in unsolved] + (["no exercise"] if not exercises else [])


def unplaced(text: str) -> list[str]:
    """Paragraphs that say something of the paper without the place where it says so (a box has it in its title)."""
    body = GIVEN.sub("\n\n", CODE_CELL.sub("\n\n", text))
    told = [part for part in re.split(r"\n\s*\n", body) if "`liu2023same`" in part or "Liu et al." in part]
    return [f"no place in the paper: {part.strip()[:70]}" for part in told if not PLACES.search(INLINE.sub(" ", part))]


def unmentioned(text: str) -> list[str]:
    """Figures of a page that its text never refers to by {numref}."""
    shown = re.findall(r"^`{3,}\{result\} (\S+)", text, re.M)
    return [f"figure {name} is never referred to" for name in shown if f"{{numref}}`{name}`" not in text]


def faults(text: str) -> list[str]:
    """What is asked of a chapter's cells and numbers."""
    return header_faults(text) + parameter_faults(text) + size_faults(text) + typed_numbers(text)


def _hidden(cell: Cell) -> bool:
    return any(cell.tagged(tag) for tag in ("hide-cell", "hide-input", "remove-input"))
