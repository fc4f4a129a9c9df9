"""Chapters side by side: the first failure ends the rest, nothing outlives the process that asked for them."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import psutil
import pytest

from sameloss.errors import UserError
from sameloss.pages import book
from sameloss.pages.execute import execute

# A shell's background job ignores Ctrl-C, and so does what it starts: here as if from the front.
ASK = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
ASK += "from sameloss.pages.execute import execute; execute(['07_a', '08_b'], 'smoke', 2)"


def until(true, seconds=180.0):
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds
        time.sleep(0.05)


def kernels_of(process):
    return [p for p in process.children(recursive=True) if "ipykernel" in " ".join(p.cmdline())]


def test_two_chapters_run_at_the_same_time_and_then_the_pages_that_tell_of_them(tiny_book, write):
    wait = "import time, pathlib\n{0} = pathlib.Path('{1}')\npathlib.Path('{2}').touch()\n" + (
        "while not {0}.exists():\n    time.sleep(0.05)"
    )
    write(tiny_book, wait.format("other", tiny_book / "b", tiny_book / "a"), name="07_a")
    write(tiny_book, wait.format("other", tiny_book / "a", tiny_book / "b"), name="08_b")
    write(tiny_book, f"import pathlib\nassert pathlib.Path('{book.executed('08_b', 'smoke')}').exists()", name="zzz")
    said: list[str] = []
    execute(["07_a", "08_b", "zzz"], "smoke", 2, tell=said.append)
    assert all(book.up_to_date(name, "smoke") for name in ("07_a", "08_b", "zzz"))
    assert said[:2] == [f"[{i}/3] {name}: executing at profile smoke" for i, name in enumerate(("07_a", "08_b"), 1)]
    execute(["07_a", "08_b", "zzz"], "smoke", 2, fresh=False, tell=said.append)
    assert said[-3:] == [f"[{i}/3] {name}: unchanged" for i, name in enumerate(("07_a", "08_b", "zzz"), 1)]


def test_the_first_failure_is_told_of_and_ends_the_others_with_their_kernels(tiny_book, write):
    write(tiny_book, "import time\ntime.sleep(600)", name="07_a")
    write(tiny_book, "from sameloss.errors import UserError\nraise UserError('no such thing')", name="08_b")
    with pytest.raises(UserError, match=r"^no such thing$"):
        execute(["07_a", "08_b"], "smoke", 2, tell=lambda line: None)
    until(lambda: not kernels_of(psutil.Process()))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_process_that_is_killed_or_interrupted(tiny_book, write, how):
    for name in ("07_a", "08_b"):
        write(tiny_book, "import time\ntime.sleep(600)", name=name)
    asked = subprocess.Popen([sys.executable, "-c", ASK], cwd=tiny_book, stderr=subprocess.PIPE, text=True)
    process = psutil.Process(asked.pid)
    try:
        until(lambda: len(kernels_of(process)) == 2)
        begun = process.children(recursive=True)
        asked.send_signal(how)
        said = asked.communicate(timeout=60)[1]
    finally:
        asked.kill()  # where an assertion failed before
    assert asked.returncode != 0
    assert "Process SpawnProcess" not in said  # no traceback of a worker
    _, alive = psutil.wait_procs(begun, timeout=20)
    assert not alive


def test_a_killed_process_is_an_error_that_names_what_it_did(tiny_book, write):
    write(tiny_book, "import os, psutil\npsutil.Process(os.getppid()).kill()", name="07_a")
    write(tiny_book, "import time\ntime.sleep(600)", name="08_b")
    with pytest.raises(book.BookError, match=r"one of .*07_a.* was killed; run again"):
        execute(["07_a", "08_b"], "smoke", 2, tell=lambda line: None)


def test_the_end_of_the_process_that_was_started_last_is_noticed_at_once(tiny_book, write, monkeypatch):
    """The pool looks at its processes before it starts another: slowed down here, so that it always does."""
    start = ProcessPoolExecutor._adjust_process_count
    monkeypatch.setattr(ProcessPoolExecutor, "_adjust_process_count", lambda pool: (time.sleep(0.5), start(pool)))
    last = "import os, psutil, time\nown = psutil.Process(os.getppid())\n" + (
        "others = [p for p in own.parent().children() if 'spawn_main' in ' '.join(p.cmdline())]\n"
        "own.kill() if own == max(others, key=lambda p: p.create_time()) else time.sleep(30)"
    )
    for name in ("07_a", "08_b"):
        write(tiny_book, last, name=name)
    with pytest.raises(book.BookError, match="was killed; run again"):
        execute(["07_a", "08_b"], "smoke", 2, tell=lambda line: None)
    assert not any(book.executed(name, "smoke").exists() for name in ("07_a", "08_b")), "not after the other's end"
