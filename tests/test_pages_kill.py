"""Builds killed at random moments: the next one ends with the pages and verdicts of a build that was left alone."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from sameloss.pages import book, site

VARIES = re.compile(rb"\d{4}-\d\d-\d\d|\?v=[0-9a-f]{8}\b")  # a stamp tells the day; a second rendering marks styles
MOMENTS = {"executing": 6.0, "rendering": 5.0}  # a line of the build, and about how many seconds its work takes


def start(root: Path, *options: str) -> subprocess.Popen:
    """`sameloss build` on a book, in a process group of its own."""
    env = os.environ | {"SAMELOSS_ROOT": str(root), "SAMELOSS_BUILD": str(root / "build"), "PYTHONUNBUFFERED": "1"}
    env |= {"SAMELOSS_RUNS": str(root / "runs"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sameloss.cli", "build", "--profile", "smoke", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True)


def kill(build: subprocess.Popen, whole: bool) -> bool:
    """SIGKILL to the build, or to its process group; whether it hit, and then everything it had started is gone soon.

    A kernel has a group of its own, so that either way something outlives the build for a moment.
    """
    try:
        begun = psutil.Process(build.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        begun = []
    os.killpg(build.pid, signal.SIGKILL) if whole else build.kill()
    build.communicate()
    _, alive = psutil.wait_procs(begun, timeout=20)
    assert not alive
    return build.returncode == -signal.SIGKILL


def kill_at(root: Path, draw: random.Random, moment: str, whole: bool) -> bool:
    build = start(root, *(["--fresh"] if draw.random() < 0.3 else []))
    assert build.stdout is not None
    for line in build.stdout:  # until the build is there, or has passed it by
        if moment in line:
            time.sleep(draw.uniform(0, MOMENTS[moment]))
            break
    return kill(build, whole)


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): VARIES.sub(b"", path.read_bytes()) for path in files}


def assert_is_the_book(root: Path, whole: Path) -> None:
    """Pages and verdicts of two builds agree to the byte, executed notebooks but for times; nothing else is left."""
    build = root / "build"
    found, expected = contents(build / "html"), contents(whole / "build" / "html")
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name] and "_sources" not in name] == []
    assert contents(build / "ledger") == contents(whole / "build" / "ledger")
    for name in ("01_tiny", "ledger"):
        nbformat.validate(nbformat.read(book.executed(name, "smoke"), as_version=4))
    assert {path.name for path in build.iterdir()} == {".lock", "html", "ledger", "notebooks", "site"}
    assert {path.name for path in (build / "notebooks" / "smoke").iterdir()} == {"01_tiny.ipynb", "ledger.ipynb"}
    assert {path.name for path in (build / "ledger" / "smoke").iterdir()} == {"01_tiny.json"}


def finish(root: Path) -> None:
    done = start(root)
    out, err = done.communicate(timeout=300)
    assert done.returncode == 0, out + err


def test_builds_at_once_and_killed_builds_leave_nothing_half_done(tiny_book, built_tiny_book):
    first = start(tiny_book)
    assert "executing" in first.stdout.readline()
    second = start(tiny_book)
    out, err = second.communicate(timeout=120)
    assert (second.returncode, out) == (2, ""), err
    assert err == f"error: another build is running in {tiny_book / 'build'}; wait for it\n"
    assert kill(first, whole=False)
    kill_at(tiny_book, random.Random(1), "rendering", whole=True)
    finish(tiny_book)
    assert_is_the_book(tiny_book, built_tiny_book)


def test_what_a_killed_fresh_run_of_an_unchanged_chapter_leaves_is_cleared_away(tiny_book):
    finish(tiny_book)
    left = tiny_book / "build" / "notebooks" / "smoke" / ".01_tiny-killed"
    left.mkdir()
    (left / "in-use").touch()
    finish(tiny_book)
    assert not left.exists()


@pytest.mark.soak
def test_soak_builds_killed_at_thirty_random_moments(tiny_book, built_tiny_book):
    draw, hits = random.Random(2), 0
    while hits < 30:
        hits += kill_at(tiny_book, draw, draw.choice(list(MOMENTS)), whole=draw.random() < 0.5)
        if hits % 10 == 9:
            finish(tiny_book)
            assert_is_the_book(tiny_book, built_tiny_book)
            (tiny_book / "book" / "01_tiny.md").touch()
    finish(tiny_book)
    assert_is_the_book(tiny_book, built_tiny_book)


def test_half_a_page_of_a_killed_rendering_is_written_anew(tiny_book, built_tiny_book, monkeypatch):
    """Sphinx itself takes every page that is younger than its source for a whole one."""
    (tiny_book / "build" / "notebooks" / "smoke").mkdir(parents=True)
    for name in ("01_tiny", "ledger"):
        source = built_tiny_book / "build" / "notebooks" / "smoke" / f"{name}.ipynb"
        book.executed(name, "smoke").write_bytes(source.read_bytes())
    site.stage("smoke")

    def killed(*command, **options):
        raise KeyboardInterrupt

    page = site.render(tiny_book / "build" / "site") / "book" / "01_tiny.html"
    whole = page.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            site.render(tiny_book / "build" / "site")
    page.write_bytes(whole[: len(whole) // 2])
    site.render(tiny_book / "build" / "site")
    assert page.read_bytes() == whole


def test_a_book_killed_between_the_two_steps_of_publishing_is_there_again(tiny_book, monkeypatch):
    (tiny_book / "build" / "html.old").mkdir(parents=True)
    (tiny_book / "build" / "html.old" / "index.html").write_text("before")
    monkeypatch.setattr(site, "_build", lambda *given: None)
    site.build("smoke")
    assert (tiny_book / "build" / "html" / "index.html").read_text() == "before"
