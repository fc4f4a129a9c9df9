"""Execute the text sources of the reference notebooks beside this file and write them anew (`make reference`)."""

from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent


def reference(source: Path) -> nbformat.NotebookNode:
    """The executed notebook of a text source, without ids and times that would change with every writing."""
    notebook = jupytext.read(source)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell.metadata = {}
    return notebook


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.md")):
        nbformat.write(reference(path), path.with_suffix(".ipynb"))
        print(path.with_suffix(".ipynb").name)
