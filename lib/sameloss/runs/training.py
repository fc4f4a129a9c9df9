"""Training a run into its folder: what is there stays, what is missing is trained from the last whole state."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from sameloss.errors import UserError
from sameloss.languages.base import Language
from sameloss.learners.pretrain import State, initial, pretrain
from sameloss.learners.rescale import inner_pairs, rescaled
from sameloss.learners.stack import ModelConfig
from sameloss.runs import build, ranks
from sameloss.runs.progress import Progress, Silent
from sameloss.runs.spec import RunSpec, Start
from sameloss.runs.store import Run, Store

LOOK_EVERY = 50  # steps between two looks at the clock
STATES = 2  # resume states kept: should the newest be damaged, the one before it is there


class StageOver(Exception):
    """The time given to this stage is used up; everything so far is stored."""


class _Complete(Exception):
    """All checkpoints asked for are there."""


@dataclass(frozen=True)
class Work:
    """How runs are worked on; none of it changes a number.

    save_seconds: time between two resume states. until: the `time.monotonic()` at which the stage is over.
    """

    store: Store
    progress: Progress
    device: str = "cpu"
    save_seconds: float = 20.0
    until: float = float("inf")

    def check_time(self) -> None:
        if time.monotonic() > self.until:
            raise StageOver


@dataclass(frozen=True)
class Subject:
    """The languages and the model shape of a run, made when first needed (a finished run needs none)."""

    spec: RunSpec

    @cached_property
    def drawn(self) -> list[tuple[Language, int]]:
        return [build.language(self.spec.language, seed) for seed in self.spec.seeds]

    @property
    def languages(self) -> Sequence[Language]:
        return [language for language, _ in self.drawn]

    @cached_property
    def model(self) -> ModelConfig:
        assert self.spec.model is not None
        return build.model_config(self.spec.model, self.languages)


def checkpoint_name(step: int) -> str:
    return f"checkpoint-{step:08d}.safetensors"


def resume_name(step: int) -> str:
    return f"resume-{step:08d}.safetensors"


def read_state(run: Run, name: str) -> State | None:
    """A stored state, None where it is absent (or damaged, and now set aside)."""
    data = run.read(name)
    try:
        return None if data is None else State.from_tensors(load(data))
    except (SafetensorError, UserError):  # with a checksum made to fit: nothing else is tried on it
        run.set_aside(name, "it is no state of a training")
        return None


def train(run: Run, spec: RunSpec, subject: Subject, work: Work) -> None:
    """Make every checkpoint of `spec.steps` present in `run` (locked by the caller).

    StageOver when the time is up; whatever was reached is stored, and the next call goes on from there to the byte.
    """
    missing = [step for step in spec.steps if run.read(checkpoint_name(step)) is None]
    if not missing:
        _drop_resumes(run)  # of a process that was killed between its last checkpoint and this
        return
    assert spec.train is not None
    resume = _newest(run, missing[0])
    start = None if resume else _start(spec, subject, work)
    if start is not None and missing[0] == 0:
        missing.pop(0)
        run.write(checkpoint_name(0), _weights(start))
    last = time.monotonic()

    def keep(state: State) -> None:
        nonlocal last
        if state.step in missing:
            missing.remove(state.step)
            run.write(checkpoint_name(state.step), _weights(state))
        if not missing:
            raise _Complete
        if time.monotonic() - last >= work.save_seconds or time.monotonic() > work.until:
            _keep_resume(run, state)
            last = time.monotonic()
        work.check_time()

    try:
        if missing:
            pretrain(
                subject.model,
                subject.languages,
                spec.train,
                spec.seeds,
                start=start,
                resume=resume,
                save=ranks.lead(spec, resume, work.store.root, work.device, keep),
                save_every=LOOK_EVERY,
                progress=lambda done, total: work.progress.step(spec.label, "training", done, total),
                device=work.device,
                share=ranks.share(),
            )
    except _Complete:
        pass
    _drop_resumes(run)


def train_along(spec: RunSpec, step: int | None, root: Path, device: str, look: Callable[[State], None]) -> None:
    """The part of another rank than 0: the same steps from the same state, until `look` raises; nothing is stored."""
    assert spec.train is not None
    subject, work = Subject(spec), Work(Store(root, lambda text: None), Silent(), device)
    resume = None if step is None else read_state(work.store.run(spec.identity()), resume_name(step))
    start = None if resume else _start(spec, subject, work)
    options: dict[str, Any] = {
        "start": start,
        "resume": resume,
        "save": look,
        "save_every": LOOK_EVERY,
        "device": device,
    }
    # What is wrong with the training itself (it diverges, its batch cannot be shared) rank 0 tells of.
    with contextlib.suppress(ranks.Stopped, UserError):
        pretrain(subject.model, subject.languages, spec.train, spec.seeds, share=ranks.share(), **options)


def _start(spec: RunSpec, subject: Subject, work: Work) -> State:
    """Untrained weights, or the checkpoint of the parent (trained first if need be)."""
    if spec.start is None:
        return initial(subject.model, spec.seeds)
    state = origin(spec.start, subject, work)
    params = state.ema if spec.start.weights == "ema" else state.params
    if spec.start.rescale is not None:
        params = rescaled(params, spec.start.rescale, inner_pairs(params))
    return State(0, params, params, {})


def origin(start: Start, subject: Subject, work: Work) -> State:
    """The checkpoint that a run starts from, trained first if need be."""
    with work.store.locked(start.parent.identity()) as run:
        train(run, start.parent, subject, work)
        state = read_state(run, checkpoint_name(start.at))
    assert state is not None
    return state


def _newest(run: Run, at_most: int) -> State | None:
    """The newest undamaged resume state that is not behind the first missing checkpoint."""
    for name in reversed(run.names("resume-")):
        if int(name.removeprefix("resume-").split(".")[0]) < at_most and (state := read_state(run, name)):
            return state
    return None


def _drop_resumes(run: Run) -> None:
    for name in run.names("resume-"):
        run.drop(name)


def _keep_resume(run: Run, state: State) -> None:
    run.write(resume_name(state.step), save(_on_cpu(state)))
    for name in run.names("resume-")[:-STATES]:
        run.drop(name)


def _weights(state: State) -> bytes:
    """What is measured and continued from; the optimizer's tensors are for resuming only."""
    return save(_on_cpu(State(state.step, state.params, state.ema, {})))


def _on_cpu(state: State) -> dict[str, torch.Tensor]:
    # Parameters and EMA may be the same tensors at a start: a file holds each on its own.
    return {name: tensor.cpu().clone() for name, tensor in state.to_tensors().items()}
