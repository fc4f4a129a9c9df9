"""Grammars against brute-force enumeration of every sentence and every tree."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.languages.grammar import Rule
from sameloss.languages.pcfg import PCFG
from sameloss.languages.pcfg_tasks import NONE, Tasks
from sameloss.languages.pcfg_trees import Tree

LIMIT = 5
Words = tuple[str, ...]


def enumerate_sentences(rules: list[Rule], limit: int) -> dict[Words, float]:
    """p(words) of every sentence of at most `limit` words, by expanding rules; no chart, no normal form."""
    symbols = {rule.left for rule in rules}
    total = {a: sum(rule.p for rule in rules if rule.left == a) for a in symbols}
    memory: dict[tuple[str, int], dict[Words, float]] = {}

    def strings(a: str, length: int) -> dict[Words, float]:
        """Everything `a` derives with exactly `length` words."""
        if (a, length) not in memory:
            found: dict[Words, float] = {}
            for left, right, p, _ in rules:
                if left != a or p == 0:
                    continue
                if len(right) == 2:
                    parts = [
                        (x + y, px * py)
                        for k in range(1, length)
                        for x, px in strings(right[0], k).items()
                        for y, py in strings(right[1], length - k).items()
                    ]
                elif right[0] in symbols:
                    parts = list(strings(right[0], length).items())
                else:
                    parts = [((right[0],), 1.0)] if length == 1 else []
                for words, q in parts:
                    found[words] = found.get(words, 0.0) + p / total[a] * q
            memory[a, length] = found
        return memory[a, length]

    return {words: p for length in range(1, limit + 1) for words, p in strings(rules[0].left, length).items()}


def enumerate_trees(rules: list[Rule], a: str, words: Words, start: int = 0) -> Iterator[tuple[float, Tree]]:
    """Every tree of `a` over `words` with its probability; equal rules are summed first."""
    symbols = {rule.left for rule in rules}
    total = sum(rule.p for rule in rules if rule.left == a)
    merged: dict[Words, float] = {}
    for left, right, p, _ in rules:
        if left == a and p > 0:
            merged[right] = merged.get(right, 0.0) + p / total
    end = start + len(words)
    for right, p in merged.items():
        if len(right) == 2:
            for k in range(1, len(words)):
                for q1, first in enumerate_trees(rules, right[0], words[:k], start):
                    for q2, second in enumerate_trees(rules, right[1], words[k:], start + k):
                        yield p * q1 * q2, Tree(a, start, end, (first, second))
        elif right[0] in symbols:
            for q, child in enumerate_trees(rules, right[0], words, start):
                yield p * q, Tree(a, start, end, (child,))
        elif words == right:
            yield p, Tree(a, start, end, (Tree(right[0], start, end),))


def nodes(tree: Tree) -> Iterator[Tree]:
    if tree.children:
        yield tree
        for child in tree.children:
            yield from nodes(child)


def conditional(truth: dict[Words, float], words: Words, t: int, vocab: Words) -> np.ndarray:
    joint = np.array([truth.get((*words[:t], v, *words[t + 1 :]), 0.0) for v in vocab])
    return joint / joint.sum()


@st.composite
def grammars(draw: st.DrawFn) -> list[Rule]:
    """Up to four symbols, recursion, unary chains, unnormalised rows, equal rules, rules of weight 0."""
    names = "SABC"[: draw(st.integers(1, 4))]
    weight = st.floats(0.3, 1.0)
    rare = st.just(0.0) | st.floats(1e-4, 0.05)
    rules = []
    for k, left in enumerate(names):
        words = draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=4))
        rules += [Rule(left, (word,), draw(weight)) for word in words]
        for right in draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=4)):
            rules.append(Rule(left, right, draw(rare)))
        if names[k + 1 :]:
            chains = draw(st.lists(st.sampled_from(names[k + 1 :]), max_size=2))
            rules += [Rule(left, (b,), draw(weight)) for b in chains]
    return rules


@settings(max_examples=80, deadline=None)
@given(grammars(), st.integers(0, 2**32))
def test_probabilities_and_conditionals_equal_enumeration(rules: list[Rule], seed: int) -> None:
    language = PCFG.from_rules(rules, max_length=LIMIT)
    truth = enumerate_sentences(rules, LIMIT)
    kept = sum(truth.values())
    assert language.kept == pytest.approx(kept, rel=1e-12)
    sentences = language.encode([list(words) for words in truth])
    np.testing.assert_allclose(np.exp(language.log_prob(sentences)), np.array(list(truth.values())) / kept, rtol=1e-12)
    conditionals = language.masked_conditionals(sentences)
    positions = np.random.default_rng(seed).integers(0, sentences.lengths)
    at = language.masked_conditionals_at(sentences, positions)
    for i, words in enumerate(truth):
        for t in range(len(words)):
            expected = conditional(truth, words, t, tuple(language.vocab))
            np.testing.assert_allclose(conditionals[i, t], expected, rtol=1e-12)
        assert not conditionals[i, len(words) :].any()
        np.testing.assert_array_equal(at[i], conditionals[i, positions[i]])


@settings(max_examples=50, deadline=None)
@given(grammars())
def test_unigram_equals_enumeration(rules: list[Rule]) -> None:
    language = PCFG.from_rules(rules, max_length=LIMIT)
    truth = enumerate_sentences(rules, LIMIT)
    for length in (None, *{len(words) for words in truth}):
        chosen = {words: p for words, p in truth.items() if length in (None, len(words))}
        share = np.array([sum(p * w.count(v) / len(w) for w, p in chosen.items()) for v in language.vocab])
        expected = share / sum(chosen.values())
        np.testing.assert_allclose(language.unigram(length), expected, rtol=1e-12)
    nats = -sum(p * np.log(p) for p in language.unigram() if p > 0)
    assert language.unigram_entropy() == pytest.approx(nats, rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(grammars(), st.data())
def test_trees_spans_and_tasks_equal_enumeration(rules: list[Rule], data: st.DataObject) -> None:
    language = PCFG.from_rules(rules, max_length=LIMIT)
    words = data.draw(st.sampled_from(sorted(enumerate_sentences(rules, 4))))
    sentence = language.encode([list(words)])
    trees = list(enumerate_trees(rules, "S", words))
    total = sum(p for p, _ in trees)
    best = language.parse(sentence)
    assert best.words == words
    assert {str(tree): p for p, tree in trees}[str(best)] == pytest.approx(max(trees, key=lambda x: x[0])[0])

    spans = np.zeros((len(language.grammar.symbols), len(words), len(words) + 1))
    roots = dict.fromkeys(language.classes("A"), 0.0)
    for p, tree in trees:
        for node in nodes(tree):
            spans[language.grammar.symbols.index(node.label), node.start, node.end - node.start] += p / total
        rule = " ".join(child.label for child in tree.children)
        roots["a word" if not tree.children[0].children else rule] += p / total
    np.testing.assert_allclose(language.span_posteriors(sentence), spans, rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(language.posteriors("A", sentence)[0], list(roots.values()), rtol=1e-10, atol=1e-15)

    prefix = words[: max(1, language.max_length // 2)]
    names = language.classes("B")
    scores = [sum(p for p, _ in enumerate_trees(rules, a, prefix)) for a in names if a != NONE]
    label = names[language.labels("B", sentence)[0]]
    assume(len(scores) < 2 or np.isclose(*sorted(scores)[-2:], rtol=1e-9) == False)  # noqa: E712  ties are anyone's
    assert label == (names[int(np.argmax(scores))] if max(scores, default=0) > 0 else NONE)
    over = np.array([spans[language.grammar.symbols.index(a), 0, len(prefix)] for a in names if a != NONE])
    over = over / max(1.0, over.sum())
    posterior = language.posteriors("B", sentence)[0]
    np.testing.assert_allclose(posterior[: len(over)], over, rtol=1e-10, atol=1e-15)
    assert posterior.sum() == pytest.approx(1.0) or NONE not in names


def test_left_child_of_the_tree_grammar() -> None:
    language = PCFG.tree_grammar(3)
    sentences = language.sample(5, 0)
    rule = language.posteriors("A", sentences)
    lefts = [name.split()[0] for name in language.classes("A")]
    for k, left in enumerate(language.classes("left")):
        expected = rule[:, [name == left for name in lefts]].sum(axis=1)
        np.testing.assert_allclose(language.posteriors("left", sentences)[:, k], expected, rtol=1e-12)
    # Every prefix of four (two) words is one symbol of the first (second) level: no class for "none".
    assert language.tasks == {"A": 8, "B": 4, "C": 4, "left": len(set(lefts))}


def test_the_two_definitions_of_a_label_differ() -> None:
    # The words suit A a little better, but A hardly ever stands there.
    rules = [
        *[Rule("S", ("A", "C"), 0.1), Rule("S", ("B", "C"), 0.9)],
        *[Rule("A", ("C", "C"), 0.6), Rule("A", ("x",), 0.4), Rule("B", ("C", "C"), 0.5), Rule("B", ("x",), 0.5)],
        *[Rule("C", ("x",), 0.5), Rule("C", ("y",), 0.5)],
    ]
    language = PCFG.from_rules(rules)
    tasks = Tasks(language.grammar, language.max_length, {"pair": 2})
    sentence = language.encode([["x", "y", "y"]])
    names = tasks.classes("pair")
    assert names[tasks.labels("pair", sentence, "inside")[0]] == "A"
    assert names[tasks.labels("pair", sentence, "posterior")[0]] == "B"
    assert names[tasks.labels("pair", language.encode([["x", "y"]]), "inside")[0]] == "A"
    assert names[tasks.labels("pair", language.encode([["x", "y"]]), "posterior")[0]] == NONE


@pytest.mark.parametrize("definition", ["best", "Inside"])
def test_unknown_tasks_and_definitions(definition: str) -> None:
    language = PCFG.tree_grammar(3)
    sentences = language.sample(2, 0)
    with pytest.raises(UserError, match="allowed: inside, posterior"):
        language.labels("B", sentences, definition)
    with pytest.raises(UserError, match="unknown task 'D'; known: A, B, C, left"):
        language.labels("D", sentences)
