"""Pre-training of a stack of seeds: one loop for AdamW and SGD, token and oracle targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from sameloss.errors import UserError
from sameloss.languages.base import Language
from sameloss.learners.adversary import AdversaryConfig, adversary
from sameloss.learners.contexts import Contexts, TrainingData
from sameloss.learners.sam import ascended
from sameloss.learners.share import Share
from sameloss.learners.stack import ModelConfig, Params, apply, build, stack
from sameloss.learners.trace_penalty import TracePenaltyConfig, trace_penalty

CHUNK = 16384  # sentences drawn at once for a seed: enough for the samplers to be fast, small enough for the cache


class TrainConfig(BaseModel):
    """How to train; the defaults are the hard-label AdamW recipe of the laptop profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    objective: Literal["tokens", "oracle"] = "tokens"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    steps: int = Field(default=9000, ge=0)
    batch: int = Field(default=256, ge=1)
    lr: float = Field(default=3e-3, gt=0)
    warmup: int = Field(default=200, ge=0)
    decay: float = Field(default=0.0, ge=0, le=1)  # share of the steps, at the end, over which lr falls to 0
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = Field(default=0.01, ge=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    ema: float = Field(default=0.9998, ge=0, lt=1)
    checkpoints: tuple[int, ...] = ()
    stage: str = "base"  # a continuation names itself, so that it does not see the data of its start again
    pool: int = Field(default=0, ge=0)  # 0: fresh sentences throughout
    adversary: AdversaryConfig | None = None
    bf16: bool = False
    compile: bool = False
    trace: TracePenaltyConfig | None = None  # pay for the trace of the Fisher matrix
    sam: float | None = Field(default=None, gt=0)  # radius of sharpness-aware minimisation

    @field_validator("checkpoints")
    @classmethod
    def _steps_that_exist(cls, found: tuple[int, ...]) -> tuple[int, ...]:
        if min(found, default=0) < 0:
            raise ValueError(f"checkpoints: found {min(found)}; allowed: steps from 0 on")
        if len(set(found)) < len(found):
            raise ValueError("checkpoints must differ from each other")
        return found

    def rate(self, step: int) -> float:
        """Learning rate of step 0, 1, ...: linear warm-up, constant, linear decay to 0."""
        up = min(1.0, (step + 1) / (self.warmup + 1))
        tail = self.decay * self.steps
        return self.lr * up * (min(1.0, (self.steps - step) / tail) if tail else 1.0)


@dataclass(frozen=True)
class State:
    """All a run needs to go on: tensors with a leading seed dimension S, by parameter name."""

    step: int
    params: Params
    ema: Params
    optimizer: Params

    def to_tensors(self) -> dict[str, Tensor]:
        """One flat dict of contiguous tensors, for a safetensors file."""
        groups = {"params": self.params, "ema": self.ema, "optimizer": self.optimizer}
        flat = {f"{group}/{name}": t.contiguous() for group, ts in groups.items() for name, t in ts.items()}
        return {"step": torch.tensor(self.step), **flat}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "State":
        """The inverse of `to_tensors`; UserError for a key that does not belong."""
        groups: dict[str, Params] = {"params": {}, "ema": {}, "optimizer": {}}
        for key, tensor in tensors.items():
            group, _, name = key.partition("/")
            if group in groups:
                groups[group][name] = tensor
            elif key != "step":
                raise UserError(f"checkpoint key {key!r}; allowed: step, params/..., ema/..., optimizer/...")
        if "step" not in tensors or groups["params"].keys() != groups["ema"].keys() or not groups["params"]:
            raise UserError("checkpoint without step, or with params/ and ema/ that do not match")
        return cls(int(tensors["step"]), **groups)

    def averaged(self) -> "State":
        """The same with the EMA weights as parameters: what AdamW runs are measured and continued from."""
        return replace(self, params=self.ema)


def initial(model_config: ModelConfig, seeds: Sequence[int]) -> State:
    """The untrained stack: one model a seed."""
    params = stack([build(model_config, seed) for seed in seeds])
    return State(0, params, {name: value.clone() for name, value in params.items()}, {})


def pretrain(
    model_config: ModelConfig,
    languages: Sequence[Language],
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    start: State | None = None,
    resume: State | None = None,
    save: Callable[[State], None] | None = None,
    save_every: int = 0,
    progress: Callable[[int, int], None] | None = None,
    device: torch.device | str = "cpu",
    share: Share | None = None,
) -> State:
    """Minimise the masked-LM loss of one model a seed, each on its own language (Liu et al. 2022, §3.1).

    start: weights to begin from (fresh optimizer, step 0); resume: go on exactly where that state was saved.
    save: called at every `config.checkpoints` step, every `save_every` steps and at the end, with copies.
    share: this process's part of each batch, where several work on one run in step.
    UserError when a loss is not finite: nothing is saved from then on, so the last checkpoint is a good one.
    """
    if not len(languages) == len(seeds) > 0:
        raise UserError(f"found {len(languages)} languages and {len(seeds)} seeds; allowed: one language a seed")
    begin = resume or (State(0, start.params, start.params, {}) if start else initial(model_config, seeds))
    params = {name: value.detach().to(device).clone().requires_grad_() for name, value in begin.params.items()}
    ema = [begin.ema[name].detach().to(device).clone() for name in params]
    optimizer = _optimizer(config, params, begin.optimizer)
    forward = apply(model_config)
    loss_of = torch.compile(_loss) if config.compile else _loss
    penalty = config.adversary and adversary(config.adversary, model_config, languages, seeds, forward, device)
    price = config.trace and trace_penalty(config.trace, forward, seeds)
    oracle = config.objective == "oracle"
    data = [
        TrainingData(language, seed, model_config, config.stage, oracle, config.pool)
        for language, seed in zip(languages, seeds, strict=True)
    ]
    chunk_steps = max(1, CHUNK // config.batch)
    kind = torch.device(device).type
    leaves, total, number = list(params.values()), torch.zeros((), device=device), -1
    for step in range(begin.step, config.steps):
        if step // chunk_steps != number:
            _check_finite([total], step)
            number = step // chunk_steps
            batches = _stacked([d.chunk(number, chunk_steps * config.batch) for d in data], chunk_steps, device)
        batch = share.of(batches[step % chunk_steps]) if share else batches[step % chunk_steps]
        with torch.autocast(kind, torch.bfloat16, enabled=config.bf16):
            loss = loss_of(forward, params, batch)
            if config.sam:
                loss = loss_of(forward, ascended(loss, params, config.sam), batch)
        if price:
            loss = loss + price(params, batch, step)
        if penalty:
            loss = loss + penalty(params, step)
        for group in optimizer.param_groups:
            group["lr"] = config.rate(step)
        optimizer.zero_grad()
        loss.backward()
        if share:
            # By name: a file gives its tensors in another order to each process.
            grads = [params[name].grad for name in sorted(params)]
            share.average([loss.detach(), *(grad for grad in grads if grad is not None)])
        optimizer.step()
        total += loss.detach()
        with torch.no_grad():  # early on the average forgets faster, or the untrained weights would stay in it
            torch._foreach_lerp_(ema, leaves, 1 - min(config.ema, (1 + step) / (10 + step)))
        done = step + 1
        if save and (done == config.steps or done in config.checkpoints or (save_every and done % save_every == 0)):
            _check_finite([total, *leaves], done)
            save(_snapshot(done, params, ema, optimizer))
        if progress:
            progress(done, config.steps)
    _check_finite([total, *leaves], config.steps)
    return _snapshot(max(begin.step, config.steps), params, ema, optimizer)


def _loss(forward: Callable[..., Tensor], params: Params, batch: Contexts) -> Tensor:
    """Sum over seeds of the mean loss over the batch: its gradient is the gradient of every seed's own loss."""
    logits = forward(params, batch.tokens, batch.position).float()  # (S, B, V)
    if batch.conditional is None:
        return F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), reduction="sum") / logits.shape[1]
    return -(batch.conditional * logits.log_softmax(-1)).sum() / logits.shape[1]


def _stacked(parts: list[Contexts], steps: int, device: torch.device | str) -> list[Contexts]:
    """Chunks of the seeds, each (steps * B, ...), to one batch (S, B, ...) a step."""

    def split(tensors: list[Tensor]) -> Tensor:
        stacked = torch.stack([t.unflatten(0, (steps, -1)) for t in tensors], dim=1)  # (steps, S, B, ...)
        if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the computation
            stacked = stacked.pin_memory()
        return stacked.to(device, non_blocking=True)

    tokens, position = split([p.tokens for p in parts]), split([p.position for p in parts])
    target = split([p.target for p in parts])
    truths = [p.conditional for p in parts if p.conditional is not None]
    truth = split(truths) if truths else None
    return [Contexts(tokens[i], position[i], target[i], None if truth is None else truth[i]) for i in range(steps)]


def _optimizer(config: TrainConfig, params: Params, tensors: Params) -> torch.optim.Optimizer:
    """AdamW or SGD over the stacked tensors, with its state put back when `tensors` holds one."""
    leaves = list(params.values())
    optimizer: torch.optim.Optimizer
    if config.optimizer == "adamw":
        optimizer = torch.optim.AdamW(
            leaves, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )
    else:
        optimizer = torch.optim.SGD(leaves, lr=config.lr, momentum=config.momentum, fused=True)
    for name, leaf in params.items():
        found = {key.split("/", 1)[0]: t for key, t in tensors.items() if key.split("/", 1)[1] == name}
        if found:
            optimizer.state[leaf] = {key: t.to(leaf.device).clone() for key, t in found.items()}
    return optimizer


def _snapshot(step: int, params: Params, ema: list[Tensor], optimizer: torch.optim.Optimizer) -> State:
    moments = {
        f"{key}/{name}": value.detach().clone()
        for name, leaf in params.items()
        for key, value in optimizer.state[leaf].items()
        if isinstance(value, Tensor)
    }
    copies = {name: leaf.detach().clone() for name, leaf in params.items()}
    return State(step, copies, {name: t.clone() for name, t in zip(params, ema, strict=True)}, moments)


def _check_finite(tensors: list[Tensor], step: int) -> None:
    if not all(bool(torch.isfinite(t).all()) for t in tensors):
        raise UserError(f"training diverged before step {step}: not finite any more; the last checkpoint is good")
