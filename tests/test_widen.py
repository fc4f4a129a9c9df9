"""The function-preserving embedding: same logits, known change of the trace, bad input."""

import itertools

import pytest
import torch

from sameloss.errors import UserError
from sameloss.learners.lstm import LSTMConfig
from sameloss.learners.stack import build
from sameloss.learners.transformer import TransformerConfig
from sameloss.learners.widen import trace_factor, widen
from sameloss.measures.flatness import fisher_trace


def model_of(kind: str, dtype: torch.dtype, padded: bool = False):
    """A model with every parameter away from its initial value (gains of 1 and biases of 0 would hide mistakes)."""
    if kind == "lstm":
        config = LSTMConfig(vocab=5, length=6, width=4, padded=padded)
    else:
        config = TransformerConfig(vocab=5, length=6, width=6, heads=2, tied=kind == "tied", padded=padded)
    model = build(config, 1)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
    return model.to(dtype).eval()


def inputs(n: int = 20):
    g = torch.Generator().manual_seed(1)
    tokens, position = torch.randint(5, (n, 6), generator=g), torch.randint(6, (n,), generator=g)
    tokens[torch.arange(n), position] = 5
    return tokens, position


KINDS = ("untied", "tied", "lstm")
METHODS = ("replicate", "zero-gain")


@pytest.mark.parametrize(("kind", "method", "k"), list(itertools.product(KINDS, METHODS, (1, 2, 3))))
def test_the_function_is_preserved(kind, method, k):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        model = model_of(kind, dtype)
        layers = None if kind == "lstm" else 4
        larger = widen(model, width=k * model.config.width, layers=layers, method=method)
        assert larger.config.width == k * model.config.width
        difference = (larger(*inputs()) - model(*inputs())).abs().max()
        assert difference < tolerance
        assert next(larger.parameters()).dtype == dtype


@pytest.mark.parametrize("method", METHODS)
def test_padding_and_unmasked_features_survive(method):
    model = model_of("untied", torch.float64, padded=True)
    tokens, _ = inputs()
    tokens[::2, 4:] = model.config.pad
    larger = widen(model, width=12, method=method)
    assert torch.allclose(larger.features(tokens)[..., :6], model.features(tokens), atol=1e-12)
    copies = larger.features(tokens)[..., 6:]
    assert torch.allclose(
        copies, model.features(tokens) if method == "replicate" else torch.zeros(1).double(), atol=1e-12
    )


def shares(model) -> dict[str, float]:
    """Every parameter's share of the Fisher trace, by autograd."""
    tokens, position = inputs(4)
    named, total = dict(model.named_parameters()), {}
    for i in range(4):
        log_p = model(tokens[i : i + 1], position[i : i + 1]).log_softmax(-1)[0]
        for v in range(5):
            grads = torch.autograd.grad(log_p[v], list(named.values()), retain_graph=True, allow_unused=True)
            for name, g in zip(named, grads, strict=True):
                share = 0.0 if g is None else float(log_p[v].detach().exp() * g.square().sum()) / 4
                total[name] = total.get(name, 0.0) + share
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_trace_after_replication_follows_the_formula(kind):
    model, k = model_of(kind, torch.float64), 3
    larger = widen(model, width=k * model.config.width)
    before, after = shares(model), shares(larger)
    for name, share in before.items():
        assert after[name] == pytest.approx(share * trace_factor(model, name, k), rel=1e-9, abs=1e-12), name
    formula = sum(share * trace_factor(model, name, k) for name, share in before.items())
    assert fisher_trace(larger, inputs(4)).value == pytest.approx(formula, rel=1e-9)


def test_added_blocks_add_the_share_of_their_output_biases_and_nothing_else():
    model = model_of("untied", torch.float64)
    # The residual stream reaches the two output biases of a zero block unchanged, as it does the last bias before it.
    bias = shares(model)["blocks.1.down.bias"]
    after = fisher_trace(widen(model, layers=4), inputs(4)).value
    assert after == pytest.approx(fisher_trace(model, inputs(4)).value + 2 * 2 * bias, rel=1e-9)


def test_zero_padding_of_the_lstm_leaves_the_trace_alone():
    model = model_of("lstm", torch.float64)
    padded = widen(model, width=8, method="zero-gain")
    assert fisher_trace(padded, inputs(4)).value == pytest.approx(fisher_trace(model, inputs(4)).value)


def test_the_two_methods_differ_in_trace():
    model = model_of("untied", torch.float64)
    traces = [fisher_trace(widen(model, width=12, method=method), inputs(4)).value for method in METHODS]
    assert abs(traces[0] / traces[1] - 1) > 0.05


def test_bad_input_is_one_clear_line():
    model = model_of("untied", torch.float64)
    for width in (9, 3):
        with pytest.raises(UserError, match=f"width {width}: allowed are multiples of the model's own 6"):
            widen(model, width=width)
    with pytest.raises(UserError, match="has 2 already"):
        widen(model, layers=1)
    with pytest.raises(UserError, match="one layer"):
        widen(model_of("lstm", torch.float64), layers=2)
    with pytest.raises(UserError, match="allowed: replicate, zero-gain"):
        widen(model, method="copy")
