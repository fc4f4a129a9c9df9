"""Languages with no rare label."""

from collections.abc import Callable

import numpy as np

from sameloss.errors import UserError
from sameloss.languages.base import Language

TRIES = 1000
STEP = 1_000_000  # between the sub-seeds of a seed: seeds under a million never meet


def rarest_share(language: Language, seed: int, n: int) -> tuple[str, float]:
    """The task with the rarest label and that label's share among `n` sampled sentences."""
    sentences = language.sample(n, seed)
    shares = {
        task: float(np.bincount(language.labels(task, sentences), minlength=classes).min() / n)
        for task, classes in language.tasks.items()
    }
    task = min(shares, key=lambda name: shares[name])
    return task, shares[task]


def balanced(make: Callable[[int], Language], seed: int, share: float = 0.02, n: int = 16384) -> tuple[Language, int]:
    """`make(seed)`, drawn again with the next sub-seed while the rarest label of a task holds under `share`.

    Returns the language and how often it was redrawn. Sub-seeds are seed, seed + 1 000 000, ...
    UserError when no language of the kind has labels that even.
    """
    for redraws in range(TRIES):
        sub_seed = seed + redraws * STEP
        language = make(sub_seed)
        task, rarest = rarest_share(language, sub_seed, n)
        if rarest >= share:
            return language, redraws
    raise UserError(f"task {task!r}: its rarest label held under {share:.0%} of sentences in each of {TRIES} languages")
