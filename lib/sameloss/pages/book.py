"""From text notebooks to executed ones: jupytext reads, papermill runs, a stamp of all inputs remembers."""

import ast
import difflib
import functools
import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError

from sameloss import paths
from sameloss.errors import UserError
from sameloss.pages import aside, kernel, ledger
from sameloss.runs.profile import load_profile

CELL_SECONDS = 4 * 3600  # a chapter that computes the laptop profile takes hours; a cell that hangs still ends
START_SECONDS = 60


class BookError(RuntimeError):
    """A chapter or the book failed by a fault of the project; the message names the chapter and the cell."""


def chapters() -> list[str]:
    """Names of the text notebooks under book/, numbered chapters first, then pages that tell of them."""
    found = [path.stem for path in sources().glob("*.md") if "{code-cell}" in path.read_text(encoding="utf-8")]
    return sorted(found, key=lambda name: (not name[0].isdigit(), name))


def sources() -> Path:
    """The folder of the book's text."""
    return paths.root() / "book"


def find(name: str) -> str:
    """The chapter that `name` ("02_same_loss", "02", "book/02_same_loss.md") stands for; UserError if none does."""
    wanted = Path(name).name.removesuffix(".md")
    known = chapters()
    matches = [c for c in known if c == wanted] or [c for c in known if wanted and c.split("_")[0] == wanted.zfill(2)]
    if len(matches) != 1:
        raise UserError(f"no chapter {name!r}; allowed: {', '.join(known)}")
    return matches[0]


def executed(name: str, profile: str) -> Path:
    """Where a chapter's executed notebook lies."""
    return paths.build() / "notebooks" / profile / f"{name}.ipynb"


def executed_changed(name: str, profile: str, parameters: Mapping[str, Any]) -> Path:
    """Where a run with changed parameters goes: a file of its own beside the book's, named after them."""
    what = ",".join(f"{key}={value}" for key, value in sorted(parameters.items()))
    plain = re.sub(r"[^\w.=,+-]", "_", what)
    if plain != what or len(plain) > 100:  # other characters, or too long for a file's name
        plain = f"{plain[:100]}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"
    return paths.build() / "notebooks" / "changed" / f"{name}-{profile}-{plain}.ipynb"


def default_parameters(notebook: Any) -> dict[str, Any]:
    """Names and values of the one cell tagged `parameters`, which holds literals only."""
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise BookError(f"a chapter has exactly one cell tagged parameters, found {len(cells)}")
    found = {}
    try:
        statements = ast.parse(cells[0].source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BookError(f"the parameters cell is not Python: {' '.join(str(error).split())}") from None
    for statement in statements:
        if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
            raise BookError(f"the parameters cell holds `name = literal` only, found: {ast.unparse(statement)}")
        try:
            found[ast.unparse(statement.targets[0])] = ast.literal_eval(statement.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # as literal_eval's page has it
            raise BookError(f"parameter {ast.unparse(statement)}: only a literal goes in the parameters cell") from None
    return found


def run_chapter(
    name: str,
    profile: str,
    parameters: Mapping[str, Any] | None = None,
    output: Path | None = None,
    quiet: bool = False,
) -> Path:
    """Execute a chapter and write its notebook (whole or not at all); gives the notebook's path.

    UserError: an unknown chapter or parameter, or a UserError raised by a cell (its one line). BookError: any other
    failure, a time-out or a dead kernel, with chapter and cell named.
    """
    chapter, profile = find(name), load_profile(profile).name
    notebook = jupytext.read(sources() / f"{chapter}.md")
    changed = dict(parameters or {})
    defaults = _checked(chapter, notebook, changed)
    target = output or (executed_changed(chapter, profile, changed) if changed else executed(chapter, profile))
    given = {key: value for key, value in {"profile": profile, **changed}.items() if defaults[key] != value}
    start, inputs = time.monotonic(), "" if changed else fingerprint(chapter, profile)
    with aside.folder(target.parent, chapter) as work, kernel.setting(Path(work), bool(changed)):
        source, result = Path(work) / f"{chapter}.ipynb", Path(work) / "out.ipynb"
        nbformat.write(notebook, source)
        _execute(chapter, source, result, given, quiet)
        done = nbformat.read(result, as_version=4)
        # papermill notes the paths of this machine.
        done.metadata.pop("papermill", None)
        done.metadata["sameloss"] = {
            "inputs": inputs,
            "ledger": _ledger_rows(chapter, profile),
            "profile": profile,
            "seconds": round(time.monotonic() - start, 1),
        }
        nbformat.write(done, result)
        os.replace(result, target)
    return target


def fingerprint(chapter: str, profile: str) -> str:
    """Hash of everything an executed chapter depends on: its text, lib, profile, results, versions, the ledger."""
    digest = hashlib.sha256()
    root = paths.root()
    files = [sources() / f"{chapter}.md", root / "book" / "profiles" / f"{profile}.yaml"]
    files += sorted(Path(__file__).parents[1].rglob("*.py")) + sorted(_files(root / "book" / "results" / profile))
    if not chapter[0].isdigit():  # a page that tells of the others reads their ledger and times
        files += sorted(ledger.folder(profile).glob("*.json"))
        files += [executed(other, profile) for other in chapters() if other[0].isdigit()]
    for path in files:
        if path.is_file():
            digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    digest.update(_installed().encode())
    return digest.hexdigest()


def up_to_date(chapter: str, profile: str) -> bool:
    """Whether the executed notebook exists, was made from exactly the inputs of now, and its verdicts are in place."""
    path = executed(chapter, profile)
    if not path.is_file():
        return False
    try:
        about = nbformat.read(path, as_version=4).metadata["sameloss"]
        rows, inputs = about["ledger"], about["inputs"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, nbformat.ValidationError):
        return False  # damaged, or executed by another tool
    # A run that was killed, or made by another tool, may have left other verdicts than the notebook shows.
    return bool(rows == _ledger_rows(chapter, profile) and inputs == fingerprint(chapter, profile))


def _ledger_rows(chapter: str, profile: str) -> str:
    path = ledger.folder(profile) / f"{chapter}.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@functools.cache
def _installed() -> str:
    versions = sorted(f"{d.metadata['Name']}=={d.version}" for d in distributions() if d.metadata["Name"])
    return "\n".join([sys.version, *versions])


def _checked(chapter: str, notebook: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The default parameters; UserError for a name that is none of them (papermill would only log it)."""
    try:
        known = default_parameters(notebook)
    except BookError as error:
        raise BookError(f"book/{chapter}.md: {error}") from None
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UserError(f"chapter {chapter}: unknown parameter {name!r}{hint}; allowed: {', '.join(known)}")
    return known


def _execute(chapter: str, source: Path, result: Path, given: dict[str, Any], quiet: bool) -> None:
    bar = not quiet and sys.stderr.isatty() and {"desc": chapter}
    log = result.with_name("kernel.log")
    try:
        papermill.execute_notebook(
            source,
            result,
            given,
            kernel_name="python3",
            kernel_manager_class=kernel.manager(log),
            language="python",
            progress_bar=bar,
            start_timeout=START_SECONDS,
            execution_timeout=CELL_SECONDS,
        )
    except PapermillExecutionError as error:
        if error.ename == "UserError":
            raise UserError(" ".join(str(error.evalue).split())) from None
        trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
        where = f"book/{chapter}.md, code cell {error.exec_count} ({_first_line(error.source)})"
        raise BookError(f"{where}: {error.ename}: {error.evalue}\n{trace}") from None
    except CellTimeoutError:
        raise BookError(f"{_running(chapter, result)}: no end after {CELL_SECONDS} s") from None
    except (DeadKernelError, RuntimeError) as error:
        words = kernel.last_words(log) or _first_line(str(error))
        raise BookError(f"{_running(chapter, result)}: the kernel died ({words})") from None


def _running(chapter: str, result: Path) -> str:
    """Chapter and code cell that was running when the kernel stopped answering."""
    cells: list[Any] = nbformat.read(result, as_version=4).cells if result.is_file() else []
    code = [cell for cell in cells if cell.cell_type == "code"]
    # papermill marks a cell completed even when its kernel died in it; those after it wait.
    begun = [cell for cell in code if cell.metadata.get("papermill", {}).get("status", "pending") != "pending"]
    if begun:
        return f"book/{chapter}.md, code cell {len(begun)} ({_first_line(begun[-1].source)})"
    return f"book/{chapter}.md"


def _first_line(source: str) -> str:
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    return lines[0][:80] if lines else "empty"


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
