"""The language of the shipped teacher: enumeration, samples, tasks with their truth, bad input."""

import dataclasses
import itertools

import numpy as np
import pytest

from sameloss.errors import UserError
from sameloss.languages.base import Language, Sentences
from sameloss.languages.lm_text import LMText
from sameloss.learners import contexts
from sameloss.measures.estimate import Estimate


@pytest.fixture(scope="module")
def language():
    return LMText.embedded()


@pytest.fixture(scope="module")
def tiny():
    """Four words and length 4: few enough sentences to list them all."""
    return LMText.embedded(words=4, length=4)


@pytest.fixture(scope="module")
def every():
    tokens = np.array(list(itertools.product(range(4), repeat=4)))
    return Sentences(tokens, np.full(len(tokens), 4))


def test_is_a_language_with_the_protocols_settings(language):
    assert isinstance(language, Language)
    assert len(language.vocab) == 96
    assert language.vocab[:4] == ("the", "a", "to", "is")
    assert (language.max_length, language.temperature) == (8, 0.8)
    assert language.tasks == {"topic": 6, "continuation": 2}
    assert len(language.classes("topic")) == 6
    assert len(language.classes("continuation")) == 2


def test_probabilities_sum_to_one_and_conditionals_follow_from_them(tiny, every):
    p = np.exp(tiny.log_prob(every))
    assert p.sum() == pytest.approx(1, abs=1e-12)
    table = p.reshape(4, 4, 4, 4)
    found = tiny.masked_conditionals(every)
    for t in range(4):
        wanted = np.moveaxis(table / table.sum(t, keepdims=True), t, -1)
        rows = wanted[tuple(np.delete(every.tokens, t, 1).T)]
        np.testing.assert_allclose(found[:, t], rows, rtol=1e-10)
        at = tiny.masked_conditionals_at(every, np.full(len(every), t))
        np.testing.assert_allclose(at, rows, rtol=1e-10)
    floor = np.mean([-(p * np.log(found[np.arange(256), t, every.tokens[:, t]])).sum() for t in range(4)])
    estimate = tiny.floor(4000, seed=1)
    assert abs(estimate.value - floor) < 3 * estimate.stderr
    assert estimate.stderr < 0.02


def test_topic_is_bayes_rule(tiny, every):
    joint = np.stack([
        np.exp(dataclasses.replace(tiny, prompts={topic: prompt}).log_prob(every)) / 6
        for topic, prompt in tiny.prompts.items()
    ], 1)  # fmt: skip
    posterior = tiny.posteriors("topic", every)
    np.testing.assert_allclose(posterior, joint / joint.sum(1, keepdims=True), rtol=1e-9)
    assert (tiny.labels("topic", every) == joint.argmax(1)).all()


def test_posterior_of_the_topic_is_calibrated(language):
    sentences, topics = language.sample_with_topics(4000, seed=3)
    posterior = language.posteriors("topic", sentences)
    own = posterior[np.arange(4000), topics]
    # E[1{z = c} - p(c | x)] = 0 for every class, and the posterior of the topic drawn averages to that of a fresh draw.
    for c in range(6):
        gap = Estimate.of((topics == c) - posterior[:, c])
        assert abs(gap.value) < 3.5 * gap.stderr
    gap = Estimate.of(own - (posterior**2).sum(1))
    assert abs(gap.value) < 3 * gap.stderr
    shares = np.bincount(posterior.argmax(1), minlength=6) / 4000
    assert shares.min() > 0.02


def test_continuation_is_exact_where_halves_can_be_listed(tiny, every):
    ratio, stderr = tiny.continuation_log_ratio(every)
    table = np.exp(tiny.log_prob(every)).reshape(16, 16)
    wanted = np.log(table / table.sum(1, keepdims=True) / table.sum(0))
    np.testing.assert_allclose(ratio, wanted.ravel(), atol=1e-10)
    assert (stderr == 0).all()
    np.testing.assert_allclose(
        tiny.posteriors("continuation", every)[:, 1], 1 / (1 + np.exp(-wanted.ravel())), atol=1e-10
    )
    assert (tiny.labels("continuation", every) == (wanted.ravel() > 0)).all()


def test_continuation_by_a_bank_has_the_error_it_states(monkeypatch):
    from sameloss.languages import lm_text_tasks

    small = LMText.embedded(words=24, length=4)
    sentences = small.sample(60, 0)
    exact, _ = small.continuation_log_ratio(sentences)
    monkeypatch.setattr(lm_text_tasks, "_ENUMERATED", 0)
    banked, stderr = small.continuation_log_ratio(sentences)
    assert (stderr > 0).all()
    z = (banked - exact) / stderr
    # One bank serves all sentences: its errors are common to them, so their spread is near 1 but not their mean near 0.
    assert np.sqrt((z**2).mean()) < 3
    assert np.abs(banked - exact).mean() < 0.15
    larger, smaller = dataclasses.replace(small, bank=6912).continuation_log_ratio(sentences)
    assert np.median(smaller / stderr) == pytest.approx(1 / 3, abs=0.05)
    assert np.abs(larger - exact).mean() < np.abs(banked - exact).mean()


def test_examples_of_the_tasks(language):
    sentences, labels, posteriors = language.task_examples("continuation", 200, seed=2)
    assert len(sentences) == len(labels) == 200
    assert posteriors.shape == (200, 2)
    np.testing.assert_allclose(posteriors.sum(1), 1)
    assert 0.4 < labels.mean() < 0.65  # as many of one sentence as of two
    assert posteriors.max(1).mean() > 0.75  # a task that can be solved
    again = language.task_examples("continuation", 200, seed=2)
    assert (again[0].tokens == sentences.tokens).all()
    assert (again[1] == labels).all()
    assert (language.labels("continuation", sentences) == labels).all()
    sentences, labels, posteriors = language.task_examples("topic", 100, seed=2)
    assert (sentences.tokens == language.sample(100, seed=2).tokens).all()
    assert (labels == posteriors.argmax(1)).all()


def test_sampling(tiny, every, language):
    drawn = tiny.sample(40_000, seed=7)
    counts = np.bincount(drawn.tokens @ [64, 16, 4, 1], minlength=256)
    p = np.exp(tiny.log_prob(every))
    chi2 = ((counts - 40_000 * p) ** 2 / (40_000 * p)).sum()
    assert abs(chi2 - 255) < 4 * np.sqrt(2 * 255)
    one, same, other = language.sample(50, 1), language.sample(50, 1), language.sample(50, 2)
    assert (one.tokens == same.tokens).all()
    assert (one.tokens != other.tokens).any()
    unigram = tiny.unigram(20_000, seed=5)
    share = p @ np.stack([(every.tokens == v).mean(1) for v in range(4)], 1)
    np.testing.assert_allclose(unigram, share, atol=0.01)


def test_streaming_and_single_positions_agree_with_the_whole(language):
    sentences = language.sample(7, 0)
    whole = language.masked_conditionals(sentences)
    assert whole.shape == (7, 8, 96)
    np.testing.assert_allclose(whole.sum(2), 1, rtol=1e-12)
    parts = list(language.iter_masked_conditionals(sentences, chunk=3))
    assert [len(part) for part in parts] == [3, 3, 1]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-10)
    positions = np.array([0, 7, 3, 3, 1, 6, 5])
    at = language.masked_conditionals_at(sentences, positions)
    np.testing.assert_allclose(at, whole[np.arange(7), positions], rtol=1e-10)
    other = sentences.tokens.copy()
    other[np.arange(7), positions] = 5  # the word that stands there does not matter
    np.testing.assert_allclose(
        language.masked_conditionals_at(Sentences(other, sentences.lengths), positions), at, rtol=1e-10
    )


def test_contexts_get_their_truth_from_one_position_alone(language, monkeypatch):
    sentences, positions = language.sample(5, 1), np.array([0, 7, 3, 1, 6])
    whole = language.masked_conditionals(sentences)[np.arange(5), positions]
    monkeypatch.setattr(LMText, "iter_masked_conditionals", None)  # all positions: several times the work
    np.testing.assert_allclose(contexts.conditionals_at(language, sentences, positions), whole, rtol=1e-10)


def test_memory_stays_bounded_whatever_the_number_of_sentences(monkeypatch):
    from sameloss.languages import lm_text_scores

    language = LMText.embedded(words=24, length=4)
    sizes = []

    class Watched:
        context, device = language.model.context, language.model.device

        def __call__(self, tokens, past=None, keep=True):
            logits, cache = language.model(tokens, past, keep)
            sizes.append(logits.numel())
            return logits, cache

    sentences = language.sample(120, 0)
    wanted = language.masked_conditionals(sentences)
    for logits in (30_000, 2_000):  # several sentences a pass; a fraction of one sentence's substitutions
        monkeypatch.setattr(lm_text_scores, "_LOGITS", logits)
        watched = dataclasses.replace(language, model=Watched())
        sizes.clear()
        streamed = np.concatenate(list(watched.iter_masked_conditionals(sentences, chunk=50)))
        watched.log_prob(sentences)
        watched.posteriors("topic", sentences)
        assert max(sizes) <= logits
        np.testing.assert_allclose(streamed, wanted, rtol=1e-10)


def test_temperature_sharpens_and_words_are_a_restriction(language):
    cold = LMText.embedded(temperature=0.4)
    assert cold.log_prob(cold.sample(200, 0)).mean() > language.log_prob(language.sample(200, 0)).mean() + 2
    fewer = LMText.embedded(words=10)
    assert fewer.vocab == language.vocab[:10]
    assert LMText.embedded(teacher="large").floor(60, 0).value < LMText.embedded(temperature=1.5).floor(60, 0).value


def test_sentences_in_and_out(language):
    words = ["the", "name", "of", "the", "file", "is", "not", "used"]
    sentences = language.encode([words])
    assert [language.vocab[v] for v in sentences.tokens[0]] == words
    assert np.isfinite(language.log_prob(sentences)).all()
    short = language.encode([words[:3], words])
    log_p = language.log_prob(short)
    assert log_p[0] == -np.inf
    assert log_p[1] == language.log_prob(sentences)[0]
    for impossible in (
        language.masked_conditionals,
        lambda s: language.posteriors("topic", s),
        lambda s: language.labels("continuation", s),
        lambda s: language.masked_conditionals_at(s, np.zeros(2, dtype=np.int64)),
    ):
        with pytest.raises(UserError, match="sentence 1: 3 words have probability 0"):
            impossible(short)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([], "at least one"),
        ([[]], "0 words"),
        ([["the"] * 9], "9 words"),
        ([["the", "zebra"]], "'zebra' is not among the 96 known words"),
    ],
)
def test_words_that_cannot_be_encoded(language, sentences, message):
    with pytest.raises(UserError, match=message):
        language.encode(sentences)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": 801}, "found 801, allowed is 2 to 800"),
        ({"words": 1}, "found 1, allowed is 2 to 800"),
        ({"length": 1}, "found 1, allowed is 2 or more"),
        ({"length": 9}, "1 tokens of prompt and 9 words found, the model reads 9 tokens"),
        ({"temperature": 0.0}, "found 0.0, allowed is a number above 0"),
        ({"temperature": -1.0}, "allowed is a number above 0"),
        ({"temperature": float("nan")}, "allowed is a number above 0"),
        ({"teacher": "huge"}, "no teacher 'huge'; allowed are large, small"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(UserError, match=message):
        LMText.embedded(**options)


def test_wrong_requests(language):
    sentences = language.sample(2, 0)
    for call, message in (
        (lambda: language.labels("task-6", sentences), "found 'task-6', allowed is topic, continuation"),
        (lambda: language.classes("A"), "found 'A'"),
        (lambda: language.sample(0, 0), "number of sentences"),
        (lambda: list(language.iter_masked_conditionals(sentences, chunk=0)), "chunk of sentences: found 0"),
        (lambda: language.masked_conditionals_at(sentences, np.array([0, 8])), "position 8; allowed are 0 to 7"),
        (lambda: language.log_prob(Sentences(sentences.tokens + 95, sentences.lengths)), "outside the vocabulary"),
        (lambda: language.log_prob(Sentences(sentences.tokens, sentences.lengths + 1)), "length 9"),
        (lambda: language.log_prob(sentences[:0]), "at least one"),
        (lambda: dataclasses.replace(language, bank=1), "found 1, allowed is 2 or more"),
        (lambda: dataclasses.replace(language, prompts={}), "at least one prompt"),
        (lambda: dataclasses.replace(language, vocab=language.vocab[:5]), "one model token for each"),
    ):
        with pytest.raises(UserError, match=message):
            call()
