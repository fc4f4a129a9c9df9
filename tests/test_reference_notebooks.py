"""The reference notebooks hold compared outputs, match their text, and turn red when a number changes."""

import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

SOURCES = sorted((Path(__file__).parent / "reference").glob("*.md"))
AT_LEAST = 8  # non-empty outputs that nbval compares in each notebook


def outputs(notebook) -> list[str]:
    found = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    return [out.get("text") or out.get("data", {}).get("text/plain", "") for out in found]


def nbval(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=120", "-q"]
    command += ["-p", "no:cacheprovider", "-o", "addopts=", "--rootdir", str(path.parent), str(path)]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=300)


def test_there_are_references_and_each_has_its_text():
    assert len(SOURCES) >= 3
    assert [path.stem for path in SOURCES] == sorted(path.stem for path in SOURCES[0].parent.glob("*.ipynb"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_reference_holds_compared_outputs_and_matches_its_text(source):
    notebook, text = nbformat.read(source.with_suffix(".ipynb"), as_version=4), jupytext.read(source)
    assert [(c.cell_type, c.source) for c in notebook.cells] == [(c.cell_type, c.source) for c in text.cells]
    assert len([out for out in outputs(notebook) if out.strip()]) >= AT_LEAST
    assert not any("NBVAL" in cell.source or cell.metadata for cell in notebook.cells), "nothing is left uncompared"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_reference_has_three_significant_digits_at_most(source):
    for out in outputs(nbformat.read(source.with_suffix(".ipynb"), as_version=4)):
        for number in re.findall(r"\d+\.\d+", out):
            assert len(number.replace(".", "").strip("0")) <= 3, number


def test_a_changed_number_turns_nbval_red(tmp_path):
    path = tmp_path / "reference.ipynb"
    notebook = nbformat.read(SOURCES[0].with_suffix(".ipynb"), as_version=4)
    nbformat.write(notebook, path)
    sound = nbval(path)
    assert sound.returncode == 0, sound.stdout
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs)
    data = cell.outputs[0].data
    data["text/plain"] = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), data["text/plain"], count=1)
    nbformat.write(notebook, path)
    changed = nbval(path)
    assert changed.returncode == 1, changed.stdout
    assert "mismatch" in changed.stdout
