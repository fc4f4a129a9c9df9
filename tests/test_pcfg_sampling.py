"""Samples against exact probabilities; long sentences; many sentences."""

import tracemalloc
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

from sameloss.languages.alias import alias
from sameloss.languages.floors import floor_by_length, floor_by_position
from sameloss.languages.grammar import Rule
from sameloss.languages.pcfg import PCFG
from sameloss.measures.estimate import Estimate

SMALL_FLOOR = 0.917918772065049  # nats, t uniform within the sentence


@pytest.fixture(scope="module")
def small(root: Path) -> PCFG:
    return PCFG.from_file(root / "tests/data/small_grammar.txt")


def enumerated(path: Path) -> dict[tuple[str, ...], float]:
    """p(words) of every sentence of the small grammar, by expanding the lines of its file."""
    lines = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
    total: dict[str, float] = {}
    for left, *_, p in lines:
        total[left] = total.get(left, 0.0) + float(p)
    made: dict[str, dict[tuple[str, ...], float]] = {left: {} for left in total}
    for _ in range(5):  # once for each level of the grammar
        longer: dict[str, dict[tuple[str, ...], float]] = {left: {} for left in total}
        for left, *right, p in lines:
            below = [made[name] if name in total else {(name,): 1.0} for name in right]
            for chosen in product(*(part.items() for part in below)):
                words = sum((part for part, _ in chosen), ())
                q = float(p) / total[left] * prod(q for _, q in chosen)
                longer[left][words] = longer[left].get(words, 0.0) + q
        made = longer
    return made["S"]


@pytest.fixture(scope="module")
def truth(root: Path) -> dict[tuple[str, ...], float]:
    return enumerated(root / "tests/data/small_grammar.txt")


def test_frequencies_equal_probabilities(small: PCFG, truth: dict[tuple[str, ...], float]) -> None:
    every = small.encode([list(words) for words in truth])
    p = np.array(list(truth.values()))
    assert p.sum() == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(np.exp(small.log_prob(every)), p, rtol=1e-12)
    n = 200_000
    sample = small.sample(n, 3)
    index = {row.tobytes(): i for i, row in enumerate(every.tokens)}
    counts = np.bincount([index[row.tobytes()] for row in sample.tokens], minlength=len(p))
    often = n * p >= 10
    observed = np.r_[counts[often], counts[~often].sum()]
    expected = n * np.r_[p[often], p[~often].sum()]
    assert often.sum() > 100
    assert stats.chisquare(observed, expected * n / expected.sum()).pvalue > 1e-3


def test_the_floor_of_the_small_grammar(small: PCFG, truth: dict[tuple[str, ...], float]) -> None:
    """Its number, by enumeration, and the estimates of every kind of floor beside it."""
    p = np.array(list(truth.values()))
    lengths = np.array([len(words) for words in truth])
    entropy = np.full((len(truth), 6), np.nan)
    for i, words in enumerate(truth):
        for t in range(len(words)):
            q = np.array([truth.get((*words[:t], v, *words[t + 1 :]), 0.0) for v in small.vocab])
            entropy[i, t] = stats.entropy(q)
    exact = float((p * np.nanmean(entropy, axis=1)).sum())
    assert exact == pytest.approx(SMALL_FLOOR, abs=1e-12)
    assert exact < small.unigram_entropy()

    def agrees(estimate: Estimate, value: float) -> bool:
        return abs(estimate.value - value) <= 3 * estimate.stderr + 1e-12

    assert agrees(small.floor(20_000, 1), exact)
    by_length = floor_by_length(small, 20_000, 1)
    assert sorted(by_length) == [2, 3, 4, 5, 6]
    for length, estimate in by_length.items():
        rows = lengths == length
        assert agrees(estimate, float((p[rows] * np.nanmean(entropy[rows], axis=1)).sum() / p[rows].sum()))
    for position, estimate in floor_by_position(small, 20_000, 1).items():
        rows = lengths >= position
        assert agrees(estimate, float((p[rows] * entropy[rows, position - 1]).sum() / p[rows].sum()))


def test_the_same_seed_gives_the_same_bytes(small: PCFG) -> None:
    assert small.sample(500, 8).tokens.tobytes() == small.sample(500, 8).tokens.tobytes()
    assert small.sample(500, 8).tokens.tobytes() != small.sample(500, 9).tokens.tobytes()


def test_sampled_trees_carry_their_sentences(small: PCFG) -> None:
    sentences, trees = small.sample_with_trees(300, 8)
    np.testing.assert_array_equal(sentences.tokens, small.sample(300, 8).tokens)
    again = small.encode([list(tree.words) for tree in trees])
    np.testing.assert_array_equal(again.tokens, sentences.tokens)
    # The best tree of a sentence is at least as probable as the tree it was made with.
    roots = [tree.children[0].label for tree in trees]
    posteriors = small.posteriors("A", sentences)
    names = small.classes("A")
    assert (posteriors[np.arange(300), [names.index(root) for root in roots]] > 0).all()
    # Over many sentences the mean posterior of a class is how often it is drawn.
    share = np.array([roots.count(name) for name in names]) / 300
    assert (abs(posteriors.mean(axis=0) - share) < 4 / np.sqrt(300) / 2).all()


def test_alias_tables_hold_the_distribution() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 100):
        p = rng.dirichlet(np.full(size, 0.2))
        keep, other = alias(p)
        found = keep.copy()
        np.add.at(found, other, 1 - keep)
        np.testing.assert_allclose(found / size, p, atol=1e-15)


@pytest.mark.parametrize("p", [0.3, 1e-8, 1e-40])
def test_no_underflow_at_length_64(p: float) -> None:
    """S -> S S (p) | words (1 - p): p(x) = Catalan(63) p^63 (1-p)^64 prod e(x_t), every conditional is e."""
    e = np.array([0.6, 0.399, 0.001])
    rules = [Rule("S", ("S", "S"), p)] + [Rule("S", (w,), (1 - p) * q) for w, q in zip("xyz", e, strict=True)]
    language = PCFG.from_rules(rules)
    tokens = np.random.default_rng(0).integers(0, 3, (40, 64))
    sentences = language.encode([[language.vocab[v] for v in row] for row in tokens])
    catalan = gammaln(127) - gammaln(64) - gammaln(65)
    expected = catalan + 63 * np.log(p) + 64 * np.log1p(-p) + np.log(e[tokens]).sum(axis=1)
    np.testing.assert_allclose(language.log_prob(sentences), expected - np.log(language.kept), rtol=1e-12)
    np.testing.assert_allclose(language.masked_conditionals(sentences), np.broadcast_to(e, (40, 64, 3)), rtol=1e-10)


def test_random_grammar_of_length_64_is_consistent() -> None:
    """log p of two sentences that differ in one word differs by their conditionals at that word."""
    language = PCFG.random((5,) * 6, 50, rules=4, root_rules=5, emission_concentration=0.05, seed=1)
    sentences = language.sample(20, 0)
    assert (sentences.lengths == 64).all()
    conditionals = language.masked_conditionals(sentences)
    np.testing.assert_allclose(conditionals.sum(axis=2), 1.0, rtol=1e-12)
    rng = np.random.default_rng(1)
    rows, t, v = np.arange(20), rng.integers(0, 64, 20), rng.integers(0, 50, 20)
    other = sentences.tokens.copy()
    other[rows, t] = v
    moved = language.log_prob(type(sentences)(other, sentences.lengths)) - language.log_prob(sentences)
    ratio = np.log(conditionals[rows, t, v]) - np.log(conditionals[rows, t, sentences.tokens[rows, t]])
    np.testing.assert_allclose(moved, ratio, rtol=1e-9, atol=1e-10)


def test_conditionals_of_many_sentences_stream() -> None:
    """1e5 sentences: all conditionals at once would take 1.3 GB."""
    language = PCFG.random((4, 4, 4), 200, rules=2, root_rules=4, early_stop=0.1, seed=2)
    sentences = language.sample(100_000, 0)
    first = language.masked_conditionals(sentences[:700])
    tracemalloc.start()
    seen = 0
    for part in language.iter_masked_conditionals(sentences):
        if seen == 0:
            np.testing.assert_array_equal(part[:256], first[: len(part)][:256])
        seen += len(part)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == 100_000
    assert peak < 60e6
