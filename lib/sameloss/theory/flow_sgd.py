"""Thousands of independent training runs of a toy model at once: SGD, its relatives and its negative controls."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, get_args

import numba
import numpy as np
from jaxtyping import Float

from sameloss.errors import UserError
from sameloss.seeds import stream
from sameloss.theory.flow import check_batch
from sameloss.theory.flow_kernel import Noise, Optimiser, run
from sameloss.theory.flow_models import Toy

# Replicas that share one random stream: the bytes do not depend on how many threads work on them.
CHUNK = 256


@dataclass(frozen=True)
class Rule:
    """How a replica trains.

    noise: "labels" (SGD on words of the language), or a control: "full" batch; "soft" labels (the true conditional of
    one random context); "self" (words drawn from the model itself); "isotropic" (full batch plus Gaussian noise
    whose covariance is a multiple of the identity with the trace of Sigma / B).
    optimiser: "sgd", "momentum" (heavy ball, m <- momentum m + g), "adam", "adamw" (with weight_decay).
    """

    noise: Noise = "labels"
    optimiser: Optimiser = "sgd"
    batch: int = 1
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        check_batch(self.batch)
        _check_word("noise", self.noise, get_args(Noise))
        _check_word("optimiser", self.optimiser, get_args(Optimiser))
        for key, share in (("momentum", self.momentum), ("betas", self.betas[0]), ("betas", self.betas[1])):
            if not 0 <= share < 1:
                raise UserError(f"{key}: found {share!r}; allowed: at least 0 and below 1")


def _check_word(key: str, found: str, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise UserError(f"{key}: found {found!r}; allowed: {', '.join(allowed)}")


def check_eta(eta: float) -> None:
    """UserError unless the learning rate is a finite number above 0."""
    if isinstance(eta, bool) or not isinstance(eta, int | float | np.floating) or not (0 < eta < math.inf):
        raise UserError(f"learning rate eta: found {eta!r}; allowed: a finite number above 0")


def check_memory(snapshots: int, replicas: int, dim: int) -> None:
    """UserError unless `replicas` is at least 1 and its snapshots fit into half of the memory that is free."""
    if isinstance(replicas, bool) or not isinstance(replicas, int | np.integer) or replicas < 1:
        raise UserError(f"replicas: found {replicas!r}; allowed: a whole number of at least 1")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    each = 8 * dim * (snapshots + 4)
    if replicas * each > free / 2:
        raise UserError(
            f"replicas: found {replicas}, which needs {replicas * each / 1e9:.1f} GB; "
            f"allowed: up to {int(free / 2 / each)} with the {free / 1e9:.1f} GB that are free"
        )


def train(
    toy: Toy,
    theta: Float[np.ndarray, " d"] | Float[np.ndarray, "R d"],
    eta: float,
    at: Sequence[int],
    replicas: int,
    seed: int,
    rule: Rule = Rule(),
) -> Float[np.ndarray, "n R d"]:
    """Parameters of `replicas` independent runs after the step counts `at` (increasing): (n, R, d).

    theta: one start for all, or one per replica (on Gamma or not). The same seed gives the same bytes, whatever the
    number of threads (numba's NUMBA_NUM_THREADS). UserError for eta <= 0, no replicas, or more than memory holds.
    """
    check_eta(eta)
    check_memory(len(at), replicas, toy.dim)
    marks = np.asarray(at, dtype=np.int64)
    if marks.size == 0 or marks[0] < 0 or (np.diff(marks) < 0).any():
        raise UserError(f"steps to look at: found {list(at)}; allowed: increasing whole numbers of at least 0")
    starts = np.array(np.broadcast_to(np.asarray(theta, dtype=np.float64), (replicas, toy.dim)), order="C")
    out = np.empty((len(marks), replicas, toy.dim))
    label = f"theory/flow/{toy.name}/{rule.noise}/{rule.optimiser}/{rule.batch}/{float(eta)!r}"
    settings: tuple[Any, ...] = (
        get_args(Noise).index(rule.noise),
        get_args(Optimiser).index(rule.optimiser),
        rule.batch,
        np.array([eta, rule.momentum, *rule.betas, rule.weight_decay if rule.optimiser == "adamw" else 0.0]),
    )
    compiled: Any = run  # compiled once per memory layout, so everything goes in row by row
    language = (toy.weights, np.ascontiguousarray(toy.truth), toy.rank, int(toy.reference))

    def work(first: int) -> None:
        rows = slice(first, min(first + CHUNK, replicas))
        seen = np.empty((len(marks), rows.stop - first, toy.dim))
        compiled(starts[rows], seen, marks, *language, *settings, stream(seed, f"{label}/{first}"))
        out[:, rows] = seen

    # Not numba.get_num_threads(): it starts numba's own threads, which sets torch's number of threads back.
    with ThreadPoolExecutor(numba.config.NUMBA_NUM_THREADS) as pool:  # type: ignore[attr-defined]
        list(pool.map(work, range(0, replicas, CHUNK)))
    return out


def relax(
    toy: Toy, theta: Float[np.ndarray, "R d"], eta: float = 0.02, time: float = 150.0
) -> Float[np.ndarray, "R d"]:
    """Phi for many points of model M at once: full-batch descent in small steps until the logits have settled.

    Descent with step eta moves Delta by O(eta) of the loss that is left, so this is accurate to that order only;
    `limit` integrates the flow itself, one point at a time.
    """
    return train(toy, theta, eta, [round(time / eta)], len(theta), 0, Rule(noise="full"))[0]
