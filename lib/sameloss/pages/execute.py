"""Executing the chapters of a book, several side by side, each in a process of its own, ended at any moment."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection

from sameloss.pages import aside, book
from sameloss.runs.profile import load_profile
from sameloss.runs.progress import duration
from sameloss.runs.settings import CHAPTERS


def execute(
    names: Sequence[str], profile: str, jobs: int = 1, fresh: bool = True, tell: Callable[[str], None] = print
) -> None:
    """Execute `jobs` chapters at a time, first the numbered ones, then the pages that tell of them.

    Chapters that compute all their numbers while they are executed begin, for they take longest.
    fresh: also those that nothing they depend on has changed. UserError, BookError: of `book.run_chapter`, or a process
    was killed; the others' chapters are ended, and what is executed already stays.
    """
    count, loaded = len(names), load_profile(profile)
    numbered = [name for name in names if name[0].isdigit()]
    numbered.sort(key=lambda name: name in CHAPTERS and bool(loaded.runs(name)))
    for wave in (numbered, [name for name in names if not name[0].isdigit()]):
        todo = []
        for name in wave:
            if not fresh and book.up_to_date(name, profile):
                tell(f"[{names.index(name) + 1}/{count}] {name}: unchanged")
                aside.sweep(book.executed(name, profile).parent, name)  # of a killed run that was to be a fresh one
            else:
                todo.append(name)
        labels = {name: f"[{names.index(name) + 1}/{count}] {name}" for name in todo}
        if jobs > 1 and len(todo) > 1:
            _in_processes(labels, profile, jobs, tell)
        else:
            for name, label in labels.items():
                tell(f"{label}: executing at profile {profile}")
                book.run_chapter(name, profile)


def _in_processes(labels: dict[str, str], profile: str, jobs: int, tell: Callable[[str], None]) -> None:
    context = multiprocessing.get_context("spawn")  # a kernel inherits the environment, which each chapter sets
    ours, theirs = context.Pipe()
    waiting, running = list(labels), dict[Future[float], str]()
    jobs, name = min(jobs, len(waiting)), waiting[0]
    try:
        with ProcessPoolExecutor(jobs, context, _ended_with_parent, (theirs,)) as pool:
            try:
                _all_started(pool, jobs)
                while waiting or running:
                    while waiting and len(running) < jobs:
                        name = waiting.pop(0)
                        tell(f"{labels[name]}: executing at profile {profile}")
                        running[pool.submit(_chapter, name, profile)] = name
                    for done in wait(running, return_when=FIRST_COMPLETED).done:
                        name = running.pop(done)
                        tell(f"{labels[name]}: executed in {duration(done.result())}")
            finally:
                if running:
                    ours.close()  # failed or interrupted: the others end now, with their kernels
    except BrokenProcessPool:
        left = ", ".join([name, *running.values()])
        raise book.BookError(f"a process that executed one of {left} was killed; run again to go on") from None
    finally:
        ours.close()
        theirs.close()


def _all_started(pool: ProcessPoolExecutor, jobs: int) -> None:
    """Start every process of the pool, and have the pool watch them all.

    It looks anew at which processes it has only when it is woken, which for a task is *before* that starts a process:
    the end of the one started last would go unnoticed until another chapter is done.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is the parent's to deal with
    try:
        starting = [pool.submit(os.getpid) for _ in range(jobs)]
    finally:
        signal.signal(signal.SIGINT, before)
    wait(starting)
    pool.submit(os.getpid).result()


def _chapter(name: str, profile: str) -> float:
    start = time.monotonic()
    book.run_chapter(name, profile, quiet=True)
    return time.monotonic() - start


def _ended_with_parent(pipe: Connection) -> None:
    """A worker ends when the parent closes its end of the pipe, on purpose or by being killed."""

    def watch() -> None:
        pipe.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
