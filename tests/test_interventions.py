"""Interventions on flatness: the differentiable trace by enumeration, SAM by hand, rescalings to the bit."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.languages.pcfg import PCFG
from sameloss.learners.contexts import TrainingData, contexts
from sameloss.learners.lstm import LSTMConfig
from sameloss.learners.pretrain import TrainConfig, initial, pretrain
from sameloss.learners.rescale import inner_pairs, rescale, rescaled
from sameloss.learners.sam import ascended
from sameloss.learners.stack import apply, build, member
from sameloss.learners.trace_penalty import TracePenaltyConfig, batch_trace, trace_penalty
from sameloss.learners.transformer import TransformerConfig
from sameloss.measures.downstream_features import features
from sameloss.measures.flatness import fisher_trace
from sameloss.runs.measure_moved import least_trace
from sameloss.runs.spec import LanguageSpec, Measure, RunSpec, Start, TransformerSpec

CONFIG = TransformerConfig(vocab=16, length=8, width=8)


@pytest.fixture(scope="module")
def language():
    return PCFG.tree_grammar(777)


def two_contexts():
    """A tiny model of three words on two contexts: parameters, logits (1, 2, 3), module, inputs."""
    config = TransformerConfig(vocab=3, length=3, width=4, layers=1, heads=1, mlp=1)
    params = {n: v.double().requires_grad_() for n, v in initial(config, [5]).params.items()}
    tokens, position = torch.tensor([[3, 1, 2], [0, 0, 3]]), torch.tensor([0, 2])
    logits = apply(config)(params, tokens[None], position[None])
    return params, logits, member(config, params, 0), (tokens, position)


def test_the_batch_trace_and_its_gradient_have_no_bias():
    """Mean over all sign vectors, against the sum over the vocabulary and its own derivative."""
    params, logits, model, inputs = two_contexts()
    leaves = list(params.values())
    vectors = list(itertools.product((-1.0, 1.0), repeat=6))
    signs = torch.tensor(vectors, dtype=torch.double).view(-1, 1, 2, 3)
    mean = sum(batch_trace(logits, r, params) for r in signs).sum() / len(vectors)
    log_f = logits.log_softmax(-1)[0]
    exact = torch.zeros((), dtype=torch.double)
    for b, v in itertools.product(range(2), range(3)):
        parts = torch.autograd.grad(log_f[b, v], leaves, create_graph=True)
        exact = exact + log_f[b, v].exp() * sum(g.square().sum() for g in parts) / 2
    assert float(mean.detach()) == pytest.approx(float(exact.detach()), rel=1e-10)
    assert float(mean.detach()) == pytest.approx(fisher_trace(model, inputs).value, rel=1e-9)
    ours, theirs = (torch.autograd.grad(value, leaves, retain_graph=True) for value in (mean, exact))
    for name, a, b in zip(params, ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-12), name


def test_the_batch_trace_of_a_trained_size_is_within_three_standard_errors(language):
    params = {name: value.requires_grad_() for name, value in initial(CONFIG, [1, 2]).params.items()}
    seen = contexts(language, 64, 1, CONFIG)
    both = [t.expand(2, *t.shape) for t in seen.inputs]
    logits, g = apply(CONFIG)(params, *both), torch.Generator().manual_seed(0)
    draws = [batch_trace(logits, torch.randint(2, logits.shape, generator=g) * 2.0 - 1, params) for _ in range(200)]
    found = torch.stack(draws).detach()
    for i in range(2):
        exact = fisher_trace(member(CONFIG, params, i), seen.inputs).value
        assert abs(float(found[:, i].mean()) - exact) < 3 * float(found[:, i].std()) / len(found) ** 0.5


def test_a_price_moves_the_trace_in_its_direction(language):
    base = TrainConfig(objective="oracle", optimizer="sgd", steps=30, batch=32, lr=0.02, warmup=0)
    start = pretrain(CONFIG, [language], TrainConfig(objective="oracle", steps=60, batch=32, lr=1e-2), [1])
    seen, traces = contexts(language, 256, 9, CONFIG), []
    for price in (-0.05, None, 0.05):
        trace = None if price is None else TracePenaltyConfig(price=price)
        state = pretrain(CONFIG, [language], base.model_copy(update={"trace": trace}), [1], start=start)
        traces.append(fisher_trace(member(CONFIG, state.params, 0), seen.inputs).value)
    assert traces[2] < 0.97 * traces[1] < 0.97**2 * traces[0]


@pytest.mark.parametrize("change", [{"trace": TracePenaltyConfig(price=1e-3)}, {"sam": 0.05}])
def test_interventions_resume_to_the_byte_and_leave_seeds_apart(language, change):
    config = TrainConfig(optimizer="sgd", lr=1e-2, steps=6, batch=8, **change)
    saved = []
    whole = pretrain(CONFIG, [language, language], config, [1, 2], save=saved.append, save_every=3)
    resumed = pretrain(CONFIG, [language, language], config, [1, 2], resume=saved[0])
    alone = pretrain(CONFIG, [language], config, [2])
    for name, value in whole.params.items():
        assert torch.equal(value, resumed.params[name]), name
        assert torch.allclose(value[1], alone.params[name][0], atol=2e-5), name


def test_sam_is_the_gradient_uphill_by_hand(language):
    rho = 0.1
    config = TrainConfig(objective="oracle", optimizer="sgd", steps=1, batch=32, lr=0.5, warmup=0, momentum=0, sam=rho)
    state = pretrain(CONFIG, [language], config, [3])
    data = TrainingData(language, 3, CONFIG, "base", True, 0).chunk(0, 16384)[:32]
    model = member(CONFIG, initial(CONFIG, [3]).params, 0)
    here = {name: value.detach().clone() for name, value in model.named_parameters()}

    def gradient():
        model.zero_grad()
        (-(data.conditional * model(*data.inputs).log_softmax(-1)).sum(-1).mean()).backward()
        return {name: value.grad.clone() for name, value in model.named_parameters()}

    up = gradient()
    norm = torch.stack([g.square().sum() for g in up.values()]).sum().sqrt()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += rho * up[name] / norm
    for name, g in gradient().items():
        assert torch.allclose(state.params[name][0], here[name] - 0.5 * g, atol=1e-6), name


def test_the_step_uphill_has_the_radius_asked_for_in_every_seed():
    params = {"a": torch.tensor([[1.0], [10.0]], requires_grad=True), "b": torch.ones(2, 3, requires_grad=True)}
    moved = ascended((params["a"] ** 2).sum() + params["b"].sum(), params, 0.3)
    apart = sum((moved[name] - params[name]).square().flatten(1).sum(1) for name in params)
    assert torch.allclose(apart.sqrt(), torch.tensor([0.3, 0.3]))


def test_a_rescaling_by_a_power_of_two_keeps_every_bit_and_changes_the_trace(language):
    model = build(CONFIG, 3).eval()
    seen = contexts(language, 128, 1, CONFIG)
    other = rescale(model, 4.0)
    assert torch.equal(other(*seen.inputs), model(*seen.inputs))
    assert torch.equal(features(other, seen.tokens), features(model, seen.tokens))
    assert fisher_trace(other, seen.inputs).value > 1.5 * fisher_trace(model, seen.inputs).value
    stacked = {name: value.detach()[None].expand(2, *value.shape) for name, value in model.named_parameters()}
    in_a_stack = rescaled(stacked, 4.0, inner_pairs(stacked))
    assert all(torch.equal(in_a_stack[name][1], value) for name, value in other.named_parameters())


@settings(max_examples=3, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4))
def test_the_least_trace_is_the_least_over_rescalings_and_none_changes_it(exponents):
    model = build(CONFIG, 3).double().eval()
    inputs = (torch.arange(32).view(4, 8) % 16, torch.arange(4))
    least = least_trace(model, inputs).value
    other = model
    for pair, exponent in zip(inner_pairs(n for n, _ in model.named_parameters()), exponents, strict=True):
        other = rescale(other, 2.0**exponent, pair)
    assert least_trace(other, inputs).value == pytest.approx(least, rel=1e-6)
    assert fisher_trace(other, inputs).value >= least * (1 - 1e-9)


def test_settings_that_are_not_used_leave_every_earlier_hash():
    language, model = LanguageSpec(kind="tree_grammar"), TransformerSpec(kind="transformer", width=16)
    parent = RunSpec(name="start", language=language, seeds=(3001,), model=model, train=TrainConfig(steps=5))
    later = {"train": TrainConfig(steps=5, stage="sgd"), "start": Start(parent=parent, weights="ema")}
    spec = RunSpec(name="on", language=language, seeds=(3001,), model=model, **later)
    assert not {"trace", "sam"} & set(spec.identity()["train"])
    assert set(spec.identity()["start"]) == {"parent", "weights", "step"}
    assert not {"shift", "least_trace", "change"} & set(spec.measure.model_dump(exclude_none=True))
    for change in (
        {"train": TrainConfig(steps=5, stage="sgd", sam=0.1)},
        {"start": later["start"].model_copy(update={"rescale": 4.0})},
    ):
        assert spec.model_copy(update=change).id != spec.id
    assert spec.model_copy(update={"measure": Measure(shift=0.5)}).key() != spec.key()
    assert spec.model_copy(update={"measure": Measure(shift=0.5)}).id == spec.id


def test_what_cannot_be_rescaled_or_paid_for_is_refused():
    with pytest.raises(UserError, match="only transformers can be rescaled"):
        rescale(build(LSTMConfig(vocab=4, length=3, width=4), 1), 2.0)
    with pytest.raises(ValueError, match="less than or equal to 1"):
        TracePenaltyConfig(price=2.0)
    with pytest.raises(ValueError, match="greater than 0"):
        TrainConfig(sam=0.0)


def test_the_penalty_is_the_logarithm_of_the_trace(language):
    params = {name: value.requires_grad_() for name, value in initial(CONFIG, [1]).params.items()}
    batch = TrainingData(language, 1, CONFIG, "base", False, 0).chunk(0, 16)
    batch = type(batch)(batch.tokens[None], batch.position[None], batch.target[None])
    one, three = (
        trace_penalty(TracePenaltyConfig(price=p, draws=1), apply(CONFIG), [1])(params, batch, 4) for p in (1e-3, 3e-3)
    )
    assert float(three.detach()) == pytest.approx(3 * float(one.detach()), rel=1e-5)
    assert 1 < float(one.detach()) / 1e-3 < 12
