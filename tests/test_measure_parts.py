"""What chapter 6 adds to a measurement: parts of the language, the training pool, a probe's own probability."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.languages.pcfg import PCFG
from sameloss.learners import evaluate
from sameloss.learners.contexts import TrainingData, pool, pool_contexts
from sameloss.learners.stack import build
from sameloss.learners.transformer import TransformerConfig
from sameloss.measures.downstream import score
from sameloss.runs.measure import Bench, checkpoint_rows
from sameloss.runs.measure_parts import parts, rare_words
from sameloss.runs.spec import Measure

PLAIN = {"contexts": 600, "trace_contexts": 0, "probe_train": 0, "probe_test": 0, "projection": 0, "masked": False}
OWN = TransformerConfig(vocab=16, length=8, width=8, layers=1, padded=True)


@pytest.fixture(scope="module")
def uneven() -> PCFG:
    return PCFG.tree_grammar(9, stop=0.2)


def measured(language, model, pool_size=0, **measure):
    bench = Bench(language, 0, 7001, Measure(**PLAIN | measure), pool=pool_size)
    return bench, {row["quantity"]: row for row in checkpoint_rows(bench, model, OWN)}


def test_the_loss_is_the_mean_of_its_parts(uneven):
    _, found = measured(uneven, build(OWN, 3).eval(), rare=0.25)
    for pair in (("rare", "frequent"), ("short", "long")):
        for whole in ("kl", "cross_entropy"):
            rows = [found[f"{whole}_{part}"] for part in pair]
            assert sum(row["n"] for row in rows) == 600
            assert sum(row["n"] * row["value"] for row in rows) / 600 == pytest.approx(found[whole]["value"])
    assert not any("_" in name for name in measured(uneven, build(OWN, 3).eval())[1] if name.startswith("kl"))


def test_parts_are_what_they_are_called(uneven):
    bench, _ = measured(uneven, build(OWN, 3).eval())
    seen, p = bench.contexts, uneven.unigram()
    found = parts(uneven, seen, OWN.pad, 0.25)
    words = seen.target.numpy()
    assert set(words[found["rare"]]).isdisjoint(words[found["frequent"]])
    assert p[sorted(set(words[found["rare"]]))].max() <= p[sorted(set(words[found["frequent"]]))].min()
    lengths = (seen.tokens != OWN.pad).sum(1).numpy()
    assert lengths[found["short"]].max() < lengths[found["long"]].min()
    whole = PCFG.tree_grammar(9)
    assert set(parts(whole, Bench(whole, 0, 1, Measure(**PLAIN)).contexts, OWN.pad, 0.25)) == {"rare", "frequent"}


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=30), st.floats(0, 1))
def test_rare_words_make_no_more_than_their_share(weights, share):
    p = np.array(weights) / sum(weights)
    if p.min() > share:
        with pytest.raises(UserError, match="the rarest word makes"):
            rare_words(p, share)
        return
    rare = rare_words(p, share)
    assert p[rare].sum() <= share + 1e-9
    if not rare.all():
        assert p[rare].max(initial=0) <= p[~rare].min()
        assert p[rare].sum() + p[~rare].min() > share - 1e-9


def test_sentences_that_stop_early_have_their_exact_probabilities():
    """A small instance of the uneven grammar against the sum over all its sentences."""
    language = PCFG.random((2, 2), 2, rules=1, root_rules=2, early_stop=0.2, seed=3)
    every = [list(words) for n in range(1, 5) for words in itertools.product(language.vocab, repeat=n)]
    p = {tuple(words): math.exp(language.log_prob(language.encode([words]))[0]) for words in every}
    assert sum(p.values()) == pytest.approx(1)
    lengths = language.sample(20000, 1).lengths
    for n in (2, 3, 4):
        expected = sum(value for words, value in p.items() if len(words) == n)
        assert (lengths == n).mean() == pytest.approx(expected, abs=3 * math.sqrt(0.25 / 20000))


def test_the_training_loss_is_that_of_the_sentences_trained_on(uneven):
    model = build(OWN, 3).eval()
    bench, found = measured(uneven, model, pool_size=40, pool_contexts=500)
    assert found["cross_entropy_pool"]["value"] == pytest.approx(
        evaluate.cross_entropy(model, bench.pool_contexts).value
    )
    assert found["kl_pool"]["n"] == 500
    stored = {tuple(row[row >= 0]) for row in pool(uneven, 40, 7001).tokens}

    def unmasked(batch):
        tokens = batch.tokens.clone()
        tokens[range(len(tokens)), batch.position] = batch.target
        return {tuple(row[row < OWN.vocab].tolist()) for row in tokens}

    trained = unmasked(TrainingData(uneven, 7001, OWN, "base", False, 40).chunk(0, 500))
    assert unmasked(pool_contexts(uneven, 40, 500, 7001, OWN)) <= stored
    assert trained <= stored


def test_a_probes_probability_is_the_mean_of_its_thresholds(uneven):
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(500, 4)))
    labels = torch.from_numpy(np.random.default_rng(1).integers(4, size=500))
    result = score(logits.log_softmax(1), labels)
    right = logits.softmax(1)[range(500), labels].numpy()
    assert result.right == pytest.approx(right)
    levels = (np.arange(2000) + 0.5) / 2000
    assert np.mean([(result.right > level).mean() for level in levels]) == pytest.approx(right.mean(), abs=1e-3)
    asked = {"probe_train": 256, "probe_test": 128, "tasks": ("B",), "thresholds": (0.5, 0.9)}
    _, found = measured(uneven, build(OWN, 3).eval(), **asked)
    assert found["above_0.9"]["value"] <= found["above_0.5"]["value"] <= found["accuracy"]["value"] + 1e-9
    assert 0 < found["probability"]["value"] < 1
    _, found = measured(uneven, build(OWN, 3).eval(), **{**asked, "thresholds": None})
    assert "probability" not in found
