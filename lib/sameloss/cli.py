"""The `sameloss` command: run chapters, build the book, look at claims and runs, publish results, compare."""

import json
import os
import sys
import time
from typing import Annotated, Any, NoReturn

import typer

from sameloss import cli_runs
from sameloss.errors import UserError

INTERRUPTED = 130

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(cli_runs.app, name="runs")
app.command("verify")(cli_runs.verify_published)

ProfileOption = Annotated[str, typer.Option("--profile", help="smoke, laptop, gpu or paper (see `sameloss profiles`)")]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=0, help="runs, or chapters, side by side; 0: one per core (one on a GPU)")
]
SchedulerOption = Annotated[
    str, typer.Option("--scheduler", help="address of a Dask scheduler: runs go to its workers")
]


@app.command()
def run(
    chapter: Annotated[str, typer.Argument(help="a chapter of book/, such as 02_same_loss, or all")] = "all",
    profile: ProfileOption = "smoke",
    parameter: Annotated[
        list[str] | None, typer.Option("-p", metavar="KEY=VALUE", help="a parameter to change")
    ] = None,
    jobs: JobsOption = 0,
    scheduler: SchedulerOption = "",
) -> None:
    """Run chapters: compute what their tables need, then execute their notebooks."""
    from sameloss.pages import book, execute
    from sameloss.runs import prepare
    from sameloss.runs.profile import load_profile

    given = _parameters(parameter or [])
    if chapter == "all" and given:
        raise UserError("-p changes a parameter of one chapter: name the chapter instead of all")
    chosen = book.chapters() if chapter == "all" else [book.find(chapter)]
    loaded = load_profile(profile)
    if not given:  # changed parameters may ask for other runs: these the chapter works out by itself
        prepare.prepare(loaded, chosen, jobs, scheduler)
    if len(chosen) == 1:
        typer.echo(book.run_chapter(chosen[0], profile, given))
    else:
        execute.execute(chosen, profile, jobs or prepare.side_by_side(loaded))


@app.command()
def build(
    profile: ProfileOption = "auto",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="compute everything again, published results included")
    ] = False,
    publish: Annotated[
        bool, typer.Option("--publish", help="refuse a book that is not complete: results or claims missing")
    ] = False,
    jobs: JobsOption = 0,
) -> None:
    """Build the book: run what has changed, render it, check the pages. auto: laptop once its results are there."""
    from sameloss.pages import book, site
    from sameloss.runs import prepare
    from sameloss.runs.profile import load_profile

    loaded = load_profile(site.resolve(profile))
    if publish:
        site.require_ready(loaded.name)  # before hours are spent on what is missing
    if fresh:
        os.environ["SAMELOSS_FRESH"] = "1"  # seen by the chapters' kernels as well
        prepare.forget(loaded)
    prepare.prepare(loaded, book.chapters(), jobs)
    site.build(loaded.name, fresh=fresh, release=publish, jobs=jobs or prepare.side_by_side(loaded))


@app.command()
def plan(
    chapter: Annotated[str, typer.Argument(help="a chapter of book/, such as 02_same_loss, or all")] = "all",
    profile: ProfileOption = "gpu",
    device: Annotated[
        str, typer.Option("--device", help="h200, h100, a100, or cpu: this machine, its speed measured now")
    ] = "h200",
) -> None:
    """Say what a profile's trained models would take (memory, FLOPs, time on a device); nothing is run."""
    from sameloss.pages import book
    from sameloss.runs import plan
    from sameloss.runs.profile import load_profile
    from sameloss.runs.settings import CHAPTERS

    chosen = list(CHAPTERS) if chapter == "all" else [book.find(chapter)]
    for line in plan.lines(load_profile(profile), chosen, device):
        typer.echo(line)


@app.command()
def compare(
    checkpoint_a: Annotated[str, typer.Argument(help="folder of a Hugging Face masked or causal LM (safetensors)")],
    checkpoint_b: Annotated[str, typer.Argument(help="folder of the other one")],
    text: Annotated[str, typer.Option("--text", metavar="FILE", help="one sentence a line, UTF-8")],
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="FILE", help="one label a line of the text, for the probe")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for programs: one object")] = False,
    sentences: Annotated[int, typer.Option("--sentences", min=2, help="lines used at most, drawn evenly")] = 1000,
    length: Annotated[int, typer.Option("--length", min=3, help="tokens of a line that are read")] = 64,
    margin: Annotated[float, typer.Option("--margin", help="nats a token within which losses are matched")] = 0.01,
    seed: Annotated[int, typer.Option("--seed", min=0, help="of the words hidden, directions and folds")] = 0,
) -> None:
    """Compare two checkpoints: loss (matched?), Fisher trace, adaptive sharpness, linear probe."""
    from sameloss.pages import comparison
    from sameloss.runs.compare_checkpoints import compare as compare_checkpoints

    found = compare_checkpoints(checkpoint_a, checkpoint_b, text, labels, sentences, length, margin, seed)
    typer.echo(json.dumps(comparison.as_dict(found), indent=1) if as_json else comparison.page(found))


@app.command()
def profiles() -> None:
    """The profiles and what each is for."""
    from sameloss.runs.profile import load_profile, names

    for name in names():
        typer.echo(f"{name:8} {load_profile(name).about}")


@app.command()
def claims(
    profile: ProfileOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="for programs: a list of rows")] = False,
) -> None:
    """The ledger so far: every claim of the paper with its verdicts at a profile."""
    from sameloss.pages import ledger, site
    from sameloss.pages.claims import CLAIMS

    name = site.resolve(profile)
    rows = ledger.read(name)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    for key, claim in CLAIMS.items():
        verdicts = [row for row in rows if row["claim"] == key]
        for row in verdicts:
            typer.echo(f"{key:4} {row['verdict']:27} {row['statistic']}: {ledger.shown_value(row)}  [{row['chapter']}]")
        if not verdicts:
            typer.echo(f"{key:4} {'not run':27} {claim.statement}")


@app.command()
def results(
    profile: ProfileOption = "laptop",
    only: Annotated[str, typer.Option("--only", help="one chapter")] = "",
    jobs: JobsOption = 0,
    scheduler: SchedulerOption = "",
    minutes: Annotated[float, typer.Option("--minutes", min=0, help="stop after this time; 0: the profile's")] = 0,
) -> None:
    """Compute a profile's runs and publish their rows to book/results/; started again, it goes on where it stopped."""
    from sameloss.pages import book
    from sameloss.runs import prepare
    from sameloss.runs.profile import load_profile
    from sameloss.runs.settings import CHAPTERS

    loaded = load_profile(profile)
    chosen = [book.find(only)] if only else list(CHAPTERS)
    loaded.chapter(chosen[0])  # a page without settings has nothing to compute
    minutes = minutes or loaded.stage_minutes or float("inf")
    if prepare.publish(loaded, chosen, jobs, time.monotonic() + 60 * minutes, scheduler):
        # The other chapters compute their tables themselves; executed with publishing on, they write them down as well.
        os.environ["SAMELOSS_PUBLISH"] = "1"
        for name in [name for name in chosen if not loaded.runs(name) and name in book.chapters()]:
            book.run_chapter(name, profile)


def main() -> NoReturn:
    """Entry point: what a user can mend is one line and exit code 2; Ctrl-C is 130 and says how to go on."""
    try:
        code = _together() if "LOCAL_RANK" in os.environ else app(standalone_mode=False)
    except UserError as error:
        _fail(f"error: {error}", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        # Usage errors (typer has no public name for them), and failures of a chapter, which name chapter and cell.
        if hasattr(error, "format_message"):
            _fail(f"error: {error.format_message().rstrip('.')}; see `sameloss --help`", 2)
        if type(error).__name__ != "BookError":
            raise
        _fail(f"error: {error}", 1)
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code by itself
        _fail("interrupted; whatever was stored is whole: the same command goes on from there", code)
    sys.exit(code if isinstance(code, int) else 0)


def _together() -> Any:
    """Started by torchrun: rank 0 is the command, the others train along."""
    from sameloss.runs import ranks

    return ranks.together(lambda: app(standalone_mode=False))


def _fail(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    sys.exit(code)


def _parameters(given: list[str]) -> dict[str, Any]:
    """key=value pairs; the chapter turns the text into what it needs, or refuses it."""
    found: dict[str, Any] = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"-p {pair!r}: allowed is KEY=VALUE, such as -p seed=7002")
        found[key] = value
    return found


if __name__ == "__main__":
    main()
