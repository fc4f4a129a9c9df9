"""Balanced brackets: enumeration, sampling, conditionals."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sameloss.errors import UserError
from sameloss.languages import dyck
from sameloss.languages.base import PAD, Language, Sentences
from sameloss.languages.dyck import Dyck

kinds = pytest.mark.parametrize("kind", dyck.KINDS)


def is_word(row, kind):
    height = list(itertools.accumulate(row))
    return height[-1] == 0 and (kind == "equal-count" or min(height) >= 0)


@kinds
@pytest.mark.parametrize("length", [2, 4, 6, 10])
def test_enumeration_is_every_word_once(length, kind):
    brute = [row for row in itertools.product((1, -1), repeat=length) if is_word(row, kind)]
    words = dyck.enumerate_words(length, kind)
    assert words.tolist() == [list(row) for row in brute]
    assert dyck.count(length, kind) == len(brute)


@kinds
def test_counts_are_catalan_and_binomial(kind):
    expected = {"strict": [1, 2, 5, 14, 42, 132], "equal-count": [2, 6, 20, 70, 252, 924]}
    assert [dyck.count(length, kind) for length in (2, 4, 6, 8, 10, 12)] == expected[kind]


@kinds
@settings(max_examples=25, deadline=None)
@given(half=st.integers(1, 150), seed=st.integers(0, 2**32 - 1))
def test_long_samples_are_words(kind, half, seed):
    words = dyck.sample_words(7, 2 * half, kind, np.random.default_rng(seed))
    assert words.shape == (7, 2 * half)
    assert all(is_word(row, kind) for row in words.tolist())


@kinds
def test_sampling_is_uniform(kind):
    language = Dyck(8, kind)
    n = 40_000
    tokens = language.sample(n, seed=11).tokens
    _, seen = np.unique(tokens, axis=0, return_counts=True)
    assert len(seen) == dyck.count(8, kind)
    assert stats.chisquare(seen).pvalue > 1e-3
    assert np.array_equal(tokens, language.sample(n, seed=11).tokens)
    assert not np.array_equal(tokens, language.sample(n, seed=12).tokens)


def test_masked_inputs_keep_everything_but_the_answer():
    words = dyck.enumerate_words(6, "strict")
    x, y = dyck.masked_inputs(words)
    assert x.shape == (30, 6)
    assert len(np.unique(x, axis=0)) == 30
    assert np.array_equal(dyck.mismatch(x), -y)
    assert ((x**2).sum(axis=1) == 5).all()
    assert np.array_equal((x + y[:, None] * (x == 0)).reshape(5, 6, 6), np.repeat(words[:, None], 6, axis=1))


@kinds
def test_conditionals_against_enumeration(kind):
    language = Dyck(6, kind)
    words = language.words()
    everything = np.array(list(itertools.product((0, 1), repeat=6)))
    probability = np.exp(language.log_prob(Sentences(everything, np.full(64, 6))))
    assert probability.sum() == pytest.approx(1, abs=1e-12)
    joint = dict(zip(map(tuple, everything.tolist()), probability, strict=True))
    found = language.masked_conditionals(words)
    for row, table in zip(words.tokens.tolist(), found, strict=True):
        for t in range(6):
            both = np.array([joint[(*row[:t], v, *row[t + 1 :])] for v in (0, 1)])
            np.testing.assert_allclose(table[t], both / both.sum(), atol=1e-15)
    chunks = list(language.iter_masked_conditionals(words, chunk=3))
    assert np.array_equal(np.concatenate(chunks), found)


def test_conditional_of_a_word_with_one_wrong_bracket_is_defined_there_only():
    language = Dyck(2)
    with pytest.raises(UserError, match=r"sentence 1, position 1: neither bracket makes a strict word"):
        language.masked_conditionals(language.encode(["(("]))
    language = Dyck(4)
    with pytest.raises(UserError, match=r"sentence 2, position 1"):
        language.masked_conditionals(language.encode(["(())", "())("]))


@kinds
def test_it_is_a_language_without_entropy(kind):
    language = Dyck(12, kind)
    assert isinstance(language, Language)
    floor = language.floor(200, seed=20)
    assert (floor.value, floor.stderr, floor.n) == (0.0, 0.0, 200)
    for task, classes in language.tasks.items():
        sentences = language.sample(500, seed=21)
        labels, posteriors = language.labels(task, sentences), language.posteriors(task, sentences)
        assert posteriors.shape == (500, classes)
        assert np.array_equal(posteriors.argmax(axis=1), labels)
        assert set(labels.tolist()) == set(range(classes))


def test_labels_by_hand():
    language = Dyck(6)
    sentences = language.encode(["()()()", "(())()", "((()))", "(()())"])
    assert language.labels("depth", sentences).tolist() == [0, 1, 2, 1]
    assert language.labels("partner", sentences).tolist() == [0, 1, 2, 2]
    assert Dyck(4, "equal-count").labels("depth", Dyck(4, "equal-count").encode(["))(("])).tolist() == [1]


def test_log_prob_is_uniform_on_the_language_and_minus_infinity_off_it():
    language = Dyck(6)
    rows = language.encode(["(())()", "())(()", "((((((", "(())"])
    assert rows.tokens[3].tolist() == [0, 0, 1, 1, PAD, PAD]
    assert language.log_prob(rows).tolist() == [-math.log(5), -math.inf, -math.inf, -math.inf]
    assert Dyck(6, "equal-count").log_prob(rows)[1] == -math.log(20)


@pytest.mark.parametrize("length", [0, 1, 7, -2, 4.0, True])
def test_length_must_be_even(length):
    with pytest.raises(UserError, match="T is an even integer of at least 2"):
        Dyck(length)


def test_bad_input_is_named():
    with pytest.raises(UserError, match="allowed: strict, equal-count"):
        Dyck(4, "loose")
    with pytest.raises(UserError, match=r"705,432 equal-count words make 15,519,504 numbers"):
        dyck.enumerate_words(22, "equal-count")
    language = Dyck(4)
    for sentences, complaint in (
        ([""], "has 0 words"),
        (["((()))"], "has 6 words"),
        (["(())", "(["], r"sentence 2, word 2: '\['"),
    ):
        with pytest.raises(UserError, match=complaint):
            language.encode(sentences)
    with pytest.raises(UserError, match="sentence 1 has 2 brackets; every word has 4"):
        language.masked_conditionals(language.encode(["()"]))
    with pytest.raises(UserError, match="allowed: depth, partner"):
        language.labels("height", language.sample(2, seed=20))


def test_what_is_no_sentence_and_no_count_is_refused():
    language = Dyck(4)
    for tokens, lengths, said in (
        (np.array([[0, 1, 0, 99]]), np.array([4]), "outside the vocabulary"),
        (np.array([[0.0, 1.0, 0.0, 1.0]]), np.array([4]), "whole numbers"),
        (np.array([[0, 1, 0, 1]]), np.array([[4]]), "n lengths are needed"),
    ):
        with pytest.raises(UserError, match=said):
            language.log_prob(Sentences(tokens, lengths))
    for n in (0, -1, 2.5, True, 10**12):
        with pytest.raises(UserError, match="the number of sentences is"):
            language.sample(n, 7001)
    with pytest.raises(UserError, match="seed is -1"):
        language.sample(2, -1)
    with pytest.raises(UserError, match="chunk is 0"):
        list(language.iter_masked_conditionals(language.words(), 0))
    with pytest.raises(UserError, match="at most 10000 brackets"):
        Dyck(10**30)
