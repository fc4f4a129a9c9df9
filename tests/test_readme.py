"""The command lines that the README and the page on running print are run, or at least understood, as they stand."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

from sameloss.pages import book

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {
    name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "book/execution.md", "book/intro.md")
}
BLOCK = re.compile(r"^```(?:bash|sh)\n(.*?)^```", re.M | re.S)
SPAN = re.compile(r"`(?:\.venv/bin/)?((?:make|sameloss) [^`]+)`")


def block_lines(start: str) -> list[str]:
    lines = [
        line.split("  #")[0].strip()
        for text in TEXTS.values()
        for block in BLOCK.findall(text)
        for line in block.splitlines()
    ]
    return list(dict.fromkeys(line for line in lines if line.startswith(start)))


MAKE = block_lines("make") + [span for text in TEXTS.values() for span in SPAN.findall(text) if span.startswith("make")]
SPANS = [span for text in TEXTS.values() for span in SPAN.findall(text) if span.startswith("sameloss")]
RUN = block_lines(".venv/bin/sameloss") + block_lines("jupytext")


def test_the_readme_names_the_two_commands_and_its_lines_are_found():
    assert "make book" in MAKE
    assert "make test" in MAKE
    assert len(RUN) >= 4


def test_the_readme_shows_a_small_picture_of_a_page():
    alt, target = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", TEXTS["README.md"])[0]
    assert len(alt.split()) >= 8
    data = (ROOT / target).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert 20_000 < len(data) < 150_000
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    assert width >= 1000
    assert height >= 600


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_and_files_that_are_named_exist(name):
    text = (ROOT / name).read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        assert link.startswith("https://") or (ROOT / link).is_file(), link
    named = re.findall(r"`((?:lib|tests|book|\.github|runs|learners)/[\w./*-]+)`", text)
    for path in named:
        places = [ROOT, ROOT / "lib" / "sameloss"]
        assert any(list(place.glob(path)) for place in places) or path.rstrip("/") in ("runs", "book/NN_name.md"), path


def test_the_readme_tells_what_a_reader_asks():
    for word in (
        "Linux, macOS",
        "WSL",
        "measured",
        "two CPU cores",
        "A language:",
        "A model:",
        "A claim:",
        "MIT",
        "CC BY 4.0",
    ):
        assert word in TEXTS["README.md"], word
    for heading in ("A language", "A model", "A claim", "A chapter", "Renewing `book/results/`", "Publishing"):
        assert f"## {heading}\n" in TEXTS["CONTRIBUTING.md"], heading


@pytest.mark.parametrize("line", sorted(set(MAKE)))
def test_make_knows_the_target_and_its_options(line):
    words = shlex.split(re.sub(r"[\[\]]", "", line))
    targets = [word for word in words[1:] if "=" not in word]
    makefile = (ROOT / "Makefile").read_text()
    for word in words[1:]:
        assert (
            "=" not in word or f"$({word.split('=')[0]})" in makefile or f"$(if $({word.split('=')[0]})" in makefile
        ), word
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", sorted(set(SPANS)))
def test_the_command_knows_what_is_mentioned(line, run_sameloss):
    words = [word for word in shlex.split(line)[1:] if re.fullmatch(r"[a-z]+", word)]
    done = run_sameloss(*words, "--help")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """What a reader stands in: the checkout, but what a command writes lands elsewhere."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("book", "lib", "tests", "Makefile", "_config.yml", "_toc.yml", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


@pytest.mark.parametrize("line", RUN)
def test_a_printed_command_runs(line, checkout):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SAMELOSS_BUILD": str(checkout / "build"),
    }
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr


IN_CHAPTERS = [
    (path.name, span)
    for path in sorted((ROOT / "book").glob("[0-9]*.md"))
    for span in re.findall(r"`([^`\n]*sameloss run [^`\n]+)`", path.read_text())
]


@pytest.mark.parametrize(("page", "span"), IN_CHAPTERS)
def test_a_run_that_a_chapter_asks_for_names_a_chapter_and_parameters_that_exist(page, span):
    words = shlex.split(span)
    assert words[:2] == [".venv/bin/sameloss", "run"], page
    chapter = book.find(words[2])
    known = book.default_parameters(jupytext.read(ROOT / "book" / f"{chapter}.md"))
    given = [pair for flag, pair in itertools.pairwise(words) if flag == "-p"]
    assert given
    for pair in given:
        name, equals, value = pair.partition("=")
        assert name in known
        assert equals
        assert value
