"""The adversarial objective: its head against closed forms, its gradient, its pools, and that it does harm."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from sameloss.errors import UserError
from sameloss.languages.pcfg import PCFG
from sameloss.learners.adversary import AdversaryConfig, disjoint_pools, ridge_r2
from sameloss.learners.contexts import contexts, model_tokens
from sameloss.learners.evaluate import kl_to_truth
from sameloss.learners.pretrain import TrainConfig, pretrain
from sameloss.learners.stack import member
from sameloss.learners.transformer import TransformerConfig
from sameloss.measures.downstream import linear_probe
from sameloss.measures.downstream_features import features, masked_features, project

CONFIG = TransformerConfig(vocab=16, length=8, width=16)


@pytest.fixture(scope="module")
def language():
    return PCFG.tree_grammar(777)


def splits(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 60, 5, generator=g, dtype=torch.double)
    y = torch.nn.functional.one_hot(((x[..., 0] + x[..., 1]) > 0).long() + (x[..., 2] > 1).long(), 3).double()
    return x[:, :40], y[:, :40], x[:, 40:], y[:, 40:]


def test_head_is_ridge_regression():
    x1, y1, x2, y2 = splits()
    ours = ridge_r2(x1, y1, x2, y2, ridge=0.1)
    for s in range(2):
        centred = x1[s] - x1[s].mean(0)
        strength = 0.1 * float((centred.T @ centred).diagonal().mean())
        peer = Ridge(alpha=strength).fit(x1[s].numpy(), y1[s].numpy()).predict(x2[s].numpy())
        total = (y2[s] - y1[s].mean(0)).square().sum()
        assert float(ours[s]) == pytest.approx(1 - float(((y2[s].numpy() - peer) ** 2).sum() / total), rel=1e-10)


def test_gradient_passes_through_the_solve_unless_fixed():
    x1, y1, x2, y2 = splits()

    def r2(a, b):
        return ridge_r2(a, y1, b, y2, 0.1)

    assert torch.autograd.gradcheck(r2, (x1.clone().requires_grad_(), x2.clone().requires_grad_()))
    free, held = x1.clone().requires_grad_(), x1.clone().requires_grad_()
    ridge_r2(free, y1, x2, y2, 0.1).sum().backward()
    ridge_r2(held, y1, x2, y2, 0.1, fixed=True).sum().backward()
    assert held.grad.abs().sum() < free.grad.abs().sum()


def test_pools_share_no_sentence_and_follow_the_seed(language):
    config = AdversaryConfig(task="B", pool=400)
    (x1, y1), (x2, y2) = disjoint_pools(language, config, CONFIG, 1)
    assert len(x1) == len(y1) == 400
    assert 100 < len(x2) == len(y2) <= 400
    assert not {tuple(row) for row in x1.tolist()} & {tuple(row) for row in x2.tolist()}
    assert torch.equal(disjoint_pools(language, config, CONFIG, 1)[1][0], x2)
    assert not torch.equal(disjoint_pools(language, config, CONFIG, 2)[0][0], x1)


@pytest.mark.parametrize(("kind", "head"), [("unmasked", "differentiable"), ("masked", "fixed")])
def test_the_attacked_features_transfer_worse_at_a_loss_that_stays(language, kind, head):
    quick = TrainConfig(objective="oracle", steps=150, batch=64, lr=1e-2, warmup=20, ema=0.9)
    start = pretrain(CONFIG, [language], quick, [1])
    attack = AdversaryConfig(task="B", head=head, features=kind, examples=64, pool=1000, strength=0.2, dimension=32)
    again = quick.model_copy(update={"steps": 60, "stage": "attack"})
    twin = pretrain(CONFIG, [language], again, [1], start=start)
    attacked = pretrain(CONFIG, [language], again.model_copy(update={"adversary": attack}), [1], start=start)
    sentences = language.sample(3000, 5)
    tokens = torch.from_numpy(model_tokens(sentences, CONFIG))
    labels = torch.from_numpy(np.asarray(language.labels("B", sentences)))
    held_out = contexts(language, 2000, 5, CONFIG)
    scores, kl = [], []
    for state in (twin, attacked):
        model = member(CONFIG, state.ema, 0)
        x = features(model, tokens) if kind == "unmasked" else masked_features(model, tokens, CONFIG.mask)
        z = project(x, 32, 3)
        scores.append(linear_probe(z[:2000], labels[:2000], z[2000:], labels[2000:], 4).accuracy.value)
        kl.append(kl_to_truth(model, held_out).value)
    assert scores[1] < scores[0] - 0.02
    assert kl[1] < kl[0] + 0.1


def test_an_attack_resumes_to_the_byte(language):
    attack = AdversaryConfig(task="A", examples=16, pool=50, dimension=4)
    config = TrainConfig(steps=6, batch=8, adversary=attack)
    saved = []
    whole = pretrain(CONFIG, [language, language], config, [1, 2], save=saved.append, save_every=3)
    resumed = pretrain(CONFIG, [language, language], config, [1, 2], resume=saved[0])
    assert saved[0].step == 3
    assert all(torch.equal(value, resumed.params[name]) for name, value in whole.params.items())


def test_a_strength_that_diverges_stops_with_the_last_good_checkpoint(language):
    attack = AdversaryConfig(task="B", examples=64, pool=200, strength=1e39)  # beyond what a float32 holds
    wild = TrainConfig(optimizer="sgd", steps=20, batch=8, lr=0.01, warmup=0, adversary=attack)
    saved = []
    with pytest.raises(UserError, match=r"diverged before step \d+: .*the last checkpoint is good"):
        pretrain(CONFIG, [language], wild, [1], save=saved.append, save_every=1)
    assert all(torch.isfinite(value).all() for state in saved for value in state.params.values())


def test_a_task_that_is_not_there_is_one_clear_line(language):
    config = TrainConfig(steps=1, adversary=AdversaryConfig(task="Z"))
    with pytest.raises(UserError, match=r"adversary task 'Z'; this language has: A, B, C"):
        pretrain(CONFIG, [language], config, [1])
