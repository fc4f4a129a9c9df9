"""The folder aside in which a chapter is executed: removed at its end, or by the next run if it was killed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock, Timeout

from sameloss import paths
from sameloss.runs.store import writing

IN_USE = "in-use"  # a lock that the system frees with its process, however that ends


@contextmanager
def folder(parent: Path, chapter: str) -> Iterator[str]:
    """A hidden folder in `parent` for one run of a chapter; those that killed runs of it have left are removed.

    UserError: `parent`, or something in it, cannot be written.
    """
    with writing(parent, paths.MOVE_BUILD):
        parent.mkdir(parents=True, exist_ok=True)
        sweep(parent, chapter)
        with TemporaryDirectory(dir=parent, prefix=f".{chapter}-") as made, FileLock(Path(made) / IN_USE):
            yield made


def sweep(parent: Path, chapter: str) -> None:
    """Remove what killed runs of a chapter have left in `parent`."""
    for left in parent.glob(f".{chapter}-*"):
        if (left / IN_USE).is_file():
            _remove_unless_in_use(left)


def _remove_unless_in_use(left: Path) -> None:
    try:
        with FileLock(left / IN_USE, timeout=0):
            shutil.rmtree(left, ignore_errors=True)
    except Timeout:
        return
