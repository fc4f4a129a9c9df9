"""Traces against autograd, enumeration and each other; honest standard errors; bad input."""

import copy

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from sameloss.errors import UserError
from sameloss.learners.stack import build
from sameloss.learners.transformer import TransformerConfig
from sameloss.measures.estimate import Estimate
from sameloss.measures.flatness import fisher_per_context, fisher_trace, hugging_face, why_not_fast
from sameloss.measures.flatness_exact import exact_fisher_trace, exact_hessian_trace
from sameloss.measures.flatness_hessian import gauss_newton_trace, hessian_trace
from sameloss.measures.robust import robust
from sameloss.measures.sharpness import adaptive_sharpness


def case(seed: int, n: int, **changes) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """A random transformer with sharpened logits (so that p is far from uniform) and random masked contexts."""
    c = TransformerConfig(**({"vocab": 5, "length": 4, "width": 4, "layers": 2, "heads": 2, "mlp": 2} | changes))
    model = build(c, seed).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)))
    g = torch.Generator().manual_seed(seed + 100)
    tokens, position = torch.randint(5, (n, 4), generator=g), torch.randint(4, (n,), generator=g)
    if c.padded:
        tokens[::2, 3] = c.pad
        position.clamp_(max=2)
    tokens[torch.arange(n), position] = c.mask
    return model, (tokens, position)


@pytest.mark.parametrize("seed", range(10))
def test_exact_trace_equals_autograd_on_ten_random_models(seed):
    model, contexts = case(seed, 6, tied=seed % 2 == 1, layers=1 + seed % 3, padded=seed % 5 == 4)
    assert not why_not_fast(model, contexts)
    estimate = fisher_trace(model, contexts, chunk=4)
    assert estimate.value == pytest.approx(exact_fisher_trace(model, contexts), rel=1e-10)
    assert all(p.requires_grad for p in model.parameters())


def test_cutting_padding_changes_nothing_but_the_work():
    model, (tokens, position) = case(4, 12, padded=True)
    pad = model.config.pad
    for vocabulary in ("exact", "sampled"):
        plain, cut = (fisher_per_context(model, (tokens, position), vocabulary, chunk=6, pad=p) for p in (None, pad))
        assert np.allclose(plain, cut, rtol=1e-10)
    assert fisher_trace(model, (tokens, position), pad=pad).value == pytest.approx(
        exact_fisher_trace(model, (tokens, position)), rel=1e-10
    )


def test_single_precision_is_good_to_a_millionth():
    model, contexts = case(0, 64, tied=True)
    single = copy.deepcopy(model).float()
    assert fisher_trace(single, contexts).value == pytest.approx(fisher_trace(model, contexts).value, rel=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_sampled_trace_is_unbiased(tied):
    model, contexts = case(3, 8, tied=tied)
    exact = fisher_per_context(model, contexts)
    repeated = tuple(x.repeat(3000, *[1] * (x.dim() - 1)) for x in contexts)
    sampled = fisher_per_context(model, repeated, "sampled", seed=1, chunk=4096).reshape(3000, 8)
    error = (sampled.mean(0) - exact) / (sampled.std(0) / np.sqrt(3000))
    assert np.abs(error).max() < 4  # eight contexts at once
    assert abs(error.sum()) / np.sqrt(8) < 3


def test_importance_sampling_and_the_exact_head_reduce_the_variance():
    model, contexts = case(3, 8, width=16)
    exact = fisher_per_context(model, contexts)
    repeated = tuple(x.repeat(1000, *[1] * (x.dim() - 1)) for x in contexts)
    ours = fisher_per_context(model, repeated, "sampled", chunk=4096).reshape(1000, 8)
    hidden = nn.Sequential(nn.Identity())
    hidden.model, hidden.extra = model, nn.Parameter(torch.zeros(1))
    with pytest.warns(UserWarning, match="per-context autograd"):
        plain = fisher_per_context(
            hidden, tuple(x[:800] for x in repeated), "sampled", call=lambda m, t, p: m.model(t, p)
        ).reshape(100, 8)
    assert np.abs(plain.mean(0) - exact).max() < 5 * (plain.std(0) / 10).max()
    assert (ours.std(0) / exact).mean() < 0.7 * (plain.std(0) / exact).mean()


@pytest.mark.parametrize("soft", [False, True])
def test_hessian_and_gauss_newton_agree_with_the_full_matrix(soft):
    model, contexts = case(2, 48, layers=1, tied=True)
    g = torch.Generator().manual_seed(0)
    targets = torch.rand(48, 5, generator=g).softmax(1) if soft else torch.randint(5, (48,), generator=g)
    truth = exact_hessian_trace(model, contexts, targets)
    estimate = hessian_trace(model, contexts, targets, samples=10, chunk=4)
    assert estimate.n == 12
    assert abs(estimate.value - truth) < 3 * estimate.stderr
    fisher, newton = exact_fisher_trace(model, contexts), gauss_newton_trace(model, contexts, samples=10, chunk=4)
    assert abs(newton.value - fisher) < 3 * newton.stderr
    assert abs(fisher - truth) > 3 * newton.stderr  # off the optimum they differ


def test_hessian_is_fisher_when_the_targets_are_the_models_own():
    model, contexts = case(4, 12, layers=1)
    own = model(*contexts).detach().softmax(-1)
    assert exact_hessian_trace(model, contexts, own) == pytest.approx(exact_fisher_trace(model, contexts), rel=1e-9)


def test_rescaling_changes_the_trace_and_not_the_adaptive_sharpness():
    model, contexts = case(1, 16)
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        block = scaled.blocks[0]
        block.norm_mlp.weight *= 3
        block.norm_mlp.bias *= 3
        block.up.weight /= 3
    assert torch.allclose(model(*contexts), scaled(*contexts), atol=1e-12)
    assert abs(fisher_trace(scaled, contexts).value / fisher_trace(model, contexts).value - 1) > 0.01
    targets = model(*contexts).detach().softmax(-1)
    before, after = (adaptive_sharpness(m, contexts, targets, samples=8) for m in (model, scaled))
    assert after.value == pytest.approx(before.value, rel=1e-9)
    assert before.value > 0


def test_adaptive_sharpness_is_the_weighted_trace_to_second_order():
    model, contexts = case(6, 10, layers=1, width=2, heads=1, mlp=1)
    targets = model(*contexts).detach().softmax(-1)
    rho = 1e-3
    flat = adaptive_sharpness(model, contexts, targets, rho=rho, samples=600)
    params = list(model.parameters())
    weighted = 0.0
    for i in range(10):
        log_p = model(contexts[0][i : i + 1], contexts[1][i : i + 1]).log_softmax(-1)[0]
        for v in range(5):  # at the optimum the Hessian is the Fisher matrix
            grads = torch.autograd.grad(log_p[v], params, retain_graph=True, allow_unused=True)
            square = sum(
                float((g * p.detach()).square().sum()) for g, p in zip(grads, params, strict=True) if g is not None
            )
            weighted += float(log_p[v].detach().exp()) * square / 10
    assert abs(flat.value - rho**2 / 2 * weighted) < 3 * flat.stderr


def test_intervals_cover_under_heavy_tails():
    rng = np.random.default_rng(0)
    covered, plain = 0, 0
    for i in range(400):
        x = rng.lognormal(0.0, 1.0, size=200)  # skewness 6
        low, high = robust(x, seed=i, resamples=300).interval()
        covered += low <= np.exp(0.5) <= high
        half = 1.972 * x.std(ddof=1) / np.sqrt(200)
        plain += abs(x.mean() - np.exp(0.5)) <= half
    assert 0.92 <= covered / 400 <= 0.98
    assert plain < covered


@pytest.mark.parametrize("x", [[1.0, 2.0, 4.0], [0.0] * 30 + [1.0]])
def test_robust_error_is_the_plain_one_where_resamples_have_no_spread(x):
    with np.errstate(all="raise"):
        assert robust(np.array(x)) == Estimate.of(np.array(x))


def test_robust_error_is_the_plain_one_for_light_tails():
    x = np.random.default_rng(1).normal(size=400)
    estimate = robust(x)
    assert estimate.value == x.mean()
    assert 1.0 <= estimate.stderr / (x.std(ddof=1) / 20) < 1.1
    assert robust(x) == estimate


def test_an_unknown_layer_falls_back_and_says_so():
    class Scaled(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.scale = model, nn.Parameter(torch.tensor(1.5, dtype=torch.double))

        def forward(self, tokens, position):
            return self.model(tokens, position) * self.scale

    model, contexts = case(0, 5)
    scaled = Scaled(model).eval()
    with pytest.warns(UserWarning, match=r"slow\): unknown layer the model itself \(Scaled\)"):
        estimate = fisher_trace(scaled, contexts)
    assert estimate.value == pytest.approx(exact_fisher_trace(scaled, contexts), rel=1e-10)


def test_a_weight_used_behind_its_layers_back_is_noticed():
    class Behind(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 5)

        def forward(self, tokens, position):
            x = self.embed(tokens).mean(1)
            return self.head(x) + nn.functional.linear(x, self.head.weight)

    _, contexts = case(0, 5)
    model = Behind().double().eval()
    with pytest.warns(UserWarning, match="used outside the layer that owns it"):
        estimate = fisher_trace(model, contexts)
    assert estimate.value == pytest.approx(exact_fisher_trace(model, contexts), rel=1e-10)


def test_hugging_face_masked_language_models():
    config = transformers.BertConfig(
        vocab_size=9,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
    )
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config).double().eval()
    tokens = torch.randint(1, 9, (4, 6), generator=torch.Generator().manual_seed(0))
    tokens[0, 2] = 0  # the padding index: it receives no gradient
    contexts = (tokens, torch.tensor([1, 3, 5, 0]))
    assert not why_not_fast(model, contexts, hugging_face)

    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, tokens, position):
            return hugging_face(self.inner, tokens, position)

    fast = fisher_trace(model, contexts, call=hugging_face)
    assert fast.value == pytest.approx(exact_fisher_trace(Direct(), contexts), rel=1e-9)
    hessian = hessian_trace(model, contexts, contexts[1], samples=2, chunk=2, call=hugging_face)
    assert np.isfinite(hessian.value)


def test_bad_input_is_one_clear_line():
    model, contexts = case(0, 5)
    with pytest.raises(UserError, match="zero contexts"):
        fisher_trace(model, (contexts[0][:0], contexts[1][:0]))
    with pytest.raises(UserError, match="5 sentences and 4 masked positions"):
        fisher_trace(model, (contexts[0], contexts[1][:4]))
    noisy = nn.Sequential(model, nn.Dropout(0.1)).train()
    with pytest.raises(UserError, match="drops out in training mode"):
        hessian_trace(noisy, contexts, contexts[1])
    with pytest.raises(UserError, match="at least one random vector"):
        gauss_newton_trace(model, contexts, samples=0)
    with pytest.raises(UserError, match="must be positive"):
        adaptive_sharpness(model, contexts, contexts[1], rho=0.0)
    big, contexts = case(0, 2, width=32)
    with pytest.raises(UserError, match="up to 3000 only"):
        exact_hessian_trace(big, contexts, contexts[1])
