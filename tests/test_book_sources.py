"""The sources of the real book: text only, small, and every chapter as a chapter is to be."""

import re
import subprocess
import tomllib
from pathlib import Path

import prose
import pytest
import yaml

from sameloss.pages import site

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted(ROOT.glob("book/[0-9]*.md"))
NOTEBOOKS = sorted(path for path in ROOT.glob("book/*.md") if "{code-cell}" in path.read_text())


def tracked() -> list[Path]:
    """Files under version control (or, outside a checkout, all files that would be)."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [path for path in map(ROOT.joinpath, done.stdout.splitlines()) if path.is_file()]


def test_no_notebook_lies_under_book():
    assert [path for path in (ROOT / "book").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts] == []


def test_no_tracked_file_is_over_one_megabyte():
    assert [str(path) for path in tracked() if path.stat().st_size > 1_000_000] == []


def test_every_page_is_in_the_table_of_contents_and_every_entry_is_a_page():
    assert sorted(site.pages()) == sorted(path.stem for path in (ROOT / "book").glob("*.md"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_with_code_has_its_header_and_one_parameters_cell(path):
    text = path.read_text()
    assert prose.header_faults(text) + prose.parameter_faults(text) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_short_cells_more_prose_than_code_and_no_typed_result(path):
    assert prose.faults(path.read_text()) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("book/*.md")), ids=lambda path: path.stem)
def test_no_page_types_a_result(path):
    assert prose.typed_numbers(path.read_text()) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("book/*.md")), ids=lambda path: path.stem)
def test_the_text_refers_to_every_figure(path):
    assert prose.unmentioned(path.read_text()) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_follows_the_pattern_and_names_places_in_the_paper(path):
    assert prose.pattern_faults(path.read_text()) == []
    assert prose.unplaced(path.read_text()) == []
    assert "{term}`" in path.read_text(), "the glossary is linked from where a word is first needed"


@pytest.mark.parametrize(
    ("page", "headings"),
    [
        ("intro", ["The answer in four sentences", "What is in the book", "How to read", "How to run"]),
        (
            "summary",
            ["Scope", "Method", "Results", "What was easy", "What was hard", "Differences from the paper"],
        ),
    ],
)
def test_front_page_and_report_have_their_parts(page, headings):
    found = re.findall(r"^## (.+)$", (ROOT / "book" / f"{page}.md").read_text(), re.M)
    assert [heading for heading in found if heading in headings] == headings


def test_what_a_box_quotes_from_the_paper_names_its_place():
    boxes = [
        (path.stem, title)
        for path in ROOT.glob("book/*.md")
        for title in re.findall(r"\{admonition\} ([^\n]*)\n:class: paper\b", path.read_text())
    ]
    assert len(boxes) >= 3
    for page, title in boxes:
        assert prose.PLACES.search(title), f"{page}: {title}"


def test_there_is_one_bibliography_with_complete_entries():
    pages = [path.stem for path in ROOT.glob("book/*.md") if "{bibliography}" in path.read_text()]
    assert pages == ["bibliography"]
    entries = re.findall(r"^@(\w+)\{(\S+),\n(.*?)^\}", (ROOT / "book" / "references.bib").read_text(), re.M | re.S)
    assert len(entries) >= 30
    assert len({key for _, key, _ in entries}) == len(entries)
    for kind, key, body in entries:
        for field in ("title", "author", "year", "journal" if kind == "article" else "booktitle"):
            assert re.search(rf"^\s*{field} = \{{.+\}}", body, re.M), f"{key}: {field}"
        assert re.search(rf"year = \{{{re.search(r'[0-9]{4}', key)[0]}\}}", body), key


def test_a_reference_notebook_has_a_time_limit_and_other_markdown_is_no_page():
    assert "--nbval-cell-timeout=" in (ROOT / "Makefile").read_text()
    excluded = yaml.safe_load((ROOT / "_config.yml").read_text())["exclude_patterns"]
    assert {".venv", "build", "runs", "tests", "lib", "_build"} <= set(excluded)


def test_jupyter_book_stays_below_version_2_with_its_sphinx_pinned():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pins = {name.lower(): pin for name, pin in pins.items()}
    assert pins["jupyter-book"].startswith("1.0.4")
    assert pins["sphinx"].startswith("7.")
    assert '"jupyter-book>=1.0.4,<2"' in (ROOT / "pyproject.toml").read_text()


def test_conda_and_make_install_the_same_set():
    pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][-1]["pip"]
    assert pip == ["-c constraints.txt", "-e ."]


def test_the_plain_build_stops_at_errors_and_has_its_own_time_limit():
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    assert config["execute"]["execute_notebooks"] == "force"
    assert config["execute"]["timeout"] > 30
    assert config["only_build_toc_files"] is True
    assert config["sphinx"]["config"]["nb_execution_raise_on_error"] is True
    assert config["sphinx"]["config"]["nitpicky"] is True


TINY = (ROOT / "tests" / "data" / "tiny" / "book" / "01_tiny.md").read_text()


def test_the_checks_find_nothing_in_a_sound_text():
    assert prose.header_faults(TINY) + prose.parameter_faults(TINY) + prose.typed_numbers(TINY) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("By {eq}", "The accuracy is 0.93. By {eq}", "typed number '0.93'"),
        ("By {eq}", "It gained 7 % here. By {eq}", "typed number '7 %'"),
        ("By {eq}", "It is 0.5 ± 0.1. By {eq}", "typed number"),
        ("{numref}`fig-curves` ends at {glue:text}`best`", "It ends at 16 ± 1 in {numref}`fig-curves`", "typed number"),
        ("**The larger slope wins.**", "**The larger slope wins by 3.5 nats.**", "typed number '3.5'"),
        ("    format_name: myst\n", "    format_name: myst\n    jupytext_version: 1.19.1\n", "jupytext_version"),
        ("points = 5\n", "points = 2 * 3\n", "is derived"),
        ("points = 5\n", "points = 5\nother = 3\n", "parameter other is not checked"),
        ('profile = "smoke"\n', 'profile = "laptop"\n', "the first is profile"),
        (":tags: [hide-input]", ":tags: [parameters]", "2 cells tagged parameters"),
        ("x = np.arange(points)\n", "x = np.arange(points)\n" + "x = x + 1\n" * 30, "at most 30"),
    ],
)
def test_each_check_can_fail(old, new, fault):
    assert old in TINY
    found = prose.faults(TINY.replace(old, new, 1))
    assert any(fault in line for line in found), found


def test_a_figure_that_is_never_mentioned_is_found():
    assert prose.unmentioned(TINY) == []
    assert prose.unmentioned(TINY.replace("{numref}`fig-curves`", "the figure")) == [
        "figure fig-curves is never referred to"
    ]


def test_the_pattern_of_a_chapter_can_be_missed():
    sound = (ROOT / "book" / "04_flatness.md").read_text()
    assert prose.pattern_faults(sound) == prose.unplaced(sound) == []
    for part in prose.PATTERN:
        assert prose.pattern_faults(sound.replace(part, ""))[0] == f"no {part!r}"
    swapped = sound.replace("## Summary", "##").replace("# 4 Flatness", "## Summary\n# 4 Flatness")
    assert "not in the order" in prose.pattern_faults(swapped)[0]
    assert prose.pattern_faults(sound.replace("chapter.verdict_table()", "")) == ["verdicts that no table shows"]
    shown = sound.replace(":tags: [hide-cell]", ":tags: [hide-input]", 1)
    assert prose.pattern_faults(shown) == ["Exercise 4.1 has no solution"]
    assert prose.pattern_faults(sound.replace("{admonition} Exercise", "{admonition} Task")) == ["no exercise"]
    silent = sound.replace("chapter.outcome()", "")
    assert prose.pattern_faults(silent) == ["a summary that does not say what came out"]
    assert prose.unplaced("Liu et al. say that\nit holds.\n\nElsewhere, §3.") == [
        "no place in the paper: Liu et al. say that\nit holds."
    ]


def test_the_citation_is_of_this_version_and_names_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "title"} <= set(citation)
    assert "preferred-citation" not in citation, "it would be cited in place of the book"
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"] == "MIT"
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in project["authors"]]
    assert f"## {citation['version']}" in (ROOT / "CHANGELOG.md").read_text()
    (paper,) = citation["references"]
    entry = (ROOT / "book" / "references.bib").read_text().partition("{liu2023same,")[2].partition("\n}")[0]
    assert f"title = {{{paper['title']}}}" in entry
    authors = " and ".join(f"{one['family-names']}, {one['given-names']}" for one in paper["authors"])
    assert f"author = {{{authors}}}" in entry
    assert f"pages = {{{paper['start']}--{paper['end']}}}" in entry
    assert f"year = {{{paper['year']}}}" in entry
    assert paper["identifiers"][0]["value"] in entry


def test_places_versions_formulas_and_cited_numbers_are_no_typed_results():
    for sound in (
        "Theorem 4.3 and Lemma 4.2 of §4, Fig. 3, Table 1, §A.5 and §B.4.3.",
        "The paper reports 6.9 points {cite:p}`liu2023same`.",
        "With $p = 0.5$ and `lr=1e-3, 0.98`, Python 3.11.",
        "A value of {glue:text}`gap:.2f` nats over 3 seeds.",
    ):
        assert prose.typed_numbers(sound) == [], sound
