"""Estimates, paired comparisons and multiplicity, against closed forms and independent implementations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate, holm, paired_difference, paired_p

values = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30)


@given(values)
def test_mean_and_standard_error_are_the_textbook_ones(xs):
    estimate = Estimate.of(np.array(xs))
    assert estimate.value == pytest.approx(np.mean(xs), abs=1e-9)
    assert estimate.stderr == pytest.approx(stats.sem(xs), rel=1e-9, abs=1e-12)
    assert estimate.n == len(xs)


def test_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(3)
    hits = sum(low <= 1.0 <= high for low, high in (Estimate.of(rng.normal(1, 2, 5)).interval() for _ in range(4000)))
    assert abs(hits / 4000 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 4000)


def test_one_observation_has_no_finite_interval():
    assert Estimate.of(np.array([2.0])).interval() == (-math.inf, math.inf)


def test_an_exact_value_has_an_interval_of_no_width():
    assert Estimate(2.0, 0.0, 1).interval() == (2.0, 2.0)


def test_paired_p_is_scipys_paired_t_test():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=12), rng.normal(0.3, 1, size=12)
    assert paired_p(paired_difference(a, b)) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-10)


def test_pairs_that_all_differ_alike_have_no_p_value():
    assert math.isnan(paired_p(Estimate(0.5, 0.0, 8)))
    assert math.isnan(paired_p(Estimate(0.0, 0.0, 8)))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(ps):
    adjusted = holm(ps)
    assert all(q >= p for p, q in zip(ps, adjusted, strict=True))
    assert all(adjusted[i] <= adjusted[j] for i in range(len(ps)) for j in range(len(ps)) if ps[i] < ps[j])


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.93123, 0.0021, 8), "0.9312 ± 0.0021"),
        (Estimate(23.456, 1.25, 8), "23.5 ± 1.2"),
        (Estimate(1500.4, 37.0, 8), "1500 ± 37"),
        (Estimate(0.25, 0.0, 1), "0.25"),
    ],
)
def test_text_shows_two_digits_of_the_error(estimate, text):
    assert str(estimate) == text


def test_no_samples_and_unequal_pairs_are_refused():
    with pytest.raises(UserError, match="at least one sample"):
        Estimate.of(np.array([]))
    with pytest.raises(UserError, match="equal shapes"):
        paired_difference(np.zeros(2), np.zeros(3))
