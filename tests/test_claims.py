"""The registry of claims, the rules for verdicts, and the ledger on disk."""

import html
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.measures.estimate import Estimate
from sameloss.pages import claims, ledger, provenance, report
from sameloss.pages.chapter import Chapter


def verdict(value, stderr, n=12, **more):
    return claims.verdict(Estimate(value, stderr, n), profile="laptop", **more)


def test_all_claims_have_a_place_a_statement_and_a_number():
    ids = list(claims.CLAIMS)
    assert [key for key in ids if key[0] == "C"] == [f"C{i}" for i in range(1, 19)]
    added = [int(key[1:]) for key in ids[18:] if key[0] == "N"]
    assert added == sorted(set(added))
    assert len(added) == len(ids) - 18, "the paper's claims first, then those that the book adds"
    for claim in claims.CLAIMS.values():
        assert claim.place
        assert (claim.place == "beyond the paper") == claim.id.startswith("N")
        assert len(claim.statement.split()) >= 8
        assert claim.number
        assert claim.kind in ("empirical", "theory")


def test_verdicts_of_an_interval():
    assert verdict(1.0, 0.1) == "reproduced"
    assert verdict(1.0, 0.9) == "direction only"
    assert verdict(-1.0, 0.1) == "contradicted"
    assert verdict(-1.0, 0.9) == "not reproduced"
    assert verdict(0.0, 0.5) == "not reproduced"


def test_the_papers_direction_may_be_negative():
    assert verdict(-1.0, 0.1, direction=-1) == "reproduced"
    assert verdict(1.0, 0.1, direction=-1) == "contradicted"
    with pytest.raises(ValueError, match="direction"):
        verdict(1.0, 0.1, direction=0)


def test_too_few_seeds_and_smoke_are_not_run():
    assert verdict(1.0, 0.1, n=7) == "not run"
    assert verdict(1.0, 0.1, n=5, min_seeds=5) == "reproduced"
    assert claims.verdict(Estimate(1.0, 0.1, 100), profile="smoke") == "not run"
    assert claims.verdict(None, profile="laptop") == "not run"


def test_no_equal_loss_is_not_comparable():
    assert verdict(1.0, 0.1, n=3, comparable=False) == "not comparable"
    assert verdict(1.0, 0.1, comparable=False) == "not comparable"
    assert verdict(math.nan, 0.1) == "not comparable"


@given(st.floats(-10, 10), st.floats(1e-6, 10), st.integers(8, 50))
def test_turning_the_sign_turns_the_verdict(value, stderr, n):
    forth, back = verdict(value, stderr, n), verdict(-value, stderr, n, direction=-1)
    assert forth == back
    low, high = Estimate(value, stderr, n).interval()
    assert (forth == "reproduced") == (low > 0)
    assert (forth == "contradicted") == (high < 0)


def test_theory():
    assert claims.theory_verdict(True) == "verified"
    assert claims.theory_verdict(True, "both labels") == "verified with a restriction"
    assert claims.theory_verdict(False) == "false as stated"


def test_an_unknown_claim_is_named():
    with pytest.raises(UserError, match="claim 'C99' is unknown; allowed: C1, C2"):
        claims.claim("C99")


@pytest.fixture
def chapter(tmp_path, monkeypatch):
    monkeypatch.setenv("SAMELOSS_LEDGER", str(tmp_path))
    return Chapter("02_same_loss", "smoke")


def test_a_chapters_verdicts_reach_the_ledger_with_holms_p(chapter, tmp_path):
    chapter.verdict("C2", "probe, large minus small", Estimate(1.0, 0.2, 10), "not run", seeds=range(20, 30))
    chapter.verdict("C5", "probe, features minus lookup", Estimate(0.1, 0.2, 10), "not run", figure="fig-x")
    chapter.verdict("C7", "largest gap", Estimate(0.0, 0.0, 1), "verified")
    rows = ledger.read("smoke")
    assert [row["claim"] for row in rows] == ["C2", "C5", "C7"]
    assert rows[0]["seeds"] == "20-29"
    assert rows[0]["p"] < rows[1]["p"] <= 1
    assert rows[2]["p"] is None, "a statement of theory is no test"
    table = chapter.verdict_table()
    assert 'href="ledger.html#c2"' in table._repr_html_()
    assert "profile smoke" in table._repr_html_()
    assert "probe, large minus small" in repr(table)
    assert "<" not in repr(table)


def test_the_summary_of_a_chapter_counts_its_verdicts(chapter):
    for verdict in ("reproduced", "contradicted", "reproduced"):
        chapter.verdict("C2", "probe", Estimate(1.0, 0.2, 10), verdict)
    chapter.verdict("C7", "largest gap", Estimate(0.0, 0.0, 1), "verified")
    table = chapter.outcome()
    claimed = [re.sub("<.*?>", "", html.unescape(cell)) for cell in table.frame["what is claimed"]]
    for key, cell in zip(("C2", "C7"), claimed, strict=True):
        assert cell == f"{claims.CLAIMS[key].statement} Expected: {chapter.prediction(key)}."
    assert "(written for profile laptop)" in claimed[0], "the expectations of smoke are laptop's"
    first = table.frame["what came out"][0]
    assert first.index("reproduced</span> × 2") < first.index("contradicted</span>")
    assert re.sub("<.*?>", "", first) == "reproduced × 2, contradicted × 1"


def test_a_chapter_starts_with_an_empty_ledger(chapter):
    chapter.verdict("C2", "probe", None, "not run")
    Chapter("02_same_loss", "smoke")
    assert ledger.read("smoke") == []


def test_a_verdict_is_a_word_of_the_protocol(chapter):
    with pytest.raises(ValueError, match="verdict 'nice'"):
        chapter.verdict("C2", "probe", None, "nice")
    with pytest.raises(ValueError, match="verdict 'verified'"):
        chapter.verdict("C2", "probe", None, "verified")


@pytest.mark.parametrize(
    ("key", "value"), [("here", [1]), ("here", "x"), ("verdict", None), ("chapter", None), ("claim", "C0"), ("more", 1)]
)
def test_a_damaged_ledger_is_named(chapter, tmp_path, key, value):
    chapter.verdict("C2", "probe", Estimate(1.0, 0.2, 10), "not run")
    file = tmp_path / "smoke" / "02_same_loss.json"
    (row,) = json.loads(file.read_text())
    for text in ("", "{", "{}", "[{}]", '[{"claim": "C2"}]', "3", "\0", json.dumps([row | {key: value}])):
        file.write_text(text)
        with pytest.raises(UserError, match=r"02_same_loss.json: not a ledger .*run the chapter again"):
            ledger.read("smoke")
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match=r"02_same_loss.json: cannot be read"):
        ledger.read("smoke")


def test_the_ledger_table_has_a_row_and_an_anchor_for_every_claim(chapter):
    chapter.verdict("C2", "probe <b>large</b>", Estimate(1.0, 0.2, 10), "not run", figure="fig-sizes")
    page = report.ledger_table("smoke")._repr_html_()
    for claim in claims.CLAIMS:
        assert f'<tr id="{claim.lower()}">' in page
    assert 'href="02_same_loss.html#fig-sizes"' in page
    assert 'href="02_same_loss.html#code-verdicts"' in page
    assert "probe &lt;b&gt;large" in page, "text is text"
    assert "sameloss run 02 --profile smoke" in page
    assert report.verdict_counts("smoke") == {"not run": len(claims.CLAIMS)}


def test_the_rows_are_json_without_nan(chapter, tmp_path):
    chapter.verdict("C2", "probe", Estimate(1.0, math.nan, 1), "not run")
    json.loads((tmp_path / "smoke" / "02_same_loss.json").read_text(), parse_constant=pytest.fail)


def test_provenance_line_names_runs_seeds_and_machine_but_no_host():
    import getpass
    import platform

    line = provenance.line("smoke", ["abcdef0123456789"] * 3, [3, 1, 2, 7])
    for part in ("profile smoke", "run abcdef0123", "seeds 1-3, 7", "revision", "recipe", "cores", "torch"):
        assert part in line
    assert platform.node() not in line.split()
    assert getpass.getuser() not in line.split()
    read = provenance.line("laptop", origin={"source": "from results", "date": "2020-01-01T00:00:00Z"})
    assert read.startswith("from results, profile laptop")
    assert "2020-01-01 " in read


@given(st.lists(st.integers(0, 30), max_size=12))
def test_spans_name_exactly_the_seeds(seeds):
    named = set()
    for part in [part for part in provenance.spans(seeds).split(", ") if part]:
        low, _, high = part.partition("-")
        named |= set(range(int(low), int(high or low) + 1))
    assert named == set(seeds)
