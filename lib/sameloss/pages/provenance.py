"""The line under a figure or verdict: profile, runs, seeds, revision, recipe, date, machine, versions."""

from collections.abc import Iterable, Sequence
from typing import Any

from sameloss.runs.provenance import here


def line(
    profile: str, runs: Iterable[str] = (), seeds: Iterable[int] = (), origin: dict[str, Any] | None = None
) -> str:
    """Where numbers come from; `origin` (keys of `runs.provenance.here`) where they were read, not computed now."""
    facts = {**here(), **(origin or {})}
    ids, seeds = sorted({str(run)[:10] for run in runs if run}), list(seeds)
    parts = [
        f"{facts['source']}, profile {profile}",
        _few("run", ids) if ids else "no stored run",
        f"seeds {spans(seeds)}" if seeds else "no seeds",
        f"revision {facts['revision']}",
        "recipe " + ", ".join(f"{wing} {number}" for wing, number in facts["recipe"].items()),
        str(facts["date"])[:10],
        str(facts["machine"]),
        ", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
    ]
    return " · ".join(parts)


def spans(seeds: Iterable[int]) -> str:
    """1, 2, 3, 7 as "1-3, 7"."""
    out: list[list[int]] = []
    for seed in sorted({int(seed) for seed in seeds}):
        if out and seed == out[-1][1] + 1:
            out[-1][1] = seed
        else:
            out.append([seed, seed])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def _few(word: str, ids: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(ids[:most]) + (f" and {len(ids) - most} more" if len(ids) > most else "")
    return f"{word}{'s' if len(ids) > 1 else ''} {shown}"
