"""What a run measures of flatness besides the Fisher trace: the rows, and that nothing is added unasked."""

import pytest

from sameloss.languages.pcfg import PCFG
from sameloss.learners.lstm import LSTMConfig
from sameloss.learners.stack import build
from sameloss.learners.transformer import TransformerConfig
from sameloss.learners.widen import METHODS, widen
from sameloss.measures.flatness import fisher_trace
from sameloss.runs.measure import Bench, checkpoint_rows
from sameloss.runs.spec import Curvature, Measure

PLAIN = {"contexts": 96, "trace_contexts": 32, "probe_train": 0, "probe_test": 0, "projection": 0, "masked": False}
OWN = TransformerConfig(vocab=16, length=8, width=8, layers=1)


@pytest.fixture(scope="module")
def language() -> PCFG:
    return PCFG.tree_grammar(9)


def measured(language, config, **curvature):
    measure = Measure(**PLAIN, curvature=Curvature(**curvature) if curvature else None)
    bench, model = Bench(language, 0, 7001, measure), build(config, 3).eval()
    found = {row["quantity"]: row for row in checkpoint_rows(bench, model, config)}
    return found, bench.contexts[:32].inputs, model


def test_nothing_more_is_measured_unless_asked_for(language):
    found, _, _ = measured(language, OWN)
    assert set(found) == {"kl", "cross_entropy", "expected_cross_entropy", "trace"}


@pytest.mark.parametrize("config", [OWN, LSTMConfig(vocab=16, length=8, width=8)], ids=["transformer", "lstm"])
def test_the_trace_is_taken_again_in_the_larger_parametrisation(language, config):
    found, inputs, model = measured(language, config, contexts=32, probes=0, directions=0, embed=16, embed_layers=2)
    layers = 2 if config is OWN else None
    for method in METHODS:
        expected = fisher_trace(widen(model, 16, layers, method), inputs).value
        assert found[f"trace_{method}"]["value"] == pytest.approx(expected)
        if config is OWN:  # padding an LSTM with zeros leaves its trace alone
            assert found[f"trace_{method}"]["value"] != pytest.approx(found["trace"]["value"], rel=1e-3)
    assert "sharpness" not in found
    assert "hessian_trace" not in found


def test_a_model_that_is_the_largest_keeps_its_trace(language):
    found, _, _ = measured(language, OWN, contexts=32, probes=0, directions=0, embed=8)
    assert all(found[f"trace_{method}"]["value"] == found["trace"]["value"] for method in METHODS)


def test_gauss_newton_is_fisher_and_the_hessian_has_the_same_vectors(language):
    found, inputs, model = measured(language, OWN, contexts=96, probes=8, directions=4)
    newton, fisher = found["gauss_newton_trace"], fisher_trace(model, inputs).value
    assert newton["n"] == found["hessian_trace"]["n"] == 3  # chunks of 32 contexts
    assert newton["value"] == pytest.approx(fisher, rel=0.3)
    assert found["sharpness"]["n"] == 4
