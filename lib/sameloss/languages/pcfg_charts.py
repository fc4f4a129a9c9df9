"""Charts of a grammar for batches of sentences: one compiled program a length, sentences grouped by length."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float, Int

from sameloss.languages import pcfg_chart
from sameloss.languages.base import Sentences
from sameloss.languages.grammar import Grammar, derivable
from sameloss.languages.pcfg_program import Program, compile_program


def by_length(sentences: Sentences, limit: int | None = None) -> Iterator[tuple[int, Int[np.ndarray, " m"]]]:
    """(length, rows) for each length that occurs; lengths are cut to `limit`."""
    lengths = sentences.lengths if limit is None else np.minimum(sentences.lengths, limit)
    for length in np.unique(lengths).tolist():
        yield length, np.flatnonzero(lengths == length)


class Charts:
    """Inside and outside quantities of a grammar; programs are compiled when a length is first met."""

    def __init__(self, grammar: Grammar, max_length: int) -> None:
        self.grammar = grammar
        self.can: Bool[np.ndarray, "N L"] = derivable(grammar, max_length)
        self.emitters: Int[np.ndarray, " E"] = np.flatnonzero(grammar.emission.sum(axis=1) > 0)
        emission = grammar.emission[self.emitters].T
        scale = emission.max(axis=1)
        self._mass = grammar.emission[self.emitters].sum(axis=1)
        self._scaled: Float[np.ndarray, "V E"] = np.divide(
            emission, scale[:, None], where=scale[:, None] > 0, out=np.zeros_like(emission, order="C")
        )
        self._log_scale = np.log(scale, where=scale > 0, out=np.full(len(scale), -np.inf))
        self._programs: dict[tuple[int, bytes], Program] = {}

    def program(self, length: int, roots: Int[np.ndarray, " K"] | None = None) -> Program:
        """The program of one length for trees below one of `roots` (the start, when not given)."""
        tops = np.zeros(1, dtype=np.int64) if roots is None else np.asarray(roots, dtype=np.int64)
        key = length, tops.tobytes()
        if key not in self._programs:
            self._programs[key] = compile_program(self.grammar, self.can, length, tops)
        return self._programs[key]

    def log_totals(self, words: Int[np.ndarray, "n T"]) -> Float[np.ndarray, " n"]:
        """log p(words), (n,), by the inside algorithm."""
        length = words.shape[1]
        if not self.can[0, length]:
            return np.full(len(words), -np.inf)
        program = self.program(length)
        total = pcfg_chart.log_totals(program, words, self._scaled, program.slot[0, 0, length])
        return total + self._log_scale[words].sum(axis=1)

    def word_weights(self, words: Int[np.ndarray, "n T"]) -> tuple[Float[np.ndarray, "n T E"], Bool[np.ndarray, " n"]]:
        """Weights (n, T, E) whose product with the emitters' emission rows is p(x_t = v | x_-t); nan where x_-t is
        impossible. And whether each whole sentence is possible, (n,)."""
        length = words.shape[1]
        if not self.can[0, length]:
            return np.full((*words.shape, len(self.emitters)), np.nan), np.zeros(len(words), dtype=bool)
        program = self.program(length)
        return pcfg_chart.word_weights(program, words, self._scaled, self._mass, program.slot[0, 0, length])

    def log_inside(self, words: Int[np.ndarray, "n T"], symbols: Int[np.ndarray, " K"]) -> Float[np.ndarray, "n K"]:
        """log p(words | symbol), (n, K), up to a constant of each sentence."""
        length = words.shape[1]
        scores = np.full((len(words), len(symbols)), -np.inf)
        fits = np.flatnonzero(self.can[symbols, length])
        if len(fits):
            program = self.program(length, symbols[fits])
            slots = program.slot[symbols[fits], 0, length]
            scores[:, fits] = pcfg_chart.log_inside_at(program, words, self._scaled, slots)
        return scores

    def prefix_posteriors(
        self, words: Int[np.ndarray, "n T"], symbols: Int[np.ndarray, " K"], prefix: int
    ) -> Float[np.ndarray, "n K"]:
        """p(symbol stands over the first `prefix` words | sentence), (n, K); nan for impossible sentences."""
        length = words.shape[1]
        if not self.can[0, length]:
            return np.full((len(words), len(symbols)), np.nan)
        program = self.program(length)
        slots = program.slot[symbols, 0, prefix]
        values = np.zeros((len(words), len(symbols)))
        found = slots >= 0
        values[:, found] = pcfg_chart.posteriors_at(
            program, words, self._scaled, program.slot[0, 0, length], slots[found]
        )
        return values

    def span_posteriors(self, words: Int[np.ndarray, " T"]) -> Float[np.ndarray, "N T L"]:
        """p(symbol a stands over the m words from i | sentence) at [a, i, m] for one possible sentence."""
        program = self.program(len(words))
        where = program.slot >= 0
        result = np.zeros(program.slot.shape)
        root = program.slot[0, 0, len(words)]
        result[where] = pcfg_chart.posteriors_at(program, words[None], self._scaled, root, program.slot[where])[0]
        return result

    def best_splits(self, words: Int[np.ndarray, " T"]) -> Int[np.ndarray, " slots"]:
        """How each slot of the program of one sentence is best derived (`pcfg_chart.best_splits`)."""
        program = self.program(len(words))
        return pcfg_chart.best_splits(program, words, self._scaled)
