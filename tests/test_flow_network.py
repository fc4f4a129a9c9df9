"""The drift at a network: the general code on toy models whose limit map is known, and a small transformer."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from sameloss.errors import UserError
from sameloss.runs import flow_drift
from sameloss.runs.settings import DriftCondition, DriftSettings
from sameloss.theory import flow as flows
from sameloss.theory import flow_landscape as landscape
from sameloss.theory import flow_models as models
from sameloss.theory import flow_network
from sameloss.theory.flow_network import Network


def as_network(toy: models.Toy, start: np.ndarray) -> Network:
    """A toy model (all contexts equally likely) the way a network is given: a function of a flat vector."""
    cut = toy.outputs * toy.rank

    def log_probs(theta: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        logits = (theta[:cut].reshape(toy.outputs, toy.rank) @ theta[cut:].reshape(toy.rank, -1)).T
        if toy.reference:
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        return logits.log_softmax(1)[rows]

    return Network.own_truth(log_probs, torch.from_numpy(start), len(toy.weights))


def even(toy: models.Toy) -> models.Toy:
    return dataclasses.replace(toy, weights=np.full(len(toy.weights), 1 / len(toy.weights)))


E, M = even(models.shared_decoder()), even(models.matrix_model())
STARTS = {"E": (E, models.start(E, 3.0)), "M": (M, models.start(M, models.M_START))}
BOTH = pytest.mark.parametrize("name", list(STARTS))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@BOTH
def test_curvature_is_that_of_the_toy(name: str) -> None:
    toy, start = STARTS[name]
    net = as_network(toy, start)
    shape = flow_network.curvature(net)
    assert int(shape.tangent.sum()) == {"E": 1, "M": 15}[name]
    assert shape.trace == pytest.approx(float(landscape.manifold_trace(toy, start)), abs=1e-12)
    assert flow_network.trace(net, net.theta) == pytest.approx(shape.trace, abs=1e-12)
    drift = -4 * (flows.velocity(toy, start, 2) ** 2).sum() * 2
    assert shape.predicted(batch=2) == pytest.approx(drift, rel=1e-10)
    assert shape.predicted_within(1e9) == pytest.approx(shape.predicted(), rel=1e-12)
    assert shape.predicted_within(0.0) == pytest.approx(-float(shape.slope @ shape.slope) / 4, rel=1e-12)


@BOTH
def test_lemma_holds_for_own_labels_and_fails_for_others(name: str) -> None:
    net = as_network(*STARTS[name])
    gap, size = flow_network.lemma_gap(net, net.theta, net.truth)
    assert gap < 1e-13 * size
    gap, size = flow_network.lemma_gap(net, net.theta, net.truth.flip(0))
    assert gap > 0.01 * size


@BOTH
def test_flow_back_lands_where_the_limit_map_does(name: str) -> None:
    toy, start = STARTS[name]
    net = as_network(toy, start)
    shape = flow_network.curvature(net)
    moved = flow_network.sgd(net, 0.02, 5, 2, 6, torch.Generator().manual_seed(1))
    exact = flows.limit(toy, start + moved.numpy()) - start
    landed = flow_network.returned(net, shape, moved, until=1e5)
    errors = [
        np.abs((flow_network.flow_back(net, shape, moved, growth, 1e5) @ shape.vectors.T).numpy() - exact).max()
        for growth in (1.5, 1.2)
    ]
    assert errors[1] < 0.4 * errors[0]
    assert np.abs((landed @ shape.vectors.T).numpy() - exact).max() < 0.3 * errors[0]
    change = landscape.manifold_trace(toy, start + exact) - shape.trace
    np.testing.assert_allclose(flow_network.trace_change(shape, landed).numpy(), change, rtol=0.02)
    np.testing.assert_allclose(flow_network.trace_change(shape, landed, tangent_only=False).numpy(), change, rtol=0.02)


def test_one_step_has_the_hessian_as_covariance() -> None:
    net = as_network(*STARTS["E"])
    shape = flow_network.curvature(net)
    moved = flow_network.sgd(net, 0.1, 1, 4, 40_000, torch.Generator().manual_seed(2))
    hessian = shape.vectors * shape.values @ shape.vectors.T
    covariance = torch.cov(moved.T) * 4 / 0.1**2
    assert float((covariance - hessian).abs().max()) < 0.03 * float(hessian.abs().max())
    assert float((moved.mean(0) / (0.1 * (hessian.diag() / 4 / len(moved)).sqrt())).abs().max()) < 4.5


@pytest.mark.parametrize("batch", [1, 4])
def test_trace_drifts_as_predicted(batch: int) -> None:
    net = as_network(*STARTS["E"])
    shape = flow_network.curvature(net)
    moved = flow_network.sgd(net, 1e-3, 20, batch, 600, torch.Generator().manual_seed(3))
    change = flow_network.trace_change(shape, flow_network.returned(net, shape, moved, until=1e4))
    ratio = change / (20 * 1e-3**2 * shape.predicted(batch))
    assert abs(float(ratio.mean()) - 1) < 3 * float(ratio.std()) / 600**0.5
    assert float(ratio.std()) / 600**0.5 < 0.03


def normed(norm: torch.nn.Module, wrong: bool = False) -> Network:
    """Two words out of a linear layer behind a layer norm; wrong: a factor that differentiation does not see."""
    inputs = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))

    def log_probs(theta: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        affine = {"weight": theta[9:12], "bias": theta[12:15]}
        hidden = torch.func.functional_call(norm, affine, (inputs[rows] @ theta[:9].view(3, 3),))
        hidden = hidden * theta.norm().detach() if wrong else hidden
        return (hidden @ theta[15:].view(3, 2)).log_softmax(-1)

    theta = torch.randn(21, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return Network.own_truth(log_probs, theta, len(inputs))


def test_slope_of_the_trace_through_a_layer_norm_is_right() -> None:
    net = normed(flow_drift.WrittenOut(torch.nn.LayerNorm(3).double()))
    shape = flow_network.curvature(net)
    way = torch.randn(21, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    ends = [flow_network.trace(net, net.theta + sign * 1e-5 * way) for sign in (1, -1)]
    assert float(shape.slope @ (shape.vectors.T @ way)) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)


def test_wrong_third_derivatives_are_noticed() -> None:
    with pytest.raises(UserError, match=r"by automatic differentiation and .* by differences"):
        flow_network.curvature(normed(flow_drift.WrittenOut(torch.nn.LayerNorm(3).double()), wrong=True))


def test_layer_norms_written_out_compute_the_same() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.Sequential(torch.nn.LayerNorm(3))
    )
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(7))
    before, names = model(x), [name for name, _ in model.named_parameters()]
    after = flow_drift.written_out(model)
    torch.testing.assert_close(after(x), before)
    assert [name for name, _ in after.named_parameters()] == names
    assert not any(isinstance(part, torch.nn.LayerNorm) for part in after.modules())


def test_power_computation() -> None:
    assert flow_network.replicas_needed(0.5, 0.05) == 385
    assert flow_network.replicas_needed(0.1, 0.02) == 97


def test_single_precision_is_refused() -> None:
    net = as_network(*STARTS["E"])
    with pytest.raises(UserError, match=r"network parameters: found torch.float32; allowed: torch.float64"):
        Network.own_truth(net.log_probs, net.theta.float(), 4)


def test_drift_of_a_small_transformer() -> None:
    small = DriftSettings.model_validate(
        {
            "language": {"kind": "tree_grammar", "share": 0, "among": 16},
            "model": {"kind": "transformer", "width": 4, "layers": 1, "heads": 1, "mlp": 1},
            "train": {"steps": 5, "batch": 16},
            "contexts": 24,
            "kicks": 4,
            "together": 3,
            "pilot_spread": 0.5,
            "precision": 0.45,
            "conditions": [],
        }
    )
    made = flow_drift.trained(small, 8)
    row = flow_drift.facts(small, 8).iloc[0]
    assert row["lemma_own"] < 1e-12 < row["lemma_language"]
    assert row["parameters"] == len(made.net.theta)
    assert 0 < row["tangent"] < row["parameters"]
    assert 0 > row["predicted"] >= row["within_1e16"] > row["within_1e6"] > row["within_1e0"]
    table = flow_drift.drift(small, DriftCondition(eta=1e-4, batch=2), 8)
    assert len(table) == small.replicas == 5
    assert table[["ratio", "within"]].notna().all().all()
    np.testing.assert_allclose(table["exact"][:4], table["within"][:4], rtol=0.1)
    assert table.equals(flow_drift.drift(small, DriftCondition(eta=1e-4, batch=2), 8))
