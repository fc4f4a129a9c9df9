"""Running a chapter: what a reader got wrong is one line, what is wrong with the book names chapter and cell."""

import subprocess
import sys
import time

import nbformat
import pytest

from sameloss.errors import UserError
from sameloss.pages import aside, book, ledger, site


def left(folder):
    return sorted(path.name for path in (folder / "build").rglob("*") if path.is_file()) if folder.exists() else []


def test_a_chapter_is_found_by_name_number_or_path(tiny_book):
    assert book.chapters() == ["01_tiny", "ledger"]
    assert book.find("01_tiny") == book.find("01") == book.find("1") == book.find("book/01_tiny.md") == "01_tiny"
    for name in ("", "9", "tiny", ".."):
        with pytest.raises(UserError, match=r"no chapter .*; allowed: 01_tiny, ledger"):
            book.find(name)


def test_parameters_arrive_and_the_notebook_holds_no_path_of_this_machine(tiny_book, tmp_path, write):
    write(tiny_book, "print('size', int(size) + 1)")
    path = book.run_chapter("07_test", "smoke", {"size": "41"}, output=tmp_path / "out.ipynb")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[-1].outputs[0].text == "size 42\n"
    assert str(tmp_path) not in path.read_text()
    assert left(tiny_book) == []


def test_changed_parameters_go_to_a_notebook_of_their_own_that_leaves_the_books(tiny_book, write):
    write(tiny_book, "print('size', size)")
    own = book.run_chapter("07_test", "smoke")
    before = own.read_bytes()
    changed = [book.run_chapter("07_test", "smoke", {"size": size}) for size in ("4", "5", "a/../b")]
    assert len({own, *changed}) == 4
    assert changed[0].name == "07_test-smoke-size=4.ipynb"
    assert {path.parent for path in changed} == {own.parents[1] / "changed"}
    assert own.read_bytes() == before


def test_a_misspelt_parameter_is_refused_before_anything_runs(tiny_book, write):
    write(tiny_book, "print(size)")
    with pytest.raises(UserError, match=r"unknown parameter 'siez' \(did you mean size\?\); allowed: profile, size"):
        book.run_chapter("07_test", "smoke", {"siez": 3})
    assert left(tiny_book) == []


def test_a_user_error_in_a_cell_comes_out_as_its_one_line(tiny_book, write):
    write(tiny_book, "from sameloss.errors import UserError", "raise UserError(f'parameter size: found {size!r}')")
    with pytest.raises(UserError) as refused:
        book.run_chapter("07_test", "smoke", {"size": "-3"})
    assert str(refused.value) == "parameter size: found '-3'"
    assert left(tiny_book) == []


def test_any_other_error_names_chapter_and_cell_each_time(tiny_book, write):
    write(tiny_book, "one = 1", "# divide\none / 0")
    for _ in range(2):
        with pytest.raises(book.BookError, match=r"book/07_test.md, code cell 3 \(# divide\): ZeroDivisionError"):
            book.run_chapter("07_test", "smoke")
        assert left(tiny_book) == []


def test_a_dead_kernel_is_noticed_within_a_minute_and_named(tiny_book, write):
    write(tiny_book, "one = 1", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    start = time.monotonic()
    with pytest.raises(book.BookError, match=r"07_test.md, code cell 3 \(import os, signal\): the kernel died"):
        book.run_chapter("07_test", "smoke")
    assert time.monotonic() - start < 60
    assert left(tiny_book) == []


def test_what_a_kernel_dies_with_is_told_and_nothing_else_of_it_reaches_the_terminal(tiny_book, capfd, write):
    say = "os.write(getattr(sys.stderr, '_original_stdstream_copy', 2), b'Assertion failed: (socket.cpp:1)\\n')"
    write(tiny_book, f"import os, sys\n{say}")
    book.run_chapter("07_test", "smoke", quiet=True)
    assert "Assertion" not in capfd.readouterr().err
    write(tiny_book, f"import os, sys\n{say}\nos.kill(os.getpid(), 9)")
    with pytest.raises(book.BookError, match=r"the kernel died \(Assertion failed: \(socket.cpp:1\)\)"):
        book.run_chapter("07_test", "smoke")


def test_a_cell_without_end_is_stopped(tiny_book, monkeypatch, write):
    monkeypatch.setattr(book, "CELL_SECONDS", 2)
    write(tiny_book, "import time\ntime.sleep(600)")
    with pytest.raises(book.BookError, match=r"code cell 2 \(import time\): no end after 2 s"):
        book.run_chapter("07_test", "smoke")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("profile = 'smoke'\nsize = 2 * 3", "only a literal"),
        ("profile = 'smoke'\nsize = other = 2", "name = literal"),
        ("profile = 'smoke'\nimport os", "name = literal"),
    ],
)
def test_a_parameters_cell_holds_literals_only(tiny_book, cell, message, write):
    write(tiny_book, "pass")
    path = tiny_book / "book" / "07_test.md"
    path.write_text(path.read_text().replace('profile = "smoke"\nsize = 3', cell))
    with pytest.raises(book.BookError, match=message):
        book.run_chapter("07_test", "smoke")


def test_two_parameters_cells_are_refused(tiny_book, write):
    write(tiny_book, ":tags: [parameters]\n\nsize = 4")
    with pytest.raises(book.BookError, match="exactly one cell tagged parameters, found 2"):
        book.run_chapter("07_test", "smoke")


def test_what_has_not_changed_is_up_to_date_and_what_has_is_not(tiny_book, write):
    write(tiny_book, "print(size)")
    assert not book.up_to_date("07_test", "smoke")
    path = book.run_chapter("07_test", "smoke")
    assert book.up_to_date("07_test", "smoke")
    assert not book.up_to_date("07_test", "laptop")
    (tiny_book / "book" / "results" / "smoke").mkdir(parents=True)
    (tiny_book / "book" / "results" / "smoke" / "rows.csv").write_text("a\n1\n")
    assert not book.up_to_date("07_test", "smoke")
    book.run_chapter("07_test", "smoke")
    write(tiny_book, "print(size, size)")
    assert not book.up_to_date("07_test", "smoke")
    damaged = ("{", "", "[]", "3", '{"nbformat": 4, "cells": [], "metadata": {"sameloss": null}}', "[" * 100_000)
    for text in (*damaged, '{"nbformat": 4, "cells": [], "metadata": {"sameloss": {"ledger": ""}}}'):
        path.write_text(text)
        assert not book.up_to_date("07_test", "smoke")


def test_a_run_with_changed_parameters_leaves_the_books_ledger_alone(tiny_book, write):
    cell = (
        "from sameloss.pages.chapter import Chapter\nchapter = Chapter('07_test', profile)\n"
        "chapter.verdict('C2', f'size {size}', None, 'not run')"
    )
    write(tiny_book, cell)
    book.run_chapter("07_test", "smoke")
    row = tiny_book / "build" / "ledger" / "smoke" / "07_test.json"
    assert "size 3" in row.read_text()
    book.run_chapter("07_test", "smoke", {"size": 4}, output=tiny_book / "out.ipynb")
    assert "size 3" in row.read_text()
    assert book.up_to_date("07_test", "smoke")
    row.write_text("[]")  # as a run that was killed leaves it
    assert not book.up_to_date("07_test", "smoke")


def test_the_command_says_it_in_one_line_and_exits_2(tiny_book, run_sameloss):
    cases = [
        (("run", "01", "-p", "pionts=3"), "unknown parameter 'pionts'"),
        (("run", "01", "-p", "points=-3"), "parameter points: found '-3'; allowed: a whole number from 2 to 100"),
        (("run", "01", "-p", "fast=yes"), "parameter fast: found 'yes'; allowed: true or false"),
        (("run", "01", "--profile", "smok"), "no profile 'smok'"),
        (("run", "99"), "no chapter '99'"),
    ]
    for arguments, message in cases:
        done = run_sameloss(*arguments)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert left(tiny_book) == []


def test_the_plain_pipeline_of_jupytext_and_papermill_works(tiny_book):
    binaries = sys.executable.rpartition("/")[0]
    line = (
        f"{binaries}/jupytext --to ipynb -o - book/01_tiny.md"
        f" | {binaries}/papermill -p profile smoke -p points 7 --no-progress-bar - out.ipynb"
    )
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=tiny_book, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    nbformat.validate(nbformat.read(tiny_book / "out.ipynb", as_version=4))


def test_a_build_folder_that_is_a_file_is_one_line_that_names_it(tiny_book, monkeypatch, write):
    write(tiny_book, "print(size)")
    (tiny_book / "afile").write_text("")
    monkeypatch.setenv("SAMELOSS_BUILD", str(tiny_book / "afile"))
    with pytest.raises(UserError, match=r"afile.*cannot be written: .*a file, not a folder.*SAMELOSS_BUILD"):
        book.run_chapter("07_test", "smoke", {"size": 4})
    with pytest.raises(UserError, match=r"afile: cannot be written: .*SAMELOSS_BUILD"):
        site.build("smoke")
    with pytest.raises(UserError, match=r"afile.*cannot be written: .*SAMELOSS_BUILD"):
        ledger.write("smoke", "07_test", [])


def test_what_a_killed_run_left_is_removed_unless_it_is_in_use(tmp_path):
    killed, other = tmp_path / ".07_test-killed", tmp_path / ".08_test-killed"
    for folder in (killed, other):
        folder.mkdir()
        (folder / aside.IN_USE).touch()
    with aside.folder(tmp_path, "07_test") as first:
        assert not killed.exists()
        with aside.folder(tmp_path, "07_test") as second:
            assert len({first, second, *map(str, tmp_path.iterdir())}) == 3
    assert list(tmp_path.iterdir()) == [other]
