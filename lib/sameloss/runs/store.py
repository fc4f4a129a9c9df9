"""The run store: a folder a run, named by the hash of its spec; written aside and renamed, locked, checksummed.

    runs/<hash>/spec.json                the spec, whose hash is the folder's name
               /NAME                     a file, written once and never changed
               /NAME.sha256              its checksum, in place before the file is
               /NAME.corrupt-1           what was found damaged; kept, never read
    runs/locks/<hash>                    held by the process that works on the run

Every file is write-once: whoever sees a name sees all of its content, so a finished run is read without a lock, from a
read-only folder as well. A process killed at any moment leaves at most a temporary file, removed by the next one.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sameloss.errors import UserError

Note = Callable[[str], None]
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9]+)*$")
_TEMPORARY = ".writing-"
_WHY = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this system allows",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "no permission to write",
    errno.EPERM: "no permission to write",
    errno.ENOTDIR: "part of this path is a file, not a folder",
    errno.EEXIST: "part of this path is a file, not a folder",
}


def canonical(value: Any) -> bytes:
    """One byte string for one JSON value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(value: Any) -> str:
    """The first 20 hex digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(value)).hexdigest()[:20]


@contextmanager
def writing(path: Path, hint: str = "SAMELOSS_RUNS moves the run store") -> Iterator[None]:
    """Turn the operating system's refusal to write into one line for the user; `hint` says what else can be done."""
    try:
        yield
    except OSError as error:
        # Copying a folder collects what went wrong with each file: the first stands for all.
        said = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or str(error)
        why = _WHY.get(error.errno or 0, said)
        raise UserError(
            f"{path}: cannot be written: {why}; nothing that was stored is lost, start again once this is mended "
            f"({hint})"
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write aside, flush to the disk, rename: `path` holds the old content or all of the new."""
    aside = path.with_name(f"{_TEMPORARY}{os.getpid()}-{path.name}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@dataclass(frozen=True)
class Run:
    """One run's folder. `note` is told of every damaged file, by name."""

    path: Path
    note: Note

    def names(self, prefix: str = "") -> list[str]:
        """The files there (checksums, damaged and half-written ones left out), sorted."""
        found = os.listdir(self.path) if self.path.is_dir() else []
        return sorted(n for n in found if n.startswith(prefix) and _NAME.match(n) and not n.endswith(".sha256"))

    def read(self, name: str) -> bytes | None:
        """A file's content if it is there and undamaged; a damaged one is named, set aside and reads as absent."""
        path = self._at(name)
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from error
        if self._checksum(name) == hashlib.sha256(data).hexdigest():
            return data
        self.set_aside(name)
        return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file once, its checksum first; a file already there stays as it is."""
        path = self._at(name)
        if path.exists():
            return
        write_atomically(path.with_name(f"{name}.sha256"), f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode())
        write_atomically(path, data)

    def drop(self, name: str) -> None:
        """Remove a file that is no longer needed."""
        with writing(self._at(name)):
            self._at(name).unlink(missing_ok=True)
            self._at(f"{name}.sha256").unlink(missing_ok=True)

    def set_aside(self, name: str, why: str = "its checksum does not fit") -> None:
        """Rename a damaged file (and its checksum) to NAME.corrupt-N, and say so."""
        path, n = self._at(name), 1
        while (kept := path.with_name(f"{name}.corrupt-{n}")).exists():
            n += 1
        self.note(f"damaged: {path} ({why}); set aside as {kept.name}, to be computed again")
        with writing(path):
            path.rename(kept)
            if (checksum := path.with_name(f"{name}.sha256")).exists():
                checksum.rename(path.with_name(f"{kept.name}.sha256"))

    def size(self) -> int:
        """Bytes on the disk."""
        return sum(f.stat().st_size for f in self.path.iterdir() if f.is_file()) if self.path.is_dir() else 0

    def _at(self, name: str) -> Path:
        if not _NAME.match(name):
            raise UserError(f"{name!r} is no name for a file of a run; allowed: letters, digits, '.', '_' and '-'")
        return self.path / name

    def _checksum(self, name: str) -> str:
        try:
            return (self.path / f"{name}.sha256").read_text(errors="replace").split()[0]
        except (OSError, IndexError):
            return ""


@dataclass(frozen=True)
class Store:
    """All runs below one folder. `note` gets one line for each thing a person should know."""

    root: Path
    note: Note

    def run(self, identity: dict[str, Any]) -> Run:
        """The run of a spec, for reading; it need not exist."""
        return Run(self.root / digest(identity), self.note)

    @contextmanager
    def locked(self, identity: dict[str, Any]) -> Iterator[Run]:
        """The run of a spec, for working on it: one process at a time, the others wait here."""
        run = self.run(identity)
        lock = self._lock(run.path.name)
        with writing(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            (self.root / "locks").mkdir(exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                self.note(f"run {run.path.name}: another process works on it; waiting for its result")
                lock.acquire()
        try:
            with writing(run.path):
                for left in run.path.glob(f"{_TEMPORARY}*"):
                    left.unlink(missing_ok=True)
            if run.read("spec.json") != canonical(identity):
                if (run.path / "spec.json").exists():  # undamaged by its checksum, yet of another run
                    run.set_aside("spec.json")
                run.write("spec.json", canonical(identity))
            yield run
        finally:
            lock.release()

    def runs(self) -> list[Run]:
        """Every run there is."""
        if self.root.exists() and not self.root.is_dir():
            raise UserError(f"{self.root}: is a file, not a folder (SAMELOSS_RUNS says where the runs lie)")
        found = sorted(self.root.iterdir()) if self.root.is_dir() else []
        return [Run(p, self.note) for p in found if p.is_dir() and re.fullmatch(r"[0-9a-f]{20}", p.name)]

    def busy(self, run: Run) -> bool:
        """Whether a process works on the run now."""
        if not (self.root / "locks" / run.path.name).exists():
            return False
        lock = self._lock(run.path.name)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        except OSError:  # a read-only store: nobody can work there
            return False
        lock.release()
        return False

    def verify(self) -> int:
        """Read every file of every idle run; damaged ones are named and set aside. Returns how many there were."""
        damaged = 0
        for run in (r for r in self.runs() if not self.busy(r)):
            names = run.names()
            damaged += sum(run.read(name) is None for name in names)
            spec = run.read("spec.json")
            if spec is not None and hashlib.sha256(spec).hexdigest()[:20] != run.path.name:
                run.set_aside("spec.json")
                damaged += 1
        return damaged

    def remove(self, run: Run) -> None:
        """Delete a run's folder; UserError while a process works on it."""
        if self.busy(run):
            raise UserError(f"run {run.path.name} is being worked on; nothing was removed")
        with writing(run.path):
            shutil.rmtree(run.path)

    def _lock(self, name: str) -> FileLock:
        return FileLock(self.root / "locks" / name, thread_local=False)
