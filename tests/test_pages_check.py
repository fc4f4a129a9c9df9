"""The checks of the built HTML can fail: each fault put into a sound book is found."""

import shutil

import pytest

from sameloss.pages import check

PAGES = ["intro", "01_tiny", "ledger"]


@pytest.fixture
def html(built_tiny_book, tmp_path):
    target = tmp_path / "html"
    shutil.copytree(built_tiny_book / "build" / "html", target)
    return target


def put(html, extra, page="01_tiny"):
    path = html / "book" / f"{page}.html"
    text = path.read_text()
    path.write_text(text.replace("</article>", f"{extra}</article>", 1))
    assert extra in path.read_text()


FIGURE = (
    '<figure id="fig-a"><img alt="A curve that rises" src="../_static/file.png"/>'
    '<figcaption><span class="caption-number">Figure 9 </span>Something that grows with time'
    '<p class="stamp">computed</p></figcaption></figure>'
)


@pytest.mark.parametrize(
    ("extra", "fault"),
    [
        ('<img src="a.png"/>', "image without alt text"),
        ('<img src="a.png" alt=""/>', "image without alt text"),
        ('<img src="a.png" alt="0.93 0.01"/>', "image without alt text"),
        ('<img src="a.png" alt="../_images/0123456789abcdef0123.png"/>', "image without alt text"),
        ('<script src="https://example.org/x.js"></script>', "fetches https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css"/>', "fetches //example.org/x.css"),
        ('<div class="output stderr">warning</div>', "an output to stderr"),
        ("<pre>```{math}\n:label: eq-x</pre>", "a directive that is shown as text (```{math})"),
        ('<div class="output traceback">boom</div>', "a traceback"),
        ('<a href="nowhere.html">there</a>', "dead link nowhere.html"),
        ('<a href="intro.html#nowhere">there</a>', "dead link intro.html#nowhere"),
        ("<p>" + "word " * 3200 + "</p>", "minutes without a heading"),
        (FIGURE.replace("Figure 9 ", ""), "no numbered caption"),
        (FIGURE.replace("Something that grows with time", ""), "no numbered caption"),
        (FIGURE.replace('class="stamp"', ""), "no provenance line"),
    ],
)
def test_a_fault_is_found(html, extra, fault):
    assert check.problems(html, PAGES) == []
    put(html, extra)
    found = check.problems(html, PAGES)
    assert len(found) == 1, found
    assert fault in found[0]
    assert found[0].startswith("book/01_tiny.html: ")


def test_a_long_page_with_sections_to_stop_at_is_no_fault(html):
    put(html, ("<h2>Stop here</h2><p>" + "word " * 2000 + "</p>") * 4)
    assert check.problems(html, PAGES) == []


def test_a_sound_figure_is_no_fault(html):
    put(html, FIGURE)
    assert check.problems(html, PAGES) == []


def test_missing_and_surplus_pages_are_named(html):
    (html / "book" / "extra.html").write_text("<html></html>")
    (html / "book" / "ledger.html").unlink()
    assert check.problems(html, PAGES) == ["page ledger is missing", "page extra is in no table of contents"]


def test_an_empty_folder_is_no_book(tmp_path):
    assert len(check.problems(tmp_path, PAGES)) == len(PAGES)
