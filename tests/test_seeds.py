"""Random streams: the same seed and purpose give the same numbers, in any process; different ones do not."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from sameloss.seeds import stream, torch_stream

SHOW = """
from sameloss.seeds import stream, torch_stream
print(stream(7, 'data/3').integers(1 << 60), torch_stream(7, 'init').initial_seed())
"""


def test_streams_are_the_same_in_another_process_with_another_hash_seed():
    here = f"{stream(7, 'data/3').integers(1 << 60)} {torch_stream(7, 'init').initial_seed()}"
    there = subprocess.run(
        [sys.executable, "-c", SHOW], env={"PYTHONHASHSEED": "5"}, capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == here


def test_purposes_and_seeds_do_not_share_numbers():
    draws = {
        tuple(stream(seed, purpose).integers(1 << 60, size=2))
        for seed in (11, 12)
        for purpose in ("data", "data/0", "data/1", "init")
    }
    assert len(draws) == 8


def test_torch_stream_repeats():
    a, b = (torch.rand(4, generator=torch_stream(11, "mask")) for _ in range(2))
    assert torch.equal(a, b)
    assert not np.allclose(a, torch.rand(4, generator=torch_stream(12, "mask")))


def test_an_unknown_purpose_is_refused():
    with pytest.raises(KeyError, match="unknown random stream"):
        stream(11, "dat")
