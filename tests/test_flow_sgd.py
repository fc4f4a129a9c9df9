"""Replicas of SGD and its relatives against enumeration, torch's optimisers and the flow they should (not) follow."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from sameloss.errors import UserError
from sameloss.seeds import stream
from sameloss.theory import flow as flows
from sameloss.theory import flow_ladder, flow_sgd
from sameloss.theory import flow_landscape as landscape
from sameloss.theory import flow_models as models
from sameloss.theory.flow_sgd import Rule

U, E, M = models.one_context(), models.shared_decoder(), models.matrix_model()
STARTS = {
    "U": (U, models.start(U, 3.0)),
    "E": (E, models.start(E, 3.0)),
    "M": (M, models.start(M, models.M_START)),
}
EVERY = pytest.mark.parametrize("name", list(STARTS))
SEED = 90_210


def off_manifold(toy: models.Toy, start: np.ndarray) -> np.ndarray:
    return start + 0.3 * stream(4, "theory/test").normal(size=toy.dim)


def one_step(toy: models.Toy, theta: np.ndarray, rule: Rule, replicas: int = 60_000) -> np.ndarray:
    """Stochastic gradients (R, d) that the compiled loop draws at theta."""
    return (theta - flow_sgd.train(toy, theta, 0.5, [1], replicas, SEED, rule)[0]) / 0.5


def enumerated(toy: models.Toy, theta: np.ndarray, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of one stochastic gradient, by enumeration."""
    f = np.exp(models.log_probabilities(toy, theta))
    jacobian, words = landscape.logit_jacobian(toy, theta), f.shape[1]
    full = landscape.gradient(toy, theta)
    labels = {"self": f, "labels": toy.truth}.get(rule.noise)
    if rule.noise == "isotropic":
        return full, np.eye(toy.dim) * np.trace(landscape.covariance(toy, theta)) / (toy.dim * rule.batch)
    if labels is None:  # soft: one gradient a context
        probability, gradients = toy.weights, np.einsum("cv,cvd->cd", f - toy.truth, jacobian)
    else:
        residual = f[:, None, :] - np.eye(words)
        probability = (toy.weights[:, None] * labels).ravel()
        gradients = np.einsum("cyv,cvd->cyd", residual, jacobian).reshape(-1, toy.dim)
    mean = probability @ gradients
    return mean, (probability[:, None] * (gradients - mean)).T @ (gradients - mean) / rule.batch


@EVERY
@pytest.mark.parametrize(
    "rule", [Rule(), Rule(batch=4), Rule(noise="soft", batch=2), Rule(noise="self"), Rule(noise="isotropic", batch=3)]
)
def test_noise_has_the_mean_and_covariance_it_should(name: str, rule: Rule) -> None:
    toy, start = STARTS[name]
    theta = off_manifold(toy, start)
    drawn = one_step(toy, theta, rule)
    mean, covariance = enumerated(toy, theta, rule)
    stderr = np.sqrt(np.diag(covariance) / len(drawn))
    assert (np.abs(drawn.mean(axis=0) - mean) < 4.5 * stderr + 1e-12).all()
    assert np.abs(np.cov(drawn.T) - covariance).max() < 0.05 * np.abs(covariance).max() + 1e-12


@EVERY
def test_full_batch_optimisers_are_those_of_torch(name: str) -> None:
    toy, start = STARTS[name]
    theta = off_manifold(toy, start)
    cases = {
        "sgd": lambda x: torch.optim.SGD(x, lr=0.05),
        "momentum": lambda x: torch.optim.SGD(x, lr=0.05, momentum=0.8),
        "adam": lambda x: torch.optim.Adam(x, lr=0.05, betas=(0.8, 0.95)),
        "adamw": lambda x: torch.optim.AdamW(x, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1),
    }
    for optimiser, make in cases.items():
        parameter = torch.nn.Parameter(torch.from_numpy(theta.copy()))
        torch_optimiser = make([parameter])
        for _ in range(30):
            torch_optimiser.zero_grad()
            landscape.torch_loss(toy, parameter).backward()
            torch_optimiser.step()
        rule = Rule("full", optimiser, momentum=0.8, betas=(0.8, 0.95), weight_decay=0.1)  # type: ignore[arg-type]
        ours = flow_sgd.train(toy, theta, 0.05, [30], 1, SEED, rule)[0, 0]
        np.testing.assert_allclose(ours, parameter.detach().numpy(), atol=1e-7, err_msg=optimiser)


def test_imbalance_changes_at_second_order_only_whatever_the_learning_rate() -> None:
    """h' = h (1 - eta^2 g^2) for U, exactly."""
    theta = off_manifold(*STARTS["U"])
    moved = flow_sgd.train(U, theta, 0.7, [1], 64, SEED)[0]
    residual = (theta[0] - moved[:, 0]) / (0.7 * theta[1])
    h = landscape.imbalance(U, theta)[0, 0] * (1 - 0.49 * residual**2)
    np.testing.assert_allclose(landscape.imbalance(U, moved)[:, 0, 0], h, rtol=1e-12)


def test_same_seed_same_bytes_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for threads, seed in ((1, 1), (2, 1), (2, 2)):
        monkeypatch.setattr(flow_sgd.numba.config, "NUMBA_NUM_THREADS", threads)
        runs.append(flow_sgd.train(*STARTS["E"], 0.1, [5, 40], 700, seed).tobytes())
    assert runs[0] == runs[1]
    assert runs[1] != runs[2]


def test_replicas_leave_torch_its_number_of_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    flow_sgd.train(*STARTS["E"], 0.1, [5], 300, SEED)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["U", "E"])
@pytest.mark.parametrize("batch", [1, 2])
def test_ladder_finds_the_coefficient(name: str, batch: int) -> None:
    table = flow_ladder.ladder([STARTS[name]], 5.0, [128, 256, 512, 1024, 2048], [batch], 1024, SEED)
    eta, kappa, stderr = (table[column].to_numpy() for column in ("eta", "kappa", "kappa_stderr"))
    (limit, slope, _), misfit = flow_ladder.extrapolate(eta, kappa, stderr)
    assert abs(limit.value - 0.25 / batch) < 3 * limit.stderr
    assert limit.stderr < 0.01 * limit.value
    assert slope.value > 3 * slope.stderr
    assert misfit < 5
    assert flow_ladder.order(eta, table["h"] - table["h_flow"]) == pytest.approx(1, abs=0.2)
    assert flow_ladder.order(eta, table["rms_limit"]) == pytest.approx(1, abs=0.2)
    assert flow_ladder.order(eta, table["rms_raw"]) == pytest.approx(0.5, abs=0.15)
    spread = table["x_0.95"] - table["x_0.05"]
    assert flow_ladder.order(eta, spread) == pytest.approx(1, abs=0.2)


def test_a_line_in_eta_is_biased_where_the_parabola_is_not() -> None:
    eta = np.array([0.05, 0.1, 0.15, 0.2])
    value = 0.25 * (1 + 0.9 * eta + 0.8 * eta**2)
    (line, _), _ = flow_ladder.extrapolate(eta, value, np.full(4, 1e-4), 1)
    (parabola, *_), _ = flow_ladder.extrapolate(eta, value, np.full(4, 1e-4), 2)
    assert abs(line.value - 0.25) > 3 * line.stderr
    assert parabola.value == pytest.approx(0.25, abs=1e-12)


def controlled(noise: str, eta: float, replicas: int = 400) -> np.ndarray:
    toy, start = STARTS["E"]
    return flow_sgd.train(toy, start, eta, [round(5 / eta**2)], replicas, SEED, Rule(noise=noise))[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", ["full", "soft"])
def test_controls_without_noise_stay_where_they_are(noise: str) -> None:
    assert np.abs(controlled(noise, 0.1, 20) - STARTS["E"][1]).max() < 1e-12


def test_labels_from_the_model_let_the_function_drift_away() -> None:
    own = [models.distance(E, controlled("self", eta)).mean() for eta in (0.1, 0.05)]
    true = [models.distance(E, controlled("labels", eta)).mean() for eta in (0.1, 0.05)]
    assert own[1] > 0.8 * own[0] > 1.0
    assert true[1] < 0.8 * true[0] < 0.4


def test_isotropic_noise_does_not_concentrate() -> None:
    def spread(noise: str, eta: float) -> float:
        x = flows.limit(E, controlled(noise, eta))[:, 0] ** 2
        return float(np.subtract(*np.quantile(x, [0.75, 0.25])))

    assert spread("isotropic", 0.05) > 0.8 * spread("isotropic", 0.1) > 2
    assert spread("labels", 0.05) < 0.7 * spread("labels", 0.1) < 0.2


def test_heavy_ball_follows_the_same_flow_at_the_effective_learning_rate() -> None:
    toy, start = STARTS["E"]
    goal = flows.flow(toy, start, np.array([5.0]))[0, 0] ** 2
    gaps = []
    for effective in (0.1, 0.05):
        rule = Rule(optimiser="momentum", momentum=0.9)
        theta = flow_sgd.train(toy, start, effective / 10, [round(5 / effective**2)], 400, SEED, rule)[0]
        gaps.append(abs(np.mean(flows.limit(toy, theta)[:, 0] ** 2) - goal))
    assert gaps[1] < 0.7 * gaps[0] < 0.25


def test_adam_with_slow_second_moments_rests_elsewhere() -> None:
    toy, start = STARTS["E"]
    rule = Rule(optimiser="adam", betas=(0.0, 1 - 1e-4))
    theta = flow_sgd.train(toy, start, 0.02, [100_000], 32, SEED, rule)[0]
    x, rest = flows.limit(toy, theta)[:, 0] ** 2, flows.resting_points(toy, 0.0)
    assert np.mean(x) == pytest.approx(rest["adam"], rel=0.1)
    assert abs(np.mean(x) - rest["sgd"]) > 0.4


def test_adamw_rests_where_decay_and_noise_balance() -> None:
    toy, start = STARTS["E"]
    rule = Rule(optimiser="adamw", betas=(0.0, 1 - 1e-4), weight_decay=0.04)
    theta = flow_sgd.train(toy, start, 0.01, [50_000], 32, SEED, rule)[0]
    x = np.mean(flows.limit(toy, theta)[:, 0] ** 2)
    assert x == pytest.approx(flows.resting_points(toy, 4.0)["adamw"], rel=0.1)


def test_relax_lands_where_the_limit_map_does() -> None:
    toy, start = STARTS["M"]
    theta = flow_sgd.train(toy, start, 0.1, [200], 2, SEED)[0]
    landed = flow_sgd.relax(toy, theta, eta=0.05, time=600.0)
    assert models.distance(toy, landed).max() < 1e-6
    np.testing.assert_allclose(landed, flows.limit(toy, theta), atol=0.01)


@pytest.mark.parametrize("eta", [0, -0.1, float("nan"), float("inf"), "0.1"])
def test_learning_rates_that_are_none(eta: object) -> None:
    with pytest.raises(UserError, match=r"learning rate eta: found .*; allowed: a finite number above 0"):
        flow_sgd.train(*STARTS["E"], eta, [10], 4, 1)  # type: ignore[arg-type]


def test_replicas_that_do_not_fit_into_memory() -> None:
    with pytest.raises(UserError, match=r"replicas: found 1000000000000, which needs .* GB; allowed: up to \d+ with"):
        flow_sgd.train(*STARTS["E"], 0.1, [10], 10**12, 1)
    with pytest.raises(UserError, match="replicas: found 0; allowed: a whole number of at least 1"):
        flow_sgd.train(*STARTS["E"], 0.1, [10], 0, 1)


def test_rules_that_do_not_exist() -> None:
    with pytest.raises(UserError, match="noise: found 'pink'; allowed: labels, full, soft, self, isotropic"):
        Rule(noise="pink")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="optimiser: found 'lion'; allowed: sgd, momentum, adam, adamw"):
        Rule(optimiser="lion")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="batch size B: found 0"):
        Rule(batch=0)
    with pytest.raises(UserError, match="momentum: found 1"):
        Rule(momentum=1)


def test_ladders_that_cannot_be_climbed() -> None:
    toy, start = STARTS["E"]
    with pytest.raises(UserError, match="duration K: found 0"):
        flow_ladder.ladder([(toy, start)], 0, [64], [1], 8, 1)
    with pytest.raises(UserError, match="steps of the ladder: found"):
        flow_ladder.ladder([(toy, start)], 5.0, [0], [1], 8, 1)
    with pytest.raises(UserError, match="off the minimiser manifold"):
        flow_ladder.ladder([(toy, start + 1e-3)], 5.0, [64], [1], 8, 1)
    with pytest.raises(UserError, match="model of the ladder: found M; allowed: U or E"):
        flow_ladder.ladder([STARTS["M"]], 5.0, [64], [1], 8, 1)
    with pytest.raises(UserError, match="learning rates of the ladder: found 3; allowed: at least 4"):
        flow_ladder.extrapolate(np.ones(3), np.ones(3), np.ones(3))
    with pytest.raises(UserError, match="steps to look at"):
        flow_sgd.train(toy, start, 0.1, [10, 5], 4, 1)


def test_published_rows_are_what_the_code_gives() -> None:
    """The cheapest rungs of the published ladder, computed again: a difference asks for a new RECIPE of the wing."""
    (path,) = (Path(__file__).parents[1] / "book" / "results" / "laptop" / "03_sgd_flow").glob("ladder.*.csv")
    published = pd.read_csv(path)
    for _, row in published[(published["steps"] == 64) & (published["batch"] <= 2)].iterrows():
        toy, start = STARTS[row["model"]]
        again = flow_ladder.rung(toy, start, row["duration"], 64, row["replicas"], row["batch"], row["seed"])
        for key in ("h", "h_stderr", "kappa", "kappa_stderr", "rms_limit", "rms_raw", "x_0.05", "x_0.95"):
            assert again[key] == pytest.approx(row[key], rel=1e-9), key


def test_published_coefficients_are_within_three_standard_errors_and_half_a_percent() -> None:
    (path,) = (Path(__file__).parents[1] / "book" / "results" / "laptop" / "03_sgd_flow").glob("ladder.*.csv")
    published = pd.read_csv(path)
    assert set(published["seed"]) == {31}
    fits = 0
    for (_, batch), rows in published[published["eta"] <= 0.2].groupby(["model", "batch"]):
        columns = (rows[column].to_numpy() for column in ("eta", "kappa", "kappa_stderr"))
        limit = flow_ladder.extrapolate(*columns)[0][0]
        assert abs(limit.value - 0.25 / batch) < 3 * limit.stderr
        assert 1.96 * limit.stderr <= 0.005 * 0.25 / batch
        assert flow_ladder.order(rows["eta"], rows["h"] - rows["h_flow"]) == pytest.approx(1, abs=0.2)
        fits += 1
    assert fits == 6
