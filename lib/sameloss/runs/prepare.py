"""Making sure that chapters will find their tables: what is published is read, what is stored reused, the rest run."""

import os
import sys
import time
from collections.abc import Callable, Sequence

import torch

from sameloss import paths
from sameloss.errors import UserError
from sameloss.runs import experiment, progress, provenance, ranks, results, schedule
from sameloss.runs.profile import Profile, folder
from sameloss.runs.settings import CHAPTERS
from sameloss.runs.spec import RunSpec
from sameloss.runs.store import Store

Wanted = list[tuple[str, RunSpec]]  # (chapter, spec)


def prepare(profile: Profile, chapters: Sequence[str], jobs: int = 0, scheduler: str = "") -> None:
    """Compute, with progress for a person, the runs of chapters that are neither published nor stored.

    jobs: runs side by side; 0: one per core and thread, one on a GPU. scheduler: of a Dask cluster, to run there.
    UserError with every run that failed.
    """
    wanted = _wanted(profile, chapters)
    _work_off(profile, wanted, jobs, float("inf"), scheduler, lambda spec, shown: None)


def publish(
    profile: Profile, chapters: Sequence[str], jobs: int = 0, until: float = float("inf"), scheduler: str = ""
) -> bool:
    """The same until the stage is over (`time.monotonic()`), each finished run written to `book/results/` at once.

    Returns whether all is there. UserError when the profile, which holds the predictions, is not committed.
    """
    file = folder() / f"{profile.name}.yaml"
    if not results.committed(provenance.revision(file)):
        raise UserError(f"{file}: commit it, with its predictions, before its results are computed")
    wanted = _wanted(profile, chapters)

    def write(done: RunSpec, shown: progress.Progress) -> None:
        for chapter, spec in wanted:
            if spec.key() == done.key():
                frame = experiment.compute(spec, experiment.work_for(profile, shown), profile)
                current = [s.key() for c, s in wanted if (c, s.name) == (chapter, spec.name)]
                path = results.publish(profile.name, chapter, spec.name, spec.key(), frame, current)
                shown.note(f"published {path.relative_to(paths.root())}")

    return _work_off(profile, wanted, jobs, until, scheduler, write)


def forget(profile: Profile) -> None:
    """Remove this profile's runs from the store, so that they are computed again."""
    store = Store(paths.runs(), lambda text: None)
    wanted = {spec.id for _, spec in _wanted(profile, list(CHAPTERS))}
    for run in store.runs():
        if run.path.name in wanted:
            store.remove(run)


def _wanted(profile: Profile, chapters: Sequence[str]) -> Wanted:
    return [(chapter, spec) for chapter in chapters if chapter in CHAPTERS for spec in profile.runs(chapter)]


def _work_off(
    profile: Profile,
    wanted: Wanted,
    jobs: int,
    until: float,
    scheduler: str,
    finished: Callable[[RunSpec, progress.Progress], None],
) -> bool:
    todo = [spec for c, spec in wanted if results.read(profile.name, c, spec.name, spec.key()) is None]
    specs, start = schedule.unique(todo), time.monotonic()
    if not wanted:
        return True
    jobs = 1 if ranks.count() > 1 else jobs or side_by_side(profile)  # all ranks work on one run
    whole = sum(schedule.cost(spec) for spec in specs)
    shown = progress.for_person({spec.label: schedule.cost(spec) / whole for spec in specs})
    try:
        outcome = schedule.work_off(profile, specs, shown, jobs, until, lambda spec: finished(spec, shown), scheduler)
    finally:
        shown.close()
    counts = {"computed": outcome.computed, "reused": outcome.reused, "stopped at the stage's end": outcome.stopped}
    parts = [f"{len(found)} {what}" for what, found in counts.items() if found]
    parts += [f"{len(wanted) - len(todo)} from results"] if len(wanted) > len(todo) else []
    print(f"runs: {', '.join(parts) or 'none'}; {progress.duration(time.monotonic() - start)}", file=sys.stderr)
    if outcome.errors:
        raise UserError(_told_once(outcome.errors))
    if outcome.stopped:
        print("the same command goes on from there", file=sys.stderr)
    return not outcome.stopped


def _told_once(errors: Sequence[str]) -> str:
    """All errors as one line; a disk that refuses every run is told of with the first."""
    causes: dict[str, list[str]] = {}
    for error in errors:
        causes.setdefault(error.partition(": cannot be written: ")[2] or error, []).append(error)
    more = {1: "", 2: " (and 1 other run likewise)"}
    return "; ".join(
        found[0] + more.get(len(found), f" (and {len(found) - 1} other runs likewise)") for found in causes.values()
    )


def side_by_side(profile: Profile) -> int:
    """How many runs, or chapters, go on at once where nobody says it: one per core and thread, one on a GPU."""
    if profile.device == "cuda" or (profile.device == "auto" and torch.cuda.is_available()):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // profile.threads)
