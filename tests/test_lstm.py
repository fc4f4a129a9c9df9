"""The bidirectional LSTM: against torch's own, what it sees, padding, stacking, traces."""

import pytest
import torch
from torch import nn

from sameloss.learners.lstm import LSTMConfig
from sameloss.learners.stack import apply, build, stack
from sameloss.measures.flatness import fisher_trace, why_not_fast
from sameloss.measures.flatness_exact import exact_fisher_trace

CONFIG = LSTMConfig(vocab=5, length=6, width=4)


def tokens(n: int, mask_at: torch.Tensor | None = None) -> torch.Tensor:
    x = torch.randint(5, (n, 6), generator=torch.Generator().manual_seed(0))
    if mask_at is not None:
        x[torch.arange(n), mask_at] = CONFIG.mask
    return x


def test_states_are_those_of_torchs_lstm():
    model = build(CONFIG, 0).double()
    peer = nn.LSTM(4, 4, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for direction, suffix in ((model.ahead, "l0"), (model.back, "l0_reverse")):
            # Our gates come as input, forget, output, candidate; theirs as input, forget, candidate, output.
            order = torch.cat([torch.arange(8), torch.arange(12, 16), torch.arange(8, 12)])
            getattr(peer, f"weight_ih_{suffix}").copy_(direction.input.weight[order])
            getattr(peer, f"weight_hh_{suffix}").copy_(direction.recurrent.weight[order])
            getattr(peer, f"bias_ih_{suffix}").copy_(direction.input.bias[order])
            getattr(peer, f"bias_hh_{suffix}").zero_()
    x = tokens(7)
    assert torch.allclose(model.features(x), peer(model.token(x))[0], atol=1e-12)
    assert (model.ahead.input.bias[4:8] == 1).all()


def test_cropping_changes_nothing_and_every_word_counts():
    at = torch.tensor([0, 5, 2, 3])
    model, x = build(CONFIG, 1).double(), tokens(4, at)
    logits = model(x, at)
    assert torch.allclose(logits, model(x)[torch.arange(4), at], atol=1e-13)
    for t in (0, 1, 4, 5):
        changed = x.clone()
        changed[2, t] = (changed[2, t] + 1) % 5
        assert not torch.allclose(model(changed, at)[2], logits[2], atol=1e-6)


def test_padding_cannot_be_seen():
    padded = CONFIG.model_copy(update={"padded": True})
    model = build(padded, 0).double()
    short = torch.tensor([[0, 1, 2, 3]])
    full = torch.cat([short, torch.full((1, 2), CONFIG.pad)], dim=1)
    assert torch.allclose(model(full)[:, :4], model(short), atol=1e-13)
    assert (model.features(full)[:, 4:] == 0).all()


def test_a_stack_computes_what_its_members_compute():
    models, x, at = [build(CONFIG, seed) for seed in (3, 4)], tokens(10).view(2, 5, 6), torch.zeros(2, 5).long()
    logits = apply(CONFIG)(stack(models), x, at)
    for i, model in enumerate(models):
        assert torch.allclose(logits[i], model(x[i], at[i]), atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_trace_by_layer_is_exact_through_time(padded):
    at = torch.tensor([0, 3, 2, 1, 3])
    model = build(CONFIG.model_copy(update={"padded": padded}), 2).double().eval()
    x = tokens(5, at)
    if padded:
        x[::2, 4:] = CONFIG.pad
    assert not why_not_fast(model, (x, at))
    assert fisher_trace(model, (x, at), chunk=3).value == pytest.approx(exact_fisher_trace(model, (x, at)), rel=1e-10)
