"""What runs the tests: nothing is skipped under CI, a missing tool is named, the checkout is all that is needed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run_pytest(folder: Path, ci: str, name: str = "test_it", grammar: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "tests").mkdir(exist_ok=True)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / f"{name}.py").write_text(
        "import pytest\n\n\ndef test_one():\n    pass\n\n\ndef test_two():\n    pytest.skip('no browser here')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    environment = os.environ | {"CI": ci, "SAMELOSS_REFERENCE_GRAMMAR": grammar}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


def test_a_skipped_test_fails_under_ci_and_only_there(tmp_path):
    done = run_pytest(tmp_path, "true")
    assert done.returncode == 1, done.stdout
    assert "skipped under CI without a reason on the list: tests/test_it.py::test_two" in done.stdout
    assert run_pytest(tmp_path, "").returncode == 0
    assert run_pytest(tmp_path, "true", grammar="none").returncode == 1


def test_only_the_tests_of_the_reference_grammar_are_skipped_where_it_is_said_to_be_absent(tmp_path):
    assert run_pytest(tmp_path, "true", "test_pcfg_reference", "none").returncode == 0
    assert run_pytest(tmp_path, "true", "test_pcfg_reference", "").returncode == 1


@pytest.mark.parametrize(("grammar", "code"), [("none", 0), ("", 1)])
def test_under_ci_a_missing_reference_grammar_fails_unless_it_is_said_to_be_absent(grammar, code):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "shape",
        "tests/test_pcfg_reference.py",
    ]
    environment = os.environ | {"CI": "true", "SAMELOSS_REFERENCE_GRAMMAR": grammar}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stdout


def test_a_missing_tool_is_named_in_one_line(tmp_path):
    for tool in ("bash", "sh", "make", "cc"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/bin/false")
    (tmp_path / "python3.11").symlink_to(Path(sys.executable).resolve())
    make = [str(tmp_path / "make"), "--no-print-directory", "-f", str(ROOT / "Makefile"), "tools"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith("error: git is missing")
    (tmp_path / "python3.11").unlink()
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.stderr.splitlines()[0] == "error: Python 3.11 or later is missing; install it and try again"


def test_only_the_ci_script_looks_outside_the_checkout():
    outside = "../" + "shared"
    for path in [
        p for p in ROOT.rglob("*") if p.suffix in (".py", ".md", ".yml", ".yaml", ".toml", ".css", ".txt", "")
    ]:
        parts = path.relative_to(ROOT).parts
        if path.is_file() and not (set(parts) & {".venv", ".git", "build", "runs"} or parts[0] == ".ci"):
            assert outside not in path.read_text(encoding="utf-8", errors="ignore"), path


def test_the_ci_script_is_sound_bash():
    done = subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
