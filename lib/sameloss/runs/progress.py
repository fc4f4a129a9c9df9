"""What a person sees while runs go on: bars on a terminal, lines with timestamps in a log, nothing in a page."""

import datetime
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm


class Progress:
    """Told what happens, and says nothing of it; a run is named by its label."""

    def step(self, label: str, what: str, done: int, total: int) -> None:
        """`done` of `total` steps of `what` ("training", "measuring")."""

    def note(self, text: str) -> None:
        """One line that a person should read."""

    def close(self) -> None:
        """Nothing more will come."""


class Silent(Progress):
    """Keeps the notes: for pages, where output would land in the book."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Sender(Progress):
    """Sends all to the process that has the terminal, as (name of the method, arguments); steps every `seconds`."""

    def __init__(self, send: Callable[[tuple[str, tuple[Any, ...]]], Any], seconds: float) -> None:
        self.send, self.seconds, self.last = send, seconds, 0.0

    def step(self, label: str, what: str, done: int, total: int) -> None:
        if time.monotonic() - self.last > self.seconds or done == total:
            self.last = time.monotonic()
            self.send(("step", (label, what, done, total)))

    def note(self, text: str) -> None:
        self.send(("note", (text,)))


class Lines(Progress):
    """A line per run and phase at its start and end, and every `seconds` in between."""

    def __init__(self, out: TextIO, seconds: float = 30.0) -> None:
        self.out, self.seconds = out, seconds
        self.phases: dict[
            str, tuple[str, float, int, float]
        ] = {}  # label -> phase, its start, its first step, last line

    def step(self, label: str, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        phase = self.phases.get(label)
        if phase is None or phase[0] != what:
            phase = (what, now, done, 0.0)
        if now - phase[3] >= self.seconds or done == total:
            rate = (done - phase[2]) / max(now - phase[1], 1e-9)
            left = f", {duration((total - done) / rate)} left" if rate > 0 and done < total else ""
            self.note(f"{label}: {what} {done}/{total} ({100 * done // max(total, 1)} %){left}")
            phase = (*phase[:3], now)
        self.phases[label] = phase

    def note(self, text: str) -> None:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        print(f"{stamp} {text}", file=self.out, flush=True)


class Bars(Progress):
    """A bar with the time left for the whole job, and one for each run that is going on.

    shares: label -> that run's share of the whole job's work.
    """

    def __init__(self, out: TextIO, shares: dict[str, float]) -> None:
        self.out, self.shares = out, shares
        self.done = dict.fromkeys(shares, 0.0)
        self.whole = tqdm(
            total=100, file=out, desc="all runs", bar_format="{desc} {bar} {percentage:3.0f} %, {remaining} left"
        )
        self.bars: dict[str, tuple[str, tqdm]] = {}

    def step(self, label: str, what: str, done: int, total: int) -> None:
        phase, bar = self.bars.get(label, ("", None))
        if bar is None or phase != what:
            if bar is not None:
                bar.close()
            form = "{desc} {bar} {n_fmt}/{total_fmt}, {remaining} left"
            bar = tqdm(total=total, initial=done, file=self.out, desc=f"{label} {what}", leave=False, bar_format=form)
            self.bars[label] = (what, bar)
        bar.update(done - bar.n)
        # Training is nearly all of the work; measuring the rest.
        part = done / max(total, 1)
        self.done[label] = 0.85 * part if what == "training" else 0.85 + 0.15 * part
        percent = 100 * sum(self.shares.get(name, 0.0) * part for name, part in self.done.items())
        self.whole.update(min(100.0, percent) - self.whole.n)
        if what != "training" and done == total:
            bar.close()
            self.bars.pop(label)

    def note(self, text: str) -> None:
        self.whole.write(text, file=self.out)

    def close(self) -> None:
        for _, bar in self.bars.values():
            bar.close()
        self.whole.close()


def duration(seconds: float) -> str:
    """70 as "1:10", 3700 as "1:01:40"."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def for_person(shares: dict[str, float]) -> Progress:
    """Bars on a terminal, lines elsewhere; both on stderr."""
    return Bars(sys.stderr, shares) if sys.stderr.isatty() else Lines(sys.stderr)
