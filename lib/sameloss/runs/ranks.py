"""One run on several GPUs, started by torchrun: rank 0 does all that is done otherwise, the others train along.

Rank 0 alone reads profiles, locks, measures and writes; before it trains it names the run and the state to start from,
which the others read from the same store. They stop where it stops.
"""

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sameloss.learners.pretrain import State
from sameloss.learners.share import Share
from sameloss.runs.spec import RunSpec


class Stopped(Exception):
    """Rank 0 has ended this training."""


def together(call: Callable[[], Any]) -> Any:
    """`call` on rank 0 (and where there is only one process); elsewhere train along until it is through."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "LOCAL_RANK" not in os.environ:
        return call()
    # Messages about work go over the CPU; rank 0 may measure for hours between two of them.
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=datetime.timedelta(7)
    )
    try:
        if dist.get_rank() > 0:
            return _follow()
        try:
            return call()
        finally:
            _tell(None)
    finally:
        dist.destroy_process_group()


def share() -> Share | None:
    """This process's part of a run, None where it has all of it."""
    return Share(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else None


def count() -> int:
    """Processes that share a run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def lead(spec: RunSpec, resume: State | None, root: Path, device: str, save: Callable[[State], None]) -> Any:
    """Name the run to the others; gives `save` for rank 0, which lets them go on, or stop where it raises."""
    if not dist.is_initialized():
        return save
    step = None if resume is None else resume.step
    _tell({"spec": spec.model_dump_json(), "resume": step, "store": str(root), "device": device})

    def saved(state: State) -> None:
        try:
            save(state)
        except BaseException:
            _flag(True)
            raise
        _flag(False)

    return saved


def _follow() -> None:
    from sameloss.runs.training import train_along  # imports this module

    while (work := _tell(None)) is not None:
        device = f"cuda:{os.environ['LOCAL_RANK']}" if work["device"].startswith("cuda") else work["device"]
        spec, store = RunSpec.model_validate_json(work["spec"]), Path(work["store"])
        train_along(spec, work["resume"], store, device, lambda state: _stop_if(_flag(False)))


def _stop_if(stopped: bool) -> None:
    if stopped:
        raise Stopped


def _tell(work: dict[str, Any] | None) -> dict[str, Any] | None:
    """Rank 0 sends, the others receive: JSON, its length first."""
    data = json.dumps(work).encode()
    length = torch.tensor([len(data)])
    dist.broadcast(length, 0)
    text = torch.zeros(int(length), dtype=torch.uint8)
    if dist.get_rank() == 0:
        text = torch.tensor(list(data), dtype=torch.uint8)
    dist.broadcast(text, 0)
    return json.loads(bytes(text.tolist()))


def _flag(value: bool) -> bool:
    """What rank 0 says."""
    flag = torch.tensor([value])
    dist.broadcast(flag, 0)
    return bool(flag)
