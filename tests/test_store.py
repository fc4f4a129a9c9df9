"""The run store: whole or absent, locked, checksummed; what is damaged is named, set aside and made again."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.runs import store as stores
from sameloss.runs.store import Store, canonical, digest, write_atomically

SPEC = {"model": "tiny", "seeds": [7001]}


@pytest.fixture
def notes():
    return []


@pytest.fixture
def store(tmp_path, notes):
    return Store(tmp_path / "runs", notes.append)


def child(code: str, *arguments: str, **kwargs) -> subprocess.Popen:
    """A Python process of its own; it prints a line when it has come to the point."""
    head = "import sys, time\nfrom pathlib import Path\nfrom sameloss.runs.store import Store, write_atomically\n"
    command = [sys.executable, "-c", head + code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)


def test_folder_is_named_by_the_hash_of_the_spec(store):
    with store.locked(SPEC) as run:
        run.write("table.csv", b"a\n1\n")
    assert run.path.name == digest(SPEC)
    assert (run.path / "spec.json").read_bytes() == canonical(SPEC)
    assert store.run(SPEC).read("table.csv") == b"a\n1\n"
    assert store.run({**SPEC, "seeds": [7002]}).read("table.csv") is None


def test_hash_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": [1.5, None]}) == digest({"b": [1.5, None], "a": 1})
    assert digest({"a": 1}) != digest({"a": 1.5})


def test_a_number_that_json_does_not_know_is_no_spec():
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"lr": float("nan")})


def test_a_file_is_written_once(store):
    with store.locked(SPEC) as run:
        run.write("table.csv", b"first")
        run.write("table.csv", b"second")
        assert run.read("table.csv") == b"first"
        run.drop("table.csv")
        assert run.read("table.csv") is None
        assert run.names() == ["spec.json"]


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "/etc/passwd", "", ".", "..", ".hidden", "a\0b", "a\nb", "x.sha256/../y"]
)
def test_no_name_leaves_the_folder(store, name):
    with store.locked(SPEC) as run:
        for use in (run.read, run.drop, run.set_aside, lambda n: run.write(n, b"")):
            with pytest.raises(UserError, match="no name for a file"):
                use(name)


@given(st.text(max_size=30))
def test_whatever_a_name_is_the_file_stays_in_the_folder(name):
    run = stores.Run(Path("/nowhere/run"), print)
    try:
        path = run._at(name)
    except UserError:
        return
    assert path.parent == run.path
    assert path.resolve().parent == run.path


def damages():
    """Every way in which a stored file may be damaged."""
    return {
        "truncated": lambda data: data[: len(data) // 2],
        "emptied": lambda data: b"",
        "bit flipped at the start": lambda data: bytes([data[0] ^ 1]) + data[1:],
        "bit flipped at the end": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
        "grown": lambda data: data + b"\n",
    }


@pytest.mark.parametrize("kind", damages())
@pytest.mark.parametrize("name", ["spec.json", "table.csv", "checkpoint-00000010.safetensors"])
def test_a_damaged_file_is_named_set_aside_and_written_again(store, notes, name, kind):
    with store.locked(SPEC) as run:
        run.write("table.csv", b"a,b\n1,2\n")
        run.write("checkpoint-00000010.safetensors", bytes(range(256)))
    good = run.read(name)
    bad = damages()[kind](good)
    (run.path / name).write_bytes(bad)
    with store.locked(SPEC) as run:
        if name == "spec.json":
            assert run.read(name) == good  # it can be made again from the spec itself
        else:
            assert run.read(name) is None
            run.write(name, good)
    assert run.read(name) == good
    assert (run.path / f"{name}.corrupt-1").read_bytes() == bad
    assert len(notes) == 1
    assert str(run.path / name) in notes[0]


@pytest.mark.parametrize("checksum", [None, "", "0" * 64, "\xff\xfe"])
def test_a_damaged_checksum_counts_as_damage(store, notes, checksum):
    with store.locked(SPEC) as run:
        run.write("table.csv", b"a\n1\n")
        side = run.path / "table.csv.sha256"
        side.unlink() if checksum is None else side.write_text(checksum, encoding="latin-1")
        assert run.read("table.csv") is None
        run.write("table.csv", b"a\n1\n")
        assert run.read("table.csv") == b"a\n1\n"
    assert len(notes) == 1


def test_damage_upon_damage_keeps_every_version(store):
    with store.locked(SPEC) as run:
        for content in (b"x", b"y", b"z"):
            run.write("table.csv", b"whole")
            (run.path / "table.csv").write_bytes(content)
            assert run.read("table.csv") is None
    assert [(run.path / f"table.csv.corrupt-{n}").read_bytes() for n in (1, 2, 3)] == [b"x", b"y", b"z"]


def test_a_spec_of_another_run_is_set_aside(store, notes):
    other = {**SPEC, "seeds": [7002]}
    with store.locked(SPEC), store.locked(other) as run:
        pass
    for name in ("spec.json", "spec.json.sha256"):
        (run.path / name).write_bytes((store.run(SPEC).path / name).read_bytes())
    assert store.verify() == 1
    with store.locked(other) as run:
        assert run.read("spec.json") == canonical(other)


def test_verify_reads_everything_and_counts_the_damage(store, notes):
    for seed in (1, 2, 3):
        with store.locked({**SPEC, "seeds": [seed]}) as run:
            run.write("table.csv", b"a\n1\n")
    assert store.verify() == 0
    (run.path / "table.csv").write_bytes(b"a\n2\n")
    assert store.verify() == 1
    assert store.verify() == 0
    assert "table.csv" in notes[0]


def test_half_written_files_are_invisible_and_swept_up(store):
    with store.locked(SPEC) as run:
        pass
    left = run.path / ".writing-123-table.csv"
    left.write_bytes(b"half")
    assert run.names() == ["spec.json"]
    with store.locked(SPEC):
        assert not left.exists()


def test_killed_while_writing_leaves_the_file_whole_or_absent(store):
    """SIGKILL at random moments of a process that only writes; afterwards every file reads back or is absent."""
    code = (
        "store = Store(Path(sys.argv[1]), print)\n"
        "with store.locked({'model': 'tiny', 'seeds': [7001]}) as run:\n"
        "    print('ready', flush=True)\n"
        "    for i in range(100000):\n"
        "        run.write(f'part-{i}.csv', bytes([i % 256]) * 300_000)\n"
        "        if i > 4: run.drop(f'part-{i - 4}.csv')\n"
    )
    for wait in (0.01, 0.05, 0.13):
        process = child(code, str(store.root))
        process.stdout.readline()
        time.sleep(wait)
        process.kill()
        process.communicate()
        with store.locked(SPEC) as run:
            for name in run.names("part-"):
                data = run.read(name)
                assert data is not None
                assert data == bytes([int(name[5:-4]) % 256]) * 300_000
                run.drop(name)
            assert not list(run.path.glob(".writing-*"))
        assert not list(run.path.glob("*.corrupt-*"))


def test_one_process_works_the_other_waits_and_reads(store, notes):
    code = (
        "store = Store(Path(sys.argv[1]), print)\n"
        "with store.locked({'model': 'tiny', 'seeds': [7001]}) as run:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(1.0)\n"
        "    run.write('table.csv', b'theirs')\n"
    )
    process = child(code, str(store.root))
    process.stdout.readline()
    assert store.busy(store.run(SPEC))
    with pytest.raises(UserError, match="being worked on"):
        store.remove(store.run(SPEC))
    with store.locked(SPEC) as run:
        assert run.read("table.csv") == b"theirs"
    assert "another process works on it" in notes[0]
    process.communicate()
    assert not store.busy(run)


def test_the_lock_of_a_killed_process_is_free(store):
    code = (
        "store = Store(Path(sys.argv[1]), print)\n"
        "with store.locked({'model': 'tiny', 'seeds': [7001]}):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = child(code, str(store.root))
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with store.locked(SPEC):
        pass


def test_two_threads_of_one_process_exclude_each_other(store):
    inside, most = [], []

    def work():
        with store.locked(SPEC):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.05)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_a_store_below_a_file_is_one_clear_error(tmp_path, notes):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "runs", notes.append)
    with (
        pytest.raises(UserError, match=r"cannot be written: .*(file|folder).*SAMELOSS_RUNS") as caught,
        store.locked(SPEC),
    ):
        pass
    assert len(str(caught.value).splitlines()) == 1
    assert store.run(SPEC).read("table.csv") is None


def test_a_file_that_does_not_fit_is_one_clear_error_and_the_store_stays_readable(store):
    """A real limit of the system on file sizes stands for the full disk."""
    with store.locked(SPEC) as run:
        run.write("table.csv", b"small")
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "from sameloss.errors import UserError\n"
        "store = Store(Path(sys.argv[1]), print)\n"
        "with store.locked({'model': 'tiny', 'seeds': [7001]}) as run:\n"
        "    try:\n"
        "        run.write('large.csv', bytes(1_000_000))\n"
        "    except UserError as error:\n"
        "        print(error)\n"
        "    assert run.read('large.csv') is None\n"
        "    assert run.read('table.csv') == b'small'\n"
    )
    out, err = child(code, str(store.root)).communicate()
    assert err == ""
    assert out.count("\n") == 1
    assert "large.csv: cannot be written: the file would be larger than this system allows" in out
    assert store.run(SPEC).names() == ["spec.json", "table.csv"]
    assert not list(run.path.glob(".writing-*"))
    with store.locked(SPEC) as run:
        run.write("large.csv", bytes(1_000_000))
        assert len(run.read("large.csv")) == 1_000_000


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "no permission"),
        (errno.EIO, "error"),
    ],
)
def test_what_the_system_refuses_is_told_in_words(tmp_path, monkeypatch, number, why):
    write_atomically(tmp_path / "table.csv", b"old")

    def refuse(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError, match=why):
        write_atomically(tmp_path / "table.csv", b"new")
    assert (tmp_path / "table.csv").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_a_full_disk_is_one_clear_error(tmp_path, notes):
    """A tiny file system of its own, where this user may mount one; elsewhere the limit above stands for it."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        return
    try:
        store = Store(small / "runs", notes.append)
        with store.locked(SPEC) as run:
            run.write("table.csv", b"small")
            with pytest.raises(UserError, match="the disk is full"):
                run.write("large.csv", bytes(1_000_000))
            assert run.read("table.csv") == b"small"
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        assert Store(small / "runs", notes.append).run(SPEC).read("table.csv") == b"small"
        assert not store.busy(run)
        with pytest.raises(UserError, match="read-only"), store.locked(SPEC):
            pass
        (damaged,) = store.runs()
        assert damaged.names() == ["spec.json", "table.csv"]
    finally:
        subprocess.run(["umount", str(small)], check=True)
