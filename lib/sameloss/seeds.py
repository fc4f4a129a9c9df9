"""Random streams: one per purpose, so that changing one thing never reshuffles another."""

import hashlib

import numpy as np
import torch

from sameloss.errors import UserError

PURPOSES = (
    "language",
    "data",
    "pool",
    "init",
    "mask",
    "probe",
    "estimator",
    "adversary",
    "eval",
    "projection",
    "theory",
)


def _entropy(seed: int, purpose: str) -> np.random.SeedSequence:
    if purpose.split("/")[0] not in PURPOSES:
        raise KeyError(f"unknown random stream {purpose!r}; known: {', '.join(PURPOSES)}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise UserError(f"seed is {seed!r}; a whole number of at least 0 is needed")
    # A digest and not hash(): the latter changes with every interpreter.
    tag = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    return np.random.SeedSequence([seed, tag])


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A numpy generator for `purpose` ("data", "mask", ...; "data/test" is a stream of its own)."""
    return np.random.Generator(np.random.PCG64(_entropy(seed, purpose)))


def torch_stream(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """The same for torch, on `device`."""
    state = int(_entropy(seed, purpose).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator(device=device).manual_seed(state)
