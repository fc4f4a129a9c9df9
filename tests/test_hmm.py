"""Hidden Markov models against sums over every path, hmmlearn, and their own samples."""

import itertools

import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sameloss.errors import UserError
from sameloss.languages.base import Language, Sentences
from sameloss.languages.draw import STEP, balanced, rarest_share
from sameloss.languages.floors import masked_entropies
from sameloss.languages.hmm import HMM
from sameloss.languages.hmm_matrices import stationary
from sameloss.languages.pcfg import PCFG


def path_probabilities(model: HMM, words: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """p(words, path) for every path of hidden states."""
    found = {}
    for path in itertools.product(range(len(model.start)), repeat=len(words)):
        p = model.start[path[0]] * model.emission[path[0], words[0]]
        for before, state, word in zip(path, path[1:], words[1:], strict=False):
            p *= model.transition[before, state] * model.emission[state, word]
        found[path] = float(p)
    return found


def conditional(model: HMM, words: tuple[int, ...], t: int, combine: object) -> np.ndarray:
    """The normalised values of `combine` (sum or max) over the paths of each substitution at t."""
    values = [
        combine(path_probabilities(model, (*words[:t], v, *words[t + 1 :])).values())  # type: ignore[operator]
        for v in range(model.emission.shape[1])
    ]
    return np.array(values) / sum(values)


@st.composite
def models(draw: st.DrawFn) -> HMM:
    """One to three states and words, up to four positions; some entries are zero."""
    states, words, length = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def rows(n: int, columns: int) -> np.ndarray:
        weight = rng.dirichlet(np.ones(columns), n) * (rng.random((n, columns)) < draw(st.sampled_from([0.6, 1.0])))
        weight[np.arange(n), rng.integers(0, columns, n)] += 0.1
        return weight / weight.sum(axis=1, keepdims=True)

    return HMM(rows(1, states)[0], rows(states, states), rows(states, words), length, positions=(length,))


@settings(max_examples=80, deadline=None)
@given(models(), st.integers(0, 2**32))
def test_everything_equals_the_sum_over_paths(model: HMM, seed: int) -> None:
    sentences = model.sample(3, seed)
    conditionals = model.masked_conditionals(sentences)
    positions = np.random.default_rng(seed).integers(0, model.max_length, 3)
    np.testing.assert_allclose(
        model.masked_conditionals_at(sentences, positions), conditionals[np.arange(3), positions], rtol=1e-12
    )
    for i, row in enumerate(sentences.tokens.tolist()):
        words = tuple(row)
        paths = path_probabilities(model, words)
        total = sum(paths.values())
        assert np.exp(model.log_prob(sentences)[i]) == pytest.approx(total, rel=1e-12)
        for t in range(model.max_length):
            np.testing.assert_allclose(conditionals[i, t], conditional(model, words, t, sum), rtol=1e-12, atol=1e-300)
            states = np.zeros(len(model.start))
            for path, p in paths.items():
                states[path[t]] += p / total
            found = model.posteriors(f"state-{t + 1}", sentences)[i]
            np.testing.assert_allclose(found, states, rtol=1e-12, atol=1e-300)


def test_probabilities_of_all_sentences_sum_to_one() -> None:
    model = HMM.random(3, 3, 5, seed=4)
    every = np.array(list(itertools.product(range(3), repeat=5)))
    p = np.exp(model.log_prob(Sentences(every, np.full(len(every), 5))))
    assert p.sum() == pytest.approx(1.0, rel=1e-13)
    counts = np.zeros(len(every))
    np.add.at(counts, model.sample(100_000, 1).tokens @ 3 ** np.arange(4, -1, -1), 1)
    keep = p > 1e-4
    expected = 100_000 * np.r_[p[keep], p[~keep].sum()]
    observed = np.r_[counts[keep], counts[~keep].sum()]
    assert stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 1e-3
    share = np.array([(every == v).mean(axis=1) for v in range(3)]) @ p
    np.testing.assert_allclose(model.unigram(), share, rtol=1e-12)


def test_the_best_path_is_not_the_conditional() -> None:
    """Maxima over paths ("Viterbi") in the place of sums give another distribution, here with another best word."""
    # Word 0 comes from one likely path, word 1 from two that are each less likely and together more likely.
    start = np.array([0.4, 0.3, 0.3])
    transition = np.eye(3)
    emission = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    model = HMM(start, transition, emission, length=1)
    sentence = model.encode([["w0"]])
    true = model.masked_conditionals(sentence)[0, 0]
    np.testing.assert_allclose(true, conditional(model, (0,), 0, sum))
    best_path = conditional(model, (0,), 0, max)
    np.testing.assert_allclose(true, [0.4, 0.6])
    np.testing.assert_allclose(best_path, [4 / 7, 3 / 7])
    # On random chains too, and not by rounding: much of the mass sits elsewhere.
    chain = HMM.random(5, 5, 4, concentration=1.0, seed=0)
    words = tuple(chain.sample(1, 0).tokens[0].tolist())
    assert abs(conditional(chain, words, 1, sum) - conditional(chain, words, 1, max)).sum() > 0.1


def test_agrees_with_hmmlearn() -> None:
    """100 states: log p(x) and the conditionals as T * V substitutions scored by hmmlearn, to 1e-9."""
    model = HMM.paper_shape(3)
    other = CategoricalHMM(n_components=100, n_features=200)
    other.startprob_, other.transmat_, other.emissionprob_ = model.start, model.transition, model.emission
    sentences = model.sample(3, 0)
    for i in range(3):
        assert model.log_prob(sentences)[i] == pytest.approx(other.score(sentences.tokens[i][:, None]), rel=1e-9)
    sentence = sentences[:1]
    found = model.masked_conditionals(sentence)[0]
    for t in (0, 5, 15):
        every = np.repeat(sentence.tokens, 200, axis=0)
        every[:, t] = np.arange(200)
        log_p = np.array([other.score(row[:, None]) for row in every])
        expected = np.exp(log_p - log_p.max())
        np.testing.assert_allclose(found[t], expected / expected.sum(), rtol=1e-9)
    _, posterior = other.score_samples(sentence.tokens[0][:, None])
    np.testing.assert_allclose(model.posteriors("state-6", sentence)[0], posterior[5], rtol=1e-9, atol=1e-12)


def test_no_underflow_at_length_64() -> None:
    """Words of probability 1e-8 each: p(x) is near 1e-512, its conditionals are as exact as ever."""
    emission = np.hstack([np.full((3, 4), 1e-8), np.eye(3, 1) * 0 + 1 - 4e-8])
    emission[0, :2] = (2e-8, 0.5e-8)
    emission[:, 4] = 1 - emission[:, :4].sum(axis=1)
    model = HMM(np.ones(3) / 3, np.full((3, 3), 1 / 3), emission, length=64)
    tokens = np.random.default_rng(0).integers(0, 4, (50, 64))
    sentences = Sentences(tokens, np.full(50, 64))
    np.testing.assert_allclose(model.log_prob(sentences), np.log(emission.mean(axis=0))[tokens].sum(axis=1), rtol=1e-12)
    expected = np.broadcast_to(emission.mean(axis=0), (50, 64, 5))  # states are independent here
    np.testing.assert_allclose(model.masked_conditionals(sentences), expected, rtol=1e-11)


def test_sampled_states_follow_the_posteriors() -> None:
    model = HMM.twelve_state_chain(3)
    assert isinstance(model, Language)
    assert model.tasks == {"state-3": 12, "state-5": 12}
    sentences, states = model.sample_with_states(20_000, 5)
    np.testing.assert_array_equal(sentences.tokens, model.sample(20_000, 5).tokens)
    posterior = model.posteriors("state-5", sentences)
    # log loss of the sampled state has the posterior's entropy as its mean
    gap = -np.log(posterior[np.arange(20_000), states[:, 4]]) - stats.entropy(posterior, axis=1)
    assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(20_000)
    hit = (model.labels("state-5", sentences) == states[:, 4]) - posterior.max(axis=1)
    assert abs(hit.mean()) < 4 * hit.std() / np.sqrt(20_000)
    assert model.labels("state-8", sentences).shape == (20_000,)  # any position
    np.testing.assert_allclose(model.start @ model.transition, model.start, rtol=1e-10)
    np.testing.assert_allclose(stationary(model.transition), model.start)


def test_floor_lies_under_the_unigram_entropy() -> None:
    model = HMM.twelve_state_chain(3)
    floor = model.floor(4000, 1)
    entropies = masked_entropies(model, model.sample(4000, 1))
    assert floor.value == pytest.approx(entropies.mean(), rel=1e-12)
    assert floor.value + 5 * floor.stderr < model.unigram_entropy() < np.log(24)
    own = -np.log(
        model.masked_conditionals(model.sample(4000, 2))[np.arange(4000), 3, model.sample(4000, 2).tokens[:, 3]]
    )
    assert abs(own.mean() - entropies[:, 3].mean()) < 4 * np.hypot(own.std(), entropies[:, 3].std()) / np.sqrt(4000)


def test_chunks_are_the_whole() -> None:
    model = HMM.twelve_state_chain(3)
    sentences = model.sample(300, 0)
    parts = list(model.iter_masked_conditionals(sentences, chunk=130))
    assert [len(part) for part in parts] == [130, 130, 40]
    np.testing.assert_allclose(np.concatenate(parts), model.masked_conditionals(sentences), rtol=1e-12)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"start": np.array([0.5, 0.6])}, "start, row 0: sums to 1.1; 1 is needed"),
        ({"transition": np.eye(3)}, r"transition has shape \(3, 3\); \(2, 2\) is needed"),
        ({"transition": np.array([[1, 0], [0.5, 0.4]])}, "transition, row 1: sums to 0.9"),
        ({"emission": np.array([[0.5, 0.5], [1.5, -0.5]])}, "emission, row 1: holds -0.5; numbers from 0 to 1"),
        ({"emission": np.array([[np.nan, 1], [0.5, 0.5]])}, "emission, row 0: holds nan"),
        ({"emission": np.ones((3, 2)) / 2}, r"emission has shape \(3, 2\); \(2, words\) is needed"),
        ({"length": 0}, "length is 0"),
        ({"positions": (9,)}, "position 9 is outside the sentence; allowed are 1 to 8"),
        ({"vocab": ("a", "a")}, "vocab holds 1 different words"),
    ],
)
def test_bad_matrices(changed: dict[str, object], said: str) -> None:
    good = {"start": np.ones(2) / 2, "transition": np.eye(2), "emission": np.ones((2, 2)) / 2, "length": 8}
    with pytest.raises(UserError, match=said):
        HMM(**({"positions": ()} | good | changed))  # type: ignore[arg-type]


def test_bad_parameters_and_sentences() -> None:
    for changed, said in [
        ({"states": 0}, "states is 0"),
        ({"concentration": -1.0}, "concentration is -1.0"),
        ({"smoothing": 0.0}, "smoothing is 0.0"),
    ]:
        with pytest.raises(UserError, match=said):
            HMM.random(**({"states": 2, "vocab": 3, "length": 4} | changed))  # type: ignore[arg-type]
    model = HMM(np.array([1.0, 0.0]), np.array([[0.0, 1.0], [1.0, 0.0]]), np.eye(2), length=3, positions=())
    possible = model.encode([["w0", "w1", "w0"]])
    np.testing.assert_array_equal(model.masked_conditionals(possible)[0], [[1, 0], [0, 1], [1, 0]])
    for words, said in [
        ([["w0", "w1"]], "sentence 1 has 2 words; this chain makes exactly 3"),
        ([["w0"] * 4], "sentence 1 has 4 words; allowed are 1 to 3"),
        ([["w0", "w2", "w0"]], "'w2' is not among the 2 known words"),
        ([], "no sentence given"),
    ]:
        with pytest.raises(UserError, match=said):
            model.encode(words)
    for words in (["w1", "w1", "w0"], ["w0", "w0", "w0"], ["w0", "w1", "w1"]):
        impossible = Sentences(np.r_[possible.tokens, model.encode([words]).tokens], np.array([3, 3]))
        assert np.isneginf(model.log_prob(impossible)[1])
        with pytest.raises(UserError, match="sentence 2 has probability 0"):
            model.masked_conditionals(impossible)
        with pytest.raises(UserError, match="sentence 2 has probability 0"):
            model.labels("state-2", impossible)
    masked = Sentences(np.array([[0, 0, 0]]), np.array([3]))  # the word at the mask is ignored
    np.testing.assert_array_equal(model.masked_conditionals_at(masked, np.array([1])), [[0, 1]])
    with pytest.raises(UserError, match="sentence 1 has probability 0"):
        model.masked_conditionals_at(masked, np.array([0]))
    with pytest.raises(UserError, match="unknown task 'state-4'; known: state-1 to state-3"):
        model.labels("state-4", possible)


def test_languages_with_a_rare_label_are_drawn_again() -> None:
    made = []

    def make(seed: int) -> PCFG:
        made.append(seed)
        return PCFG.tree_grammar(seed)

    language, redraws = balanced(make, seed=11, n=4096)
    assert made == [11 + k * STEP for k in range(redraws + 1)]
    assert rarest_share(language, made[-1], 4096)[1] >= 0.02
    assert all(rarest_share(PCFG.tree_grammar(seed), seed, 4096)[1] < 0.02 for seed in made[:-1])
    with pytest.raises(UserError, match=r"its rarest label held under 60% of sentences"):
        balanced(lambda seed: HMM.random(2, 2, 2, positions=(1,), seed=1), seed=0, share=0.6, n=50)
