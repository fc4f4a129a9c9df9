"""Building a book: warnings are errors, faults are named on every build, nothing half-built is shown."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from filelock import FileLock

from sameloss.errors import UserError
from sameloss.pages import book, check, site

PAGES = ["intro", "01_tiny", "ledger"]


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture
def copy_of_built(built_tiny_book, tmp_path, monkeypatch) -> Path:
    """A book that was built, to be built once more."""
    target = tmp_path / "tiny"
    shutil.copytree(built_tiny_book, target, symlinks=True)
    monkeypatch.setenv("SAMELOSS_ROOT", str(target))
    monkeypatch.setenv("SAMELOSS_BUILD", str(target / "build"))
    return target


def build(said=None):
    return site.build("smoke", tell=(said if said is not None else []).append)


def plain_build(folder):
    """`jupyter-book build .` as anyone would type it."""
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", "."]
    environment = os.environ | {"SAMELOSS_ROOT": str(folder), "SAMELOSS_BUILD": str(folder / "build")}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=environment)


def test_the_built_book_has_every_page_and_no_fault(built_tiny_book):
    html = built_tiny_book / "build" / "html"
    assert check.problems(html, PAGES) == []
    assert {path.stem for path in (html / "book").glob("*.html")} == set(PAGES)
    assert "book/intro.html" in (html / "index.html").read_text()


def test_the_page_shows_generated_numbers_alt_text_stamp_and_numbers(built_tiny_book):
    page = (built_tiny_book / "build" / "html" / "book" / "01_tiny.html").read_text()
    assert 'alt="Two rising curves; the steeper one ends at 16.0 after 8 seeds."' in page
    assert "16.00 ± 0.12" in page
    assert "seeds 1000-1007" in page
    assert 'download="fig-curves.csv"' in page
    assert 'href="ledger.html#c2"' in page
    assert 'href="#code-fig-curves"' in page
    assert 'id="code-fig-curves"' in page


def test_each_chapter_offers_its_executed_notebook(built_tiny_book):
    page = (built_tiny_book / "build" / "html" / "book" / "01_tiny.html").read_text()
    assert 'href="../_sources/book/01_tiny.ipynb"' in page
    source = built_tiny_book / "build" / "html" / "_sources" / "book" / "01_tiny.ipynb"
    notebook = nbformat.read(source, as_version=4)
    assert any("image/svg+xml" in out.get("data", {}) for c in notebook.cells for out in c.get("outputs", []))


def test_what_has_not_changed_is_not_executed_again(copy_of_built):
    said: list[str] = []
    first = build(said)
    assert first == copy_of_built / "build" / "html" / "index.html"
    assert sum("unchanged" in line for line in said) == 2
    assert said[-1].endswith(first.as_uri())


def test_an_error_in_a_chapter_breaks_the_first_and_the_second_build_and_keeps_the_old_book(copy_of_built):
    edit(copy_of_built / "book" / "01_tiny.md", "x = np.arange(points)", "x = 1 / 0")
    for _ in range(2):
        with pytest.raises(book.BookError, match=r"book/01_tiny.md, code cell 3 .*ZeroDivisionError"):
            build()
    assert check.problems(copy_of_built / "build" / "html", PAGES) == []


def test_an_error_breaks_the_first_and_the_second_plain_build(tiny_book):
    (tiny_book / "book" / "01_tiny.md").unlink()
    edit(tiny_book / "_toc.yml", "  - file: book/01_tiny\n", "")
    (tiny_book / "book" / "intro.md").write_text("# Intro\n")
    edit(tiny_book / "book" / "ledger.md", "from sameloss.pages import report", "1 / 0")
    for _ in range(2):
        done = plain_build(tiny_book)
        assert done.returncode != 0
        assert "ZeroDivisionError" in done.stdout + done.stderr


def test_a_plain_build_works(tiny_book):
    done = plain_build(tiny_book)
    assert done.returncode == 0, done.stdout + done.stderr
    assert check.problems(tiny_book / "_build" / "html", PAGES) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{ref}`C2 <c2>`", "{ref}`sec-nowhere`", "sec-nowhere"),
        ("{cite:t}`holm1979simple`", "{cite:t}`nobody1900`", "nobody1900"),
        (
            ":alt: Two rising curves; the steeper one ends at {best-value:.1f} after {best-n} seeds.",
            ":alt:",
            "alt text",
        ),
        (
            ":alt: Two rising curves; the steeper one ends at {best-value:.1f} after {best-n} seeds.",
            ":alt: 12.5 8",
            "alt",
        ),
        ("after {best-n} seeds", "after {bestn} seeds", "cannot show 'bestn'"),
        ("{glue:text}`best`", "{glue:text}`worst`", "worst"),
        ("**The larger slope wins.** Bars are 95 % intervals over {glue:text}`best-n` seeds.", "", "no caption"),
    ],
)
def test_what_a_reader_would_stumble_over_fails_the_rendering(copy_of_built, old, new, message):
    # Only the text of the executed notebook changes: nothing has to be executed for it.
    path = copy_of_built / "build" / "notebooks" / "smoke" / "01_tiny.ipynb"
    edit(path, json.dumps(old, ensure_ascii=False)[1:-1], new)
    site.stage("smoke")
    with pytest.raises(book.BookError, match=message):
        site.render(copy_of_built / "build" / "site")


def test_a_fault_of_a_page_fails_the_first_and_the_second_build(copy_of_built):
    edit(copy_of_built / "book" / "intro.md", "{doc}`ledger`", "{doc}`nowhere`")
    for _ in range(2):
        with pytest.raises(book.BookError, match="nowhere"):
            build()


def test_a_warning_on_stderr_fails_the_rendering(copy_of_built):
    path = copy_of_built / "build" / "notebooks" / "smoke" / "01_tiny.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].outputs = [nbformat.v4.new_output("stream", name="stderr", text="DeprecationWarning: old")]
    nbformat.write(notebook, path)
    site.stage("smoke")
    with pytest.raises(book.BookError, match="stderr"):
        site.render(copy_of_built / "build" / "site")


def test_an_incomplete_or_empty_folder_is_not_published(built_tiny_book, tmp_path):
    (tmp_path / "empty").mkdir()
    target = tmp_path / "html"
    with pytest.raises(UserError, match="not a complete book, nothing published; missing: intro, 01_tiny, ledger"):
        site.publish(tmp_path / "empty", target, PAGES)
    assert not target.exists()
    site.publish(built_tiny_book / "build" / "html", target, PAGES)
    shutil.copytree(target, tmp_path / "partial")
    (tmp_path / "partial" / "book" / "ledger.html").unlink()
    with pytest.raises(UserError, match="missing: ledger"):
        site.publish(tmp_path / "partial", target, PAGES)
    assert (target / "book" / "ledger.html").is_file()


def test_two_builds_at_once_are_refused(copy_of_built):
    with FileLock(copy_of_built / "build" / ".lock"), pytest.raises(UserError, match="another build is running"):
        build()


def test_an_unknown_profile_is_refused_and_nothing_written(tiny_book):
    with pytest.raises(UserError, match="no profile 'smok'"):
        site.build("smok")
    assert not (tiny_book / "build").exists()
