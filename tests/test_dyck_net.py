"""The bracket network: exact trace, lower bound, constructions, random features."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.languages.dyck import KINDS, enumerate_words, masked_inputs
from sameloss.seeds import stream
from sameloss.theory import dyck_net, dyck_net_proofs, dyck_net_solutions
from sameloss.theory.dyck_net import DyckNet

EVEN = (4, 6, 8, 10, 12)
MINIMA = {4: 4.3267487109, 6: 5.1299278400, 12: 6.6719402717}
FROZEN = {4: 3.4641016151, 6: 4.4721359550, 12: 6.6332495807}


def random_net(seed, length, width=5, depth=3):
    rng = stream(seed, "theory/test")
    return DyckNet(rng.normal(size=(depth, length)), rng.normal(size=(width, depth)), rng.normal(size=width))


def flat(net):
    return torch.tensor(np.concatenate([net.attention.ravel(), net.hidden.ravel(), net.output]))


def hessian_trace(net, x, y):
    """Trace of the Hessian of E(f - y)² by automatic differentiation, the oracle."""
    (depth, length), width = net.attention.shape, len(net.output)
    rows, targets = torch.tensor(x), torch.tensor(y)

    def loss(theta):
        attention, hidden, output = theta.split([depth * length, width * depth, width])
        z = rows @ attention.view(depth, length).T
        return ((torch.relu(z @ hidden.view(width, depth).T) @ output - targets) ** 2).mean()

    return float(torch.autograd.functional.hessian(loss, flat(net)).trace())


@pytest.mark.parametrize("length", sorted(MINIMA))
def test_bounds_have_their_published_values(length):
    assert dyck_net.bound(length) == pytest.approx(MINIMA[length], abs=1e-10)
    assert dyck_net.bound_frozen(length) == pytest.approx(FROZEN[length], abs=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", EVEN)
def test_two_neurons_attain_the_bound(length, kind):
    x, y = masked_inputs(enumerate_words(length, kind))
    net = dyck_net_solutions.two_neurons(length, width=3)
    assert dyck_net.worst_error(net, x, y) < 1e-14
    assert np.abs(dyck_net.gradient_terms(net, x).sum(axis=1) - dyck_net.bound(length)).max() < 1e-10
    assert dyck_net.rank_one_share(net.attention) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("length", EVEN)
def test_ends_apart_attains_the_bound_on_the_strict_language_with_rank_two(length):
    x, y = masked_inputs(enumerate_words(length, "strict"))
    net = dyck_net_solutions.ends_apart(length)
    assert dyck_net.worst_error(net, x, y) < 1e-14
    assert abs(dyck_net.half_trace(net, x) - dyck_net.bound(length)) < 1e-10
    assert np.linalg.matrix_rank(net.attention) == 2
    # It counts on any row, but flatly only where the first and the last bracket are certain.
    x, y = masked_inputs(enumerate_words(length, "equal-count"))
    assert dyck_net.worst_error(net, x, y) < 1e-14
    assert dyck_net.half_trace(net, x) > dyck_net.bound(length) + 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_trace_is_that_of_the_hessian(kind):
    x, y = masked_inputs(enumerate_words(4, kind))
    nets = [dyck_net_solutions.random_solution(x, y, kind, 48, seed=20)]
    nets += [dyck_net_solutions.two_neurons(4)] + ([dyck_net_solutions.ends_apart(4)] if kind == "strict" else [])
    for net in nets:
        assert 2 * dyck_net.half_trace(net, x) == pytest.approx(hessian_trace(net, x, y), rel=1e-10)


def test_rounding_at_a_kink_does_not_switch_a_neuron_on():
    net = dyck_net_solutions.ends_apart(6)
    x, _ = masked_inputs(enumerate_words(6, "strict"))
    turn = np.linalg.qr(stream(20, "theory/test").normal(size=(2, 2)))[0]
    turned = DyckNet(turn @ net.attention, net.hidden @ turn.T, net.output)
    rounded = (dyck_net.attended(turned, x) @ turned.hidden.T > 0).sum()
    assert rounded > dyck_net.active(net, x).sum()  # the trap is there
    assert dyck_net.half_trace(turned, x) == pytest.approx(dyck_net.bound(6), abs=1e-10)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), length=st.sampled_from((2, 4, 6)), width=st.integers(1, 12))
def test_every_step_of_the_bound_holds_at_every_input(seed, length, width):
    net = random_net(seed, length, width)
    x, _ = masked_inputs(enumerate_words(length, "equal-count"))
    to_output, to_hidden, to_attention = dyck_net.gradient_terms(net, x).T
    f, z = np.abs(dyck_net.forward(net, x)), np.linalg.norm(dyck_net.attended(net, x), axis=1)
    slack = 1e-9 * (1 + to_output + to_hidden + to_attention)
    assert (to_output + to_hidden >= 2 * z * f - slack).all()
    assert (to_attention * z**2 >= (length - 1) * f**2 - slack).all()
    assert (2 * z + (length - 1) / z**2 >= dyck_net.bound(length) - 1e-12).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_rescaling_keeps_the_function_and_is_the_best_scale(seed):
    net = random_net(seed, 6)
    x, _ = masked_inputs(enumerate_words(6, "strict"))
    best = dyck_net.rescale(net, x)
    np.testing.assert_allclose(dyck_net.forward(best, x), dyck_net.forward(net, x), rtol=1e-9, atol=1e-12)
    p, q, r = dyck_net.gradient_terms(net, x).mean(axis=0)
    assert dyck_net.half_trace(best, x) == pytest.approx(3 * (p * q * r) ** (1 / 3), rel=1e-10)
    a, b = np.exp(stream(seed, "theory/test").normal(size=2) / 3)
    other = DyckNet(a * best.attention, b * best.hidden, best.output / (a * b))
    assert dyck_net.half_trace(other, x) >= dyck_net.half_trace(best, x) * (1 - 1e-12)


def test_a_dead_net_has_no_scale():
    x, _ = masked_inputs(enumerate_words(4, "strict"))
    with pytest.raises(UserError, match="answers 0 to every input"):
        dyck_net.rescale(DyckNet(np.eye(4), np.zeros((2, 4)), np.ones(2)), x)


@pytest.mark.parametrize(("kind", "length"), [("strict", 4), ("strict", 6), ("equal-count", 4), ("equal-count", 6)])
def test_width_below_the_need_cannot_interpolate_and_twice_the_inputs_can(kind, length):
    x, y = masked_inputs(enumerate_words(length, kind))
    needed = dyck_net_solutions.needed_width(length, kind)
    rng = stream(20, "theory/test")
    for _ in range(20):
        net = dyck_net_solutions.random_features(x, y, needed - 1, rng)
        assert dyck_net.worst_error(net, x, y) > dyck_net.INTERPOLATES
        assert np.linalg.matrix_rank(dyck_net.features(net, x)) < needed
    assert dyck_net.worst_error(dyck_net_solutions.random_features(x, y, 2 * len(y), rng), x, y) < 1e-10
    wide = dyck_net.features(dyck_net_solutions.random_features(x, y, 4 * len(y), rng), x)
    assert np.linalg.matrix_rank(wide) == needed


@pytest.mark.parametrize(("length", "share"), [(4, 0.45), (6, 0.22)])
def test_at_one_neuron_per_input_the_features_often_lack_rank(length, share):
    x, _ = masked_inputs(enumerate_words(length, "strict"))
    rng, draws = stream(20, "theory/test"), 1000
    n = len(x)
    hidden = np.maximum(x @ rng.standard_normal((draws, length, n)), 0)
    short = (np.linalg.matrix_rank(hidden, tol=1e-8) < n).mean()
    assert abs(short - share) < 3 * np.sqrt(share * (1 - share) / draws) + 0.005  # the share itself has two digits


def test_random_solutions_are_an_order_of_magnitude_sharper():
    x, y = masked_inputs(enumerate_words(6, "strict"))
    traces = []
    for seed in range(20, 120):
        net = dyck_net_solutions.random_solution(x, y, "strict", 60, seed)
        assert dyck_net.worst_error(net, x, y) < dyck_net.INTERPOLATES
        traces.append(dyck_net.half_trace(dyck_net.rescale(net, x), x))
    # The median of a hundred has a standard error of about 1.25 sd / 10.
    assert abs(np.median(traces) - 66.6) < 3 * 1.25 * np.std(traces) / 10
    assert min(traces) > 5 * dyck_net.bound(6)


def test_at_length_two_the_flattest_net_need_not_have_one_direction():
    x, y = masked_inputs(enumerate_words(2, "strict"))
    net = DyckNet(np.eye(2), np.array([[0.0, -1.0], [1.0, 0.0]]), np.array([1.0, -1.0]))
    assert dyck_net.worst_error(net, x, y) == 0
    assert dyck_net.half_trace(net, x) == dyck_net.bound(2) == 3
    assert dyck_net.rank_one_share(net.attention) == 0.5


def test_flattest_nets_do_not_cancel_and_random_ones_do():
    x, y = masked_inputs(enumerate_words(6, "strict"))
    for net in (dyck_net_solutions.two_neurons(6), dyck_net_solutions.ends_apart(6)):
        assert abs(dyck_net.cancellation(net, x)) < 1e-14
    assert dyck_net.cancellation(dyck_net_solutions.random_solution(x, y, "strict", 60, 20), x) > 1


@pytest.mark.parametrize("length", [4, 6, 8])
def test_neurons_of_the_equal_count_language_can_only_count(length):
    patterns = dyck_net_proofs.readable_patterns(length, "equal-count")
    np.testing.assert_allclose(patterns, [np.zeros(length), -np.ones(length)], atol=1e-9)


@pytest.mark.parametrize("length", [4, 6, 8])
def test_neurons_of_the_strict_language_can_also_split_the_ends_from_the_middle(length):
    x, y = masked_inputs(enumerate_words(length, "strict"))
    positive = x[y > 0]
    found = {tuple(row) for row in (positive @ dyck_net_proofs.readable_patterns(length, "strict").T > 0.5).T}
    at_the_start = positive[:, 0] == 0
    expected = (at_the_start & False, at_the_start, ~at_the_start, at_the_start | True)
    assert found == {tuple(row) for row in expected}


def test_one_neuron_for_one_label_leaves_no_freedom_beyond_length_two():
    for length in (4, 6, 8, 10):
        for label in (1, -1):
            assert dyck_net_proofs.freedom(length, "strict", label) == 0
            assert length == 10 or dyck_net_proofs.freedom(length, "equal-count", label) == 0
    assert dyck_net_proofs.freedom(2, "strict", 1) == 1
    assert dyck_net_proofs.freedom(2, "equal-count", 1) == 0


@pytest.mark.parametrize("length", [4, 6, 8, 10])
def test_strict_words_allow_each_step_of_the_proof_for_three_neurons(length):
    words = enumerate_words(length, "strict")
    for side in (words, -words[:, ::-1]):  # the second: backwards, with every bracket turned around
        assert (side[:, 0] == 1).all()
        assert (side[:, -1] == -1).all()
        assert (side[:, :-1].sum(axis=1) == 1).all()
        assert (side == 1).any(axis=0)[:-1].all()  # each position but the last holds a ( beside the one at the start
        assert (side[:, :-1] == -1).any(axis=1).all()  # an earlier ) than the last


def test_inactive_neurons_of_the_strict_language_may_read_negative_numbers():
    x, y = masked_inputs(enumerate_words(6, "strict"))
    reading = x @ np.array([-3.0, -5, -3, -5, -4, 3])
    assert set(reading[reading > 0]) == {1}
    assert (y[reading > 0] == 1).all()
    assert reading[y > 0].min() < 0


def test_bad_input_is_named():
    for call, complaint in (
        (lambda: dyck_net_solutions.two_neurons(6, 1), "m = 1: one ReLU neuron"),
        (lambda: dyck_net_solutions.two_neurons(5), "T = 5: balanced words"),
        (lambda: dyck_net_proofs.readable_patterns(12, "strict"), "at most T = 10"),
        (lambda: dyck_net_solutions.ends_apart(2), "T = 2: without brackets between"),
        (
            lambda: dyck_net_solutions.require_width(29, 6, "strict"),
            "at least 30 of them .one for each.; m >= 60 is safe",
        ),
        (lambda: dyck_net_solutions.require_width(65, 6, "equal-count"), r"at least 66 .*T = 6 for the linear part"),
        (lambda: dyck_net_solutions.require_width(60_000, 12, "strict"), "a matrix of 95,040,000 numbers"),
    ):
        with pytest.raises(UserError, match=complaint):
            call()
