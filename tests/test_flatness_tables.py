"""Chapter 4's comparisons on tables whose answers are known."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sameloss.errors import UserError
from sameloss.runs import flatness_tables as tables


def rows(condition: str, seed: int, step: int, weights: str = "ema", **values: float) -> list[dict]:
    of = []
    for name, value in values.items():
        task = name.removeprefix("acc_") if name.startswith("acc_") else ""
        quantity, features = ("accuracy", "unmasked") if task else (name, "")
        of.append({"quantity": quantity, "task": task, "features": features, "value": value})
    return [{"condition": condition, "seed": seed, "step": step, "weights": weights, **row} for row in of]


@pytest.fixture
def table() -> pd.DataFrame:
    """Two sizes on three seeds: trace = slope * log KL + level, exactly; accuracy of B falls with it."""
    found = []
    for seed in (1, 2, 3):
        for name, level, kls in (("small", 9.0, (0.3, 0.1, 0.02)), ("large", 7.0, (0.2, 0.05, 0.01))):
            for step, kl in enumerate((2.0, *kls)):
                trace = level + seed + 3 * math.log(kl)
                values = {"kl": kl, "trace": trace, "trace_replicate": trace + 1, "acc_B": 1 - trace / 100}
                found += rows(name, seed, step, **values)
                found += rows(name, seed, step, "raw", kl=kl, trace=trace)
    return pd.DataFrame(found)


def test_wide_has_a_column_for_each_quantity_and_a_row_for_each_checkpoint(table):
    found = tables.wide(table, ["large", "small"])
    assert list(dict.fromkeys(found["condition"])) == ["large", "small"]
    assert len(found) == 2 * 3 * 4
    assert tables.tasks(found) == ["B"]
    assert np.allclose(found["log_kl"], np.log(found["kl"]))
    assert tables.tasks(tables.wide(table, ["small"], "raw")) == []
    apart = table[(table["condition"] == "small") | (table["task"] != "B")]
    assert tables.tasks(tables.wide(apart, ["small", "large"])) == ["B"]
    assert tables.tasks(tables.wide(apart, ["small", "large"]), everywhere=True) == []
    with pytest.raises(UserError, match="no rows of 'other' with ema weights; allowed"):
        tables.wide(table, ["small", "other"])


def test_change_is_last_minus_first_within_seeds(table):
    found = tables.change(tables.wide(table, ["small"]), "trace")
    assert found.value == pytest.approx(3 * math.log(0.02 / 2))
    assert found.n == 3
    assert found.stderr == pytest.approx(0, abs=1e-12)


def test_sizes_are_compared_at_the_lowest_kl_that_all_reach(table):
    pairs = tables.at_common_kl(tables.wide(table, ["small", "large"]), ["trace", "trace_replicate"])
    assert set(pairs["kl"]) == {0.02}
    assert tables.gap(pairs, ["small"], "large", "trace").value == pytest.approx(-2)
    assert tables.gap(pairs, ["small"], "large", "trace", "trace_replicate").value == pytest.approx(-3)
    assert math.isnan(tables.page_trend(pairs, ["small", "large"], "trace", falls=True))  # a trend takes three


def test_without_a_common_kl_nothing_is_compared(table):
    low = table.assign(value=table["value"].where((table["condition"] == "small") | (table["quantity"] != "kl"), 1e-4))
    pairs = tables.at_common_kl(tables.wide(low, ["small", "large"]), ["trace"])
    assert pairs["trace"].isna().all()
    assert tables.gap(pairs, ["small"], "large", "trace").n == 0


def test_an_intervention_is_read_against_its_twin_at_its_own_kl():
    start = pd.DataFrame(
        {"condition": "start", "seed": 1, "step": [0, 1, 2], "kl": [2.0, 0.4, 0.1], "trace": [0, 8.0, 4]}
    )
    twin = pd.DataFrame({"condition": "twin", "seed": 1, "step": [0, 1], "kl": [0.1, 0.01], "trace": [4.0, 2]})
    for kl, expected in ((0.2, 6.0), (10**-1.5, 3.0), (0.0098, 2.0), (0.005, math.nan), (1.0, math.nan)):
        run = pd.DataFrame({"condition": "run", "seed": 1, "step": [0, 5], "kl": [9.0, kl], "trace": [9.0, 1.0]})
        found = tables.against(pd.concat([start, twin, run]), ["start", "twin"], "run", ["trace"])
        by = found.set_index("condition")["trace"]
        assert by["path"] == pytest.approx(expected, nan_ok=True)
        assert by["run"] == 1.0
        assert set(found["kl"]) == {kl}


def test_pages_test_sees_a_trend_and_its_direction():
    data = [(name, seed, -i + 0.01 * seed) for seed in range(8) for i, name in enumerate("abc")]
    pairs = pd.DataFrame(data, columns=["condition", "seed", "trace"])
    assert tables.page_trend(pairs, list("abc"), "trace", falls=True) < 1e-3
    assert tables.page_trend(pairs, list("abc"), "trace", falls=False) > 0.99


def test_a_correlation_that_goes_with_the_loss_vanishes_given_the_loss():
    rng = np.random.default_rng(0)
    frames = []
    for seed in range(40):
        log_kl = rng.normal(size=12)
        x, y = (3 * log_kl + rng.normal(size=12) + 10 * seed for _ in range(2))
        frames.append(pd.DataFrame({"seed": seed, "x": x, "y": y, "log_kl": log_kl}))
    frame = pd.concat(frames, ignore_index=True)
    raw, given = tables.correlation(frame, "x", "y"), tables.correlation(frame, "x", "y", ["log_kl"])
    assert raw.n == given.n == 40
    assert raw.value == pytest.approx(0.9, abs=0.03)  # 9 / (9 + 1)
    assert abs(given.value) < 3 * given.stderr
    assert given.stderr == pytest.approx(1 / math.sqrt(40 * 11), rel=0.5)
    assert math.isnan(tables.correlation(frame[frame["seed"] < 2], "x", "y").stderr)


def test_partial_correlation_finds_what_the_loss_does_not_explain():
    rng = np.random.default_rng(1)
    log_kl, own = rng.normal(size=(2, 200))
    frame = pd.DataFrame({"seed": np.arange(200) % 5, "x": log_kl + own, "y": log_kl - own, "log_kl": log_kl})
    assert abs(tables.correlation(frame, "x", "y").value) < 0.2
    assert tables.correlation(frame, "x", "y", ["log_kl"]).value < -0.9


def test_power_is_what_simulation_finds():
    assert tables.power(0.0, 1.0, 24) == pytest.approx(0.05)
    samples = 0.6 + np.random.default_rng(0).normal(size=(4000, 24))
    found = (stats.ttest_1samp(samples, 0.0, axis=1).pvalue < 0.05).mean()
    assert tables.power(0.6, 1.0, 24) == pytest.approx(found, abs=3 * 0.5 / math.sqrt(4000))
