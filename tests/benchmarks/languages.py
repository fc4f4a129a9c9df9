"""The languages side by side with what one would install instead: `python tests/benchmarks/languages.py [GRAMMAR]`.

Prints sentences per second (one thread, CPU time, best of several runs), our ratio to each peer and the goals; exits
with 1 when a goal is missed. Every peer must first give the same numbers. GRAMMAR is a grammar file with levels (the
start, then symbols whose pairs are of the next level); without it SAMELOSS_REFERENCE_GRAMMAR is used.
A peer that is not installed is named with its pip line; torch-struct and dynamax want an environment of their own.
"""
# ruff: noqa: E402  the number of threads is read when numpy, torch and jax are imported

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import random
import sys
import time
from bisect import bisect
from collections.abc import Callable
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from sameloss.languages.base import Sentences
from sameloss.languages.hmm import HMM
from sameloss.languages.pcfg import PCFG

torch.set_num_threads(1)
PIP = {
    "nltk": "pip install nltk",
    "pcfg": "pip install pcfg",
    "torch_struct": "pip install --no-deps torch-struct",
    "hmmlearn": "pip install hmmlearn",
    "dynamax": "pip install dynamax",
}


class Row(NamedTuple):
    what: str
    who: str
    rate: float
    goal: float | None = None


def rate(count: int, work: Callable[[], object], seconds: float = 1.5) -> float:
    """`count` per second of CPU time, best of at least two runs after one to warm up."""
    work()
    best, spent, runs = float("inf"), 0.0, 0
    while runs < 2 or (spent < seconds and runs < 200):
        start = time.process_time()
        work()
        took = time.process_time() - start
        best, spent, runs = min(best, took), spent + took, runs + 1
    return count / best


def same(found: np.ndarray, expected: np.ndarray, who: str) -> None:
    error = float(np.abs(found - expected).max())
    assert error < 1e-9, f"{who} gives other conditionals: off by {error:.1e}"


# --- sampling -------------------------------------------------------------------------------------------------------


def rules_of(language: PCFG) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    g = language.grammar
    rules: dict[str, list[tuple[tuple[str, ...], float]]] = {name: [] for name in g.symbols}
    for (a, b, c), p in zip(g.binary.tolist(), g.binary_p.tolist(), strict=True):
        rules[g.symbols[a]].append(((g.symbols[b], g.symbols[c]), p))
    for (a, b), p in zip(g.unary.tolist(), g.unary_p.tolist(), strict=True):
        rules[g.symbols[a]].append(((g.symbols[b],), p))
    for a, v in np.argwhere(g.emission > 0).tolist():
        rules[g.symbols[a]].append(((g.vocab[v],), float(g.emission[a, v])))
    return rules


def plain_recursion(language: PCFG, draw: Callable[[list, list], tuple[str, ...]]) -> Callable[[int], list[list[str]]]:
    """What one writes first: rules with cumulative weights in a dict, and recursion."""
    table = {
        a: ([right for right, _ in options], list(accumulate(p for _, p in options)))
        for a, options in rules_of(language).items()
    }

    def grow(symbol: str, words: list[str]) -> None:
        rights, weights = table[symbol]
        for name in draw(rights, weights):
            if name in table:
                grow(name, words)
            else:
                words.append(name)

    def sample(n: int) -> list[list[str]]:
        drawn: list[list[str]] = [[] for _ in range(n)]
        for words in drawn:
            grow(language.grammar.symbols[0], words)
        return drawn

    return sample


def nltk_productions(language: PCFG) -> list[object]:
    from nltk.grammar import Nonterminal, ProbabilisticProduction

    names = {name: Nonterminal(name) for name in language.grammar.symbols}
    return [
        ProbabilisticProduction(names[a], [names.get(name, name) for name in right], prob=p)
        for a, options in rules_of(language).items()
        for right, p in options
    ]


def sampling(language: PCFG) -> list[Row]:
    rows = [Row("sampling", "ours", rate(20_000, lambda: language.sample(20_000, 0)))]
    recursions = {
        "plain recursion, random.choices": lambda rights, weights: random.choices(rights, cum_weights=weights)[0],
        "plain recursion, bisect": lambda rights, weights: rights[
            min(bisect(weights, random.random()), len(rights) - 1)
        ],
    }
    for name, draw in recursions.items():
        recursion = plain_recursion(language, draw)
        rows.append(Row("sampling", name, rate(2000, lambda recursion=recursion: recursion(2000)), goal=35))
    if find_spec("nltk") and find_spec("pcfg"):
        import pcfg
        from nltk.grammar import Nonterminal

        grammar = pcfg.PCFG(Nonterminal(language.grammar.symbols[0]), nltk_productions(language))
        rows.append(Row("sampling", "pcfg (on nltk)", rate(500, lambda: list(grammar.generate(500)))))
    return rows


# --- conditionals of a grammar --------------------------------------------------------------------------------------


class Dense:
    """A grammar with levels as dense torch tensors, one pass for all sentences of a length; outside by autograd."""

    def __init__(self, language: PCFG) -> None:
        g = language.grammar
        # Unary rules of the start are folded into its pairs.
        reach = np.zeros(len(g.symbols))
        reach[0] = 1.0
        for (a, b), p in zip(g.unary.tolist(), g.unary_p.tolist(), strict=True):
            reach[b] += p * reach[a]
        level = {int(c): 1 for a, b, c in g.binary.tolist() if reach[a] > 0}
        level |= {int(b): 1 for a, b, c in g.binary.tolist() if reach[a] > 0}
        while True:
            deeper = {x: level[a] + 1 for a, b, c in g.binary.tolist() if a in level for x in (b, c)}
            if deeper.items() <= level.items():
                break
            level |= deeper
        self.levels = [[a for a in level if level[a] == k] for k in range(1, max(level.values()) + 1)]
        place = {a: i for symbols in self.levels for i, a in enumerate(symbols)}
        size = [len(symbols) for symbols in self.levels]
        self.root = torch.zeros(size[0], size[0], dtype=torch.float64)
        self.rules = [torch.zeros(n * n, m, dtype=torch.float64) for m, n in pairwise(size)]
        for (a, b, c), p in zip(g.binary.tolist(), g.binary_p.tolist(), strict=True):
            if reach[a] > 0:
                self.root[place[b], place[c]] += reach[a] * p
            elif a in level:
                self.rules[level[a] - 1][place[b] * size[level[a]] + place[c], place[a]] += p
        self.emission = [torch.from_numpy(g.emission[symbols]) for symbols in self.levels]

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Conditionals (n, T, V) of sentences (n, T)."""
        length = tokens.shape[1]
        words = [e.T[tokens].requires_grad_() for e in self.emission]
        charts: list[dict[int, torch.Tensor]] = [{1: word} for word in words]
        for k in range(len(self.levels) - 2, -1, -1):
            below = charts[k + 1]
            for n in range(2, min(2 * max(below), length) + 1):
                spans = length - n + 1
                splits = [s for s in range(1, n) if s in below and n - s in below]
                left = torch.stack([below[s][:, :spans] for s in splits], dim=-1)
                right = torch.stack([below[n - s][:, s : s + spans] for s in splits], dim=-2)
                charts[k][n] = (left @ right).flatten(2) @ self.rules[k]
        top = charts[0]
        splits = [s for s in range(1, length) if s in top and length - s in top]
        left = torch.stack([top[s][:, 0] for s in splits], dim=1)
        right = torch.stack([top[length - s][:, s] for s in splits], dim=1)
        total = ((left @ self.root) * right).sum()
        outside = torch.autograd.grad(total, words, allow_unused=True)
        joint = sum(d @ e for d, e in zip(outside, self.emission, strict=True) if d is not None)
        return joint / joint.sum(-1, keepdim=True)


def torch_struct_conditionals(language: PCFG) -> Callable[[np.ndarray], np.ndarray]:
    """torch-struct's CFG: dense rules in logarithms; what emits is a terminal of its own; outside from marginals."""
    from torch_struct import SentCFG

    g = language.grammar
    inner = sorted({int(a) for a in g.binary[:, 0]})
    emits = np.flatnonzero(g.emission.sum(axis=1)).tolist()
    width = len(inner) + len(emits)
    columns = {a: [inner.index(a)] if a in inner else [] for a in range(len(g.symbols))}
    for e, a in enumerate(emits):
        columns[a].append(len(inner) + e)
    rules = torch.zeros(len(inner), width, width, dtype=torch.float64)
    for (a, b, c), p in zip(g.binary.tolist(), g.binary_p.tolist(), strict=True):
        for i in columns[b]:
            for j in columns[c]:
                rules[inner.index(a), i, j] += p
    roots = torch.zeros(len(inner), dtype=torch.float64)
    for (_, b), p in zip(g.unary.tolist(), g.unary_p.tolist(), strict=True):
        roots[inner.index(b)] += p
    emission = torch.from_numpy(g.emission[emits])
    low = -1e5

    def conditionals(words: np.ndarray) -> np.ndarray:
        terms = emission.T[torch.from_numpy(words)].log().clamp(min=low).requires_grad_()
        log_rules, log_roots = (x.log().clamp(min=low).expand(len(words), *x.shape) for x in (rules, roots))
        total = SentCFG((terms, log_rules, log_roots), lengths=torch.full((len(words),), words.shape[1])).partition
        marginal = torch.autograd.grad(total.sum(), terms)[0]
        outside = torch.where(terms > low, marginal / terms.exp(), 0.0)
        # Where a symbol cannot emit the word its outside value is divided by 0: torch-struct leaves it unknown.
        joint = outside @ emission
        return (joint / joint.sum(-1, keepdim=True)).detach().numpy()

    return conditionals


def grammar_conditionals(language: PCFG) -> list[Row]:
    what = "grammar conditionals"
    sample = language.sample(4096, 1)

    def ours() -> None:
        for _ in language.iter_masked_conditionals(sample):
            pass

    dense = Dense(language)
    groups = [np.flatnonzero(sample.lengths == length) for length in np.unique(sample.lengths)]
    batches = [torch.from_numpy(sample.tokens[rows, : sample.lengths[rows[0]]]) for rows in groups]
    for rows, batch in zip(groups, batches, strict=True):
        same(dense(batch).numpy(), language.masked_conditionals(sample[rows])[:, : batch.shape[1]], "torch dense")

    def theirs(size: int) -> None:
        for batch in batches:
            for part in batch.split(size):
                dense(part)

    own = [rate(4096, ours)]
    peer = max(rate(4096, lambda size=size: theirs(size)) for size in (32, 64, 128, 512))
    own.append(rate(4096, ours))
    rows = [Row(what, "ours", max(own)), Row(what, "torch dense by length, f64", peer, goal=3)]
    length = round(float(sample.lengths.mean()))
    some = sample.tokens[sample.lengths == length][:4, :length]
    if find_spec("torch_struct"):
        struct = torch_struct_conditionals(language)
        rows.append(Row(what, f"torch-struct, {length} words", rate(1, lambda: struct(some[:1]), 0)))
    if find_spec("nltk"):
        import nltk

        parser = nltk.InsideChartParser(
            nltk.PCFG(nltk.Nonterminal(language.grammar.symbols[0]), nltk_productions(language))
        )
        i = int(np.argmin(sample.lengths))
        words = [language.vocab[v] for v in sample.tokens[i, : sample.lengths[i]]]
        one = rate(1, lambda: list(parser.parse(words)), 0)
        rows.append(Row(what, f"nltk, T V inside passes, {len(words)} words", one / len(words) / len(language.vocab)))
    return rows


# --- conditionals of a hidden Markov model --------------------------------------------------------------------------


def masked_copies(tokens: np.ndarray, mask: int) -> np.ndarray:
    """(n, T) -> (n, T, T): each sentence with each word in turn replaced by `mask`."""
    copies = np.repeat(tokens[:, None], tokens.shape[1], axis=1)
    copies[:, np.arange(tokens.shape[1]), np.arange(tokens.shape[1])] = mask
    return copies


def hmmlearn_conditionals(model: HMM) -> Callable[[np.ndarray], np.ndarray]:
    """hmmlearn with a word for the mask that every state emits alike: T smoothing runs instead of T V scores."""
    from hmmlearn.hmm import CategoricalHMM

    states, words = model.emission.shape
    other = CategoricalHMM(n_components=states, n_features=words + 1, implementation="scaling")
    other.startprob_, other.transmat_ = model.start, model.transition
    other.emissionprob_ = np.hstack([model.emission / 2, np.full((states, 1), 0.5)])

    def conditionals(tokens: np.ndarray) -> np.ndarray:
        n, length = tokens.shape
        copies = masked_copies(tokens, words)
        posterior = other.predict_proba(copies.reshape(-1, 1), np.full(n * length, length))
        own = posterior.reshape(n, length, length, states)[:, np.arange(length), np.arange(length)]
        return own @ model.emission

    return conditionals


def dynamax_conditionals(model: HMM) -> Callable[[np.ndarray], np.ndarray]:
    """dynamax: T smoothing runs with the masked word's likelihood left out, compiled and batched."""
    import jax
    from dynamax.hidden_markov_model import hmm_two_filter_smoother

    jax.config.update("jax_enable_x64", True)
    length = model.max_length
    emission = jax.numpy.asarray(model.emission)
    start, transition = jax.numpy.asarray(model.start), jax.numpy.asarray(model.transition)

    def one(words: object) -> object:
        log_words = jax.numpy.log(emission.T[words])

        def at(t: object) -> object:
            masked = log_words.at[t].set(0.0)
            return hmm_two_filter_smoother(start, transition, masked).smoothed_probs[t]

        return jax.vmap(at)(jax.numpy.arange(length)) @ emission

    batched = jax.jit(jax.vmap(one))
    return lambda tokens: np.asarray(batched(jax.numpy.asarray(tokens)))


def hmm_conditionals() -> list[Row]:
    what = "HMM conditionals"
    model = HMM.paper_shape(0)
    sample = model.sample(1024, 0)
    rows = [Row(what, "ours", rate(1024, lambda: model.masked_conditionals(sample)))]
    some = Sentences(sample.tokens[:32], sample.lengths[:32])
    for package, make, goal in [("hmmlearn", hmmlearn_conditionals, 50.0), ("dynamax", dynamax_conditionals, None)]:
        if find_spec(package):
            peer = make(model)
            same(peer(some.tokens), model.masked_conditionals(some), package)
            rows.append(Row(what, f"{package}, T masked runs", rate(32, lambda p=peer: p(some.tokens)), goal))
    return rows


def main() -> int:
    path = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SAMELOSS_REFERENCE_GRAMMAR")
    if path is None:
        print("give a grammar file, or set SAMELOSS_REFERENCE_GRAMMAR")
        return 2
    language = PCFG.from_file(path)
    print(language)
    missed = False
    print(f"{'':24}{'':44}{'sentences/s':>12}{'ours/peer':>12}{'goal':>7}")
    for rows in (sampling(language), grammar_conditionals(language), hmm_conditionals()):
        ours = rows[0].rate
        for row in rows:
            ratio = "" if row is rows[0] else f"{ours / row.rate:.1f}"
            verdict = "" if row.goal is None else f">= {row.goal:g}"
            if row.goal is not None and ours / row.rate < row.goal:
                verdict, missed = verdict + " MISSED", True
            print(f"{row.what:24}{row.who:44}{row.rate:12,.2f}{ratio:>12}{verdict:>7}")
    for package, line in PIP.items():
        if not find_spec(package):
            print(f"not measured: {package} is not installed ({line})")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
