"""Parse trees: the one a sentence was sampled with, and the most probable one of a given sentence."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from sameloss.languages.grammar import Grammar
from sameloss.languages.pcfg_program import ONE, Program
from sameloss.languages.pcfg_sample import NOTHING, unpack


@dataclass(frozen=True)
class Tree:
    """A symbol over the words start..end-1 of a sentence, with its children; or a word, which has none."""

    label: str
    start: int
    end: int
    children: tuple["Tree", ...] = ()

    def __str__(self) -> str:
        if not self.children:
            return self.label
        return f"({self.label} {' '.join(str(child) for child in self.children)})"

    @property
    def words(self) -> tuple[str, ...]:
        """The words below, in order."""
        if not self.children:
            return (self.label,)
        return tuple(word for child in self.children for word in child.words)


def sampled_tree(g: Grammar, choices: Int[np.ndarray, " m"]) -> Tree:
    """The tree of one sentence from the choices `pcfg_sample.sample` recorded."""
    outcomes = iter(choices[choices != NOTHING])

    def grow(symbol: int, start: int) -> Tree:
        first, second = unpack(next(outcomes))
        if first < 0:
            return Tree(g.symbols[symbol], start, start + 1, (Tree(g.vocab[-1 - first], start, start + 1),))
        children = [grow(first, start)]
        if second >= 0:
            children.append(grow(second, children[0].end))
        return Tree(g.symbols[symbol], start, children[-1].end, tuple(children))

    return grow(0, 0)


def best_tree(g: Grammar, program: Program, words: Int[np.ndarray, " T"], made_by: Int[np.ndarray, " slots"]) -> Tree:
    """The tree that `pcfg_chart.best_splits` found for one sentence."""
    place = {int(program.slot[a, i, n]): (a, i, n) for a, i, n in np.argwhere(program.slot >= 0).tolist()}

    def grow(slot: int) -> Tree:
        a, i, n = place[slot]
        split = int(made_by[slot])
        if split < 0:
            return Tree(g.symbols[a], i, i + 1, (Tree(g.vocab[int(words[i])], i, i + 1),))
        children = [grow(int(side[split])) for side in (program.left, program.right) if side[split] != ONE]
        return Tree(g.symbols[a], i, i + n, tuple(children))

    return grow(int(program.slot[0, 0, program.length]))
