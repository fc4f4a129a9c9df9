"""Publishing: links only to public repositories, no incomplete book, a workflow whose commands exist."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from sameloss.errors import UserError
from sameloss.pages import check, ledger, repository, site
from sameloss.pages.claims import CLAIMS
from sameloss.runs import results

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "book.yml"


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/someone/some-book.git", "https://github.com/someone/some-book"),
        ("https://someone:a-token@github.com/someone/book", "https://github.com/someone/book"),
        ("git@github.com:someone/book.git", "https://github.com/someone/book"),
        ("ssh://git@gitlab.com:22/group/part/book.git", "https://gitlab.com/group/part/book"),
        ("https://bitbucket.org/someone/book/", "https://bitbucket.org/someone/book"),
        ("/srv/git/book.git", ""),
        ("../book", ""),
        ("https://git.example.org/someone/book.git", ""),
        ("https://github.com.example.org/someone/book", ""),
        ("https://github.com/someone", ""),
        ("git@localhost:someone/book.git", ""),
        ("", ""),
    ],
)
def test_only_public_hosts_become_links_and_no_token_does(remote, address):
    assert repository.public(remote) == address


def test_buttons_lead_to_the_text_and_to_binder_where_it_serves_the_host():
    source, binder = repository.buttons("https://gitlab.com/group/part/book", "book/01_tiny", notebook=True)
    assert source["url"] == "https://gitlab.com/group/part/book/-/blob/HEAD/book/01_tiny.md"
    assert binder["url"] == (
        "https://mybinder.org/v2/gl/group%2Fpart%2Fbook/HEAD?urlpath=lab%2Ftree%2Fbook%2F01_tiny.md%3Ffactory%3DNotebook"
    )
    assert len(repository.buttons("https://github.com/someone/book", "book/glossary", notebook=False)) == 1
    assert len(repository.buttons("https://bitbucket.org/someone/book", "book/01_tiny", notebook=True)) == 1


def commit_to(folder: Path, remote: str) -> None:
    name = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (
        ["init", "-q"],
        [*name, "commit", "-q", "--allow-empty", "-m", "one"],
        ["remote", "add", "up", remote],
    ):
        subprocess.run(
            ["git", "-C", str(folder), *words], check=True, env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull}
        )


def staged(folder: Path) -> str:
    (folder / "build" / "notebooks" / "smoke").mkdir(parents=True, exist_ok=True)
    for name in ("01_tiny", "ledger"):
        (folder / "build" / "notebooks" / "smoke" / f"{name}.ipynb").write_text("{}")
    site.stage("smoke")
    config = yaml.safe_load((folder / "build" / "site" / "_config.yml").read_text())
    return config["sphinx"]["config"]["sameloss_repository"]


def test_the_pages_know_a_public_remote_and_no_other(tiny_book):
    assert staged(tiny_book) == ""  # no checkout
    commit_to(tiny_book, "/srv/git/book.git")
    assert staged(tiny_book) == ""
    subprocess.run(["git", "-C", tiny_book, "remote", "add", "origin", "git@github.com:someone/book.git"], check=True)
    assert staged(tiny_book) == "https://github.com/someone/book"


def test_built_pages_link_to_a_public_remote(built_tiny_book, tmp_path, monkeypatch):
    assert "mybinder" not in (built_tiny_book / "build" / "html" / "book" / "01_tiny.html").read_text()
    target = tmp_path / "tiny"
    shutil.copytree(built_tiny_book, target, symlinks=True)
    monkeypatch.setenv("SAMELOSS_ROOT", str(target))
    monkeypatch.setenv("SAMELOSS_BUILD", str(target / "build"))
    commit_to(target, "https://github.com/someone/book.git")
    site.stage("smoke")
    html = site.render(target / "build" / "site")
    page = (html / "book" / "01_tiny.html").read_text()
    assert 'href="https://github.com/someone/book/blob/HEAD/book/01_tiny.md"' in page
    assert 'href="https://mybinder.org/v2/gh/someone/book/HEAD?urlpath=lab%2Ftree%2Fbook%2F01_tiny.md' in page
    assert "mybinder" not in (html / "book" / "intro.html").read_text()  # nothing to run on it
    assert check.problems(html, site.pages()) == []


def profile_with(**runs: list[str]):
    specs = {
        chapter: [SimpleNamespace(name=name, key=lambda: "k1") for name in names] for chapter, names in runs.items()
    }
    return SimpleNamespace(name="laptop", runs=lambda chapter: specs.get(chapter, []))


def test_a_book_is_ready_only_with_all_its_rows(tiny_book, monkeypatch):
    monkeypatch.setattr(check, "CHAPTERS", {"01_tiny": None})
    profile = profile_with(**{"01_tiny": ["d16", "d32"]})
    first, second = (results.path("laptop", "01_tiny", name, "k1") for name in ("d16", "d32"))
    first.parent.mkdir(parents=True)
    first.write_text("rows")
    assert check.unready(profile, ["intro", "01_tiny"]) == ["01_tiny: no published rows of d32"]
    second.with_name("d32.otherkey.csv").write_text("rows of another spec")
    assert len(check.unready(profile, ["01_tiny"])) == 1
    second.write_text("rows")
    assert check.unready(profile, ["01_tiny"]) == []
    assert check.unready(profile, ["intro"]) == ["chapter 01_tiny is in no table of contents"]


def test_an_incomplete_book_is_refused_before_anything_runs(tiny_book, run_sameloss):
    done = run_sameloss("build", "--profile", "smoke", "--publish")
    assert done.returncode == 2
    assert "not complete, nothing published: profile smoke decides nothing; chapter" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tiny_book / "build" / "html").exists()
    with pytest.raises(UserError, match="nothing published"):
        site.build("laptop", release=True)
    assert not (tiny_book / "build" / "html").exists()


def test_a_claim_without_a_verdict_keeps_a_book_from_being_published(built_tiny_book, tmp_path, monkeypatch):
    target = tmp_path / "tiny"
    shutil.copytree(built_tiny_book, target, symlinks=True)
    monkeypatch.setenv("SAMELOSS_ROOT", str(target))
    monkeypatch.setenv("SAMELOSS_BUILD", str(target / "build"))
    monkeypatch.setattr(check, "unready", lambda profile, pages: [])
    before = (target / "build" / "html" / "index.html").stat().st_mtime_ns
    (target / "build" / "site" / "left").write_text("of an earlier build")
    said: list[str] = []
    with pytest.raises(UserError, match=r"claim C1 has no verdict: no chapter tests it.*and .* more"):
        site.build("smoke", tell=said.append, release=True)
    assert sum("executing" in line for line in said) == 2, "a release starts clean: nothing executed before is taken"
    assert not any("unchanged" in line for line in said)
    assert not (target / "build" / "site" / "left").exists()
    assert (target / "build" / "html" / "index.html").stat().st_mtime_ns == before
    tested = ledger.read("smoke")
    assert len(check.untested("smoke")) == len(CLAIMS) - len({row["claim"] for row in tested})


def test_the_workflow_builds_smoke_on_pull_requests_and_publishes_results_on_main():
    flow = yaml.safe_load(WORKFLOW.read_text())
    assert set(flow[True]) >= {"pull_request", "push"}  # YAML reads the key `on` as true
    assert flow[True]["push"] == {"branches": ["main"]}
    smoke, publish = flow["jobs"]["smoke"], flow["jobs"]["publish"]
    assert smoke["if"] == "github.event_name == 'pull_request'"
    assert "refs/heads/main" in publish["if"]
    commands = [step["run"] for job in (smoke, publish) for step in job["steps"] if "run" in step]
    assert any("PROFILE=smoke" in command for command in commands[:1])
    assert "PROFILE=laptop PUBLISH=1" in commands[-1]
    for command in commands:
        words = [word for word in re.sub(r'\s+PIP_ARGS="\$PIP_ARGS"', "", command).split() if word]
        done = subprocess.run([words[0], "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if "PUBLISH=1" in words:
            assert "--profile laptop  --publish" in done.stdout
    tests = next(step for step in smoke["steps"] if "make test" in step.get("run", ""))
    assert tests["env"] == {"SAMELOSS_REFERENCE_GRAMMAR": "none"}, "without it CI=true fails: the file is not ours"
    assert all("@v" in step["uses"] for job in (smoke, publish) for step in job["steps"] if "uses" in step)
    paths = [
        step["with"]["path"] for job in (smoke, publish) for step in job["steps"] if "path" in step.get("with", {})
    ]
    assert paths == ["build/html", "build/html"]
