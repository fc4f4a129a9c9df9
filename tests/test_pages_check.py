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


STAMP = '<p class="stamp">computed, profile smoke · no seeds · revision a · recipe runs 1 · 2026-01-01 · Python 3</p>'
FIGURE = (
    '<figure id="fig-a"><img alt="A curve that rises" src="../_images/bars.svg"/>'
    '<figcaption><span class="caption-number">Figure 9 </span>Something that grows with time; bars: 95 % intervals'
    f"{STAMP}</figcaption></figure>"
)
VERDICTS = '<div class="table-scroll" aria-label="Verdicts of this chapter"><table></table></div>'


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
        (FIGURE.replace("Something that grows with time; bars: 95 % ", ""), "no numbered caption"),
        (FIGURE.replace("; bars: 95 % intervals", ""), "caption does not say what its bars or bands are"),
        (FIGURE.replace('class="stamp"', ""), "no provenance line"),
        (FIGURE.replace(" · revision a", ""), "provenance line lacks revision"),
        (VERDICTS, "Verdicts of this chapter has no provenance line"),
        (VERDICTS + STAMP.replace("2026-01-01", ""), "provenance line lacks \\b20"),
    ],
)
def test_a_fault_is_found(html, extra, fault):
    (html / "_images" / "bars.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg"><g id="LineCollection_1"/></svg>'
    )
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
    put(html, FIGURE + VERDICTS + STAMP)
    assert check.problems(html, PAGES) == []


def test_missing_and_surplus_pages_are_named(html):
    (html / "book" / "extra.html").write_text("<html></html>")
    (html / "book" / "ledger.html").unlink()
    assert check.problems(html, PAGES) == ["page ledger is missing", "page extra is in no table of contents"]


def test_an_empty_folder_is_no_book(tmp_path):
    assert len(check.problems(tmp_path, PAGES)) == len(PAGES)
