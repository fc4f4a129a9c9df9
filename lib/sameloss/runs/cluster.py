"""The same runs on a Dask cluster: a task a run, a parent before what continues it, the store on a shared folder.

A worker that dies loses its process's lock and nothing else: Dask gives the run to another one, which goes on from the
last stored state. What is sent is JSON; Dask itself sends pickles between machines, so use networks you trust only.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sameloss import paths
from sameloss.errors import UserError
from sameloss.runs import experiment, schedule
from sameloss.runs.profile import Profile
from sameloss.runs.progress import Progress, Sender
from sameloss.runs.spec import RunSpec
from sameloss.runs.store import Store

PARENT_FAILED = "parent failed"
PATIENCE = "20s"


def work_off(
    profile: Profile,
    todo: Sequence[RunSpec],
    progress: Progress,
    address: str,
    until: float,
    outcome: schedule.Outcome,
    done: schedule.Done,
) -> None:
    """Compute `todo` on the cluster whose scheduler answers at `address`, as `schedule.work_off` does here."""
    client, store, topic = _connect(address), Store(paths.runs().resolve(), progress.note), f"sameloss-{uuid.uuid4()}"
    failed, specs, by_run = set[str](), dict[Any, RunSpec](), dict[str, Any]()
    deadline = time.time() + until - time.monotonic()
    try:
        from distributed import as_completed

        client.subscribe_topic(topic, lambda event: getattr(progress, event[1][0])(*event[1][1]))
        for spec in todo:
            parent = by_run.get(spec.start.parent.id) if spec.start else None
            given = (profile.model_dump_json(), spec.model_dump_json(), spec.key(), str(store.root), deadline)
            future = client.submit(task, parent, topic, *given, key=f"{spec.label} {topic}-{spec.key()}")
            specs[future], by_run[spec.id] = spec, future
        for future in as_completed(list(specs), loop=client.loop):
            result, spec = _result(future), specs[future]
            if result == PARENT_FAILED:
                schedule.may_start(spec, failed, outcome)
                continue
            if result == "computed" and not experiment.is_finished(spec, store):
                result = (
                    f"computed, but not into {store.root}; SAMELOSS_RUNS has to be a folder that all machines share"
                )
            schedule.record(spec, result, failed, outcome, done)
    finally:
        client.cancel(list(specs))  # a run that a worker has begun goes on to its end there, for the next time
        client.close()


def task(
    parent: str | None, topic: str, profile_json: str, spec_json: str, key: str, root: str, deadline: float
) -> str:
    """On a worker: compute one run; as `schedule.attempt`, or PARENT_FAILED. parent: what became of its start."""
    from distributed import get_worker

    if parent not in (None, "computed"):
        return "stopped" if parent == "stopped" else PARENT_FAILED
    profile, spec = Profile.model_validate_json(profile_json), RunSpec.model_validate_json(spec_json)
    if spec.key() != key:
        return "a worker has another version of sameloss: the same one has to be installed on all machines"
    sender = Sender(partial(get_worker().log_event, topic), 1.0)
    work = experiment.work_for(profile, sender, time.monotonic() + deadline - time.time())
    return schedule.attempt(spec, replace(work, store=Store(Path(root), sender.note)), profile)


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise UserError("--scheduler needs Dask: pip install -c constraints.txt -e '.[cluster]'") from None
    try:
        return Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--scheduler {address!r}: no Dask scheduler answers there ({' '.join(str(error).split())})"
        ) from None


def _result(future: Any) -> str:
    from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker:
        return "the workers that took it died one after the other; run again to resume"
