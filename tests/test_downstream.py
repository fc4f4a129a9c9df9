"""The linear probe against scikit-learn and closed forms; features; the paper's recipes; bad input."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from sameloss.errors import UserError
from sameloss.learners.stack import build
from sameloss.learners.transformer import TransformerConfig
from sameloss.measures.downstream import bayes_ceiling, linear_probe, score
from sameloss.measures.downstream_features import features, lookup_features, masked_features, one_hot_features, project
from sameloss.measures.downstream_recipes import adamw_probe, fine_tune
from sameloss.measures.logistic import fit

CONFIG = TransformerConfig(vocab=4, length=5, width=8, layers=2, heads=2)


def blobs(n: int, dimensions: int, classes: int, seed: int, decay: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated features whose scales span e^-decay, and labels from a noisy linear rule."""
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(dimensions, dimensions, generator=g) / dimensions**0.5
    x = (torch.randn(n, dimensions, generator=g) * torch.linspace(0, -decay, dimensions).exp()) @ mix
    rule = torch.randn(dimensions, classes, generator=g) * 5 / dimensions**0.5
    return x, (x @ rule / x.std() + torch.randn(n, classes, generator=g)).argmax(1)


@pytest.mark.parametrize(
    ("n", "dimensions", "classes", "decay"), [(600, 5, 2, 0.0), (3000, 40, 8, 4.0), (900, 64, 30, 6.0)]
)
def test_objective_is_the_optimum(n, dimensions, classes, decay):
    x, y = blobs(n, dimensions, classes, 0, decay)
    result = linear_probe(x, y, x, y, classes, l2=1e-3)
    scaled = (x - x.mean(0)) / (x - x.mean(0)).square().mean().sqrt()
    # With two classes scikit-learn fits one row, which stands for (-w/2, w/2): |W|^2 is half of |w|^2.
    strength = (2 if classes == 2 else 1) / (1e-3 * n)
    peer = LogisticRegression(C=strength, max_iter=20000, tol=1e-10).fit(scaled.double().numpy(), y.numpy())
    weight, bias = torch.from_numpy(peer.coef_), torch.from_numpy(peer.intercept_)
    if classes == 2:
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    best = F.cross_entropy(F.linear(scaled.double(), weight, bias), y) + 0.5e-3 * weight.square().sum()
    assert float(best) * (1 - 1e-6) <= result.objective <= float(best) * (1 + 1e-3)


def test_separable_features_are_solved_too():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 4
    x = F.one_hot(y, 4) * 10.0 + 0.1 * torch.randn(400, 4, generator=g)
    loose, tight = (fit(x, y, 4, 1e-4, tolerance) for tolerance in (1e-3, 1e-7))
    assert loose.objective <= tight.objective * (1 + 1e-3)
    assert linear_probe(x, y, x, y, 4).accuracy.value == 1.0


def test_scores_by_hand():
    log_p = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3]]).log()
    result = score(log_p, torch.tensor([0, 2]))
    assert result.accuracy.value == 0.5
    assert result.cross_entropy.value == pytest.approx(-(np.log(0.7) + np.log(0.3)) / 2)
    assert result.brier.value == pytest.approx(((0.09 + 0.04 + 0.01) + (0.09 + 0.16 + 0.49)) / 2)
    assert result.accuracy.n == 2


def test_ceiling_is_met_by_the_posterior_itself():
    rng = np.random.default_rng(0)
    posteriors = rng.dirichlet(np.ones(3) / 2, size=20000)
    labels = (posteriors.cumsum(1) > rng.random((20000, 1))).argmax(1)
    ceiling, met = bayes_ceiling(posteriors), score(torch.from_numpy(posteriors).log(), torch.from_numpy(labels))
    for name in ("accuracy", "cross_entropy", "brier"):
        difference = getattr(ceiling, name) - getattr(met, name)
        assert abs(difference.value) < 3 * difference.stderr, name


def test_features_come_in_the_order_of_the_sentences():
    model = build(CONFIG, 0).eval()
    tokens = torch.randint(4, (7, 5), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(features(model, tokens, chunk=3), model.features(tokens), atol=1e-6)
    hidden = masked_features(model, tokens, CONFIG.mask, chunk=3)
    assert hidden.shape == (7, 5, 8)
    changed = tokens.clone()
    changed[:, 2] = (changed[:, 2] + 1) % 4
    again = masked_features(model, changed, CONFIG.mask, positions=[2])
    assert torch.allclose(again[:, 0], hidden[:, 2], atol=1e-6)  # the masked word cannot be seen
    assert not torch.allclose(masked_features(model, changed, CONFIG.mask)[:, 1], hidden[:, 1], atol=1e-3)


def test_lookup_and_one_hot_features():
    conditionals = np.random.default_rng(0).dirichlet(np.ones(3), size=(4, 2))
    assert lookup_features(conditionals).shape == (4, 6)
    assert np.allclose(lookup_features(conditionals, log=True).exp().numpy(), conditionals.reshape(4, 6), atol=1e-6)
    assert one_hot_features(torch.tensor([[0, 2], [1, 1]]), 3).tolist() == [[1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 1, 0]]


def test_projection_is_a_rotation_at_full_dimension():
    x = torch.randn(10, 4, 4, generator=torch.Generator().manual_seed(0))
    full, half = project(x, 16, seed=1), project(x, 8, seed=1)
    assert torch.allclose(full.square().sum(1), x.flatten(1).square().sum(1), rtol=1e-5)
    assert half.shape == (10, 8)
    assert torch.equal(half, project(x, 8, seed=1))
    assert not torch.equal(half, project(x, 8, seed=2))
    with pytest.raises(UserError, match="16 features cannot be projected to 17"):
        project(x, 17, seed=1)


def test_the_papers_recipe_comes_close_to_the_optimum():
    x, y = blobs(3000, 20, 4, 1, decay=0.0)
    split = (x[:1500], y[:1500], x[1500:], y[1500:])
    ours, paper = linear_probe(*split, 4), adamw_probe(*split, 4, seed=0, epochs=100, lr=1e-2)
    assert abs(ours.accuracy.value - paper.accuracy.value) < 0.02
    assert paper.cross_entropy.value == pytest.approx(ours.cross_entropy.value, rel=0.05)


def test_fine_tuning_learns_what_a_probe_cannot_and_leaves_the_model_alone():
    model = build(CONFIG, 0).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, (1500, 5), generator=g)
    labels = (tokens[:, 0] == tokens[:, 1]).long()
    split = (tokens[:1200], labels[:1200], tokens[1200:], labels[1200:])
    result = fine_tune(model, CONFIG.cls, *split, 2, seed=0, epochs=12, lr=1e-2, warmup=10)
    assert result.accuracy.value > 0.95
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_bad_input_is_one_clear_line():
    x, y = blobs(50, 6, 3, 0)
    with pytest.raises(UserError, match="class 3 never occurs among the 50 training labels"):
        linear_probe(x, y, x, y, 4)
    with pytest.raises(UserError, match="2 training examples for 3 classes"):
        linear_probe(x[:2], y[:2], x, y, 3)
    broken = x.clone()
    broken[3, 2] = torch.nan
    with pytest.raises(UserError, match="training set: 1 features are not finite"):
        linear_probe(broken, y, x, y, 3)
    with pytest.raises(UserError, match="test set: 1 features are not finite"):
        linear_probe(x, y, broken, y, 3)
    with pytest.raises(UserError, match=r"allowed: 0\.\.1"):
        linear_probe(x, y, x, y, 2)
    with pytest.raises(UserError, match="50 feature rows and 49 labels"):
        linear_probe(x, y[:49], x, y, 3)
    with pytest.raises(UserError, match="6 training features and 5 test"):
        linear_probe(x, y, x[:, :5], y, 3)
