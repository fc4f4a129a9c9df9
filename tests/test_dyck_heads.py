"""Heads on the bracket network: exact success probability and error, by formula, enumeration and sampling."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.languages.dyck import enumerate_words, masked_inputs, mismatch
from sameloss.measures.estimate import Estimate
from sameloss.seeds import stream
from sameloss.theory import dyck_net_heads as heads
from sameloss.theory.dyck_net import DyckNet
from sameloss.theory.dyck_net_solutions import ends_apart, random_solution, two_neurons

GOLDEN = {
    "attention": [0.6875, 0.90234375, 0.96948242, 0.99046326],
    "relu": [0.0, 0.23632812, 0.46527099],
}


def within(estimate, exact, extra=0.0):
    return abs(estimate.value - exact) <= 3 * estimate.stderr + extra


def every_ordered_sample(net, head, n):
    """Success and mean error by brute force over all (2^T)^n samples, with numpy's own least squares."""
    rows = np.array(list(itertools.product((1.0, -1.0), repeat=net.attention.shape[1])))
    inputs, targets = heads.representation(net, rows, head), rows.sum(axis=1)
    errors = []
    for sample in itertools.product(range(len(rows)), repeat=n):
        fitted = np.linalg.lstsq(inputs[list(sample)], targets[list(sample)], rcond=1e-8)[0]
        errors.append(np.mean((inputs @ fitted - targets) ** 2))
    return np.mean(np.array(errors) < 1e-8), np.mean(errors)


@pytest.mark.parametrize("head", heads.HEADS)
def test_golden_success_at_length_six(head):
    for n, expected in enumerate(GOLDEN[head], start=1):
        assert heads.flattest_success(6, n, head) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("head", heads.HEADS)
@pytest.mark.parametrize("length", [4, 6, 8])
def test_closed_forms_against_enumeration_over_all_samples(head, length):
    net = two_neurons(length, width=4)
    for n in range(1, 6):
        success, error = heads.exact_head(net, head, n)
        assert success == pytest.approx(heads.flattest_success(length, n, head), abs=1e-12)
        assert error == pytest.approx(heads.flattest_error(length, n, head), abs=1e-10)


def test_attention_head_keeps_the_promise_and_relu_head_does_not():
    for length, n in itertools.product((4, 6, 8, 10, 12, 40), range(1, 12)):
        assert heads.flattest_success(length, n, "attention") >= 1 - 0.5**n
        assert heads.flattest_success(length, n, "relu") < 1 - 0.5**n


def test_flattest_but_not_of_rank_one_breaks_the_promise():
    success = [heads.exact_head(ends_apart(6), "attention", n)[0] for n in (1, 2, 3)]
    np.testing.assert_allclose(success, [0.125, 0.556641, 0.797180], atol=5e-7)
    assert all(s < 1 - 0.5**n for n, s in enumerate(success, start=1))
    # A longer word does not help.
    for length in (8, 10, 12):
        assert heads.exact_head(ends_apart(length), "attention", 1)[0] < 0.2


def test_at_length_two_success_survives_though_the_direction_is_lost():
    # |a_1| = |a_2| = 1 at any angle up to a right one is flattest on the strict language with two neurons.
    for angle in (0.3, 1.0, np.pi / 2):
        a = np.array([[1.0, np.cos(angle)], [0.0, np.sin(angle)]])
        net = DyckNet(a, np.stack([-a[:, 1], a[:, 0]]), np.array([1.0, -1.0]))
        for n in (1, 2, 3):
            assert heads.exact_head(net, "attention", n)[0] == pytest.approx(1 - 0.5**n, abs=1e-12)


@pytest.mark.parametrize("head", heads.HEADS)
@pytest.mark.parametrize(("seed", "n"), [(20, 1), (21, 2), (22, 3)])
def test_enumeration_by_multisets_is_enumeration_by_ordered_samples(head, seed, n):
    rng = stream(seed, "theory/test")
    net = DyckNet(rng.normal(size=(3, 4)), rng.normal(size=(3, 3)), rng.normal(size=3))
    np.testing.assert_allclose(heads.exact_head(net, head, n), every_ordered_sample(net, head, n), atol=1e-9)


@pytest.mark.parametrize("head", heads.HEADS)
def test_monte_carlo_agrees_with_the_exact_values(head):
    x, y = masked_inputs(enumerate_words(4, "strict"))
    for net in (two_neurons(6), ends_apart(6), random_solution(x, y, "strict", 16, seed=20)):
        for n in (1, 2, 3):
            errors = heads.sampled_errors(net, head, n, 4000, stream(20, "theory/test"))
            success, error = heads.exact_head(net, head, n)
            assert within(Estimate.of(errors), error, 1e-9)
            hits = Estimate.of(errors < heads.SUCCESS)
            assert within(hits, success, 0 if 0 < success < 1 else 1e-12)


def test_random_features_need_many_more_examples():
    x, y = masked_inputs(enumerate_words(10, "strict"))
    net = random_solution(x, y, "strict", 840, seed=20)
    for n, published in ((4, 7.9), (8, 5.3), (16, 1.2), (32, 0.2)):
        errors = heads.sampled_errors(net, "relu", n, 400, stream(20, "theory/test"))
        # One draw of the features and two digits of the published value: a tenth of it either way.
        assert within(Estimate.of(errors), published, 0.1 * published + 0.05)
        assert errors.mean() > 10 * heads.flattest_error(10, n, "relu") or n < 16


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 6), width=st.integers(1, 5))
def test_heads_have_least_norm_and_exact_population_error(seed, n, width):
    rng = stream(seed, "theory/test")
    net = DyckNet(rng.normal(size=(width, 6)), rng.normal(size=(4, width)), rng.normal(size=4))
    rows = heads.all_rows(6)
    inputs, targets = heads.representation(net, rows, "attention"), mismatch(rows)
    drawn = rng.integers(64, size=n)
    fitted = heads.minimum_norm(inputs[drawn], targets[drawn])
    np.testing.assert_allclose(fitted, np.linalg.lstsq(inputs[drawn], targets[drawn], rcond=1e-8)[0], atol=1e-7)
    [error] = heads.head_errors(fitted[None], inputs, targets)
    # E x xᵀ = 1 over all rows, so that a linear head's error is a distance.
    assert error == pytest.approx(((net.attention.T @ fitted - 1) ** 2).sum(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("width", [3, 40])  # fewer and more features than the 16 rows
def test_errors_are_the_same_in_blocks_and_by_hand(width, monkeypatch):
    rng = stream(1, "theory/test")
    net = DyckNet(np.eye(4), rng.normal(size=(width, 4)), np.zeros(width))
    whole = heads.sampled_errors(net, "relu", 3, 50, stream(2, "theory/test"))
    monkeypatch.setattr(heads, "BLOCK", 7 * 3 * width)
    np.testing.assert_allclose(heads.sampled_errors(net, "relu", 3, 50, stream(2, "theory/test")), whole, atol=1e-12)
    inputs, targets = heads.representation(net, heads.all_rows(4), "relu"), mismatch(heads.all_rows(4))
    drawn = stream(2, "theory/test").integers(16, size=(50, 3))
    by_hand = [((inputs @ heads.minimum_norm(inputs[d], targets[d]) - targets) ** 2).mean() for d in drawn]
    np.testing.assert_allclose(whole, by_hand, atol=1e-10)


def test_rows_are_all_rows_once():
    rows = heads.all_rows(6)
    assert sorted(map(tuple, rows.tolist())) == sorted(itertools.product((1.0, -1.0), repeat=6))
    assert np.mean(mismatch(rows) == 0) == heads.balance_probability(6)


def test_bad_input_is_named():
    for call, complaint in (
        (lambda: heads.all_rows(18), r"2\^18 = 262,144 rows to enumerate, more than the 65,536"),
        (lambda: heads.representation(two_neurons(4), heads.all_rows(4), "softmax"), "allowed: attention, relu"),
        (lambda: heads.exact_head(DyckNet(np.eye(8), np.eye(8), np.ones(8)), "attention", 4), "different samples"),
    ):
        with pytest.raises(UserError, match=complaint):
            call()
