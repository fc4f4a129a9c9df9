"""The transformer: cropping, padding, the classification token, double backward, initialisation."""

import pytest
import torch
from pydantic import ValidationError
from torch.func import functional_call

from sameloss.errors import UserError
from sameloss.learners.stack import apply, build, stack
from sameloss.learners.transformer import TransformerConfig


def config(**changes) -> TransformerConfig:
    return TransformerConfig(**({"vocab": 5, "length": 6, "width": 8, "layers": 2, "heads": 2} | changes))


def tokens(n: int, c: TransformerConfig) -> torch.Tensor:
    return torch.randint(c.vocab, (n, c.length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_cropping_to_the_masked_position_changes_nothing(tied, layers):
    c = config(tied=tied, layers=layers)
    model, x = build(c, 0).double(), tokens(7, c)
    position = torch.tensor([0, 5, 2, 3, 1, 4, 0])
    everywhere = model(x)
    assert everywhere.shape == (7, 6, 5)
    assert torch.allclose(model(x, position), everywhere[torch.arange(7), position], atol=1e-13)


def test_padding_cannot_be_seen():
    c = config(padded=True)
    model = build(c, 0).double()
    short = torch.tensor([[0, 1, 2, 3]])
    full = torch.cat([short, torch.full((1, 2), c.pad)], dim=1)
    assert torch.allclose(model(full)[:, :4], model(short), atol=1e-13)
    assert (model.features(full)[:, 4:] == 0).all()
    assert model.features(full)[:, :4].abs().sum() > 1


def test_classification_token_leaves_the_words_where_they_are():
    c = config()
    model, x = build(c, 0), tokens(3, c)
    with_token = torch.cat([torch.full((3, 1), c.cls), x], dim=1)
    assert model(with_token).shape == (3, 7, 5)
    assert torch.equal(model._positions(with_token)[1:], model._positions(x))
    with pytest.raises(UserError, match="at most 6"):
        model(torch.cat([with_token, x], dim=1))


def test_the_second_derivative_exists_and_is_right():
    c = config(tied=True)
    model, x, at = build(c, 1).double(), tokens(2, c), torch.tensor([1, 4])
    params = {name: p.detach() for name, p in model.named_parameters()}
    direction = {name: torch.randn_like(p) for name, p in params.items()}

    def loss(t: torch.Tensor) -> torch.Tensor:
        moved = {name: p + t * direction[name] for name, p in params.items()}
        return functional_call(model, moved, (x, at)).log_softmax(-1)[:, 0].sum()

    t = torch.zeros((), dtype=torch.double, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(t), t, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, t)
    h = torch.tensor(1e-4, dtype=torch.double)
    by_differences = (loss(h) - 2 * loss(0 * h) + loss(-h)) / h**2
    assert float(curvature) == pytest.approx(float(by_differences), rel=1e-5)


def test_a_stack_computes_what_its_members_compute():
    c = config(tied=True, padded=True)
    models, x = [build(c, seed) for seed in (3, 4)], tokens(10, c).view(2, 5, 6)
    at = torch.zeros(2, 5, dtype=torch.long)
    params = stack(models)
    assert "head.weight" not in params  # tied: one tensor
    logits, features = apply(c)(params, x, at), apply(c)(params, x, features=True)
    for i, model in enumerate(models):
        assert torch.allclose(logits[i], model(x[i], at[i]), atol=1e-5)
        assert torch.allclose(features[i], model.features(x[i]), atol=1e-5)


def test_initialisation_follows_the_seed_and_nothing_else():
    torch.manual_seed(0)
    first = build(config(), 5)
    torch.rand(3)
    state = torch.get_rng_state()
    again = build(config(), 5)
    assert torch.equal(state, torch.get_rng_state())
    other = build(config(), 6)
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.dim() == 1 or not torch.equal(a, c)


def test_parameter_counts_of_the_laptop_sizes():
    counts = {d: sum(p.numel() for p in build(config(vocab=16, length=8, width=d), 0).parameters()) for d in (8, 16)}
    assert counts == {8: 2128, 16: 7312}


def test_heads_must_divide_the_width():
    with pytest.raises(ValidationError, match="multiple of heads"):
        config(width=9)
