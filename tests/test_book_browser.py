"""Every page of the real book in a browser, opened from disk: complete without a network, wide and narrow."""

import json
import re
from pathlib import Path

import axe_playwright_python
import pytest

from sameloss.pages import answer, book, check, site
from sameloss.pages.claims import CLAIMS

pytestmark = pytest.mark.browser
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
PAGES = site.pages()
VIEWS = [(1280, "light"), (390, "dark")]


def visit(browser, address, width, scheme):
    """The page, what it asked for outside its folder, and what it complained about."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(120_000)  # a busy machine is no fault of a page
    page = context.new_page()
    asked, said = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: said.append(f"failed: {request.url}"))
    page.on("console", lambda m: said.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(f"script: {error}"))
    page.goto(address)
    page.wait_for_timeout(
        500
    )  # for what scripts ask for after loading ("networkidle" may never come on a busy machine)
    page.wait_for_function("!window.MathJax || !MathJax.startup || !MathJax.startup.promise || document.readyState")
    page.evaluate("() => window.MathJax && MathJax.startup && MathJax.startup.promise")
    return page, [url for url in asked if not url.startswith(("file:", "data:"))], said


def test_the_book_has_exactly_the_pages_of_its_table_of_contents(smoke_book):
    assert check.problems(smoke_book, PAGES) == []
    assert len(list((smoke_book / "book").glob("*.html"))) == len(PAGES) >= 8


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_complete_and_fits(smoke_book, browser, name, width, scheme):
    page, outside, said = visit(browser, (smoke_book / "book" / f"{name}.html").as_uri(), width, scheme)
    assert outside == []
    assert said == []
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    formulas = page.locator(".bd-article .math")
    for i in range(formulas.count()):
        assert formulas.nth(i).locator("mjx-container svg").count() >= 1, formulas.nth(i).text_content()
    assert page.locator("mjx-merror, [data-mjx-error]").count() == 0
    assert not re.search(r"\\\(|\\\[|\$\$", page.locator(".bd-article").inner_text())
    loaded = page.evaluate("[...document.images].map(i => [i.complete && i.naturalWidth > 0, i.alt])")
    for is_loaded, alt in loaded:
        assert is_loaded, alt
        assert len(check.WORDS.findall(alt)) >= 3, alt
    serious = page.evaluate(AXE + "; axe.run(document, {resultTypes: ['violations']})")["violations"]
    found = [(v["id"], v["nodes"][0]["html"][:120]) for v in serious if v["impact"] in ("serious", "critical")]
    assert found == [], "axe-core"
    page.context.close()


def test_search_works_from_disk(smoke_book, browser):
    page, outside, said = visit(browser, (smoke_book / "search.html").as_uri() + "?q=saturation", 1280, "light")
    page.wait_for_selector("#search-results li a")
    assert page.locator("#search-results li").count() >= 1
    assert outside == said == []
    page.context.close()


def test_the_table_of_contents_opens_on_a_phone_and_the_theme_can_be_switched(smoke_book, browser):
    page, _, said = visit(browser, (smoke_book / "book" / "ledger.html").as_uri(), 390, "light")
    page.locator(".primary-toggle").first.click()
    assert page.locator("#pst-primary-sidebar a, #pst-primary-sidebar-modal a").first.is_visible()
    page.keyboard.press("Escape")
    page.locator(".theme-switch-button").first.click()
    assert page.evaluate("document.documentElement.dataset.mode") in ("dark", "light")
    assert said == []
    page.context.close()


def test_a_page_can_be_read_without_a_mouse(smoke_book, browser):
    page, _, said = visit(browser, (smoke_book / "book" / "04_flatness.html").as_uri(), 1280, "light")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").strip() == "Skip to main content"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main-content"
    solution = page.locator("details:has(summary:has-text('solution'))").first
    assert not solution.evaluate("it => it.open")
    solution.locator("summary").focus()
    page.keyboard.press("Enter")
    assert solution.evaluate("it => it.open")
    table = page.locator(".table-scroll").first  # scrolled by keys where it is too wide
    table.focus()
    assert table.evaluate("it => it === document.activeElement")
    assert said == []
    page.context.close()


def test_each_page_with_code_offers_its_notebook_with_the_profiles_outputs(smoke_book):
    assert set(book.chapters()) < set(PAGES)
    for name in book.chapters():
        assert f'href="../_sources/book/{name}.ipynb"' in (smoke_book / "book" / f"{name}.html").read_text()
        notebook = json.loads((smoke_book / "_sources" / "book" / f"{name}.ipynb").read_text())
        assert any(cell.get("outputs") for cell in notebook["cells"])
        assert notebook["metadata"]["sameloss"]["profile"] == "smoke"


def test_a_page_to_read_says_how_long_it_takes(smoke_book):
    for name in [name for name in PAGES if name[0].isdigit() or name in ("related", "summary")]:
        page = (smoke_book / "book" / f"{name}.html").read_text()
        assert re.search(r'<p class="reading-time">\d+ minutes to read</p>', page), name


def test_every_claim_leads_to_its_place_its_code_and_its_command(smoke_book):
    text = (smoke_book / "book" / "ledger.html").read_text()
    rows = dict(re.findall(r'<tr id="([cn]\d+)">(.*?)</tr>', text, re.S))
    assert list(rows) == [key.lower() for key in CLAIMS]
    for claim, row in rows.items():
        where = row.rpartition("<td")[2]
        for link in (r"(Figure \d+|chapter)</a>", "code</a>", r"sameloss run \d\d --profile smoke"):
            assert re.search(link, where), f"{claim}: {link}"
    for page, figure, number in re.findall(r'<a href="(\w+)\.html#(fig-[\w-]+)">Figure (\d+)</a>', text):
        there = (smoke_book / "book" / f"{page}.html").read_text()
        caption = there[there.index(f'id="{figure}"') :]
        assert re.search(r'caption-number">Figure (\d+)', caption)[1] == number, figure


def test_what_decides_a_sentence_of_the_answer_is_among_the_rows_of_the_book(smoke_book):
    rows = json.loads((smoke_book.parent / "ledger" / "smoke" / "04_flatness.json").read_text())
    for part in answer.PARTS:
        own = [row for row in rows if row["claim"] in part.claims]
        if part.decided_by:
            assert {row["claim"] for row in own if part.decides(row)} == {"C10", "C11"}
            assert not all(part.decides(row) for row in own)


@pytest.mark.parametrize("name", ["02_same_loss", "ledger"])
def test_a_page_prints_whole_and_light(smoke_book, browser, name, tmp_path):
    page, _, said = visit(browser, (smoke_book / "book" / f"{name}.html").as_uri(), 680, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    # What leaves the paper on the right is lost: 680 px is a little less than the text of an A4 page.
    outside = "[...document.querySelectorAll('.bd-article *')].filter(e => e.getBoundingClientRect().right > 682)"
    assert page.evaluate(f"{outside}.map(e => e.outerHTML.slice(0, 80))") == []
    assert page.locator(".bd-article h1").is_visible()
    assert not page.locator(".bd-sidebar-primary, .reading-time, .copybtn").first.is_visible()
    page.evaluate(
        "window.addEventListener('beforeprint', () => window.printed = document.documentElement.dataset.theme)"
    )
    data = page.pdf(path=tmp_path / "page.pdf", prefer_css_page_size=True, print_background=True)
    assert data.startswith(b"%PDF-")
    assert len(data) > 30_000
    assert len(re.findall(rb"/Type\s*/Page\b", data)) >= 2
    assert page.evaluate("window.printed") == "light"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert said == []
    page.context.close()
