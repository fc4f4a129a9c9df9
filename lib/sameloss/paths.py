"""Where things live: the project's root, the run store and the build folder (each can be moved by a variable)."""

import os
from pathlib import Path

MOVE_BUILD = "SAMELOSS_BUILD moves the build folder"


def root() -> Path:
    """The folder that holds `_config.yml` (SAMELOSS_ROOT moves it)."""
    return Path(os.environ.get("SAMELOSS_ROOT", Path(__file__).resolve().parents[2]))


def runs() -> Path:
    """The run store: checkpoints and metrics by hash of their spec (SAMELOSS_RUNS moves it)."""
    return Path(os.environ.get("SAMELOSS_RUNS", root() / "runs"))


def build() -> Path:
    """Executed notebooks, the ledger and the HTML (SAMELOSS_BUILD moves it)."""
    return Path(os.environ.get("SAMELOSS_BUILD", root() / "build"))
