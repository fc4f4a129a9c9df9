"""Published tables computed anew: what is right agrees, a falsified number is noticed."""

import numpy as np
import pandas as pd
import pytest

from sameloss.learners.pretrain import State, initial, pretrain
from sameloss.learners.stack import member
from sameloss.pages import book
from sameloss.runs import experiment, results, verify
from sameloss.runs.measure import Bench, baseline_rows, checkpoint_rows
from sameloss.runs.profile import load_profile
from sameloss.runs.progress import Silent
from sameloss.runs.settings import CHAPTERS
from sameloss.runs.spec import RunSpec
from sameloss.runs.training import Subject

CELL = """
import pandas as pd
from sameloss.pages.chapter import Chapter
from sameloss.runs import experiment
chapter = Chapter("01_tiny", profile)
squares = pd.DataFrame({"x": [1, 2], "square": [1.0, 4.0]})
experiment.remember(chapter.profile, "01_tiny", "squares", {}, lambda: squares)
"""


@pytest.fixture
def published(tiny_book, monkeypatch):
    """The tiny book with a published run and a published table of its chapter, as if the profile were committed."""
    monkeypatch.setattr(results, "committed", lambda revision: True)
    text = (tiny_book / "book" / "01_tiny.md").read_text()
    start = text.index("```{code-cell} ipython3\nfrom sameloss.pages.chapter")
    (tiny_book / "book" / "01_tiny.md").write_text(text[:start] + "```{code-cell} ipython3" + CELL + "```\n")
    profile = load_profile("smoke")
    run = profile.runs("02_same_loss")[1]
    assert isinstance(run, RunSpec)
    short = run.model_copy(
        update={
            "name": "short",
            "seeds": (7001,),
            "train": run.train.model_copy(update={"steps": 20, "checkpoints": ()}),
            "measure": run.measure.model_copy(
                update={"contexts": 64, "trace_contexts": 0, "probe_train": 0, "probe_test": 0, "fine_tune": None}
            ),
        }
    )
    frame = experiment.compute(short, experiment.work_for(profile, Silent()), profile)
    results.publish("smoke", "02_same_loss", "short", short.key(), frame, ())
    monkeypatch.setattr(type(profile), "runs", lambda self, chapter: [short] if chapter == "02_same_loss" else [])
    squares = pd.DataFrame({"x": [1, 2], "square": [1.0, 4.0]})
    monkeypatch.setenv("SAMELOSS_PUBLISH", "1")
    experiment.remember(profile, "01_tiny", "squares", {}, lambda: squares)
    monkeypatch.delenv("SAMELOSS_PUBLISH")
    return tiny_book / "book" / "results" / "smoke"


def falsify(folder, name, column):
    """Change the first number of a column by a tenth."""
    (file,) = folder.rglob(f"{name}.*.csv")
    frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    frame.loc[0, column] = repr(float(frame.loc[0, column]) * 1.1)
    file.write_text(frame.to_csv(index=False))


def test_what_is_published_agrees_and_what_is_falsified_does_not(published, monkeypatch, tmp_path):
    profile = load_profile("smoke")
    tables = [("01_tiny", "squares"), ("02_same_loss", "short")]
    assert verify.sample(profile, 9, seed=0) == tables
    picked = {verify.sample(profile, 1, seed)[0] for seed in range(20)}
    assert picked == set(tables)
    assert verify.sample(profile, 9, seed=0, only="01_tiny") == tables[:1]
    (run,) = verify.runs(profile, tables[1])
    assert verify.runs(profile, tables[0]) == []

    def both() -> list[str]:
        monkeypatch.setenv("SAMELOSS_LEDGER", str(tmp_path / "ledger"))
        with monkeypatch.context() as patch:
            patch.setenv(verify.VARIABLE, "")
            verify.ask(tmp_path, tables[:1])
            book.run_chapter("01_tiny", "smoke", output=tmp_path / "out.ipynb")
        return [verify.answer(tmp_path, tables[0]), verify.recomputed(profile, run, "02_same_loss", Silent())]

    assert both() == ["the same to the last digit"] * 2
    falsify(published, "squares", "square")
    falsify(published, "short", "value")
    said = both()
    assert said[0] == "differs in row 2, square: published 1.1, computed 1"
    assert said[1].startswith("differs in row 2, value: published ")


def test_a_table_no_chapter_asks_for_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setenv(verify.VARIABLE, "")
    verify.ask(tmp_path, [("01_tiny", "gone")])
    assert verify.answer(tmp_path, ("01_tiny", "gone")) == "differs: no chapter asks for it"
    assert verify.asked("01_tiny", "gone") is not None
    assert verify.asked("01_tiny", "other") is None


def test_the_tolerance_is_one_percent_or_a_tenth_of_a_standard_error():
    table = pd.DataFrame({"what": ["a", "b"], "value": [1.0, np.nan], "stderr": [0.5, 0.0], "n": [5, 5]})

    def with_first(column, value):
        return table.assign(**{column: [value, table[column][1]]})

    assert verify.compared(table, table.copy()) == "the same to the last digit"
    assert verify.compared(table, with_first("value", 1.049)).startswith("within the tolerance (by 4.9e-02")
    assert verify.compared(table, with_first("value", 1.051)).startswith("differs in row 2, value")
    assert verify.compared(table, with_first("n", 6)).startswith("differs in row 2, n")
    assert verify.compared(table, with_first("what", "c")) == "differs in row 2, what: published 'a', computed 'c'"
    assert verify.compared(table, with_first("value", np.nan)).startswith("differs in row 2, value")
    assert verify.compared(table, table[:1]).startswith("differs: 2 rows")


WHAT = ["quantity", "task", "features", "value", "stderr", "n"]
MODEL = ("kl", "cross_entropy", "expected_cross_entropy", "trace")
BUMP = "raise RECIPE of the wing that gives other numbers now: the published rows are of the old one"


def published_runs() -> list[tuple[str, RunSpec]]:
    """Published runs of profile laptop that start from nothing, each with its chapter."""
    laptop = load_profile("laptop")
    found = [(chapter, spec) for chapter in CHAPTERS for spec in laptop.runs(chapter) if spec.start is None]
    return [(c, s) for c, s in found if results.path("laptop", c, s.name, s.key()).is_file()]


def published_rows(chapter: str, spec: RunSpec, step: int, quantities: tuple[str, ...]) -> pd.DataFrame:
    """Rows of its first seed."""
    rows = results.read("laptop", chapter, spec.name, spec.key())
    assert rows is not None
    return rows[(rows["seed"] == spec.seeds[0]) & (rows["step"] == step) & rows["quantity"].isin(quantities)][WHAT]


def bench_of(spec: RunSpec, subject: Subject) -> Bench:
    """Without probes, which are the dearest."""
    measure = spec.measure.model_copy(update={"probe_train": 0, "probe_test": 0, "fine_tune": None, "shift": None})
    return Bench(*subject.drawn[0], spec.seeds[0], measure)


class Reached(Exception):
    """The training has come as far as it is compared."""


def trained(spec: RunSpec, subject: Subject, step: int) -> State:
    """The state at a checkpoint, without the steps behind it."""
    kept = [initial(subject.model, spec.seeds)]

    def keep(state: State) -> None:
        if state.step == step:
            kept.append(state)
            raise Reached

    if step:
        with pytest.raises(Reached):
            pretrain(subject.model, subject.languages, spec.train, spec.seeds, save=keep)
    return kept[-1]


@pytest.mark.parametrize("trace", [False, True])
def test_published_rows_of_a_model_are_what_the_code_gives(trace):
    """Computed again from nothing: the earliest checkpoint of all, and an untrained model whose trace is known."""
    runs = [(c, s) for c, s in published_runs() if s.train]
    if trace:
        runs = [(c, s) for c, s in runs if s.measure.trace_contexts and 0 in s.steps]
    chapter, spec = min(runs, key=lambda run: min(step for step in run[1].steps if step))
    step = 0 if trace else min(step for step in spec.steps if step)
    published = published_rows(chapter, spec, step, MODEL)
    assert ("trace" in set(published["quantity"])) >= trace
    spec = spec.model_copy(update={"seeds": spec.seeds[:1]})
    subject = Subject(spec)
    model = member(subject.model, trained(spec, subject, step).ema, 0)
    rows = pd.DataFrame(checkpoint_rows(bench_of(spec, subject), model, subject.model))
    said = verify.compared(published, rows[rows["quantity"].isin(MODEL)][WHAT])
    assert not said.startswith("differs"), f"{chapter}, {spec.name}, step {step}: {said}; {BUMP}"


def test_published_floors_are_what_the_code_gives():
    """All but LM text's, which take two minutes: `make verify` computes them again."""
    runs = [(chapter, spec) for chapter, spec in published_runs() if spec.train is None]
    floors = [(chapter, spec) for chapter, spec in runs if spec.language.kind != "lm_text"]
    assert floors
    for chapter, spec in floors:
        published = published_rows(chapter, spec, 0, ("floor", "redraws"))
        subject = Subject(spec.model_copy(update={"seeds": spec.seeds[:1]}))
        rows = pd.DataFrame(baseline_rows(bench_of(spec, subject)))
        said = verify.compared(published, rows[WHAT])
        assert not said.startswith("differs"), f"{chapter}, {spec.name}: {said}; {BUMP}"
