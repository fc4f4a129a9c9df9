"""Model shapes of the gpu and paper profiles reach the paper's parameter counts; counted without any memory."""

import pytest
import torch

from sameloss.learners.lstm import LSTM, LSTMConfig
from sameloss.learners.transformer import Transformer, TransformerConfig
from sameloss.runs.profile import load_profile

VOCAB, LENGTH = 200, {"pcfg": 32, "hmm": 16}
PAPER_MILLIONS = {"transformer": (2, 9, 41, 235, 730), "lstm": (10, 67, 135)}  # Liu et al. 2022, §3.1, Fig. 2, 3, 5
BETWEEN = {"transformer": (5, 20), "lstm": (3, 30)}  # chapter 6 at profile gpu: eight models between and beside them


def parameters(spec, length: int) -> int:
    """Parameters of a model that is built on the meta device: shapes alone, no memory."""
    shape = {"vocab": VOCAB, "length": length, "padded": True, **spec.model_dump(exclude={"kind"})}
    with torch.device("meta"):
        model = LSTM(LSTMConfig(**shape)) if spec.kind == "lstm" else Transformer(TransformerConfig(**shape))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("profile", "name"), [(p, m) for p in ("gpu", "paper") for m in load_profile(p).models])
def test_shape_reaches_the_papers_count_within_ten_percent(profile, name):
    spec = load_profile(profile).models[name]
    claimed = int(name[1:].removesuffix("m"))
    assert claimed in PAPER_MILLIONS[spec.kind] + (BETWEEN[spec.kind] if profile == "gpu" else ())
    found = parameters(spec, LENGTH["hmm" if spec.kind == "lstm" else "pcfg"])
    assert abs(found / (claimed * 1e6) - 1) <= 0.10


def test_sizes_span_what_the_profiles_promise():
    counts = {p: [parameters(m, 32) / 1e6 for m in load_profile(p).models.values()] for p in ("gpu", "paper")}
    assert min(counts["gpu"]) < 2.2
    assert 37 < max(counts["gpu"]) < 46
    assert max(counts["paper"]) > 650


@pytest.mark.parametrize(("name", "pilot"), [("d8", 2.0), ("d16", 7.3), ("d32", 26.8), ("d64", 103.0)])
def test_laptop_shapes_are_those_of_the_pilot(name, pilot):
    spec = load_profile("laptop").models[name]
    with torch.device("meta"):
        model = Transformer(TransformerConfig(vocab=16, length=8, **spec.model_dump(exclude={"kind"})))
    assert sum(p.numel() for p in model.parameters()) / 1e3 == pytest.approx(pilot, rel=0.1)
