"""Parameters as papermill hands them over: converted when unambiguous, refused in one clear line otherwise."""

from pathlib import Path

import jupytext
import prose
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.pages import book
from sameloss.pages import parameters as p
from sameloss.pages.chapter import Chapter


@pytest.mark.parametrize(("value", "found"), [(5, 5), ("5", 5), (5.0, 5), ("1e3", 1000), (" 7 ", 7), ("-2", -2)])
def test_integer_takes_whole_numbers_and_their_text(value, found):
    assert p.integer("n", value) == found
    assert isinstance(p.integer("n", value), int)


@pytest.mark.parametrize("value", [True, "five", 5.5, "5.5", None, [5], "", "nan", "inf", "1_000", "0x10", "9" * 50])
def test_integer_refuses_the_rest_naming_parameter_value_and_what_is_allowed(value):
    with pytest.raises(UserError, match=r"parameter n: found .*; allowed: a whole number") as refused:
        p.integer("n", value)
    assert "\n" not in str(refused.value)


def test_a_negative_size_is_refused_with_the_range():
    with pytest.raises(UserError, match="parameter size: found -3; allowed: a whole number from 1 to 10"):
        p.integer("size", -3, low=1, high=10)
    with pytest.raises(UserError, match="of at least 1"):
        p.integer("size", 0, low=1)
    with pytest.raises(UserError, match="of at most 4"):
        p.number("size", 4.5, high=4)


def test_number_reads_1e_minus_3_however_it_arrives():
    assert p.number("lr", "1e-3") == p.number("lr", 1e-3) == 0.001
    with pytest.raises(UserError, match="parameter lr: found '1_0e-1'; allowed: a number"):
        p.number("lr", "1_0e-1")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_number_reads_the_text_of_any_finite_number(x):
    assert p.number("x", repr(x)) == x


def refusal(check, value) -> str:
    try:
        check("x", value)
    except UserError as error:
        return str(error)
    return ""


@given(st.one_of(st.text(), st.none(), st.binary(), st.lists(st.integers()), st.floats(), st.booleans()))
def test_whatever_arrives_is_converted_or_refused(value):
    for check in (p.integer, p.number, p.flag, p.numbers, p.text, p.file):
        message = refusal(check, value)
        assert "\n" not in message
        assert len(message) < 250


@pytest.mark.parametrize("value", ["false", "False", " FALSE ", False])
def test_the_text_false_is_false(value):
    assert p.flag("fast", value) is False


@pytest.mark.parametrize("value", [0, 1, "0", "yes", "", None])
def test_flag_refuses_what_could_mean_either(value):
    with pytest.raises(UserError, match=r"parameter fast: found .*; allowed: true or false"):
        p.flag("fast", value)


def test_lists_of_numbers_and_their_text():
    assert p.numbers("sizes", [8, "16"]) == p.numbers("sizes", "8, 16") == (8, 16)
    assert p.numbers("sizes", "[8, 16]") == (8.0, 16.0)
    for value in ("", "8;16", [], {"a": 1}, "[8"):
        with pytest.raises(UserError, match="parameter sizes"):
            p.numbers("sizes", value)
    with pytest.raises(UserError, match="of at least 1"):
        p.numbers("sizes", [8, 0], low=1)


def test_choice_text_and_file(tmp_path):
    assert p.choice("task", "A", ["A", "B"]) == "A"
    with pytest.raises(UserError, match="parameter task: found 'C'; allowed: one of A, B"):
        p.choice("task", "C", ["A", "B"])
    with pytest.raises(UserError, match="one line of text"):
        p.text("title", "two\nlines")
    (tmp_path / "grammar.txt").write_text("S a 1\n")
    assert p.file("grammar", str(tmp_path / "grammar.txt")) == tmp_path / "grammar.txt"
    assert p.file("grammar", "") is None
    with pytest.raises(UserError, match=r"parameter grammar: found .*allowed: the path of an existing file"):
        p.file("grammar", str(tmp_path / "absent.txt"))


def test_a_misspelt_profile_is_refused_with_those_that_exist():
    with pytest.raises(UserError, match=r"no profile 'smok'.*smoke"):
        Chapter("01_tiny", "smok")
    with pytest.raises(UserError, match="parameter profile: found 3"):
        Chapter("01_tiny", 3)


@pytest.mark.parametrize("value", [2**53 + 1, str(2**53 + 1), f" -{2**53 + 1} "])
def test_an_integer_that_no_float_holds_stays_what_it_is(value):
    assert p.integer("seed", value) == int(value)
    with pytest.raises(UserError, match="parameter seed"):
        p.integer("seed", value, low=2**54)


@pytest.mark.parametrize("value", ["x" * 5000, "a\0b", "/" + "y/" * 5000])
def test_a_path_that_no_system_takes_is_refused(value):
    with pytest.raises(UserError, match=r"parameter grammar: found .*; allowed: the path of an existing file"):
        p.file("grammar", value)


CHAPTERS = {path.stem: path for path in sorted((Path(__file__).resolve().parents[1] / "book").glob("[0-9]*.md"))}
PARAMETERS = [(name, key) for name, path in CHAPTERS.items() for key in book.default_parameters(jupytext.read(path))]


@pytest.mark.parametrize(("chapter", "name"), PARAMETERS)
def test_every_chapter_refuses_nonsense_for_each_of_its_parameters(chapter, name, monkeypatch, tmp_path):
    """Its own cells are run: the parameters with one changed, imports, and the cell that checks."""
    monkeypatch.setenv("SAMELOSS_BUILD", str(tmp_path))
    cells = prose.cells(CHAPTERS[chapter].read_text())
    first = next(i for i, cell in enumerate(cells) if cell.tagged("parameters"))
    last = next(i for i, cell in enumerate(cells) if "chapter = Chapter(" in cell.code)
    assert last <= first + 2
    names: dict = {}
    exec(cells[first].code, names)
    names[name] = "no such thing"
    for cell in cells[first + 1 : last]:  # imports
        exec(cell.code, names)
    with pytest.raises(UserError, match=rf"\b{name}\b") as refused:
        exec(cells[last].code, names)
    assert "\n" not in str(refused.value)
