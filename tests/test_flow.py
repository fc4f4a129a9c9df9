"""The toy models of section 4: landscape, manifold, limit map and flow against closed forms and automatic gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from sameloss.errors import UserError
from sameloss.seeds import stream
from sameloss.theory import flow as flows
from sameloss.theory import flow_landscape as landscape
from sameloss.theory import flow_models as models
from sameloss.theory.flow_ladder import order

U, E, M = models.one_context(), models.shared_decoder(), models.matrix_model()
STARTS = {
    "U": (U, models.start(U, 3.0)),
    "E": (E, models.start(E, 3.0)),
    "M": (M, models.start(M, models.M_START)),
}
EVERY = pytest.mark.parametrize("name", list(STARTS))
CURVES = pytest.mark.parametrize("name", ["U", "E"])


def random_point(toy: models.Toy, seed: int) -> np.ndarray:
    """A point of Gamma: a random decoder with the embeddings that fit, and (M) something in the decoder's kernel."""
    rng = stream(seed, "theory/test")
    if flows.is_scalar(toy):
        return flows.on_curve(toy, rng.normal() * 4)
    w2, w1 = models.split(toy, models.start(toy, models.M_START + 0.3 * rng.normal(size=(3, 3))))
    mix = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return models.join(w2 @ mix, mix.T @ w1)


def test_languages_of_the_toys() -> None:
    np.testing.assert_allclose(E.weights, [0.25, 0.25, 0.225, 0.275], atol=1e-15)
    np.testing.assert_allclose(E.truth[:, 1], [0.3, 0.8, 2 / 9, 8 / 11], atol=1e-15)
    assert (U.dim, E.dim, M.dim) == (2, 5, 27)
    (a,), d = landscape.softmax_curvature(E)[0], np.diag(landscape.softmax_curvature(E)[1])
    z = E.target[0]
    assert a[0] == pytest.approx(0.18593434343434, abs=1e-13)
    assert d @ z**2 == pytest.approx(0.22806990404164, abs=1e-13)
    assert z @ z == pytest.approx(5.17116679869, abs=1e-10)


def test_least_traces() -> None:
    assert landscape.least_trace(U) == pytest.approx(0.443614195558, abs=1e-11)
    assert landscape.least_trace(U) == pytest.approx(2 * 0.16 * np.log(4), abs=1e-14)
    assert landscape.least_trace(E) == pytest.approx(0.41185447849997, abs=1e-12)
    assert landscape.least_trace(M) == pytest.approx(1.0050045887, abs=1e-10)


@pytest.mark.parametrize(
    ("name", "times", "traces"),
    [
        ("U", [0, 1, 5, 10], [1.474165547656, 1.277471367721, 0.771891105151, 0.526644825533]),
        ("E", [0, 1, 5, 10], [1.698750191358, 1.442273602772, 0.825222255867, 0.548343616958]),
        ("M", [0, 1, 5], [2.504940754367, 2.078468062192, 1.278689772659]),
    ],
)
def test_traces_along_the_flow(name: str, times: list[float], traces: list[float]) -> None:
    toy, start = STARTS[name]
    path = flows.flow(toy, start, np.array(times))
    assert landscape.manifold_trace(toy, path) == pytest.approx(traces, abs=1e-9)
    assert models.distance(toy, path).max() < 1e-10
    slow = flows.flow(toy, start, 4.0 * np.array(times), batch=4)
    np.testing.assert_allclose(slow, path, atol=1e-9)


def test_decoder_of_e_along_the_flow() -> None:
    path = flows.flow(*STARTS["E"], np.array([0.0, 1, 5, 10]))
    assert path[:, 0] ** 2 == pytest.approx([9, 7.595402848037, 4.142112701775, 2.448071232980], abs=1e-9)


def test_imbalance_of_u_decays_exponentially() -> None:
    times = np.array([0.5, 2.0, 7.0])
    h = landscape.imbalance(U, flows.flow(*STARTS["U"], times, batch=2))[:, 0, 0]
    start = 9 - (np.log(4) / 3) ** 2
    np.testing.assert_allclose(h, start * np.exp(-0.16 * times / 2), rtol=1e-13)


@CURVES
def test_closed_form_flow_solves_its_equation(name: str) -> None:
    toy, start = STARTS[name]
    solved = integrate.solve_ivp(
        lambda _, x: flows.velocity(toy, x, 2), (0, 6.0), start, rtol=1e-12, atol=1e-13, method="DOP853"
    ).y[:, -1]
    np.testing.assert_allclose(flows.flow(toy, start, np.array([6.0]), 2)[0], solved, atol=1e-10)


@CURVES
@given(h=st.floats(-6, 12))
@settings(deadline=None, max_examples=40)
def test_flow_never_raises_the_trace_and_never_passes_the_flattest_point(name: str, h: float) -> None:
    toy = STARTS[name][0]
    path = flows.flow(toy, flows.on_curve(toy, h), np.linspace(0, 40, 12))
    traces = landscape.manifold_trace(toy, path)
    assert (np.diff(traces) < 1e-12).all()
    assert (traces > landscape.least_trace(toy) - 1e-12).all()
    imbalances = landscape.imbalance(toy, path)[:, 0, 0] - flows.resting_imbalance(toy)
    assert (imbalances * (h - flows.resting_imbalance(toy)) >= -1e-12).all()


@EVERY
@pytest.mark.parametrize("seed", range(4))
def test_lemma_4_2_on_the_manifold(name: str, seed: int) -> None:
    toy = STARTS[name][0]
    point = random_point(toy, seed)
    assert models.distance(toy, point) < 1e-12
    autograd = torch.func.hessian(lambda x: landscape.torch_loss(toy, x))(torch.from_numpy(point)).numpy()
    assert np.abs(autograd - landscape.covariance(toy, point)).max() < 1e-12
    assert np.abs(autograd - landscape.fisher(toy, point)).max() < 1e-12
    assert np.trace(autograd) == pytest.approx(landscape.manifold_trace(toy, point), abs=1e-12)
    assert landscape.loss(toy, point) == pytest.approx(landscape.floor(toy), abs=1e-14)


@EVERY
def test_lemma_4_2_fails_off_the_manifold(name: str) -> None:
    toy, start = STARTS[name]
    off = start + 0.05 * stream(3, "theory/test").normal(size=toy.dim)
    gap = np.abs(landscape.hessian(toy, off) - landscape.covariance(toy, off)).max()
    assert 2e-3 < gap < 0.1


@EVERY
@pytest.mark.parametrize("seed", range(3))
def test_derivatives_off_the_manifold(name: str, seed: int) -> None:
    toy = STARTS[name][0]
    point = stream(seed, "theory/test").normal(size=toy.dim)
    theta = torch.from_numpy(point)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return landscape.torch_loss(toy, x)

    assert landscape.loss(toy, point) == pytest.approx(float(loss(theta)), abs=1e-13)
    np.testing.assert_allclose(landscape.gradient(toy, point), torch.func.grad(loss)(theta).numpy(), atol=1e-13)
    np.testing.assert_allclose(landscape.hessian(toy, point), torch.func.hessian(loss)(theta).numpy(), atol=1e-13)


@EVERY
def test_trace_gradient_has_the_tangential_part_of_the_true_one(name: str) -> None:
    toy, start = STARTS[name]

    def trace(x: torch.Tensor) -> torch.Tensor:
        return torch.func.hessian(lambda y: landscape.torch_loss(toy, y))(x).trace()

    true = torch.func.grad(trace)(torch.from_numpy(start)).numpy()
    projector = landscape.tangent_projector(toy, start)
    np.testing.assert_allclose(projector @ landscape.trace_gradient(toy, start), projector @ true, atol=1e-12)
    assert np.linalg.norm(projector @ true) > 0.1


@EVERY
def test_tangent_space_is_the_kernel_of_the_hessian(name: str) -> None:
    toy, start = STARTS[name]
    projector, hessian = landscape.tangent_projector(toy, start), landscape.hessian(toy, start)
    assert np.abs(hessian @ projector).max() < 1e-13
    assert (np.linalg.matrix_rank(hessian), round(np.trace(projector))) == {"U": (1, 1), "E": (4, 1), "M": (12, 15)}[
        name
    ]


@EVERY
def test_limit_is_where_gradient_flow_ends(name: str) -> None:
    toy, start = STARTS[name]
    theta = start + 0.2 * stream(5, "theory/test").normal(size=toy.dim)
    end = integrate.solve_ivp(
        lambda _, x: -landscape.gradient(toy, x), (0, 1500.0), theta, method="LSODA", rtol=1e-11, atol=1e-13
    ).y[:, -1]
    landed = flows.limit(toy, theta)
    np.testing.assert_allclose(landed, end, atol=1e-7)
    assert models.distance(toy, landed) < 1e-11
    np.testing.assert_allclose(landscape.imbalance(toy, landed), landscape.imbalance(toy, theta), atol=1e-9)
    np.testing.assert_allclose(flows.limit(toy, np.stack([theta, start]))[1], start, atol=1e-9)


@EVERY
def test_velocity_moves_the_imbalance_as_second_order_noise_does(name: str) -> None:
    """d Delta = W1 D W1^T - W2^T S W2: from -(1/4) P grad Tr, and from E[G2^T G2 - G1 G1^T] without any projection."""
    toy, start = STARTS[name]
    w2, w1 = models.split(toy, start)
    v2, v1 = models.split(toy, flows.velocity(toy, start))
    push = w2.T @ v2 + v2.T @ w2 - w1 @ v1.T - v1 @ w1.T
    probability, gradients = landscape.sample_gradients(toy, start)
    noise = np.einsum("s,skl->kl", probability, landscape.imbalance(toy, gradients))
    s, d = landscape.softmax_curvature(toy)
    np.testing.assert_allclose(push, noise, atol=1e-12)
    np.testing.assert_allclose(push, w1 @ d @ w1.T - w2.T @ s @ w2, atol=1e-12)


@CURVES
@given(h=st.floats(-5, 12))
@settings(deadline=None, max_examples=25)
def test_the_quarter_without_sampling(name: str, h: float) -> None:
    toy = STARTS[name][0]
    point = flows.on_curve(toy, h)
    np.testing.assert_allclose(flows.second_order_drift(toy, point), flows.velocity(toy, point), atol=1e-12)


@CURVES
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_exact_drift_converges_with_order_two(name: str, batch: int) -> None:
    toy, start = STARTS[name]
    etas = np.array([0.2, 0.1, 0.05, 0.025, 0.0125])
    goal = flows.velocity(toy, start, batch)
    errors = np.array([np.linalg.norm(flows.one_step_drift(toy, start, eta, batch) - goal) for eta in etas])
    assert order(etas, errors) == pytest.approx(2, abs=0.2)
    assert errors[-1] < 1e-4 * np.linalg.norm(goal)


def test_exact_drift_of_the_matrix_model() -> None:
    """All 27 coordinates, with the limit map integrated numerically.

    The noise is skewed and Phi does not depend on Delta alone, so the error is of order one here; Delta itself drifts
    at its limiting rate at every learning rate.
    """
    toy, start = STARTS["M"]
    goal = flows.velocity(toy, start)
    etas = np.array([0.1, 0.025])
    drifts = [flows.one_step_drift(toy, start, eta) for eta in etas]
    errors = np.array([np.linalg.norm(drift - goal) for drift in drifts])
    assert errors[1] < 2e-3 * np.linalg.norm(goal)
    assert 0.8 < order(etas, errors) < 2.2
    probability, gradients = landscape.sample_gradients(toy, start)
    exact = np.einsum("s,skl->kl", probability, landscape.imbalance(toy, gradients))
    landed = landscape.imbalance(toy, flows.limit(toy, start - 0.1 * gradients))
    drift = (np.einsum("s,skl->kl", probability, landed) - landscape.imbalance(toy, start)) / 0.1**2
    np.testing.assert_allclose(drift, exact, atol=1e-8)


def test_resting_points_minimise_what_they_say() -> None:
    x = np.linspace(0.3, 4, 200_001)
    z, a = E.target[0], np.diag(landscape.softmax_curvature(E)[1])
    h_uu, h_ee = (a @ z**2) / x, a[:, None] * x
    rest = flows.resting_points(E, 4.0)
    assert x[np.argmin(h_uu + h_ee.sum(axis=0))] == pytest.approx(rest["sgd"], abs=1e-4)
    assert x[np.argmin(np.sqrt(h_uu) + np.sqrt(h_ee).sum(axis=0))] == pytest.approx(rest["adam"], abs=1e-4)
    assert flows.resting_points(E, 0.0)["adamw"] == pytest.approx(rest["adam"])
    s_u, s_e = np.sqrt(a @ z**2 / rest["adamw"]), np.sqrt(a * rest["adamw"])
    decay = 4.0 / 2 * (s_u * x + (s_e * z**2).sum() / x)
    noise = (h_uu / s_u + (h_ee / s_e[:, None]).sum(axis=0)) / 4
    assert x[np.argmin(decay + noise)] == pytest.approx(rest["adamw"], abs=1e-4)
    assert flows.resting_points(U, 1.0) == pytest.approx(dict.fromkeys(rest, np.log(4)))


def test_slow_plane_holds_the_end_of_the_flow() -> None:
    toy, start = STARTS["M"]
    end, slow, rest = flows.slow_plane(toy, start, 60.0)
    assert landscape.manifold_trace(toy, end) == pytest.approx(landscape.least_trace(toy), abs=1e-12)
    assert abs(slow @ rest) < 1e-12
    late = flows.flow(toy, start, np.array([30.0]))[0] - end
    assert abs(late @ slow) > 0.95 * np.linalg.norm(late)
    grid = landscape.onto_manifold(toy, end + np.outer([0.5, 1.0], slow) + 0.3 * rest)
    assert models.distance(toy, grid).max() < 1e-9
    assert (landscape.manifold_trace(toy, grid) > landscape.least_trace(toy)).all()


@pytest.mark.parametrize("p", [0, 1, -0.1, 1.2, float("nan"), "0.5"])
def test_p_outside_the_unit_interval(p: object) -> None:
    with pytest.raises(UserError, match=r"p: found .*; allowed: a probability strictly between 0 and 1"):
        models.one_context(p)  # type: ignore[arg-type]


@pytest.mark.parametrize("joint", [[[0.5, 0.5]], [[0.5, 0.6], [0.1, 0.1]], [[1.0, 0.0], [0.0, 0.0]]])
def test_joint_tables_are_checked(joint: list[list[float]]) -> None:
    with pytest.raises(UserError, match="joint table"):
        models.two_word_sentences(np.array(joint), "E", 1, True)


@EVERY
def test_a_start_off_the_manifold(name: str) -> None:
    toy, start = STARTS[name]
    with pytest.raises(UserError, match=rf"start of model {name}: found a point off the minimiser manifold"):
        flows.flow(toy, start + 1e-3, np.array([1.0]))
    with pytest.raises(UserError, match="off the minimiser manifold"):
        flows.one_step_drift(toy, start + 1e-3, 0.1)
    with pytest.raises(UserError, match=f"allowed: {toy.dim} parameters"):
        flows.flow(toy, start[:-1], np.array([1.0]))


@pytest.mark.parametrize("batch", [0, -1, 1.5, True, "2"])
def test_batch_below_one(batch: object) -> None:
    with pytest.raises(UserError, match=r"batch size B: found .*; allowed: a whole number of at least 1"):
        flows.flow(*STARTS["E"], np.array([1.0]), batch)  # type: ignore[arg-type]


def test_too_many_batches_to_enumerate() -> None:
    with pytest.raises(UserError, match="batch size B: found 12"):
        flows.one_step_drift(*STARTS["E"], 0.1, 12)
