"""What a run will take before it starts: parameters, words, operations, memory and time; and whether it fits here."""

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from sameloss.errors import UserError
from sameloss.languages.base import Language
from sameloss.learners.lstm import LSTM, LSTMConfig
from sameloss.learners.pretrain import CHUNK
from sameloss.learners.stack import ModelConfig
from sameloss.learners.transformer import Transformer
from sameloss.runs import build
from sameloss.runs.profile import Profile
from sameloss.runs.progress import duration
from sameloss.runs.spec import LanguageKind, LanguageSpec, RunSpec

TRACED = 64  # sentences in the batch that is followed through the model: operations and memory grow in proportion
TOUCHED = 8  # how often the memory of a training step is written or read, forward, backward and what is not kept


@dataclass(frozen=True)
class Device:
    """What training sustains: operations a second (bf16 and float32), bytes a second, seconds an operation costs to
    start, bytes of memory. About a third of what the maker states; an estimated time is right within a factor of 3.
    """

    bf16: float
    float32: float
    bandwidth: float
    launch: float
    memory: float


DEVICES = {
    "h200": Device(bf16=3e14, float32=3e13, bandwidth=3e12, launch=8e-6, memory=141e9),
    "h100": Device(bf16=3e14, float32=3e13, bandwidth=2e12, launch=8e-6, memory=80e9),
    "a100": Device(bf16=1.2e14, float32=1e13, bandwidth=1e12, launch=8e-6, memory=80e9),
}


@dataclass(frozen=True)
class Plan:
    """Of one run. parameters: of one model; words: trained on; operations: floating-point, training and measuring;
    memory: bytes at the peak; seconds: by the device's rates."""

    parameters: int
    words: float
    operations: float
    memory: float
    seconds: float


@dataclass(frozen=True)
class Traced:
    """One training step of TRACED sentences: parameters, operations (multiplications and additions), calls, bytes."""

    parameters: int
    operations: float
    calls: int
    kept: int


class _Calls(TorchDispatchMode):
    """Counts what would be started on a device, one after the other."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@functools.lru_cache(maxsize=64)
def traced(config: ModelConfig, bf16: bool) -> Traced:
    """Follow a training step on tensors that have a shape and no content (the meta device, posing as a CPU: autocast
    knows no meta), so that 730 M parameters take no memory."""
    kept: dict[int, Tensor] = {}  # by storage; holding the tensors keeps their storages apart

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with FakeTensorMode(), FlopCounterMode(display=False) as operations, _Calls() as calls:
        model = LSTM(config) if isinstance(config, LSTMConfig) else Transformer(config)
        tokens = torch.zeros(TRACED, config.length, dtype=torch.long)
        calls.count = 0
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            model(tokens, tokens[:, 0]).float().log_softmax(-1).sum().backward()
        own = {p.untyped_storage()._cdata for p in model.parameters()}
        parameters = sum(p.numel() for p in model.parameters())
        size = sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in own)
    return Traced(parameters, operations.get_total_flops(), calls.count, size)


def memory(spec: RunSpec, config: ModelConfig, batch: int | None = None) -> float:
    """Bytes of one run at its peak, training or measuring.

    batch: sentences of a step on this device, where several share it.
    """
    assert spec.train is not None
    step, seeds, batch = traced(config, spec.train.bf16), len(spec.seeds), batch or spec.train.batch
    # Parameter, gradient, EMA and the optimizer's moments, and the copies of all but the gradient that are stored.
    moments = 2 if spec.train.optimizer == "adamw" else 1
    fixed = seeds * step.parameters * 4 * (3 + moments + 2 + moments)
    targets = config.vocab if spec.train.objective == "oracle" else 1
    data = 2 * seeds * max(CHUNK, batch) * (8 * config.length + 4 * targets)
    features = 3 * 4 * (spec.measure.probe_train + spec.measure.probe_test) * config.length * _width(config)
    return fixed + max(data + seeds * batch * step.kept / TRACED, features)


def plan(spec: RunSpec, device: Device) -> Plan:
    """What a run with a model takes; the languages' own work and solving the probes are not in it."""
    assert spec.train is not None
    config = shape(spec)
    step, train, measure, seeds = traced(config, spec.train.bf16), spec.train, spec.measure, len(spec.seeds)
    sentences = train.steps * train.batch * seeds
    one = step.operations / TRACED
    # SAM takes the gradient twice; a priced trace takes one more, which is differentiated itself (about three in all).
    passes = 1 + (train.sam is not None) + (3 * train.trace.draws if train.trace else 0)
    views = 1 + config.length * measure.masked
    forward = 3 * measure.contexts + views * (measure.probe_train + measure.probe_test)
    backward = config.vocab * measure.trace_contexts
    checkpoints = seeds * len(spec.steps) * len(measure.weights)
    measuring = checkpoints * one * (forward / 3 + backward)
    rate = device.bf16 if train.bf16 else device.float32
    per_step = train.batch * seeds * (one / rate + TOUCHED * step.kept / TRACED / device.bandwidth)
    seconds = train.steps * passes * (per_step + step.calls * device.launch) + measuring / device.float32
    return Plan(
        step.parameters, sentences * config.length, passes * sentences * one + measuring, memory(spec, config), seconds
    )


def shape(spec: RunSpec) -> ModelConfig:
    """The shape of a run's models: from one language of its kind, whichever, instead of those of its seeds."""
    assert spec.model is not None
    return build.model_config(spec.model, [_language(spec.language.kind)])


@functools.cache
def _language(kind: LanguageKind) -> Language:
    return build.language(LanguageSpec(kind=kind, share=0, among=1), 0)[0]


def lines(profile: Profile, chapters: Sequence[str], name: str) -> list[str]:
    """A table for a person: a line for each condition of the chapters that trains, and one for all of them."""
    device, total, seconds = device_named(name, profile.threads), 0.0, 0.0
    found = [f"{'condition':24} {'runs':>4} {'parameters':>11} {'words':>8} {'FLOPs':>8} {'memory':>10} {'time':>11}"]
    specs = {spec.id: spec for chapter in chapters for spec in profile.runs(chapter) if spec.train is not None}
    for condition, group in itertools.groupby(specs.values(), key=lambda spec: spec.name):
        each = [plan(spec, device) for spec in group]
        words, operations = sum(p.words for p in each), sum(p.operations for p in each)
        taken, need = sum(p.seconds for p in each), max(p.memory for p in each)
        total, seconds = total + operations, seconds + taken
        fits = "" if need <= device.memory else f"  does not fit into {device.memory / 1e9:.0f} GB"
        found.append(
            f"{condition:24} {len(each):4} {each[0].parameters:11,} {words:8.1e} {operations:8.1e} "
            f"{need / 1e6:7,.0f} MB {duration(taken):>11}{fits}"
        )
    found.append(
        f"{'all, one after the other':24} {len(specs):4} {'':11} {'':8} {total:8.1e} {'':10} {duration(seconds):>11}"
    )
    return [*found, f"on {name}; the time within a factor of 3, without drawing languages and solving probes"]


def device_named(name: str, threads: int = 1) -> Device:
    """A device of the table, or "cpu": this machine, its rates measured now; UserError for any other."""
    if name in DEVICES:
        return DEVICES[name]
    if name != "cpu":
        raise UserError(f"--device {name!r}; allowed: cpu (this machine, measured), {', '.join(DEVICES)}")
    torch.set_num_threads(threads)
    a, b = torch.randn(512, 512), torch.randn(1 << 24)
    rate = 2 * 512**3 / _seconds(lambda: a @ a)
    bandwidth = 2 * b.numel() * 4 / _seconds(lambda: b.add_(1.0))
    small = torch.ones(8)
    return Device(rate / 2, rate / 2, bandwidth / 2, 4 * _seconds(lambda: small + small), available("cpu"))


def _seconds(call: Callable[[], Any]) -> float:
    found = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def available(device: str) -> float:
    """Bytes that can still be had on a device: of a GPU's memory, or of the machine's within this process's limit."""
    if device.startswith("cuda"):
        return float(torch.cuda.mem_get_info(device)[0])
    found = [float("inf")]
    lines = _text("/proc/meminfo").splitlines()
    found += [1024 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    most, used = (_text(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if most.isdigit() and used.isdigit():
        found.append(float(most) - float(used))
    return min(found)


def refuse_if_too_large(spec: RunSpec, config: ModelConfig, device: str, ranks: int = 1) -> None:
    """UserError, before anything is computed, when a run needs more memory than there is; ranks: devices sharing it."""
    assert spec.train is not None
    free, width, layers = available(device), _width(config), getattr(config, "layers", 8)
    sentences = len(spec.seeds) * spec.train.batch + spec.measure.probe_train + spec.measure.probe_test
    at_most = 4 * layers * width * (len(spec.seeds) * 120 * width + sentences * config.length * 64)
    if at_most < 0.5 * free:
        return  # by a bound that needs no look at the model: following a step through it takes a second or two
    need = memory(spec, config, -(-spec.train.batch // ranks))
    if need > free:
        raise UserError(
            f"{spec.label}: needs about {need / 1e9:.1f} GB of memory on {device}, {free / 1e9:.1f} GB are free; "
            "allowed: a smaller batch, fewer seeds in a run (`stack` in the profile), fewer probe examples, more GPUs"
        )


def _width(config: ModelConfig) -> int:
    return config.width * (2 if isinstance(config, LSTMConfig) else 1)


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
