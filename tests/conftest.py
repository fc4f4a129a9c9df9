"""Fixtures for books built in the tests, and the rule that nothing is skipped under CI."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# As the profiles have it: one thread a process. On a busy machine two wait for each other for minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]
BROWSER_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Tests that may be skipped with CI=true: node id -> reason. Empty: everything runs there.
MAY_BE_SKIPPED: dict[str, str] = {}
GRAMMAR = "SAMELOSS_REFERENCE_GRAMMAR"  # a file, or "none" where there is no copy of it: then its tests may be skipped


def may_be_skipped(node: str) -> bool:
    absent = os.environ.get(GRAMMAR) == "none" and node.startswith("tests/test_pcfg_reference.py::")
    return absent or node in MAY_BE_SKIPPED


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None:
        return
    skipped = [report.nodeid for report in reporter.stats.get("skipped", []) if not may_be_skipped(report.nodeid)]
    if skipped:
        reporter.write_line(f"skipped under CI without a reason on the list: {', '.join(skipped)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def run_sameloss() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the project's command in a process of its own: run_sameloss("run", "01", SAMELOSS_ROOT=folder)."""

    def run(*arguments: str, cwd: Path = ROOT, **environment: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sameloss.cli", *arguments]
        env = os.environ | {key: str(value) for key, value in environment.items()}
        return subprocess.run(command, capture_output=True, text=True, timeout=900, env=env, cwd=cwd)

    return run


CHAPTER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A chapter

```{code-cell} ipython3
:tags: [parameters]

profile = "smoke"
size = 3
```

"""


@pytest.fixture
def write() -> Callable[..., None]:
    """Write a chapter with these code cells after its parameters: write(folder, "print(size)", name="07_test")."""

    def written(folder: Path, *cells: str, name: str = "07_test") -> None:
        body = "".join("```{code-cell} ipython3\n" + cell + "\n```\n\n" for cell in cells)
        (folder / "book" / f"{name}.md").write_text(CHAPTER + body)

    return written


def lay_out_tiny_book(target: Path) -> Path:
    shutil.copytree(ROOT / "tests" / "data" / "tiny", target)
    shutil.copytree(ROOT / "book" / "profiles", target / "book" / "profiles")
    shutil.copytree(ROOT / "book" / "_static", target / "book" / "_static", dirs_exist_ok=True)
    shutil.copy(ROOT / "_config.yml", target)
    return target


@pytest.fixture
def tiny_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with a book of three pages, where this process looks for the project."""
    target = lay_out_tiny_book(tmp_path / "tiny")
    monkeypatch.setenv("SAMELOSS_ROOT", str(target))
    monkeypatch.setenv("SAMELOSS_BUILD", str(target / "build"))
    monkeypatch.setenv("SAMELOSS_RUNS", str(target / "runs"))
    return target


@pytest.fixture(scope="session")
def built_tiny_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny book, built once; not to be changed."""
    from sameloss.pages import site

    target = lay_out_tiny_book(tmp_path_factory.mktemp("built") / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAMELOSS_ROOT", str(target))
        patch.setenv("SAMELOSS_BUILD", str(target / "build"))
        site.build("smoke", tell=lambda line: None)
    return target


@pytest.fixture(scope="session")
def smoke_book(run_sameloss: Callable[..., subprocess.CompletedProcess[str]]) -> Path:
    """The real book at profile smoke, built in build/test (what has not changed is not executed again)."""
    build = ROOT / "build" / "test"
    done = run_sameloss("build", "--profile", "smoke", SAMELOSS_BUILD=build)
    assert done.returncode == 0, done.stdout + done.stderr
    return build / "html"


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Headless Chromium; skipped with the reason where none is installed."""
    from playwright.sync_api import sync_playwright

    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as play:
        chrome = play.chromium.launch(executable_path=found, args=BROWSER_FLAGS)
        yield chrome
        chrome.close()
