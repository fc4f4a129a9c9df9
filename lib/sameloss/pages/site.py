"""From executed notebooks to HTML: stage, run Jupyter Book with execution off, check, put in place."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from sameloss import paths
from sameloss.errors import UserError
from sameloss.pages import book, check, repository
from sameloss.pages.execute import execute
from sameloss.runs.profile import load_profile
from sameloss.runs.store import writing

SPHINX_SECONDS = 1800
# Jupyter Book, ended when its standard input is: with the process that started it, however that one ends.
SPHINX = """
import os, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
from jupyter_book.cli.main import main
main()
"""
STATIC_EXTENSIONS = (".md", ".bib", ".css", ".svg", ".png", ".js", ".ico")


def build(
    profile: str = "auto",
    fresh: bool = False,
    tell: Callable[[str], None] = print,
    release: bool = False,
    jobs: int = 1,
) -> Path:
    """Execute what has changed, render, check, and publish to build/html; gives the page to open.

    fresh: execute every chapter again. release: the same, render from nothing, and refuse a book that lacks results
    (`require_ready`) or verdicts.
    jobs: chapters executed side by side.
    UserError: another build is running, an unknown profile, an incomplete book. BookError: a chapter, Sphinx or a
    check failed.
    """
    profile = resolve(profile)
    if release:
        require_ready(profile)
    lock = FileLock(paths.build() / ".lock", timeout=1)
    with writing(paths.build(), paths.MOVE_BUILD):
        paths.build().mkdir(parents=True, exist_ok=True)
        try:  # inside, because a Timeout is an OSError too
            lock.acquire()
        except Timeout:
            raise UserError(f"another build is running in {paths.build()}; wait for it") from None
    try:
        html, old = paths.build() / "html", paths.build() / "html.old"
        if old.is_dir() and not html.exists():  # killed between the two renames of `publish`
            old.rename(html)
        return _build(profile, fresh, tell, release, jobs)
    finally:
        lock.release()


def resolve(profile: str) -> str:
    """The profile that "auto" stands for: laptop once its results are in book/results, smoke until then."""
    if profile == "auto":
        from sameloss.runs import experiment

        return "laptop" if experiment.complete("laptop") else "smoke"
    return load_profile(profile).name


def require_ready(profile: str) -> None:
    """UserError naming what is missing, unless the profile's results are all there (`check.unready`)."""
    _refuse(check.unready(load_profile(profile), pages()), profile)


def _refuse(reasons: list[str], profile: str) -> None:
    if reasons:
        shown = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")
        raise UserError(f"the book at profile {profile} is not complete, nothing published: {shown}")


def pages() -> list[str]:
    """The pages of the table of contents, without the folder's name: "intro", "01_languages", ..."""
    toc = yaml.safe_load((paths.root() / "_toc.yml").read_text(encoding="utf-8"))
    found = [toc["root"]]

    def walk(node: Any) -> None:
        for part in node.get("parts", []):
            walk(part)
        for entry in [*node.get("chapters", []), *node.get("sections", [])]:
            found.append(entry["file"])
            walk(entry)

    walk(toc)
    return [Path(name).name for name in found]


def _build(profile: str, fresh: bool, tell: Callable[[str], None], release: bool, jobs: int) -> Path:
    execute([name for name in book.chapters() if name in pages()], profile, jobs, fresh or release, tell)
    with writing(paths.build() / "site", paths.MOVE_BUILD):
        if release:
            shutil.rmtree(paths.build() / "site", ignore_errors=True)
        stage(profile)
    tell(f"rendering {len(pages())} pages")
    html = render(paths.build() / "site")
    found = check.problems(html, pages())
    if found:
        raise book.BookError("the book is not fit to be read:\n" + "\n".join(found))
    if release:
        _refuse(check.untested(profile), profile)
    with writing(paths.build() / "html", paths.MOVE_BUILD):
        publish(html, paths.build() / "html", pages())
    first = paths.build() / "html" / "index.html"
    tell(f"Open {first.as_uri()}")
    return first


def stage(profile: str) -> None:
    """Lay out build/site: configuration with execution off, plain pages, executed notebooks in place of their text."""
    root, site = paths.root(), paths.build() / "site"
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    config["execute"]["execute_notebooks"] = "off"
    config["sphinx"]["config"]["sameloss_repository"] = repository.address()
    wanted: dict[Path, bytes] = {
        site / "_config.yml": yaml.safe_dump(config, sort_keys=False).encode(),
        site / "_toc.yml": (root / "_toc.yml").read_bytes(),
    }
    notebooks = set(book.chapters())
    for path in sorted(book.sources().rglob("*")):
        relative = path.relative_to(book.sources())
        if path.suffix in STATIC_EXTENSIONS and path.stem not in notebooks and relative.parts[0] != "results":
            wanted[site / "book" / relative] = path.read_bytes()
    for name in notebooks & set(pages()):
        wanted[site / "book" / f"{name}.ipynb"] = book.executed(name, profile).read_bytes()
    for path in [p for p in site.rglob("*") if p.is_file() and "_build" not in p.relative_to(site).parts]:
        if path not in wanted:
            path.unlink()
    for path, data in wanted.items():
        if not (path.is_file() and path.read_bytes() == data):  # untouched files let Sphinx skip their pages
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    link = site / "lib"  # chapters quote from ../lib
    if not link.is_symlink():
        link.symlink_to(Path(__file__).resolve().parents[2], target_is_directory=True)


def render(site: Path) -> Path:
    """Run Jupyter Book on a staged folder, warnings as errors; gives the HTML folder. BookError with what it said.

    What Sphinx kept of a rendering that failed or was killed goes: it would take half a page for a whole one, and not
    tell of the same fault again.
    """
    unfinished = site / "_build" / "unfinished"
    if unfinished.exists():
        shutil.rmtree(site / "_build")
    with writing(unfinished, paths.MOVE_BUILD):
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
    environment = os.environ | {"JUPYTER_PREFER_ENV_PATH": "1", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", SPHINX, "build", str(site), "-W", "-n", "--keep-going"]
    ours, theirs = os.pipe()
    try:
        done = subprocess.run(
            command, stdin=ours, capture_output=True, text=True, timeout=SPHINX_SECONDS, env=environment
        )
    finally:
        os.close(ours)
        os.close(theirs)
    log = paths.build() / "render.log"
    log.unlink(missing_ok=True)
    if done.returncode:
        said = [_place(line, site) for line in (done.stdout + done.stderr).splitlines()]
        lines = list(dict.fromkeys(line for line in said if re.search("WARNING|ERROR|CRITICAL", line)))
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        raise book.BookError(f"Jupyter Book failed (all it said: {log}):\n" + "\n".join(lines[:20] or ["no reason"]))
    unfinished.unlink()
    return site / "_build" / "html"


def _place(line: str, site: Path) -> str:
    """A line of Sphinx with the staged notebook's cell named as the text has it (10 000 lines stand for a cell)."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line).replace(f"{site}/", "")
    return re.sub(r"(\w+)\.ipynb:(\d+)", lambda m: f"{m[1]}.md, cell {int(m[2]) // 10_000}", line)


def publish(html: Path, target: Path, expected: list[str]) -> None:
    """Put a built book in place of the one at `target`, whole or not at all; UserError if a page is missing."""
    missing = [name for name in expected if not (html / "book" / f"{name}.html").is_file()]
    if missing or not (html / "index.html").is_file():
        raise UserError(f"{html}: not a complete book, nothing published; missing: {', '.join(missing or ['index'])}")
    aside, old = target.with_name(target.name + ".new"), target.with_name(target.name + ".old")
    for folder in (aside, old):
        shutil.rmtree(folder, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(html, aside)
    if target.exists():
        target.rename(old)
    aside.rename(target)
    shutil.rmtree(old, ignore_errors=True)
