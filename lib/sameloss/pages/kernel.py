"""How a chapter's kernel is started: this environment's, none of the user's start-up files, its own log."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client import AsyncKernelManager


def manager(log: Path) -> type[AsyncKernelManager]:
    """A kernel manager whose kernels write what their libraries say on stderr to `log`, not to the user's terminal."""

    class Manager(AsyncKernelManager):
        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]  # as the class above does
            with log.open("ab") as stderr:
                await super().start_kernel(stderr=stderr, **options)

    return Manager


def last_words(log: Path) -> str:
    """The last line of a kernel's log, with which it may have died; "" when it left none."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


@contextmanager
def setting(work: Path, changed: bool) -> Iterator[None]:
    """What a kernel inherits, its files in `work`; with `changed` parameters it keeps out of the book's ledger."""
    import matplotlib.font_manager  # noqa: F401  (else the first chapter that draws tells of building its cache)

    config = work / "ipython" / "profile_default"
    config.mkdir(parents=True)
    (config / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 50\nc.HistoryManager.enabled = False\n")
    given = {"JUPYTER_PREFER_ENV_PATH": "1", "IPYTHONDIR": str(config.parent), "JUPYTER_PLATFORM_DIRS": "1"}
    # numpy's threads wait for each other even longer than torch's: four times the time on a busy machine.
    given["OPENBLAS_NUM_THREADS"] = os.environ.get("OPENBLAS_NUM_THREADS", "1")
    if changed:
        given["SAMELOSS_LEDGER"] = str(work / "ledger")
    before = {key: os.environ.get(key) for key in given}
    os.environ.update(given)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jupyter's own, about its settings
            yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.__setitem__(key, value)
