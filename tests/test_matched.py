"""Comparison at equal loss: exact on laws that are linear in log KL, and never an extrapolation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.measures.matched import at_equal_kl, at_kl, common_kl

kls = st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=12).map(lambda xs: np.array(sorted(set(xs), reverse=True)))


@given(kls, kls, st.floats(-2, 2), st.floats(-1, 1))
def test_a_law_linear_in_log_kl_is_recovered_and_nothing_is_extrapolated(a, b, slope, gap):
    target, left, right = at_equal_kl((a, slope * np.log(a)), (b, slope * np.log(b) + gap))
    overlap = max(a.min(), b.min()) <= min(a.max(), b.max())
    assert math.isnan(target) != overlap
    if overlap:
        assert target == max(a.min(), b.min())
        if len(a) > 1 and len(b) > 1:
            assert right - left == pytest.approx(gap, abs=1e-9)


def test_between_two_checkpoints_by_hand():
    # The geometric middle of 0.1 and 0.001 is 0.01.
    assert at_kl(np.array([0.1, 0.001]), np.array([0.5, 0.9]), 0.01) == pytest.approx(0.7)


def test_the_last_passage_counts():
    kl, values = np.array([0.1, 0.01, 0.1, 0.01]), np.array([0.0, 1.0, 2.0, 3.0])
    assert at_kl(kl, values, math.sqrt(0.001)) == pytest.approx(2.5)


@pytest.mark.parametrize("target", [0.2, 0.0005, math.nan])
def test_outside_the_range_there_is_no_value(target):
    assert math.isnan(at_kl(np.array([0.1, 0.001]), np.array([0.5, 0.9]), target))


def test_trajectories_that_never_meet_have_no_common_kl():
    assert math.isnan(common_kl(np.array([0.5, 0.2]), np.array([0.1, 0.01])))


@pytest.mark.parametrize("kl", [[], [0.0, 0.1], [math.nan, 0.1], [-0.1]])
def test_a_kl_that_cannot_be_is_refused(kl):
    with pytest.raises(UserError, match="KL above 0"):
        common_kl(np.array(kl), np.array([0.1]))
