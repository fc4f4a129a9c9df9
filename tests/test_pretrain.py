"""Pre-training: gradients, resumption to the byte, the loss measure, bad input."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sameloss.errors import UserError
from sameloss.languages.base import PAD, Sentences
from sameloss.learners.contexts import Contexts, TrainingData, contexts, model_tokens
from sameloss.learners.evaluate import cross_entropy, expected_cross_entropy, kl_to_truth
from sameloss.learners.pretrain import CHUNK, State, TrainConfig, initial, pretrain
from sameloss.learners.stack import member
from sameloss.learners.transformer import TransformerConfig

CONFIG = TransformerConfig(vocab=3, length=4, width=8, layers=2, heads=2)


class Table:
    """A language given by its whole table of probabilities: every pair of positions has a random affinity."""

    def __init__(self, seed: int, words: int = 3, length: int = 4):
        self.vocab = [chr(97 + i) for i in range(words)]
        self.max_length = length
        self.sentences = np.array(list(itertools.product(range(words), repeat=length)))
        affinity = np.random.default_rng(seed).normal(size=(length, length, words, words))
        pairs = itertools.combinations(range(length), 2)
        score = sum(affinity[s, t, self.sentences[:, s], self.sentences[:, t]] for s, t in pairs)
        self.p = np.exp(score) / np.exp(score).sum()
        joint = self.p.reshape((words,) * length)
        rows = [np.stack([joint[(*x[:t], slice(None), *x[t + 1 :])] for t in range(length)]) for x in self.sentences]
        self.conditional = np.stack(rows) / np.stack(rows).sum(-1, keepdims=True)
        self.place = words ** np.arange(length)[::-1]

    def sample(self, n: int, seed: int) -> Sentences:
        rows = np.random.default_rng(seed).choice(len(self.p), size=n, p=self.p)
        return Sentences(self.sentences[rows], np.full(n, self.max_length))

    def iter_masked_conditionals(self, sentences, chunk=1024):
        for i in range(0, len(sentences), chunk):
            yield self.conditional[sentences.tokens[i : i + chunk] @ self.place]


def test_learns_the_true_conditional():
    language = Table(0)
    config = TrainConfig(steps=300, batch=128, lr=2e-2, warmup=20, decay=0.5, ema=0.99)
    state = pretrain(CONFIG, [language], config, [7])
    held_out = contexts(language, 2000, 7, CONFIG)
    before = kl_to_truth(member(CONFIG, initial(CONFIG, [7]).params, 0), held_out)
    trained = member(CONFIG, state.ema, 0)
    assert before.value > 0.1
    assert kl_to_truth(trained, held_out).value < 0.03
    sampled, expected = cross_entropy(trained, held_out), expected_cross_entropy(trained, held_out)
    assert abs(sampled.value - expected.value) < 3 * (sampled - expected).stderr
    assert expected.stderr < sampled.stderr


def test_kl_is_zero_for_the_truth_itself():
    language = Table(1)
    held_out = contexts(language, 500, 3, CONFIG)

    class Truth(torch.nn.Linear):
        def forward(self, tokens, position):
            return held_out.conditional.log()

    model = Truth(1, 1)
    kl = kl_to_truth(model, held_out)
    assert abs(kl.value) < 1e-12
    floor = -(held_out.conditional * held_out.conditional.log()).sum(-1).mean()
    assert expected_cross_entropy(model, held_out).value == pytest.approx(float(floor), abs=1e-12)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("objective", ["tokens", "oracle"])
def test_resumed_runs_give_the_same_bytes(optimizer, objective, monkeypatch):
    monkeypatch.setattr("sameloss.learners.pretrain.CHUNK", 64)  # chunks of 4 steps: some saves fall inside a chunk
    languages = [Table(0), Table(1)]
    config = TrainConfig(objective=objective, optimizer=optimizer, steps=13, batch=16, lr=1e-2, warmup=3, decay=0.3)
    saved: dict[int, dict[str, torch.Tensor]] = {}
    whole = pretrain(
        CONFIG, languages, config, [1, 2], save=lambda s: saved.update({s.step: s.to_tensors()}), save_every=3
    )
    assert sorted(saved) == [3, 6, 9, 12, 13]
    for step in saved:
        resumed = pretrain(CONFIG, languages, config, [1, 2], resume=State.from_tensors(saved[step])).to_tensors()
        for key, tensor in whole.to_tensors().items():
            assert torch.equal(tensor, resumed[key]), (step, key)


def test_a_stack_is_its_seeds_side_by_side():
    # SGD, because Adam turns rounding into steps where a gradient is exactly 0 (the bias of the keys).
    config = TrainConfig(optimizer="sgd", steps=5, batch=16, lr=1e-2)
    languages = [Table(0), Table(1), Table(2)]
    together = pretrain(CONFIG, languages, config, [4, 5, 6])
    for i in range(3):
        alone = pretrain(CONFIG, languages[i : i + 1], config, [4 + i])
        for name, value in alone.params.items():
            assert torch.allclose(together.params[name][i], value[0], atol=2e-5), name


def test_one_sgd_step_is_the_gradient_by_hand():
    language = Table(0)
    config = TrainConfig(optimizer="sgd", steps=1, batch=32, lr=0.5, warmup=0, momentum=0.0, ema=0.0)
    state = pretrain(CONFIG, [language], config, [3])
    data = TrainingData(language, 3, CONFIG, "base", False, 0).chunk(0, CHUNK)[:32]
    model = member(CONFIG, initial(CONFIG, [3]).params, 0)
    F.cross_entropy(model(*data.inputs), data.target).backward()
    for name, value in model.named_parameters():
        assert torch.allclose(state.params[name][0], value.detach() - 0.5 * value.grad, atol=1e-6), name


def test_continuing_starts_from_the_weights_with_new_data():
    language = Table(0)
    first = pretrain(CONFIG, [language], TrainConfig(steps=4, batch=8), [3])
    still = pretrain(CONFIG, [language], TrainConfig(steps=0, stage="anneal"), [3], start=first.averaged())
    for name, value in first.ema.items():
        assert torch.equal(still.params[name], value)
    base = pretrain(CONFIG, [language], TrainConfig(steps=4, batch=8), [3], start=first)
    other = pretrain(CONFIG, [language], TrainConfig(steps=4, batch=8, stage="anneal"), [3], start=first)
    assert not torch.equal(base.params["head.weight"], other.params["head.weight"])


def test_a_pool_holds_the_only_sentences_seen():
    language = Table(0)
    for oracle in (False, True):
        data = TrainingData(language, 3, CONFIG, "base", oracle, 5)
        chunk = data.chunk(1, 200)
        whole = chunk.tokens.clone()
        whole[torch.arange(200), chunk.position] = chunk.target
        assert 1 <= len(whole.unique(dim=0)) <= 5
        assert (chunk.conditional is not None) == oracle
        if oracle:
            block = next(language.iter_masked_conditionals(Sentences(whole.numpy(), np.full(200, 4))))
            at = block[np.arange(200), chunk.position.numpy()]
            assert np.abs(at - chunk.conditional.numpy()).max() < 1e-6


def test_masked_positions_are_uniform_within_the_sentence():
    held_out = contexts(Table(0), 4000, 1, CONFIG)
    counts = np.bincount(held_out.position.numpy(), minlength=4)
    assert np.abs(counts / 4000 - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / 4000)
    assert (held_out.tokens[torch.arange(4000), held_out.position] == CONFIG.mask).all()
    assert ((held_out.tokens == CONFIG.mask).sum(1) == 1).all()


def test_learning_rate_warms_up_and_decays():
    config = TrainConfig(steps=100, warmup=9, lr=1.0, decay=0.25)
    rates = [config.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[75] == 1.0
    assert rates[99] == pytest.approx(1 / 25)
    assert TrainConfig(steps=10, warmup=0).rate(9) == TrainConfig().lr


def test_divergence_stops_with_the_last_good_checkpoint():
    saved: list[State] = []
    config = TrainConfig(optimizer="sgd", steps=400, batch=8, lr=1e6, warmup=0)
    with pytest.raises(UserError, match=r"diverged before step \d+"):
        pretrain(CONFIG, [Table(0)], config, [0], save=saved.append, save_every=1)
    for state in saved:
        assert all(torch.isfinite(t).all() for t in state.params.values())


def test_bad_input_is_one_clear_line():
    two = Sentences(np.array([[0, 1, PAD, PAD]]), np.array([2]))
    with pytest.raises(UserError, match="shorter than length 4"):
        model_tokens(two, CONFIG)
    padded = CONFIG.model_copy(update={"padded": True})
    assert model_tokens(two, padded).tolist() == [[0, 1, 4, 4]]
    with pytest.raises(UserError, match="at most 4"):
        model_tokens(Sentences(np.zeros((1, 5), dtype=np.int64), np.array([5])), CONFIG)
    with pytest.raises(UserError, match="words 0 to 2"):
        model_tokens(Sentences(np.full((1, 4), 3), np.array([4])), CONFIG)
    with pytest.raises(UserError, match="one language a seed"):
        pretrain(CONFIG, [Table(0)], TrainConfig(steps=1), [0, 1])
    with pytest.raises(UserError, match="checkpoint key 'weights'"):
        State.from_tensors({"weights": torch.zeros(1)})
    with pytest.raises(UserError, match="without step"):
        State.from_tensors({"params/a": torch.zeros(1)})
    held_out = contexts(Table(0), 5, 1, CONFIG)
    bare = Contexts(held_out.tokens, held_out.position, held_out.target)
    with pytest.raises(UserError, match="no true conditionals"):
        kl_to_truth(torch.nn.Linear(1, 1), bare)
