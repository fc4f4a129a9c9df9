"""Where a number comes from: recipes, revisions, date, machine and versions; never a host or a user."""

import datetime
import importlib
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from sameloss import paths

WINGS = ("measures", "languages", "learners", "theory", "runs")
VERSIONS = ("torch", "numpy", "scipy", "numba")


def recipes() -> dict[str, int]:
    """The recipe number of each wing."""
    return {wing: importlib.import_module(f"sameloss.{wing}").RECIPE for wing in WINGS}


def revision(*files: Path) -> str:
    """The commit that is checked out, or the last one that changed `files`; "+" where files differ from it.

    "unknown" outside a checkout, or for files that were never committed.
    """
    names = [str(f) for f in files]
    found = git("log", "-1", "--format=%h", "--abbrev=12", "--", *names)
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *names)
    return f"{found}+" if found and changed else found or "unknown"


def machine(device: str = "cpu") -> str:
    """Model of the GPU, or of the processor with the number of cores that may be used."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model or platform.processor() or platform.machine()}, {cores} cores"


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide a number's last digits."""
    return {"Python": platform.python_version()} | {name: version(name) for name in VERSIONS}


def here(device: str = "cpu") -> dict[str, Any]:
    """What is true of a number computed now, on this machine."""
    return {
        "source": "computed",
        "revision": revision(),
        "recipe": recipes(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": machine(device),
        "versions": versions(),
    }


def git(*arguments: str) -> str:
    """What git says in the project's root, "" where it refuses or is not there."""
    try:
        command = ["git", "-C", str(paths.root()), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
