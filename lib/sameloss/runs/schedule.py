"""Working off many runs: parents before what continues them, several side by side, stopped cleanly at any moment."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess

from sameloss.errors import UserError
from sameloss.runs import experiment
from sameloss.runs.profile import Profile
from sameloss.runs.progress import Progress, Sender
from sameloss.runs.spec import RunSpec
from sameloss.runs.training import StageOver, Work

Done = Callable[[RunSpec], None] | None


@dataclass
class Outcome:
    """What became of the runs: their specs by what happened, and the errors with the run they belong to."""

    reused: list[RunSpec] = field(default_factory=list)
    computed: list[RunSpec] = field(default_factory=list)
    stopped: list[RunSpec] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def cost(spec: RunSpec) -> float:
    """A rough measure of a run's work, for the time left of a whole job: words times parameters, in no unit."""
    if spec.train is None or spec.model is None:
        return 1e9 * len(spec.seeds)
    layers = spec.model.layers if spec.model.kind == "transformer" else 1
    per_word = 1e4 + spec.model.width**2 * 12 * layers  # small models pay for each operation, not for its size
    return len(spec.seeds) * (spec.train.steps * spec.train.batch * per_word + len(spec.steps) * 2e9)


def unique(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Each table once, a parent before what continues it (the order given has parents first)."""
    return list({spec.key(): spec for spec in specs}.values())


def work_off(
    profile: Profile,
    specs: Sequence[RunSpec],
    progress: Progress,
    jobs: int = 1,
    until: float = float("inf"),
    done: Done = None,
    scheduler: str = "",
) -> Outcome:
    """Compute every spec that is not in the store yet; `jobs` processes, one run each, or the cluster of a `scheduler`.

    until: `time.monotonic()` at which the stage is over. done: called with each spec whose table is there, at once.
    A run that fails (UserError) does not stop the others; nor what does not continue it.
    """
    outcome = Outcome()
    work = experiment.work_for(profile, progress, until)
    todo = []
    for spec in unique(specs):
        if experiment.is_finished(spec, work.store):
            experiment.compute(spec, work, profile)  # reads it, and makes it again should it be damaged
            outcome.reused.append(spec)
            if done:
                done(spec)
        else:
            todo.append(spec)
    if scheduler and todo:
        from sameloss.runs import cluster  # imports this module

        cluster.work_off(profile, todo, progress, scheduler, until, outcome, done)
        return outcome
    finish = _in_processes if jobs > 1 and len(todo) > 1 else _here
    finish(profile, todo, progress, jobs, until, outcome, done)
    return outcome


def _here(
    profile: Profile, todo: list[RunSpec], progress: Progress, jobs: int, until: float, outcome: Outcome, done: Done
) -> None:
    work, failed = experiment.work_for(profile, progress, until), set[str]()
    for spec in todo:
        if may_start(spec, failed, outcome):
            record(spec, attempt(spec, work, profile), failed, outcome, done)


def attempt(spec: RunSpec, work: Work, profile: Profile) -> str:
    """Compute one run: "computed", "stopped" by the stage's end, or the one line of a UserError."""
    try:
        experiment.compute(spec, work, profile)
    except StageOver:
        return "stopped"
    except UserError as error:
        return str(error)
    return "computed"


def may_start(spec: RunSpec, failed: set[str], outcome: Outcome) -> bool:
    """Whether a run's start is there; if it has failed, so has this one."""
    if spec.start is None or spec.start.parent.id not in failed:
        return True
    failed.add(spec.id)
    outcome.errors.append(f"{spec.label}: not run, because {spec.start.parent.label} failed")
    return False


def _in_processes(
    profile: Profile, todo: list[RunSpec], progress: Progress, jobs: int, until: float, outcome: Outcome, done: Done
) -> None:
    context = multiprocessing.get_context("spawn")  # neither torch's threads nor CUDA survive a fork
    waiting, failed = list(todo), set[str]()
    workers: dict[Connection, SpawnProcess] = {}
    running: dict[Connection, RunSpec] = {}
    try:
        while waiting or running:
            unfinished = {spec.id for spec in [*waiting, *running.values()]}
            for spec in list(waiting):
                parent = spec.start.parent.id if spec.start else None
                if len(running) >= jobs or (parent in unfinished and parent not in failed):
                    continue
                waiting.remove(spec)
                if may_start(spec, failed, outcome):
                    idle = [pipe for pipe in workers if pipe not in running]
                    pipe = idle[0] if idle else _start_worker(context, workers, profile, until)
                    with suppress(OSError):  # killed while it was idle: told of where its pipe is read
                        pipe.send(spec.model_dump_json())
                    running[pipe] = spec
            ready = wait(list(running), timeout=1.0)
            for pipe in [pipe for pipe in list(running) if pipe in ready]:
                try:
                    kind, values = pipe.recv()
                except (EOFError, OSError):  # a reset as well: it was killed before it had read what it was sent
                    process = workers.pop(pipe)
                    process.join()
                    kind, values = "end", (f"its process ended with code {process.exitcode}; run again to resume",)
                if kind == "end":
                    record(running.pop(pipe), values[0], failed, outcome, done)
                else:
                    getattr(progress, kind)(*values)
    finally:
        for process in workers.values():  # idle, or interrupted: whatever they have stored is whole
            process.terminate()
            process.join()


def _start_worker(
    context: SpawnContext, workers: dict[Connection, SpawnProcess], profile: Profile, until: float
) -> Connection:
    ours, theirs = context.Pipe()
    process = context.Process(target=_worker, args=(theirs, os.getpid(), profile.model_dump_json(), until), daemon=True)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is the parent's to deal with
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    theirs.close()  # so that the end of the process is the end of the pipe
    workers[ours] = process
    return ours


def record(spec: RunSpec, result: str, failed: set[str], outcome: Outcome, done: Done) -> None:
    """Enter what became of a run."""
    if result == "computed":
        outcome.computed.append(spec)
        if done:
            done(spec)
    elif result == "stopped":
        outcome.stopped.append(spec)
    else:
        failed.add(spec.id)
        outcome.errors.append(f"{spec.label}: {result}")


def _worker(pipe: Connection, parent: int, profile_json: str, until: float) -> None:
    """Compute one run after the other, each answered by "computed", "stopped", or the one line of a UserError."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)  # the parent was killed: nobody waits for this result

    threading.Thread(target=watch, daemon=True).start()
    profile = Profile.model_validate_json(profile_json)
    work = experiment.work_for(profile, Sender(pipe.send, 0.2), until)
    with suppress(EOFError, BrokenPipeError):  # the parent is gone
        while True:
            pipe.send(("end", (attempt(RunSpec.model_validate_json(pipe.recv()), work, profile),)))
