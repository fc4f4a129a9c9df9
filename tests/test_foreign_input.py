"""Whatever a file or a cell holds, only the project's own errors come out; and no pickle is ever opened."""

import hashlib
import os
import pickle
from pathlib import Path

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.languages.lm_text import LMText
from sameloss.languages.pcfg import PCFG
from sameloss.pages import book
from sameloss.pages import parameters as p
from sameloss.runs import experiment
from sameloss.runs.profile import load_profile
from sameloss.runs.progress import Silent
from sameloss.runs.spec import Measure

GRAMMAR = (Path(__file__).parent / "data" / "small_grammar.txt").read_text()
CELL = 'profile = "smoke"\nsize = 3\nrates = [1e-3, 2.5]\nfast = False\nname = "a"\n'
FEW, MANY = (
    settings(max_examples=n, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    for n in (200, 10_000)
)


@st.composite
def mutated(draw, text: str) -> str:
    """A text with a piece cut out and another put in, or one of its words replaced; sometimes any text at all."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(st.text(max_size=200))
    if kind == 1:
        i, j = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        return text[:i] + draw(st.text(max_size=30)) + text[j:]
    words = text.split(" ")
    odd = [
        "1e400",
        "-1",
        "nan",
        "0",
        "1",
        "(",
        "[",
        "'",
        "lambda",
        "\x00",
        "\n",
        "#",
        "S",
        "x" * 300,
        "9" * 5000,
        "=",
        ":=",
    ]
    words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(odd) | st.text(max_size=8))
    return " ".join(words)


def one_line(error: Exception) -> None:
    assert len(str(error).splitlines()) == 1, str(error)


def read_grammar(folder: Path, text: str) -> None:
    (folder / "grammar.txt").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert PCFG.from_file(folder / "grammar.txt", max_length=6).vocab
    except UserError as error:
        one_line(error)


def read_cell(text: str) -> None:
    """The parameters cell of a chapter, and each of its values where a chapter checks it."""
    cell = nbformat.v4.new_code_cell(text, metadata={"tags": ["parameters"]})
    try:
        found = book.default_parameters(nbformat.v4.new_notebook(cells=[cell]))
    except book.BookError as error:
        return one_line(error)
    checks = (p.integer, p.number, p.numbers, p.flag, p.text, p.file, lambda n, v: p.choice(n, v, ["a", "b"]))
    for name, value in found.items():
        for check in checks:
            try:
                check(name, value)
            except UserError as error:
                one_line(error)


@FEW
@given(text=mutated(GRAMMAR))
def test_whatever_a_grammar_file_holds_only_user_errors_come_out(tmp_path, text):
    read_grammar(tmp_path, text)


@pytest.mark.soak
@MANY
@given(text=mutated(GRAMMAR))
def test_soak_whatever_a_grammar_file_holds_only_user_errors_come_out(tmp_path, text):
    read_grammar(tmp_path, text)


@FEW
@given(text=mutated(CELL))
def test_whatever_the_parameters_cell_holds_only_the_projects_errors_come_out(text):
    read_cell(text)


@pytest.mark.soak
@MANY
@given(text=mutated(CELL))
def test_soak_whatever_the_parameters_cell_holds_only_the_projects_errors_come_out(text):
    read_cell(text)


class Planted:
    """Leaves a mark on the disk when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_planted_pickle_is_never_opened(tmp_path, monkeypatch):
    """In place of a checkpoint with its checksum made to fit, of a table, and as the weights of a model folder."""
    mark = tmp_path / "opened"
    bomb = pickle.dumps(Planted(mark))
    monkeypatch.setenv("SAMELOSS_RUNS", str(tmp_path / "runs"))
    profile, silent = load_profile("smoke"), Silent()
    work = experiment.work_for(profile, silent)
    spec = next(spec for spec in profile.runs("02_same_loss") if spec.train)
    train = spec.train.model_copy(update={"steps": 60, "checkpoints": (0,)})
    measure = Measure(contexts=64, trace_contexts=0, probe_train=0, probe_test=0)
    spec = spec.model_copy(update={"seeds": (7001,), "train": train, "measure": measure})
    planted = ["checkpoint-00000000.safetensors", "resume-00000050.safetensors", f"table-{spec.key()}.csv"]
    with work.store.locked(spec.identity()) as run:
        for name in planted:
            (run.path / name).write_bytes(bomb)
            (run.path / f"{name}.sha256").write_text(hashlib.sha256(bomb).hexdigest())
        (run.path / "checkpoint-00000060.pt").write_bytes(bomb)
        run.write(f"origin-{spec.key()}.json", b"{}")
    assert set(experiment.compute(spec, work, profile)["step"]) == {0, 60}  # what was planted is made anew
    assert all(any(f"{name} (it is no " in note for note in silent.notes) for name in planted)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "opt"}')
    (model / "pytorch_model.bin").write_bytes(bomb)
    with pytest.raises(UserError):
        LMText.from_folder(model)
    assert not mark.exists()
    pickle.loads(bomb)
    assert mark.exists()  # it would have been noticed
