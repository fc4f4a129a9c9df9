"""Chapter 6's statistics on tables whose answers are known."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from sameloss.errors import UserError
from sameloss.runs import zoom_claims
from sameloss.runs import zoom_tables as zoom
from sameloss.runs.settings_experiment import Condition, ZoomSettings
from sameloss.runs.spec import LSTMSpec, TransformerSpec

FAR, NEAR = (0.1, math.inf), (0.0, 0.03)
KLS = (2.0, 0.4, 0.25, 0.12, 0.08, 0.03, 0.02, 0.01)  # the first is the untrained network's


def law(
    level: float, slope: float = 0.05, kls=KLS, seeds=range(6), noise: float = 0.0, name: str = "m"
) -> pd.DataFrame:
    """Checkpoints of one model whose scores are straight lines in log KL, at a level of its own."""
    rows = []
    for seed in seeds:
        luck = np.random.default_rng([seed, len(name), ord(name[0])]).normal(0, noise) if noise else 0.0
        for step, kl in enumerate(kls):
            accuracy = 0.5 + level + luck + 0.01 * seed - slope * math.log(kl)
            scores = {"accuracy": accuracy, "brier": 1 - accuracy, "probability": accuracy / 2}
            rows.append({"condition": name, "seed": seed, "step": step, "kl": kl, "log_kl": math.log(kl), **scores})
    return pd.DataFrame(rows)


def models(**levels: float) -> pd.DataFrame:
    return pd.concat([law(level, name=name) for name, level in levels.items()], ignore_index=True)


def test_models_are_read_at_the_same_losses_and_never_beyond_them():
    high = law(0.03, kls=(9.0, 0.5, 0.2, 0.05), name="high")
    frame = pd.concat([models(a=0.0, b=0.01), high], ignore_index=True)
    names = ["a", "b", "high"]
    found = zoom.windows(frame, names, FAR)
    assert found["low"].tolist() == pytest.approx([0.1] * 6)
    assert found["high"].tolist() == pytest.approx([0.4] * 6)
    values = zoom.heights(frame, names, "accuracy", FAR)
    assert (values["b"] - values["a"]).to_numpy() == pytest.approx(0.01)
    assert (values["high"] - values["a"]).to_numpy() == pytest.approx(0.03)
    assert zoom.heights(frame, names, "accuracy", NEAR).isna().all(axis=None)
    assert zoom.reaching(frame, names, 0.02) == ["a", "b"]


def test_a_slope_is_that_of_the_line_and_takes_three_checkpoints():
    frame = pd.concat([law(0.0, 0.05, name="a"), law(0.1, -0.02, name="b")], ignore_index=True)
    found = zoom.slopes(frame, ["a", "b"], "accuracy", FAR)
    assert found["a"].to_numpy() == pytest.approx(-0.05)
    assert found["b"].to_numpy() == pytest.approx(0.02)
    assert zoom.slopes(frame, ["a"], "accuracy", (0.1, 0.3)).isna().all(axis=None)


def test_pairs_are_alike_when_their_interval_lies_within_the_margin():
    rng = np.random.default_rng(0)
    values = pd.DataFrame(rng.normal((0, 0, 0.05), 0.002, size=(8, 3)), columns=list("abc"))
    assert zoom.pairs_within(values, 0.02) == (1, 3)
    assert zoom.pairs_within(values, 0.1) == (3, 3)
    assert zoom.pairs_within(values, 1e-4) == (0, 3)
    assert zoom.pairs_within(values[:1], 0.1) == (0, 3)  # one seed has no interval


def test_what_is_compared_is_fixed_by_the_shapes():
    shapes = {n: TransformerSpec(kind="transformer", width=w, layers=k) for n, w, k in (("d8", 8, 2), ("d8x1", 8, 1))}
    lstm = {"l4": LSTMSpec(kind="lstm", width=4)}
    found = zoom_claims.contrasts(shapes | lstm)
    assert found == {"d8 and d8x1": (["d8"], ["d8x1"]), "LSTMs and transformers": (["l4"], ["d8x1", "d8"])}
    assert zoom_claims.contrasts({"d8": shapes["d8"]}) == {}
    assert list(zoom_claims.contrasts({"d8": shapes["d8"]} | lstm)) == ["LSTMs and transformers"]


def test_one_curve_for_all_is_rejected_as_often_as_it_should_be():
    rng = np.random.default_rng(1)
    seeds = rng.normal(0, 5, size=(6, 1))
    p = np.array([zoom.indistinguishable(rng.normal(size=(6, 5)) + seeds, draws=199) for _ in range(200)])
    assert 0.4 < p.mean() < 0.6
    assert (p <= 0.05).mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
    assert zoom.indistinguishable(rng.normal(size=(6, 5)) + seeds + 3 * np.arange(5)) < 0.001
    assert math.isnan(zoom.indistinguishable(np.ones((1, 3))))


def test_the_permutation_test_is_that_of_all_arrangements():
    values = np.array([[0.0, 1.0, 3.0], [0.5, 0.2, 1.0], [0.1, 0.9, 0.8]])
    spread = values.mean(axis=0).var()
    every = itertools.product(*(list(itertools.permutations(row)) for row in values))
    exact = np.mean([np.mean(np.array(rows), axis=0).var() >= spread * (1 - 1e-9) for rows in every])
    assert zoom.indistinguishable(values, draws=20000) == pytest.approx(exact, abs=0.01)


def test_how_often_the_lower_loss_is_the_better_model():
    frame = models(a=0.0, b=0.0)
    assert (zoom.told(frame, "accuracy", FAR) == 1).all()
    assert (zoom.told(frame.assign(accuracy=-frame["accuracy"]), "accuracy", FAR) == 0).all()
    assert (zoom.told(frame.assign(accuracy=1.0), "accuracy", FAR) == 0.5).all()
    assert zoom.told(models(a=0.0), "accuracy", FAR).isna().all()  # of one model nothing is asked
    # So far apart that the loss says nothing: every pair has one winner, and its loss is the lower one in half of them.
    assert zoom.told(models(a=0.0, b=9.0), "accuracy", FAR).to_numpy() == pytest.approx(0.5)


def test_orders_of_two_scores_are_compared_pair_by_pair():
    first = pd.DataFrame({"a": [1.0, 1.0], "b": [2.0, 2.0], "c": [3.0, math.nan]})
    second = pd.DataFrame({"a": [1.0, 1.0], "b": [3.0, 2.0], "c": [2.0, 1.0]})
    found = zoom.alike(first, second)
    assert found[0] == pytest.approx(2 / 3)
    assert math.isnan(found[1])


def test_a_line_rises_evenly_and_a_jump_at_once():
    kls = np.geomspace(1, 0.01, 40)
    line = law(0.0, kls=(9.0, *kls), name="line")
    jump = line.assign(condition="jump", accuracy=(line["kl"] < 0.1).astype(float))
    found = zoom.steepness(pd.concat([line, jump]), ["line", "jump"], "accuracy", factor=10)
    assert found["line"].to_numpy() == pytest.approx(0.5, abs=0.01)
    assert found["jump"].to_numpy() == pytest.approx(1.0)
    assert zoom.steepness(line, ["line"], "accuracy", factor=1000).isna().all(axis=None)
    assert zoom.steepness(line.assign(accuracy=0.0), ["line"], "accuracy").isna().all(axis=None)


def test_two_runs_are_read_at_one_value_of_two_losses():
    fresh = law(0.0, name="fresh").assign(validation=lambda t: t["kl"])
    stored = law(0.1, name="pool").assign(training=lambda t: t["kl"] / 4)
    pairs = zoom.at_equal_loss(pd.concat([fresh, stored]), ("fresh", "validation"), ("pool", "training"), "accuracy")
    assert pairs["loss"].tolist() == pytest.approx([0.01] * 6)
    # At a training loss of .01 the pool's KL is .04.
    assert (pairs["b"] - pairs["a"]).to_numpy() == pytest.approx(0.1 - 0.05 * math.log(4))


def test_points_have_a_column_for_each_quantity_of_one_task():
    rows = [
        {"condition": c, "seed": 1, "step": s, "weights": "ema", "quantity": q, "task": t, "features": f, "value": v}
        for c in ("a", "b")
        for s in (0, 5)
        for q, t, f, v in (("kl", "", "", 0.5), ("accuracy", "B", "unmasked", 0.9), ("accuracy", "C", "unmasked", 0.1))
    ]
    found = zoom.points(pd.DataFrame(rows), ["b", "a"], "B", "unmasked")
    assert found["condition"].tolist() == ["b", "b", "a", "a"]
    assert set(found["accuracy"]) == {0.9}
    with pytest.raises(UserError, match="a: task 'B' was not probed on 'masked' features"):
        zoom.points(pd.DataFrame(rows), ["a"], "B", "masked")


def settings(names, **changes) -> ZoomSettings:
    conditions = tuple(Condition(name=n, measure="m", language="l", model="d", train="t") for n in names)
    values = {"far": 0.1, "near": 0.03, "margin": 0.02, "agreement": 0.9, "seeds": (7001,)} | changes
    return ZoomSettings(conditions=conditions, models=tuple(names), tasks=("B",), **values)


def noisy(apart: float) -> pd.DataFrame:
    parts_of = [law(level * apart, noise=0.002, name=name) for name, level in (("a", 0), ("bb", 0.3), ("ccc", 1))]
    frame = pd.concat(parts_of, ignore_index=True)
    return frame.assign(above_0=frame["accuracy"], above_9=(frame["kl"] < 0.05) * 1.0)


SHAPES = {
    "a": TransformerSpec(kind="transformer", width=8),
    "bb": LSTMSpec(kind="lstm", width=8),
    "ccc": TransformerSpec(kind="transformer", width=16),
}


def test_claims_follow_from_models_that_are_alike_and_from_models_that_are_not():
    for apart, inside in ((0.0, True), (0.08, False)):
        found = zoom_claims.statistics({"unmasked": noisy(apart)}, SHAPES, settings(["a", "bb", "ccc"]))
        assert [one.claim for one in found] == ["N1"] * 3 + ["N2"] * 3 + ["N3"] * 4
        assert all(one.comparable and one.estimate.n == 6 for one in found)
        size, beyond = (next(s for s in found if s.claim == c and "ccc and a" in s.words) for c in ("N1", "N2"))
        low, high = size.estimate.interval()
        assert low > 0 if inside else high < 0
        low, high = beyond.estimate.interval()
        assert high < 0 if inside else low > 0
        by_words = {one.words: one.estimate.value for one in found}
        assert next(v for w, v in by_words.items() if w.startswith("accuracy gained")) == pytest.approx(0.05)
        # Scores that are functions of each other order every pair alike.
        assert next(v for w, v in by_words.items() if "brier" in w) == pytest.approx(0.1)
        assert next(v for w, v in by_words.items() if "above_9 minus" in w) > 0.3


def test_too_few_models_near_the_floor_are_said_and_not_compared():
    frame = noisy(0.0)
    frame = frame[(frame["condition"] == "a") | (frame["kl"] > 0.05)]
    found = zoom_claims.statistics({"unmasked": frame}, SHAPES, settings(["a", "bb", "ccc"]))
    near = [one for one in found if "KL below" in one.words]
    assert [one.comparable for one in near] == [False]
    assert "too few models" in near[0].note
