"""Probabilistic context-free grammars with exact masked conditionals (Liu et al. 2022, §3.1 and A.1)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import entr

from sameloss.errors import UserError
from sameloss.languages import base, floors, pcfg_sample, pcfg_tasks, pcfg_trees
from sameloss.languages.alias import beginning
from sameloss.languages.base import Sentences
from sameloss.languages.grammar import Grammar, Rule, from_rules, length_distribution, longest, word_counts
from sameloss.languages.grammar_file import read_rules
from sameloss.languages.pcfg_charts import Charts, by_length
from sameloss.languages.pcfg_random import random_rules
from sameloss.measures.estimate import Estimate

LONGEST_RECURSIVE = 64
LONGEST = 256  # charts grow with the cube of the length
LEAST_KEPT = 0.01
BATCH = 4096  # sentences whose weights are held at once where only one position of each is wanted


class PCFG:
    """The language of a grammar, conditioned on sentences of at most `max_length` words.

    Without `max_length` it is the longest sentence of the grammar, or 64 for a recursive one. `kept` is the
    probability of the sentences that are left (1 unless the limit cuts); masked conditionals do not depend on it,
    because the words around a mask tell the length. UserError when less than 1 % is left.
    """

    def __init__(self, grammar: Grammar, max_length: int | None = None) -> None:
        if max_length is not None:
            base.check_count(max_length, "max_length", LONGEST)
        natural = longest(grammar)
        if max_length is None and natural is not None and natural > LONGEST:
            raise UserError(
                f"this grammar makes sentences of up to {natural} words; allowed are {LONGEST}: give a max_length"
            )
        limits = [limit for limit in (max_length, natural) if limit is not None]
        self.grammar = grammar
        self.vocab: Sequence[str] = grammar.vocab
        self.max_length = min(limits) if limits else LONGEST_RECURSIVE
        self.kept = min(1.0, float(length_distribution(grammar, self.max_length)[0].sum()))
        if self.kept < LEAST_KEPT:
            raise UserError(
                f"only {self.kept:.2g} of the sentences have at most {self.max_length} words; "
                f"at least {LEAST_KEPT} is needed: give a larger max_length"
            )
        self._charts = Charts(grammar, self.max_length)
        self._tables = pcfg_sample.alias_tables(grammar)
        self._tasks = pcfg_tasks.Tasks(grammar, self.max_length)

    @classmethod
    def from_rules(cls, rules: Sequence[Rule], max_length: int | None = None) -> "PCFG":
        """The language of a list of rules; the left side of the first is the start."""
        return cls(from_rules(rules), max_length)

    @classmethod
    def from_file(cls, path: str | Path, max_length: int | None = None) -> "PCFG":
        """The language of a grammar file (`grammar_file.read_rules`); UserError names the file and line."""
        return cls(from_rules(read_rules(path), str(path)), max_length)

    @classmethod
    def random(cls, levels: Sequence[int], vocab: int, rules: int, root_rules: int, **options: Any) -> "PCFG":
        """A random grammar by level (`pcfg_random.random_rules` explains the parameters)."""
        return cls.from_rules(random_rules(levels, vocab, rules, root_rules, **options))

    @classmethod
    def tree_grammar(cls, seed: int, stop: float = 0.0) -> "PCFG":
        """The laptop language: eight words a sentence (two to eight with `stop`), of sixteen; four symbols a level."""
        return cls.random((4, 4, 4), 16, 2, root_rules=8, early_stop=stop, emission_concentration=0.3, seed=seed)

    @classmethod
    def paper_shape(cls, seed: int) -> "PCFG":
        """The paper's sizes (A.1): 200 words, 50 non-terminals below the start, up to 32 words, 17 on average.

        Concentration and number of rules are ours, chosen so that the floor lies near the paper's 3.196.
        """
        return cls.random(
            (10,) * 5, 200, rules=4, root_rules=10, early_stop=0.2, emission_concentration=0.04, seed=seed
        )

    def __str__(self) -> str:
        g = self.grammar
        rules = len(g.binary) + len(g.unary) + int(np.count_nonzero(g.emission))
        lengths = np.flatnonzero(self._charts.can[0])
        text = f"{len(g.symbols)} symbols, {len(g.vocab)} words, {rules} rules, sentences of "
        text += f"{lengths[0]}-{lengths[-1]} words; rows normalised, "
        text += f"the largest correction {g.correction:.2g} ({g.corrected})"
        if self.kept < 1 - 1e-9:
            text += f"; {1 - self.kept:.2g} of all sentences are longer and left out"
        return text

    def sample(self, n: int, seed: int) -> Sentences:
        """`n` independent sentences, tokens (n, max_length)."""
        base.check_count(n)
        tokens, lengths, _ = pcfg_sample.sample(self._tables, n, self.max_length, beginning(seed, "data"), 0)
        return Sentences(tokens, lengths)

    def sample_with_trees(self, n: int, seed: int) -> tuple[Sentences, list[pcfg_trees.Tree]]:
        """The same sentences with the trees they were made by."""
        base.check_count(n)
        room = self.max_length * (2 + len(self.grammar.unary))
        tokens, lengths, choices = pcfg_sample.sample(self._tables, n, self.max_length, beginning(seed, "data"), room)
        trees = [pcfg_trees.sampled_tree(self.grammar, row) for row in choices]
        return Sentences(tokens, lengths), trees

    def encode(self, sentences: Sequence[Sequence[str]]) -> Sentences:
        """Words to indices, tokens (n, max_length); UserError for unknown words, empty or too long sentences."""
        return base.encode(sentences, self.vocab, self.max_length)

    def log_prob(self, sentences: Sentences) -> Float[np.ndarray, " n"]:
        """log p(x) in nats, (n,); -inf where the grammar cannot produce the sentence."""
        base.check(sentences, len(self.vocab), self.max_length)
        result = np.empty(len(sentences))
        for length, rows in by_length(sentences):
            result[rows] = self._charts.log_totals(sentences.tokens[rows, :length]) - np.log(self.kept)
        return result

    def masked_conditionals(self, sentences: Sentences) -> Float[np.ndarray, "n T V"]:
        """p(x_t = v | x_-t), (n, T, V), from inside and outside values; rows behind the end are 0.

        UserError for a sentence of probability 0.
        """
        base.check(sentences, len(self.vocab), self.max_length)
        # One product for all lengths: rows of zero weights behind the end of a sentence stay zero.
        all_weights = np.zeros((*sentences.tokens.shape, len(self._charts.emitters)))
        for length, rows in by_length(sentences):
            weights, possible = self._charts.word_weights(sentences.tokens[rows, :length])
            if not possible.all():
                self._refuse(int(rows[np.argmin(possible)]))
            all_weights[rows, :length] = weights
        return _rows_times(all_weights, self.grammar.emission[self._charts.emitters])

    def masked_conditionals_at(
        self, sentences: Sentences, positions: Int[np.ndarray, " n"]
    ) -> Float[np.ndarray, "n V"]:
        """p(x_t = v | x_-t) at one position a sentence (counting from 0), (n, V).

        The word that stands there is ignored. UserError for a position outside its sentence or words around it that
        the grammar cannot produce.
        """
        base.check(sentences, len(self.vocab), self.max_length)
        base.check_positions(sentences, positions)
        weights = np.empty((len(sentences), len(self._charts.emitters)))
        for length, rows in by_length(sentences):
            for start in range(0, len(rows), BATCH):
                some = rows[start : start + BATCH]
                everywhere, _ = self._charts.word_weights(sentences.tokens[some, :length])
                weights[some] = everywhere[np.arange(len(some)), positions[some]]
        if np.isnan(weights).any():
            self._refuse(int(np.argmax(np.isnan(weights).any(axis=1))))
        return weights @ self.grammar.emission[self._charts.emitters]

    def iter_masked_conditionals(self, sentences: Sentences, chunk: int = 1024) -> Iterator[Float[np.ndarray, "c T V"]]:
        """The same as `masked_conditionals` for `chunk` sentences at a time, in order."""
        base.check_count(chunk, "chunk")
        for start in range(0, len(sentences), chunk):
            yield self.masked_conditionals(sentences[start : start + chunk])

    def floor(self, n: int, seed: int) -> Estimate:
        """E[H(x_t | x_-t)] in nats, t uniform within the sentence, from `n` sampled sentences."""
        return floors.floor(self, n, seed)

    def unigram(self, length: int | None = None) -> Float[np.ndarray, " V"]:
        """p(v) of a word at a position drawn uniformly within a sentence (of `length` words, if given), (V,), exact."""
        counts = word_counts(self.grammar, self.max_length)
        if length is None:
            return (counts[1:] / np.arange(1, self.max_length + 1)[:, None]).sum(axis=0) / self.kept
        if not (1 <= length <= self.max_length and self._charts.can[0, length]):
            raise UserError(f"no sentence of this grammar has {length} words")
        return counts[length] / counts[length].sum()

    def unigram_entropy(self, length: int | None = None) -> float:
        """The entropy of `unigram` in nats: the floor of a model without context."""
        return float(entr(self.unigram(length)).sum())

    def span_posteriors(self, sentence: Sentences) -> Float[np.ndarray, "N T L"]:
        """p(symbol a stands over the m words from i | sentence) of one sentence, (N, T, T + 1), indexed [a, i, m].

        UserError for a sentence of probability 0.
        """
        return self._charts.span_posteriors(self._possible_words(sentence))

    def parse(self, sentence: Sentences) -> pcfg_trees.Tree:
        """The most probable tree of one sentence; UserError for a sentence of probability 0."""
        words = self._possible_words(sentence)
        made_by = self._charts.best_splits(words)
        return pcfg_trees.best_tree(self.grammar, self._charts.program(len(words)), words, made_by)

    def _possible_words(self, sentence: Sentences) -> Int[np.ndarray, " T"]:
        if len(sentence) != 1:
            raise UserError(f"one sentence is needed; found {len(sentence)}")
        if np.isneginf(self.log_prob(sentence)[0]):
            self._refuse(0)
        return sentence.tokens[0, : sentence.lengths[0]]

    def _refuse(self, row: int) -> None:
        raise UserError(f"sentence {row + 1} has probability 0 under this grammar; its conditionals are not defined")

    @property
    def tasks(self) -> Mapping[str, int]:
        """Downstream tasks A, B, C and, where the start has two children, left (`pcfg_tasks`)."""
        return self._tasks.sizes

    def classes(self, task: str) -> tuple[str, ...]:
        """The names of a task's classes, in the order of its labels."""
        return self._tasks.classes(task)

    def labels(self, task: str, sentences: Sentences, definition: str | None = None) -> Int[np.ndarray, " n"]:
        """The label of each sentence, (n,); `definition` is "inside" or "posterior" (`pcfg_tasks` has the defaults)."""
        base.check(sentences, len(self.vocab), self.max_length)
        return self._tasks.labels(task, sentences, definition)

    def posteriors(self, task: str, sentences: Sentences) -> Float[np.ndarray, "n C"]:
        """p(class | sentence), (n, C), rows sum to 1."""
        base.check(sentences, len(self.vocab), self.max_length)
        return self._tasks.posteriors(task, sentences)


def _rows_times(weights: Float[np.ndarray, "n T E"], emission: Float[np.ndarray, "E V"]) -> Float[np.ndarray, "n T V"]:
    """weights @ emission as one large product; numpy would do `n` small ones."""
    flat = weights.reshape(-1, weights.shape[-1]) @ emission
    return flat.reshape(*weights.shape[:-1], emission.shape[1])
