"""A language whose weights have moved: the same words and symbols, other frequencies."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from sameloss import seeds
from sameloss.errors import UserError
from sameloss.languages.base import Language
from sameloss.languages.hmm import HMM
from sameloss.languages.hmm_matrices import stationary
from sameloss.languages.pcfg import PCFG


def shifted(language: Language, share: float, seed: int) -> Language:
    """The language with (1 - share) of its own weights and `share` of weights drawn afresh, Dirichlet(1).

    Of a grammar the pairs of each symbol are weighted anew, their total stays; of a chain the transitions, and it
    starts where the new ones settle. What makes a word out of a symbol or a state stays, and so does which sentences
    are possible: a labelling of the original's sentences goes on to hold. UserError for any other language.
    """
    if not 0 <= share <= 1:
        raise UserError(f"shift: found {share:g}; allowed: 0 to 1")
    rng = seeds.stream(seed, "language/shift")
    if isinstance(language, PCFG):
        g = language.grammar
        return PCFG(replace(g, binary_p=_mixed(g.binary_p, g.binary[:, 0], share, rng)), language.max_length)
    if isinstance(language, HMM):
        fresh = rng.dirichlet(np.ones(len(language.start)), len(language.start))
        transition = (1 - share) * language.transition + share * fresh
        emission, length, positions = language.emission, language.max_length, language.positions
        return HMM(stationary(transition), transition, emission, length, positions, language.vocab)
    raise UserError(f"shift: found a language of kind {type(language).__name__}; allowed: grammars and chains")


def _mixed(
    p: Float[np.ndarray, " R"], parents: Float[np.ndarray, " R"], share: float, rng: np.random.Generator
) -> Float[np.ndarray, " R"]:
    mixed = p.copy()
    for parent in np.unique(parents):
        rows = parents == parent
        fresh = rng.dirichlet(np.ones(rows.sum())) * p[rows].sum()
        mixed[rows] = (1 - share) * p[rows] + share * fresh
    return mixed
