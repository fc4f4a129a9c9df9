"""The command: what a user can get wrong is one line and exit code 2, nothing written; Ctrl-C says how to go on."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from sameloss import cli
from sameloss.errors import UserError
from sameloss.runs import prepare, progress
from sameloss.runs.profile import load_profile
from sameloss.runs.store import Store


@pytest.fixture
def sameloss(tiny_book, monkeypatch, capsys):
    """Run the command in this process, on the tiny book: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sameloss", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "02_sameloss"], "no chapter '02_sameloss'; allowed: 01_tiny"),
        (["run", "01_tiny", "--profile", "smok"], "no profile 'smok'"),
        (["build", "--profile", "smok"], "did you mean 'smoke'?"),
        (["claims", "--profile", "../x"], "no profile '../x'"),
        (["results", "--profile", "smok"], "allowed: smoke, laptop, gpu, paper"),
        (["results", "--profile", "laptop", "--only", "9"], "no chapter '9'"),
        (["results", "--profile", "laptop", "--only", "01_tiny"], "'01_tiny' has no settings"),
        (
            ["run", "01_tiny", "-p", "pionts=3"],
            "unknown parameter 'pionts' (did you mean points?); allowed: profile, points, fast",
        ),
        (["run", "01_tiny", "-p", "points"], "-p 'points': allowed is KEY=VALUE"),
        (["run", "01_tiny", "-p", "=3"], "-p '=3': allowed is KEY=VALUE"),
        (["run", "all", "-p", "points=3"], "name the chapter instead of all"),
        (["run", "01_tiny", "--jobs", "-1"], "--jobs"),
        (["run", "01_tiny", "--jobs", "two"], "--jobs"),
        (["run", "--profil", "smoke"], "No such option: --profil"),
        (["bild"], "No such command 'bild'"),
        ([], "Missing command"),
        (["runs"], "Missing command"),
        (["runs", "clean", "zzz"], "run 'zzz': 0 runs begin like this"),
        (["verify", "--profile", "smoke"], "book/results/smoke: no published table found"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2_and_writes_nothing(sameloss, tiny_book, arguments, expected):
    before = sorted(tiny_book.rglob("*"))
    code, out, err = sameloss(*arguments)
    assert code == 2
    assert out == ""
    assert expected in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sorted(tiny_book.rglob("*")) == before


def test_profiles_are_listed_with_what_they_are_for(sameloss):
    code, out, err = sameloss("profiles")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["smoke", "laptop", "gpu", "paper"]
    assert all(len(line.split()) > 5 for line in out.splitlines())


def test_claims_are_listed_for_people_and_for_programs(sameloss):
    code, out, _ = sameloss("claims", "--profile", "smoke")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        *(f"C{n}" for n in range(1, 19)),
        *(f"N{n}" for n in range(1, 8)),
    ]
    code, out, _ = sameloss("claims", "--profile", "smoke", "--json")
    assert code == 0
    assert json.loads(out) == []


@pytest.fixture
def store(tiny_book):
    """The tiny book's store with a finished and a partial run that no profile asks for."""
    store = Store(tiny_book / "runs", print)
    for seed, name in ((1, "table-0.csv"), (2, "resume-00000050.safetensors")):
        identity = {
            "language": {"kind": "tree_grammar"},
            "seeds": [seed],
            "model": {"kind": "transformer", "layers": 2, "width": 8},
            "train": {"optimizer": "adamw", "objective": "tokens", "steps": 200},
        }
        with store.locked(identity) as run:
            run.write(name, b"content")
    return store


def test_runs_are_listed_with_state_progress_size_and_spec(sameloss, store):
    code, out, _ = sameloss("runs", "list")
    assert code == 0
    lines = {line.split()[1]: line for line in out.splitlines()[:-1]}
    assert set(lines) == {"finished", "partial"}
    assert "50/200 steps" in lines["partial"]
    assert "tree_grammar, seeds 1, transformer 2x8, adamw/tokens" in lines["partial"]
    assert out.splitlines()[-1].startswith("2 runs in ")


def test_runs_verify_names_what_is_damaged(sameloss, store):
    assert sameloss("runs", "verify")[:2] == (0, "all files are whole\n")
    file = next(store.root.glob("*/table-0.csv"))
    file.write_bytes(b"contend")
    code, out, err = sameloss("runs", "verify")
    assert code == 1
    assert str(file) in err
    assert out.startswith("1 damaged file")
    assert sameloss("runs", "verify")[0] == 0


def test_runs_clean_removes_what_is_named_or_no_longer_asked_for(sameloss, store):
    first, second = (run.path.name for run in store.runs())
    (store.root / second / "table-9.csv.corrupt-1").write_bytes(b"")
    code, out, _ = sameloss("runs", "clean", "--dry-run")
    assert code == 0
    assert first in out
    assert "table-9.csv.corrupt-1" in out
    assert len(store.runs()) == 2
    assert sameloss("runs", "clean", first[:6])[0] == 0
    assert [run.path.name for run in store.runs()] == [second]
    assert sameloss("runs", "clean")[0] == 0
    assert store.runs() == []


def test_a_read_only_place_for_runs_is_one_clear_line(sameloss, tiny_book, monkeypatch):
    (tiny_book / "file").write_text("")
    monkeypatch.setenv("SAMELOSS_RUNS", str(tiny_book / "file" / "runs"))
    with pytest.raises(UserError, match=r"cannot be written.*SAMELOSS_RUNS") as refused:
        prepare.prepare(profile := _tiny_profile(tiny_book), ["02_same_loss"], jobs=1)
    assert str(refused.value).count("cannot be written") == 1
    first = [spec for spec in profile.runs("02_same_loss") if spec.start is None]
    assert str(refused.value).count(f"(and {len(first) - 1} other runs likewise)") == 1
    assert str(refused.value).count("not run, because") == len(profile.runs("02_same_loss")) - len(first) > 0


def test_a_file_in_place_of_the_run_store_is_refused(sameloss, tiny_book, monkeypatch):
    (tiny_book / "file").write_text("")
    monkeypatch.setenv("SAMELOSS_RUNS", str(tiny_book / "file"))
    for command in (("list",), ("verify",), ("clean", "--dry-run")):
        code, out, err = sameloss("runs", *command)
        assert (code, out) == (2, "")
        assert "file: is a file, not a folder (SAMELOSS_RUNS" in err


def _tiny_profile(root, steps=60):
    """Smoke with training of a few steps."""
    data = yaml.safe_load((root / "book" / "profiles" / "smoke.yaml").read_text())
    data["name"] = "tiny"
    for config in data["training"].values():
        config.update(steps=steps, checkpoints=[0])
    for measure in data["measures"].values():
        measure.update(contexts=64, trace_contexts=8, probe_train=0, probe_test=0, fine_tune=None)
    (root / "book" / "profiles" / "tiny.yaml").write_text(yaml.safe_dump(data))
    return load_profile("tiny")


def test_a_log_has_plain_lines_with_times_and_a_summary(tiny_book, capsys):
    profile = _tiny_profile(tiny_book)
    prepare.prepare(profile, ["01_languages", "02_same_loss"], jobs=1)
    out, err = capsys.readouterr()
    assert out == ""
    assert "\r" not in err
    assert "\x1b" not in err
    *lines, summary = err.splitlines()
    assert all(line[:4].isdigit() and line[19:21] == "Z " for line in lines)
    assert any("training" in line and "%" in line for line in lines)
    count = len(profile.runs("02_same_loss"))
    assert summary.startswith(f"runs: {count} computed; ")
    prepare.prepare(profile, ["02_same_loss"], jobs=1)
    assert capsys.readouterr().err.startswith(f"runs: {count} reused; ")


def test_a_terminal_has_bars_with_the_time_left_that_end_at_the_end():
    out = io.StringIO()
    bars = progress.Bars(out, {"a 1": 0.75, "b 2": 0.25})
    for label in ("a 1", "b 2"):
        for done in range(1, 11):
            bars.step(label, "training", done, 10)
        for done in range(5):
            bars.step(label, "measuring", done, 4)
        bars.note(f"note on {label}")
    assert bars.whole.n == pytest.approx(100)
    bars.close()
    assert "all runs" in out.getvalue()
    assert "left" in out.getvalue()
    assert "note on a 1" in out.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (70, "1:10"), (3700, "1:01:40")])
def test_durations_are_readable(seconds, text):
    assert progress.duration(seconds) == text


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tiny_book):
    """A real SIGINT to the command and its workers, as a terminal sends it."""
    _tiny_profile(tiny_book, steps=1_000_000)
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "SAMELOSS_ROOT": str(tiny_book),
        "SAMELOSS_RUNS": str(tiny_book / "runs"),
    }
    (tiny_book / "book" / "02_same_loss.md").write_text((tiny_book / "book" / "01_tiny.md").read_text())
    command = [sys.executable, "-m", "sameloss.cli", "run", "02_same_loss", "--profile", "tiny", "--jobs", "2"]
    # A shell that starts the tests in the background has SIGINT ignored, and children inherit that.
    process = subprocess.Popen(
        command,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        first = process.stderr.readline()
        assert "Z " in first, first
        time.sleep(2)
        os.killpg(process.pid, signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, rest
    assert rest.splitlines()[-1].startswith("interrupted; whatever was stored is whole: the same command goes on")
    assert "Traceback" not in rest
    assert Store(tiny_book / "runs", print).verify() == 0
