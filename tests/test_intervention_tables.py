"""Chapter 7's statistics on tables whose answers are known, its figures, shifted languages and change of features."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from sameloss.errors import UserError
from sameloss.languages.hmm import HMM
from sameloss.languages.lm_text import LMText
from sameloss.languages.pcfg import PCFG
from sameloss.languages.shift import shifted
from sameloss.measures.estimate import Estimate
from sameloss.measures.similarity import representation_change
from sameloss.pages import figures
from sameloss.pages import intervention_figures as draw
from sameloss.runs import flatness_tables
from sameloss.runs import intervention_tables as tables

RUNS = {"noise": "hard", "penalty": "paid"}


def rows(condition: str, seed: int, step: int, kl: float, trace: float, near: float, far: float) -> list[dict]:
    values = [("kl", "", "", kl), ("trace", "", "", trace)]
    values += [("accuracy", "B", "unmasked", near), ("accuracy", "B", "unmasked-shifted", far)]
    names = ("quantity", "task", "features", "value")
    fixed = {"condition": condition, "seed": seed, "step": step, "weights": "ema"}
    return [{**fixed, **dict(zip(names, value, strict=True))} for value in values]


@pytest.fixture
def frame() -> pd.DataFrame:
    """Along the twin's path the trace is 20 / KL and accuracy .9; runs have a multiple of that and 1 % an e-fold."""
    found = []
    for seed in (1, 2, 3):
        for condition, kls in {"start": (1.0, 0.1), "soft": (0.1, 0.01)}.items():
            for step, kl in enumerate(kls):
                found += rows(condition, seed, step, kl, 20 / kl, 0.9, 0.8)
        for condition, kl, log_ratio in (("hard", 0.02, -1.0), ("paid", 0.05, -2.0)):
            if (condition, seed) != ("paid", 3):
                trace = 20 / kl * math.exp(log_ratio)
                found += rows(condition, seed, 5, kl, trace, 0.9 - 0.01 * seed * log_ratio, 0.8)
    return tables.wide(pd.DataFrame(found), ["start", "soft", "hard", "paid"])


NAMES = ["trace", "accuracy B", "shifted accuracy B"]


def test_an_effect_is_the_difference_to_the_twins_path_at_the_same_kl(frame):
    found = tables.effects(frame, ["start", "soft"], RUNS, NAMES)
    by = found.set_index(["intervention", "seed"])
    assert np.allclose(by.loc["noise", "trace"], -1.0)  # the logarithm of the trace is linear in log KL
    assert np.allclose(by.loc["noise", "accuracy B"], [0.01, 0.02, 0.03])
    assert np.allclose(found["shifted accuracy B"].dropna(), 0)
    assert set(found["kl"].dropna()) == {0.02, 0.05}


def test_the_slope_goes_through_the_twin_and_has_seeds_as_its_sample(frame):
    found = tables.effects(frame, ["start", "soft"], RUNS, NAMES)
    assert tables.common(found)["seed"].unique().tolist() == [1, 2]
    slope = tables.slope(found, "trace", "accuracy B")
    assert slope.value == pytest.approx(-0.015)
    assert slope.n == 2
    assert tables.slope(found[found["seed"] == 3], "trace", "accuracy B").n == 0
    assert tables.mean(found[found["intervention"] == "noise"], "accuracy B").value == pytest.approx(0.02)
    assert tables.mean(found.assign(trace=math.nan), "trace").n == 0


def test_last_checkpoints_are_compared_whatever_their_kl(frame):
    found = tables.beyond(frame, "hard", "soft", ["trace", "accuracy B"])
    assert np.allclose(found["trace"], math.log(0.01 / 0.02) - 1)
    first = tables.beyond(frame, "soft", "start", ["trace", "kl"], step=0)
    assert np.allclose(first[["trace", "kl"]], 0)


def test_the_least_effect_is_found_with_the_power_asked_for():
    least = tables.least_effect(0.0042, 24)
    assert flatness_tables.power(least, 0.0042, 24) == pytest.approx(0.8, abs=1e-6)
    assert tables.least_effect(0.0042, 2) > tables.least_effect(0.0042, 8) > least


@pytest.mark.parametrize("known", [True, False])
def test_the_figures_draw_what_there_is(frame, known):
    figures.use()
    found = tables.effects(frame, ["start", "soft"], RUNS, NAMES)
    if not known:  # equal loss was never found
        found = found.assign(**dict.fromkeys(NAMES, math.nan))
    panels = {"accuracy B": "task B", "shifted accuracy B": "task B, shifted"}
    slopes = {name: tables.slope(found, "trace", name) for name in panels}
    made = [draw.doses(found, "trace", panels, slopes)]
    made.append(draw.decomposition(found, {"trace": "trace", "accuracy B": "accuracy"}))
    words = {name: name for name in ("start", "soft", "hard")}
    made.append(draw.contrast(frame, ["start", "soft"], "hard", "accuracy B", words))
    for fig, drawn in made:
        assert "<svg" in figures.to_svg(fig)
        assert isinstance(drawn, pd.DataFrame)
        plt.close(fig)
    assert isinstance(slopes["accuracy B"], Estimate)


@pytest.mark.parametrize("make", [PCFG.tree_grammar, HMM.twelve_state_chain])
def test_a_shifted_language_has_other_frequencies_and_the_same_labels(make):
    language = make(777)
    other, again = shifted(language, 0.5, 7), shifted(language, 0.5, 7)
    sentences = other.sample(2000, 1)
    assert np.isfinite(language.log_prob(sentences)).all()
    assert np.array_equal(other.log_prob(sentences), again.log_prob(sentences))
    kl = Estimate.of(other.log_prob(sentences) - language.log_prob(sentences))
    assert kl.value > 5 * kl.stderr > 0
    same = shifted(language, 0.0, 7)
    if make is PCFG.tree_grammar:
        assert np.allclose(same.log_prob(sentences), language.log_prob(sentences), atol=1e-12)
        assert np.array_equal(language.grammar.emission, other.grammar.emission)
        totals = np.bincount(other.grammar.binary[:, 0], other.grammar.binary_p)
        assert np.allclose(totals[totals > 0], 1)
    else:
        assert np.allclose(same.log_prob(sentences), language.log_prob(sentences), atol=1e-8)
        assert other.tasks == language.tasks


def test_only_grammars_and_chains_are_shifted():
    with pytest.raises(UserError, match="found 2; allowed: 0 to 1"):
        shifted(PCFG.tree_grammar(777), 2.0, 1)
    with pytest.raises(UserError, match="found a language of kind LMText; allowed: grammars and chains"):
        shifted(LMText.embedded(), 0.5, 1)


def test_change_of_features_is_blind_to_rotation_shift_and_scale_only():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, 3, generator=g)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=g)).Q
    assert abs(representation_change(x, 5 * x.flatten(1) @ rotation + 3).value) < 1e-6
    noise = torch.randn(400, 6, generator=g)
    found = representation_change(x, x.flatten(1) + 0.3 * noise)
    a, b = (t - t.mean(0) for t in (x.flatten(1).double(), (x.flatten(1) + 0.3 * noise).double()))
    direct = 1 - (a.T @ b).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
    assert found.value == pytest.approx(float(direct), abs=1e-9)
    many = [
        representation_change(a, a + 0.3 * torch.randn(400, 6, generator=g)).value
        for a in (torch.randn(400, 6, generator=g) for _ in range(60))
    ]
    assert found.stderr == pytest.approx(np.std(many), rel=0.6)
    with pytest.raises(UserError, match="at least 16"):
        representation_change(x[:5], x[:5])
