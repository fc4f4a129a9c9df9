"""Traces against curvlinops, another package's matrices of Hessian and Gauss-Newton, on ten random models."""

import pytest
import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator
from torch import nn

from sameloss.learners.stack import build
from sameloss.learners.transformer import TransformerConfig
from sameloss.measures.flatness import fisher_trace
from sameloss.measures.flatness_hessian import gauss_newton_trace, hessian_trace


class Packed(nn.Module):
    """A model with tokens and position in one tensor (n, T + 1), as curvlinops wants its data."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x[:, :-1].contiguous(), x[:, -1])


@pytest.fixture(params=range(10))
def case(request):
    """(seed, model, contexts, the true conditionals, a function that gives a peer's trace)."""
    seed = request.param
    shape = TransformerConfig(vocab=5, length=4, width=4, layers=1 + seed % 2, heads=2, mlp=2, tied=seed % 3 == 0)
    model = build(shape, seed).double().eval()
    g = torch.Generator().manual_seed(seed)
    tokens, position = torch.randint(5, (6, 4), generator=g), torch.randint(4, (6,), generator=g)
    truth = torch.rand((6, 5), generator=g, dtype=torch.double).softmax(-1)

    def peer(operator):
        wrapped = Packed(model)
        params = [p for p in wrapped.parameters() if p.requires_grad]
        data = [(torch.cat([tokens, position[:, None]], dim=1), truth)]
        matrix = operator(wrapped, nn.CrossEntropyLoss(), params, data, check_deterministic=False)
        return float((matrix @ torch.eye(sum(p.numel() for p in params), dtype=torch.double)).trace())

    return seed, model, (tokens, position), truth, peer


def test_the_exact_trace_is_that_of_their_gauss_newton_matrix(case):
    _, model, contexts, _, peer = case
    assert fisher_trace(model, contexts).value == pytest.approx(peer(GGNLinearOperator), rel=1e-8)


def test_sampled_traces_are_within_three_standard_errors_of_theirs(case):
    seed, model, contexts, truth, peer = case
    many = [c.repeat_interleave(64, 0) for c in contexts]  # independent vectors for copies of the same contexts
    estimates = {
        HessianLinearOperator: hessian_trace(model, many, truth.repeat_interleave(64, 0), 4, seed),
        GGNLinearOperator: gauss_newton_trace(model, many, 4, seed),
    }
    for operator, found in estimates.items():
        assert abs(found.value - peer(operator)) < 3 * found.stderr
