"""Random grammars, level by level."""

from collections.abc import Sequence

import numpy as np

from sameloss import seeds
from sameloss.errors import UserError
from sameloss.languages.grammar import Rule


def random_rules(
    levels: Sequence[int],
    vocab: int,
    rules: int,
    root_rules: int,
    early_stop: float = 0.0,
    concentration: float = 1.0,
    emission_concentration: float = 1.0,
    emission_floor: float = 0.01,
    seed: int = 0,
) -> list[Rule]:
    """The rules of a random grammar whose longest sentence has 2 ** len(levels) words.

    levels: symbols on each level below the start; the last level emits words. The start has `root_rules` different
    pairs of the first level, every other symbol `rules` pairs of the level below its own, with weights
    Dirichlet(concentration). A symbol above the last level emits a word instead with probability `early_stop`.
    Emission rows are (1 - emission_floor) * Dirichlet(emission_concentration) + emission_floor / vocab.
    UserError for a parameter outside its range.
    """
    for name, number in (("vocab", vocab), ("rules", rules), ("root_rules", root_rules), ("levels", len(levels))):
        if number < 1:
            raise UserError(f"{name} is {number}; at least 1 is needed")
    if min(levels) < 1:
        raise UserError(f"levels is {list(levels)}; at least 1 symbol a level is needed")
    for name, share in (("early_stop", early_stop), ("emission_floor", emission_floor)):
        if not 0 <= share <= 1:
            raise UserError(f"{name} is {share}; allowed is 0 to 1")
    for name, weight in (("concentration", concentration), ("emission_concentration", emission_concentration)):
        if not 0 < weight < np.inf:
            raise UserError(f"{name} is {weight}; a number above 0 is needed")
    wanted = [("root_rules", root_rules, levels[0])] + [("rules", rules, size) for size in levels[1:]]
    for name, number, size in wanted:
        if number > size**2:
            raise UserError(f"{name} is {number}; {size} symbols on a level have only {size**2} pairs")

    rng = seeds.stream(seed, "language")
    names = [[f"A{level}_{a}" for a in range(size)] for level, size in enumerate(levels, start=1)]
    words = [f"w{v:0{len(str(vocab - 1))}d}" for v in range(vocab)]

    def branch(left: str, below: list[str], count: int, mass: float) -> list[Rule]:
        pairs = np.sort(rng.choice(len(below) ** 2, count, replace=False)).tolist()
        weights = mass * rng.dirichlet(np.full(count, concentration))
        return [
            Rule(left, (below[k // len(below)], below[k % len(below)]), float(p))
            for k, p in zip(pairs, weights, strict=True)
        ]

    def emit(left: str, mass: float) -> list[Rule]:
        row = (1 - emission_floor) * rng.dirichlet(np.full(vocab, emission_concentration)) + emission_floor / vocab
        return [Rule(left, (word,), float(mass * p)) for word, p in zip(words, row, strict=True)]

    result = branch("S", names[0], root_rules, 1.0)
    for level, symbols in enumerate(names):
        last = level == len(names) - 1
        for symbol in symbols:
            if not last:
                result += branch(symbol, names[level + 1], rules, 1 - early_stop)
            if last or early_stop:
                result += emit(symbol, 1.0 if last else early_stop)
    return result
