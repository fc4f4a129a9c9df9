"""The front page and the report: sentences that say what the ledger says, and a picture of what they rest on."""

import numpy as np
import pytest

from sameloss.pages import answer, book, front, ledger, report, site
from sameloss.pages.claims import CLAIMS
from sameloss.theory import flow_landscape, flow_models

PART = answer.Part("title", "the moon is flat", ("C7", "C2"))


def row(claim, verdict, here=None):
    blank = dict.fromkeys(ledger.Row.model_fields, "")
    return blank | {"claim": claim, "verdict": verdict, "here": here, "p": None, "statistic": "gap", "chapter": "02_x"}


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        ([], "Not decided here"),
        ([("C2", "not run"), ("C7", "not comparable")], "Not decided here"),
        ([("C2", "reproduced"), ("C7", "verified")], "Yes"),
        ([("C2", "reproduced"), ("C2", "not run"), ("C7", "verified")], "Yes"),
        ([("C2", "reproduced"), ("C7", "verified with a restriction")], "Yes, with a restriction"),
        ([("C2", "reproduced")], "Yes, as far as it is decided here"),
        ([("C2", "reproduced"), ("C7", "not run")], "Yes, as far as it is decided here"),
        ([("C2", "reproduced"), ("C2", "direction only"), ("C7", "verified")], "In part"),
        ([("C2", "direction only"), ("C7", "false as stated")], "No"),
        ([("C2", "contradicted"), ("C1", "reproduced")], "No"),  # C1 is no claim of this part
    ],
)
def test_the_word_follows_from_the_verdicts(verdicts, word):
    assert answer.in_a_word(PART, [row(*pair) for pair in verdicts]) == word


def test_where_accuracy_decides_a_falling_trace_alone_is_no_yes():
    part = answer.Part("title", "flat is good", ("C10", "C12"), ("accuracy", "at equal KL"))
    trace = row("C10", "reproduced") | {"statistic": "trace, after SGD minus twin at equal KL"}
    beside = row("C12", "reproduced") | {"statistic": "trace at equal KL, large minus small"}
    accuracy = row("C10", "contradicted") | {"statistic": "accuracy, task B, after SGD minus twin at equal KL"}
    assert answer.in_a_word(part, [trace, beside]) == "Not decided here"
    assert answer.in_a_word(part, [trace, beside, accuracy]) == "No"
    assert answer.in_a_word(part, [trace, beside, accuracy | {"verdict": "reproduced"}]) == "Yes"
    assert "; those on accuracy at equal KL decide: 1" in answer.sentence(part, [trace, accuracy], "laptop")


def test_a_question_ends_with_its_paragraph(tiny_book, monkeypatch):
    page = tiny_book / "book" / "01_x.md"
    page.write_text("# X\n\n**The question.** None here.\n\nWhat else?\n", encoding="utf-8")
    monkeypatch.setattr(book, "sources", lambda: page.parent)
    assert report.heading("01_x") == ("X", "")
    page.write_text("# X\n\n**The question.** One\nhere? More.\n\nWhat else?\n", encoding="utf-8")
    assert report.heading("01_x") == ("X", "One here?")


def test_a_sentence_counts_verdicts_and_names_what_nobody_tests():
    said = answer.sentence(PART, [row("C2", "reproduced"), row("C2", "contradicted"), row("C1", "not run")], "laptop")
    assert said.startswith("<strong>In part</strong>: the moon is flat (2 tests of ")
    assert ": 1 reproduced, 1 contradicted; " in said
    assert '<a href="ledger.html#c7">C7</a> not tested by any chapter yet; profile laptop).' in said


def test_there_are_four_sentences_and_no_claim_is_in_two_of_them(tiny_book):
    said = answer.Answer("smoke")
    assert len(said.sentences) == 4
    assert said._repr_html_().count("<li>") == 4
    keys = [key for part in answer.PARTS for key in part.claims]
    assert len(keys) == len(set(keys))
    assert set(keys) <= set(CLAIMS)


def test_the_report_has_a_line_for_every_claim_and_says_when_numbers_are_left_out(tiny_book):
    rows = [row("C2", "reproduced", (1.0, 0.1, 8))] * 4 + [row("C7", "verified")]
    ledger.write("smoke", "02_x", rows)
    frame = answer.findings_table("smoke").frame
    assert sorted(frame["claim"]) == sorted(f'<a href="ledger.html#{key.lower()}">{key}</a>' for key in CLAIMS)
    line = frame[frame["claim"].str.contains(">C2<")].iloc[0]
    assert line["here"].count("<p") == 3
    assert "and 2 more" in line["here"]
    assert "× 4" in line["verdicts"]
    untested = frame[frame["claim"].str.contains(">C1<")].iloc[0]
    assert "not run" in untested["verdicts"]
    assert untested["here"] == ""


def test_the_list_of_chapters_is_that_of_the_table_of_contents():
    frame = report.contents_table("smoke").frame
    numbered = [name for name in site.pages() if name[0].isdigit()]
    assert len(frame) == len(numbered)
    for name, (_, line) in zip(numbered, frame.iterrows(), strict=True):
        assert f'href="{name}.html"' in line["chapter"]
        assert line["question"].endswith("?"), f"{name} opens with **The question.** and asks one"


def test_every_solution_on_the_front_page_has_the_least_loss_and_sgd_ends_at_a_flatter_one():
    ground = front.valley(7)
    toy = flow_models.one_context(0.8)
    curve, walk = (ground[ground["what"] == what] for what in ("solution", "sgd"))
    losses = flow_landscape.loss(toy, curve[["u", "v"]].to_numpy())
    np.testing.assert_allclose(losses, flow_landscape.floor(toy), atol=1e-12)

    def nearest_trace(point):
        return curve["trace"].iloc[np.hypot(curve["u"] - point["u"], curve["v"] - point["v"]).argmin()]

    assert nearest_trace(walk.iloc[-1]) < 0.5 * nearest_trace(walk.iloc[0])


def test_the_two_networks_of_the_front_page_differ_in_trace_and_in_what_they_need():
    curves = front.transfer(7, trials=300).set_index("net")
    flat, random = curves.loc["flattest"], curves.loc["random features"]
    assert flat["trace"].iloc[0] == pytest.approx(6 * 5 ** (1 / 3))
    assert random["trace"].iloc[0] > 5 * flat["trace"].iloc[0]
    few = flat["n"].to_numpy() <= 4
    assert (flat["error"].to_numpy() < random["error"].to_numpy())[few].all()
