"""Grammar files: one rule a line, read as data and never executed."""

from pathlib import Path

from sameloss.errors import UserError
from sameloss.languages.grammar import Rule

FORMS = "`A B C p` (two symbols), `A word p` or `A B p` (one symbol)"


def read_rules(path: str | Path) -> list[Rule]:
    """The rules of a grammar file, in order.

    A line is `A B C p`, `A word p` or `A B p`, separated by blanks; p is a probability. Empty lines and lines that
    begin with `#` are skipped. UserError names the file and line, what was found and what is allowed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors put a mark before the first line
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a text file in UTF-8; a grammar file is needed") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{str(path)[:200]!r}: cannot be read ({reason}); a grammar file is needed") from None
    rules = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) not in (3, 4):
            raise UserError(f"{path}, line {number}: {len(fields)} fields found in {line.strip()[:60]!r}; use {FORMS}")
        try:
            p = float(fields[-1])
        except ValueError:
            raise UserError(
                f"{path}, line {number}: the probability {fields[-1]!r} is not a number; allowed is 0 to 1"
            ) from None
        rules.append(Rule(fields[0], tuple(fields[1:-1]), p, number))
    if not rules:
        raise UserError(f"{path}: no rule found; use {FORMS}")
    return rules
