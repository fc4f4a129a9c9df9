"""From specs to languages and model shapes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from sameloss.languages.base import Language
from sameloss.languages.draw import balanced
from sameloss.languages.hmm import HMM
from sameloss.languages.lm_text import LMText
from sameloss.languages.pcfg import PCFG
from sameloss.learners.lstm import LSTMConfig
from sameloss.learners.stack import ModelConfig
from sameloss.learners.transformer import TransformerConfig
from sameloss.runs.spec import LanguageSpec, LSTMSpec, TransformerSpec

FAMILIES: dict[str, Callable[[int], Language]] = {
    "tree_grammar": PCFG.tree_grammar,
    "uneven_tree": partial(PCFG.tree_grammar, stop=0.2),  # the share of symbols that stop early in the paper's shape
    "paper_pcfg": PCFG.paper_shape,
    "twelve_state_chain": HMM.twelve_state_chain,
    "paper_hmm": HMM.paper_shape,
}


def language(spec: LanguageSpec, seed: int) -> tuple[Language, int]:
    """The language of a seed, and how often it was redrawn because a label was too rare (PROTOCOL of the book)."""
    if spec.kind == "lm_text":  # one language for all seeds: that of the teacher that comes with the library
        return cast(Language, LMText.embedded()), 0
    return balanced(FAMILIES[spec.kind], seed, share=spec.share, n=spec.among)


def model_config(spec: TransformerSpec | LSTMSpec, languages: Sequence[Language]) -> ModelConfig:
    """The shape of the model, with the vocabulary and length of its languages (equal over a stack)."""
    vocab, length = len(languages[0].vocab), languages[0].max_length
    # Masking keys behind the end costs time: only where sentences do differ in length.
    padded = any(bool((lang.sample(256, 0).lengths < length).any()) for lang in languages)
    shape = LSTMConfig if spec.kind == "lstm" else TransformerConfig
    return shape(vocab=vocab, length=length, padded=padded, **spec.model_dump(exclude={"kind"}))
