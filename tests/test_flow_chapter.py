"""The parameters of chapter 3: what they accept, and the one line that refuses the rest."""

from pathlib import Path

import prose
import pytest

from sameloss.errors import UserError

CHAPTER = Path(__file__).resolve().parents[1] / "book" / "03_sgd_flow.md"


@pytest.fixture
def validate(monkeypatch, tmp_path):
    monkeypatch.setenv("SAMELOSS_BUILD", str(tmp_path))
    parameters, imports, check = (cell.code for cell in prose.cells(CHAPTER.read_text())[:3])

    def run(**given):
        names: dict = {}
        exec(parameters, names)
        names.update(given)
        exec(imports, names)
        exec(check, names)
        return names

    return run


def test_text_from_the_command_line_is_understood(validate):
    names = validate(p="0.3", model="U", batch="4", optimiser="adam", etas="0.2, 5e-2", replicas="40")
    assert (names["p"], names["batch"], names["replicas"]) == (0.3, 4, 40)
    assert names["ladder_etas"] == [0.2, 0.05]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"p": 0}, "parameter p: found 0; allowed: a number from 0.01 to 0.99"),
        ({"p": 1.5}, "parameter p: found 1.5; allowed: a number from 0.01 to 0.99"),
        ({"p": "1_0e-1"}, "parameter p: found '1_0e-1'; allowed: a number from 0.01 to 0.99"),
        ({"etas": "0.1, 0"}, "parameter etas: found 0; allowed: a number from 0.005 to 0.5"),
        ({"etas": "-0.1, 0.2"}, "parameter etas: found -0.1; allowed: a number from 0.005 to 0.5"),
        ({"etas": "1_0e-2, 0.2"}, "parameter etas: found '1_0e-2, 0.2'; allowed: a list of numbers"),
        ({"etas": "0.1"}, "parameter etas: found '0.1'; allowed: two different numbers or more"),
        ({"etas": "0.1, 0.1"}, "parameter etas: found '0.1, 0.1'; allowed: two different numbers or more"),
        ({"batch": 0}, "parameter batch: found 0; allowed: a whole number from 1 to 64"),
        ({"batch": 0.5}, "parameter batch: found 0.5; allowed: a whole number from 1 to 64"),
        ({"replicas": -1}, "parameter replicas: found -1; allowed: a whole number of at least 0"),
        ({"replicas": 1}, "parameter replicas: found 1; allowed: a whole number of at least 2"),
        ({"replicas": 10**12}, r"replicas: found 1000000000000, which needs .* GB; allowed: up to \d+ with"),
        ({"model": "M"}, "parameter model: found 'M'; allowed: one of U, E"),
        ({"optimiser": "sdg"}, "parameter optimiser: found 'sdg'; allowed: one of sgd, momentum, adam, adamw"),
        ({"profile": "lapotp"}, "no profile 'lapotp'"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(validate, given, complaint):
    with pytest.raises(UserError, match=complaint) as refused:
        validate(**given)
    assert "\n" not in str(refused.value)
