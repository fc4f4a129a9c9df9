"""What the run store holds: the state of each run for a person, and what nothing asks for any more."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sameloss.runs import profile as profiles
from sameloss.runs.settings import CHAPTERS
from sameloss.runs.spec import RunSpec
from sameloss.runs.store import Run, Store


@dataclass(frozen=True)
class Entry:
    """One run of the store. state: "finished", "partial" or "running"."""

    id: str
    state: str
    progress: str
    bytes: int
    spec: str


def entries(store: Store) -> list[Entry]:
    """Every run there is; nothing is changed by looking."""
    found = []
    for run in store.runs():
        identity = _identity(run)
        state = "running" if store.busy(run) else "finished" if run.names("table") else "partial"
        found.append(Entry(run.path.name, state, _progress(run, identity), run.size(), _short(identity)))
    return found


def unneeded(store: Store) -> list[Run]:
    """Runs that no profile asks for, directly or as the start of another: older recipes, changed specs.

    Tables that chapters compute themselves are not known to profiles and stay.
    """
    needed = set()
    for name in profiles.names():
        for chapter in CHAPTERS:
            for spec in profiles.load_profile(name).runs(chapter):
                needed |= _lineage(spec)
    return [run for run in store.runs() if run.path.name not in needed and "table" not in _identity(run)]


def _lineage(spec: RunSpec) -> set[str]:
    return {spec.id} | (_lineage(spec.start.parent) if spec.start else set())


def _identity(run: Run) -> dict[str, Any]:
    try:
        data = (run.path / "spec.json").read_bytes()
        return json.loads(data) if hashlib.sha256(data).hexdigest().startswith(run.path.name) else {}
    except (OSError, ValueError):
        return {}


def _progress(run: Run, identity: dict[str, Any]) -> str:
    total = identity.get("train", {}).get("steps")
    if total is None:
        return ""
    steps = [int(name.split("-")[1].split(".")[0]) for name in run.names() if name.endswith(".safetensors")]
    return f"{max(steps, default=0)}/{total} steps"


def _short(identity: dict[str, Any]) -> str:
    if "table" in identity:
        return f"{identity['chapter']}: {identity['table']}"
    if "language" not in identity:
        return "spec.json is missing or damaged"
    parts = [identity["language"]["kind"], f"seeds {len(identity['seeds'])}"]
    if "model" in identity:
        model, train = identity["model"], identity["train"]
        parts += [
            f"{model['kind']} {model.get('layers', 1)}x{model['width']}",
            f"{train['optimizer']}/{train['objective']}",
        ]
    if "start" in identity:
        parts.append(f"from {identity['start']['weights']} weights")
    return ", ".join(parts)
