"""The library behind the book *Same Loss, Better Downstream*.

`from sameloss import PCFG, HMM, ...` loads what is asked for and nothing else: `sameloss --help` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sameloss.errors import UserError as UserError
    from sameloss.languages.base import Language as Language
    from sameloss.languages.base import Sentences as Sentences
    from sameloss.languages.dyck import Dyck as Dyck
    from sameloss.languages.hmm import HMM as HMM
    from sameloss.languages.lm_text import LMText as LMText
    from sameloss.languages.pcfg import PCFG as PCFG
    from sameloss.measures.estimate import Estimate as Estimate

_HOME = {
    "UserError": "errors",
    "Estimate": "measures.estimate",
    "Language": "languages.base",
    "Sentences": "languages.base",
    "PCFG": "languages.pcfg",
    "HMM": "languages.hmm",
    "LMText": "languages.lm_text",
    "Dyck": "languages.dyck",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sameloss' has no attribute {name!r}")
    return getattr(import_module(f"sameloss.{_HOME[name]}"), name)
