"""Parameters as they arrive (papermill passes text where it cannot tell): converted when unambiguous, else refused."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sameloss.errors import UserError


def integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """`value` as a whole number within [low, high]; UserError naming parameter, value and range."""
    found = _as_number(value)
    if found is None or found != int(found):
        raise _refuse(name, value, "a whole number" + _range(low, high))
    # A float holds whole numbers up to 2^53 only: what is one, or is written as one, is read as it stands.
    written = isinstance(value, int) or (isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d+\s*", value))
    return int(_within(name, value, int(value) if written else found, low, high, "a whole number"))


def number(name: str, value: Any, low: float | None = None, high: float | None = None) -> float:
    """`value` as a finite number within [low, high]; UserError naming parameter, value and range."""
    found = _as_number(value)
    if found is None:
        raise _refuse(name, value, "a number" + _range(low, high))
    return float(_within(name, value, found, low, high, "a number"))


def numbers(name: str, value: Any, low: float | None = None, high: float | None = None) -> tuple[float, ...]:
    """A list of numbers (or the text "8, 16" or "[8, 16]") with every one in [low, high]."""
    items = value
    if isinstance(value, str):
        try:
            items = json.loads(value if value.strip().startswith("[") else f"[{value}]")
        except ValueError:
            items = None
    if not isinstance(items, (list, tuple)) or not items:
        raise _refuse(name, value, "a list of numbers, such as [8, 16]")
    return tuple(number(name, item, low, high) for item in items)


def flag(name: str, value: Any) -> bool:
    """`value` as true or false; the text "false" is false, as it should be."""
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise _refuse(name, value, "true or false")
    return value


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """`value` if it is one of the words allowed."""
    if not isinstance(value, str) or value not in allowed:
        raise _refuse(name, value, "one of " + ", ".join(allowed))
    return value


def text(name: str, value: Any, longest: int = 200) -> str:
    """`value` if it is text of one line and at most `longest` characters."""
    if not isinstance(value, str) or len(value) > longest or len(value.splitlines()) > 1:
        raise _refuse(name, value, f"one line of text, at most {longest} characters")
    return value


def file(name: str, value: Any) -> Path | None:
    """The readable file that `value` names, None for the empty text."""
    if value in ("", None):
        return None
    try:
        found = isinstance(value, str) and Path(value).is_file()
    except (OSError, ValueError):  # too long for a path, or with a character that no path has
        found = False
    if not found:
        raise _refuse(name, value, "the path of an existing file, or '' for none")
    return Path(value)


def _as_number(value: Any) -> float | None:
    """A finite number out of a number or the text of one; bools are no numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and (len(value) > 40 or "_" in value):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _within(name: str, value: Any, found: float, low: float | None, high: float | None, kind: str) -> float:
    if (low is not None and found < low) or (high is not None and found > high):
        raise _refuse(name, value, kind + _range(low, high))
    return found


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    return f" of at least {low:g}" if low is not None else f" of at most {high:g}" if high is not None else ""


def _refuse(name: str, value: Any, allowed: str) -> UserError:
    shown = repr(value)
    return UserError(f"parameter {name}: found {shown[:77] + '...' if len(shown) > 80 else shown}; allowed: {allowed}")
