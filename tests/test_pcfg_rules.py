"""Grammar files and random grammars: what is read, what is refused, what is reported."""

from pathlib import Path

import numpy as np
import pytest

from sameloss.errors import UserError
from sameloss.languages.base import Language
from sameloss.languages.grammar import Rule, length_distribution
from sameloss.languages.pcfg import PCFG


def written(folder: Path, text: str) -> Path:
    path = folder / "grammar.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_small_grammar_file(root: Path) -> None:
    language = PCFG.from_file(root / "tests/data/small_grammar.txt")
    assert isinstance(language, Language)
    assert language.vocab == ("word", "loss", "tree", "falls")
    assert language.grammar.symbols[0] == "S"
    assert language.max_length == 6
    assert language.grammar.correction == pytest.approx(0.01)
    assert language.grammar.corrected == "Pair"
    assert "largest correction 0.01 (Pair)" in str(language)
    pair = language.grammar.symbols.index("Pair")
    rows = language.grammar.binary[:, 0] == pair
    np.testing.assert_allclose(sorted(language.grammar.binary_p[rows]), [0.29 / 0.99, 0.7 / 0.99], rtol=1e-15)
    group, noun = language.grammar.symbols.index("Group"), language.grammar.symbols.index("Noun")
    twice = (language.grammar.binary == (group, pair, noun)).all(axis=1)
    np.testing.assert_allclose(language.grammar.binary_p[twice], [0.6])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rule found"),
        ("# only a remark\n\n", "no rule found"),
        ("S x\n", r"line 1: 2 fields found in 'S x'; use `A B C p`"),
        ("S x 1\nS S S S .1\n", r"line 2: 5 fields found"),
        ("S x 1\n\nS y p\n", r"line 3: the probability 'p' is not a number; allowed is 0 to 1"),
        ("S x -0.1\n", r"line 1: the probability is -0.1; allowed is 0 to 1"),
        ("S x nan\n", r"line 1: the probability is nan; allowed is 0 to 1"),
        ("S x inf\n", r"line 1: the probability is inf; allowed is 0 to 1"),
        ("S x 1.5\n", r"line 1: the probability is 1.5; allowed is 0 to 1"),
        ("S A A 1\nA x 0\n", r"line 2: the rules of 'A' sum to 0; a sum above 0 is needed"),
        ("S A B 1\nA x 1\n", r"line 1: unknown symbol 'B'; a pair needs two symbols with rules of their own"),
        ("S A A .5\nS x .5\nA A A 1\n", r"line 3: the rules of 'A' never end in words"),
        (
            "S A .5\nS x .5\nA B 1\nB A .9\nB x .1\n",
            r"line 3: the cycle A -> B -> A of single-symbol rules is not allowed",
        ),
        ("S S .5\nS x .5\n", r"line 1: the cycle S -> S of single-symbol rules is not allowed"),
        ("S x .3\nS S S .7\n", r"line 1: the rule cycle through 'S' never ends on average \(1.4 new symbols"),
        ("S x .5\nS S S .5\n", r"line 1: the rule cycle through 'S' never ends on average \(1 new symbols"),
    ],
)
def test_refused_files_name_the_line(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=said) as refused:
        PCFG.from_file(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        PCFG.from_file(tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00S x 1")
    with pytest.raises(UserError, match="not a text file"):
        PCFG.from_file(tmp_path / "binary.txt")


def test_a_mark_before_the_first_line_is_no_part_of_the_start(tmp_path: Path) -> None:
    path = tmp_path / "grammar.txt"
    path.write_bytes(b"\xef\xbb\xbf# a comment\nS x 1\n")
    assert PCFG.from_file(path).grammar.symbols == ("S",)


def test_sentences_too_long_for_charts_are_refused_before_any_work(tmp_path: Path) -> None:
    doubling = "".join(f"S{i} S{i + 1} S{i + 1} 1\n" for i in range(70)) + "S70 a 1\n"
    with pytest.raises(UserError, match=f"up to {2**70} words; allowed are 256"):
        PCFG.from_file(written(tmp_path, doubling))
    with pytest.raises(UserError, match="max_length is 10000000; a whole number, at least 1 and at most 256"):
        PCFG.from_file(written(tmp_path, "S a .6\nS S S .4\n"), 10**7)


def test_a_recursive_grammar_is_cut_and_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, "S S S .3\nS x .7\n")
    # p(n words) = Catalan(n - 1) .3^(n-1) .7^n
    expected = np.array([1, 1, 2, 5]) * 0.3 ** np.arange(4) * 0.7 ** np.arange(1, 5)
    language = PCFG.from_file(path, max_length=4)
    assert language.kept == pytest.approx(expected.sum(), rel=1e-14)
    assert f"{1 - expected.sum():.2g} of all sentences are longer and left out" in str(language)
    np.testing.assert_allclose(length_distribution(language.grammar, 4)[0, 1:], expected, rtol=1e-14)
    lengths = np.bincount(language.sample(20000, 0).lengths, minlength=5)[1:] / 20000
    share = expected / expected.sum()
    assert (abs(lengths - share) < 4 * np.sqrt(share * (1 - share) / 20000)).all()
    assert PCFG.from_file(path).max_length == 64
    with pytest.raises(UserError, match=r"of the sentences have at most 1 words; at least 0.01 is needed"):
        PCFG.from_rules([Rule("S", ("S", "S"), 0.499), Rule("S", ("A", "A"), 0.501), Rule("A", ("x",), 1.0)], 1)


def test_random_grammars_have_the_shape_asked_for() -> None:
    language = PCFG.random((3, 5, 4), vocab=7, rules=6, root_rules=4, early_stop=0.25, emission_floor=0.1, seed=5)
    g = language.grammar
    assert len(g.symbols) == 13
    assert len(language.vocab) == 7
    assert np.bincount(g.binary[:, 0], minlength=13).tolist() == [4] + [6] * 8 + [0] * 4
    assert len(np.unique(g.binary, axis=0)) == len(g.binary)
    np.testing.assert_allclose(g.emission.sum(axis=1), [0] + [0.25] * 8 + [1] * 4, rtol=1e-12)
    assert (g.emission[9:] >= 0.1 / 7 - 1e-15).all()
    assert language.max_length == 8
    same = PCFG.random((3, 5, 4), vocab=7, rules=6, root_rules=4, early_stop=0.25, emission_floor=0.1, seed=5)
    np.testing.assert_array_equal(same.grammar.emission, g.emission)
    assert not np.array_equal(PCFG.tree_grammar(1).grammar.emission, PCFG.tree_grammar(2).grammar.emission)


def test_the_named_shapes() -> None:
    tree = PCFG.tree_grammar(7)
    assert (len(tree.grammar.symbols), len(tree.vocab), tree.max_length) == (13, 16, 8)
    assert (tree.sample(100, 0).lengths == 8).all()
    paper = PCFG.paper_shape(7)
    assert (len(paper.grammar.symbols) - 1, len(paper.vocab), paper.max_length) == (50, 200, 32)
    assert 16 < paper.sample(4000, 0).lengths.mean() < 18  # the paper's 3.4e8 tokens in 2e7 sentences
    assert set(paper.tasks) == {"A", "B", "C", "left"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vocab": 0}, "vocab is 0; at least 1"),
        ({"rules": 17}, "rules is 17; 4 symbols on a level have only 16 pairs"),
        ({"root_rules": 0}, "root_rules is 0"),
        ({"levels": ()}, "levels is 0"),
        ({"levels": (4, 0)}, r"levels is \[4, 0\]"),
        ({"early_stop": 1.5}, "early_stop is 1.5; allowed is 0 to 1"),
        ({"emission_floor": float("nan")}, "emission_floor is nan"),
        ({"concentration": 0.0}, "concentration is 0.0; a number above 0"),
    ],
)
def test_bad_parameters_of_random_grammars(changed: dict[str, float], said: str) -> None:
    good = {"levels": (4, 4), "vocab": 8, "rules": 2, "root_rules": 2}
    with pytest.raises(UserError, match=said):
        PCFG.random(**(good | changed))


def test_bad_sentences(root: Path) -> None:
    language = PCFG.from_file(root / "tests/data/small_grammar.txt")
    for sentences, said in [
        ([], "no sentence given"),
        ([["tree"], []], "sentence 2 has 0 words; allowed are 1 to 6"),
        ([["tree"] * 9], "sentence 1 has 9 words"),
        ([["tree", "Noun"]], "sentence 1, word 2: 'Noun' is not among the 4 known words"),
        (["tree"], "a list of words is needed"),
    ]:
        with pytest.raises(UserError, match=said):
            language.encode(sentences)
    impossible = language.encode([["tree", "falls"], ["falls", "falls"]])
    assert np.isneginf(language.log_prob(impossible)[1])
    assert np.isfinite(language.log_prob(impossible)[0])
    for call in (
        language.masked_conditionals,
        lambda s: language.labels("A", s),
        lambda s: language.posteriors("B", s),
        lambda s: language.parse(s[1:]),
        lambda s: language.span_posteriors(s[1:]),
    ):
        with pytest.raises(UserError, match=r"sentence [12] has probability 0"):
            call(impossible)
    # At one position the word that stands there does not count: "falls ____" is possible.
    at = language.masked_conditionals_at(impossible, np.array([0, 1]))
    np.testing.assert_allclose(at.sum(axis=1), 1.0)
    with pytest.raises(UserError, match="sentence 1: position 2; allowed are 0 to 1"):
        language.masked_conditionals_at(impossible, np.array([2, 0]))
    with pytest.raises(UserError, match="the number of sentences is 0"):
        language.sample(0, 0)
    with pytest.raises(UserError, match="no sentence of this grammar has 1 words"):
        language.unigram(1)
