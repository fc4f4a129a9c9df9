"""The parameters of chapter 5: what they accept, and the one line that refuses the rest."""

from pathlib import Path

import prose
import pytest

from sameloss.errors import UserError

CHAPTER = Path(__file__).resolve().parents[1] / "book" / "05_dyck.md"


@pytest.fixture
def validate(monkeypatch, tmp_path):
    monkeypatch.setenv("SAMELOSS_BUILD", str(tmp_path))
    parameters, check = (cell.code for cell in prose.cells(CHAPTER.read_text())[:2])

    def run(**given):
        names: dict = {}
        exec(parameters, names)
        names.update(given)
        exec(check, names)
        return names

    return run


def test_text_from_the_command_line_is_understood(validate):
    names = validate(T="4", m="48", language="strict", head="relu", noise="0")
    assert (names["T"], names["m"], names["noise"]) == (4, 48, 0.0)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"T": 5}, "T = 5: balanced words have as many .* T is an even integer of at least 2"),
        ({"T": 0}, "T = 0: balanced words"),
        ({"T": "six"}, "parameter T: found 'six'"),
        ({"m": 1}, "m = 1: .* at least 66 of them .one for each pair x, -x, and T = 6 for the linear part."),
        ({"m": 29, "language": "strict"}, "m = 29: .* at least 30 of them .one for each."),
        ({"T": "1_0"}, "parameter T: found '1_0'"),
        ({"T": 8, "m": 40000}, "T = 8, m = 40000: .* a matrix of 22,400,000 numbers, more than the 16,777,216 allowed"),
        ({"T": 12}, "T = 12: descent solves 11,088 equations"),
        ({"T": 200}, "T = 200: descent solves .* equations"),
        ({"T": 12, "language": "strict"}, "T = 12: descent solves 1,584 equations"),
        ({"language": "loose"}, "parameter language: found 'loose'; allowed: one of strict, equal-count"),
        ({"head": "softmax"}, "parameter head: found 'softmax'; allowed: one of attention, relu"),
        ({"noise": -1}, "parameter noise: found -1; allowed: a number from 0 to 1"),
        ({"profile": "lapotp"}, "no profile 'lapotp'"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(validate, given, complaint):
    with pytest.raises(UserError, match=complaint) as refused:
        validate(**given)
    assert "\n" not in str(refused.value)
