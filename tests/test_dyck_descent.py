"""Flattening the bracket network: gradients, projected descent, penalty, label noise."""

import itertools

import numpy as np
import pytest
import torch

from sameloss.errors import UserError
from sameloss.languages.dyck import enumerate_words, masked_inputs
from sameloss.seeds import stream
from sameloss.theory import dyck_net, dyck_net_descent, dyck_net_noise
from sameloss.theory.dyck_net import DyckNet
from sameloss.theory.dyck_net_heads import exact_head, flattest_error
from sameloss.theory.dyck_net_solutions import random_solution

SEED = 20


def start(length, kind, width):
    x, y = masked_inputs(enumerate_words(length, kind))
    return dyck_net.rescale(random_solution(x, y, kind, width, SEED), x), x, y


def vector(net):
    return np.concatenate([net.attention.ravel(), net.hidden.ravel(), net.output])


@pytest.fixture(scope="module")
def small():
    return start(4, "strict", 20)


@pytest.fixture(scope="module")
def clock():
    """The same start flattened for four units of time by descent and by label noise."""
    net, x, y = start(6, "equal-count", 128)
    noise, rate = 0.4, 0.005
    steps = round(4 / (rate * noise) ** 2)
    noisy = dyck_net_noise.label_noise_sgd(net, x, y, noise, rate, steps, steps // 8, SEED)
    return net, x, y, dyck_net_descent.flatten(net, x, y, 0.02, 200, 25), noisy


def test_jacobian_and_kernel_by_automatic_differentiation(small):
    net, x, _ = small
    tensors = [torch.tensor(w, requires_grad=True) for w in (net.attention, net.hidden, net.output)]

    def answer(attention, hidden, output):
        return torch.relu(torch.tensor(x) @ attention.T @ hidden.T) @ output

    parts = torch.autograd.functional.jacobian(answer, tuple(tensors))
    jacobian = np.concatenate([part.reshape(len(x), -1).numpy() for part in parts], axis=1)
    rng = stream(SEED, "theory/test")
    weight, move = rng.normal(size=len(x)), DyckNet(*(rng.normal(size=t.shape) for t in tensors))
    np.testing.assert_allclose(vector(dyck_net_descent.pull_back(net, x, weight)), jacobian.T @ weight, atol=1e-11)
    np.testing.assert_allclose(dyck_net_descent.push_forward(net, x, move), jacobian @ vector(move), atol=1e-11)
    np.testing.assert_allclose(dyck_net_descent.kernel(net, x), jacobian @ jacobian.T, atol=1e-10)
    assert dyck_net.half_trace(net, x) == pytest.approx((jacobian**2).sum(axis=1).mean(), rel=1e-12)


def test_gradient_of_the_trace_by_central_differences(small):
    net, x, _ = small
    gradient = dyck_net_descent.half_trace_gradient(net, x)
    rng = stream(SEED, "theory/test")
    for _ in range(5):
        move = DyckNet(*(rng.normal(size=w.shape) for w in (net.attention, net.hidden, net.output)))
        ahead, behind = (dyck_net_descent.combine(net, move, s * 1e-6) for s in (1, -1))
        slope = (dyck_net.half_trace(ahead, x) - dyck_net.half_trace(behind, x)) / 2e-6
        assert slope == pytest.approx(vector(gradient) @ vector(move), rel=1e-6)


def test_a_descent_that_would_take_hours_is_refused():
    dyck_net_descent.require_size(8, "equal-count")
    with pytest.raises(UserError, match=r"T = 10: descent solves 2,520 equations"):
        dyck_net_descent.require_size(10, "equal-count")


def test_descent_reaches_the_bound_and_one_direction():
    net, x, y = start(6, "equal-count", 128)
    snapshots = dyck_net_descent.flatten(net, x, y, rate=0.02, steps=400, every=40)
    traces = [dyck_net.half_trace(s.net, x) for s in snapshots]
    assert [s.step for s in snapshots] == list(range(0, 401, 40))
    assert max(dyck_net.worst_error(s.net, x, y) for s in snapshots) < 1e-6
    assert all(b < a for a, b in itertools.pairwise(traces))
    end = snapshots[-1].net
    assert dyck_net.worst_error(end, x, y) < dyck_net.INTERPOLATES
    assert 0 <= traces[-1] - dyck_net.bound(6) < 1e-4
    assert dyck_net.rank_one_share(end.attention) > 0.9999
    assert exact_head(end, "attention", 2)[1] == pytest.approx(flattest_error(6, 2, "attention"), abs=1e-3)
    assert exact_head(net, "attention", 2)[1] > 6 * flattest_error(6, 2, "attention")


def test_descent_on_the_strict_language_nears_the_bound_in_more_than_one_direction():
    net, x, y = start(6, "strict", 64)
    end = dyck_net_descent.flatten(net, x, y, rate=0.01, steps=600, every=600)[-1].net
    assert dyck_net.worst_error(end, x, y) < 1e-6
    assert dyck_net.half_trace(end, x) < 1.02 * dyck_net.bound(6)
    assert dyck_net.rank_one_share(end.attention) < 0.99
    assert exact_head(end, "attention", 1)[0] == 0


def test_label_noise_runs_on_the_clock_of_theorem_4_3(clock):
    _, x, y, descent, noisy = clock
    for exact, sampled in list(zip(descent, noisy, strict=True))[2:]:
        settled = dyck_net_noise.settle(sampled.net, x, y, 0.01, 20_000, SEED)
        assert dyck_net.loss(settled, x, y) < 1e-5
        # Finite steps leave a few per cent; half or twice the speed would be off by more than that at t = 1.
        assert dyck_net.half_trace(settled, x) == pytest.approx(dyck_net.half_trace(exact.net, x), rel=0.05)
    assert dyck_net.half_trace(descent[1].net, x) > 1.2 * dyck_net.half_trace(descent[2].net, x)


def test_without_label_noise_nothing_moves(clock):
    net, x, y, *_ = clock
    end = dyck_net_noise.label_noise_sgd(net, x, y, 0.0, 0.01, 20_000, 20_000, SEED)[-1].net
    assert np.abs(vector(end) - vector(net)).max() < 1e-12


def test_steps_that_would_diverge_are_refused(small):
    net, x, y = small
    with pytest.raises(UserError, match=r"SGD with steps of 0\.1 diverges .* steps of at most 0\.0"):
        dyck_net_noise.label_noise_sgd(net, x, y, 0.3, 0.1, 10, 10, SEED)


def test_a_very_sharp_start_is_flattened_all_the_same():
    net, x, y = start(6, "strict", 30)
    assert dyck_net.half_trace(net, x) > 500
    end = dyck_net_descent.flatten(net, x, y, rate=0.02, steps=100, every=100)[-1].net
    assert dyck_net.worst_error(end, x, y) < dyck_net.INTERPOLATES
    assert dyck_net.half_trace(end, x) < 1.5 * dyck_net.bound(6)


def test_same_seed_same_walk(small):
    net, x, y = small
    ends = [dyck_net_noise.label_noise_sgd(net, x, y, 0.3, 0.01, 1000, 1000, s)[-1].net for s in (SEED, SEED, SEED + 1)]
    assert np.array_equal(vector(ends[0]), vector(ends[1]))
    assert not np.array_equal(vector(ends[0]), vector(ends[2]))


def test_the_walk_is_plain_gradient_descent(small):
    net, x, y = small
    [_, after] = dyck_net_noise.label_noise_sgd(net, x, y + 0.5, 0.0, 0.01, 1, 1, SEED)
    row = stream(SEED, "theory/noise").integers(len(x), size=1)
    slope = dyck_net_descent.pull_back(net, x[row], 2 * (dyck_net.forward(net, x[row]) - y[row] - 0.5))
    np.testing.assert_allclose(vector(after.net), vector(dyck_net_descent.combine(net, slope, -0.01)), atol=1e-12)


def test_penalty_trades_loss_for_flatness(small):
    net, x, y = start(4, "equal-count", 48)
    for weight in (0.02, 0.04):
        end = dyck_net_descent.penalise(net, x, y, weight, 0.01, round(300 / weight), 10_000)[-1].net
        assert dyck_net.half_trace(end, x) < dyck_net.bound(4)  # below the bound: it is paid for in loss
        # An answer c f has at least c^{4/3} of the bound, so that the best c is 1 - 2 weight r to first order.
        expected = (2 * weight * dyck_net.bound(4) / 3) ** 2
        assert dyck_net.loss(end, x, y) == pytest.approx(expected, rel=0.15)
        settled = dyck_net_noise.settle(end, x, y, 0.01, 50_000, SEED)
        assert dyck_net.loss(settled, x, y) < 1e-6
        assert dyck_net.half_trace(settled, x) == pytest.approx(dyck_net.bound(4), rel=0.01)
