"""`sameloss runs`: what the store holds, whether it is whole, what can go; `sameloss verify`: published tables anew."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from sameloss import paths
from sameloss.errors import UserError

app = typer.Typer(help="The run store: list, verify, clean.")


@app.command("list")
def list_runs() -> None:
    """State, progress, size and spec of every run in the store."""
    from sameloss.runs import inventory

    store = _store()
    for entry in inventory.entries(store):
        size = f"{entry.bytes / 1e6:.1f} MB"
        typer.echo(f"{entry.id}  {entry.state:8}  {size:>10}  {entry.progress:>19}  {entry.spec}")
    typer.echo(f"{len(store.runs())} runs in {store.root}")


@app.command()
def verify() -> None:
    """Read every file of every run; damaged ones are named and set aside. Exit code 1 when there were any."""
    damaged = _store().verify()
    typer.echo(
        f"{damaged} damaged files set aside; their runs compute them again" if damaged else "all files are whole"
    )
    if damaged:
        raise typer.Exit(1)


@app.command()
def clean(
    run: Annotated[
        list[str] | None, typer.Argument(help="ids (or their beginnings); none: what no profile asks for")
    ] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="only say what would go")] = False,
) -> None:
    """Remove runs, or without ids: damaged files that were set aside, and runs no profile asks for any more."""
    from sameloss.runs import inventory

    store = _store()
    chosen = inventory.unneeded(store) if not run else []
    for part in run or []:
        found = [r for r in store.runs() if r.path.name.startswith(part)]
        if len(found) != 1:
            raise UserError(f"run {part!r}: {len(found)} runs begin like this; `sameloss runs list` shows all")
        chosen += found
    for item in chosen:
        typer.echo(f"run {item.path.name}, {item.size() / 1e6:.1f} MB")
        if not dry:
            store.remove(item)
    for file in [] if run else sorted(store.root.glob("*/*.corrupt-*")):
        typer.echo(f"damaged file {file.parent.name}/{file.name}")
        if not dry:
            file.unlink()


def verify_published(
    profile: Annotated[str, typer.Option("--profile", help="smoke, laptop, gpu or paper")] = "laptop",
    only: Annotated[str, typer.Option("--only", help="one chapter")] = "",
    tables: Annotated[int, typer.Option("--tables", min=1, help="how many")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="which ones")] = 0,
) -> None:
    """Compute a random sample of a profile's published tables anew and compare them. Exit code 1 if one differs."""
    from sameloss.pages import book
    from sameloss.runs import progress
    from sameloss.runs import verify as check
    from sameloss.runs.profile import load_profile

    loaded, chapter, differs = load_profile(profile), book.find(only) if only else "", 0
    chosen = check.sample(loaded, tables, seed, chapter)
    if not chosen:  # nothing looked at is not the same as nothing wrong
        where = f"book/results/{profile}/{chapter}".rstrip("/")
        raise UserError(f"{where}: no published table found; `sameloss results` computes and publishes them")
    own = [table for table in chosen if not check.runs(loaded, table)]
    shown = progress.for_person({})
    with tempfile.TemporaryDirectory() as made:
        check.ask(Path(made), own)
        os.environ["SAMELOSS_LEDGER"] = made
        for name in dict.fromkeys(name for name, _ in own):
            book.run_chapter(name, profile, output=Path(made) / f"{name}.ipynb", quiet=True)
        for table in chosen:
            found = [check.recomputed(loaded, spec, table[0], shown) for spec in check.runs(loaded, table)]
            for said in found or [check.answer(Path(made), table)]:
                typer.echo(f"{table[0]}/{table[1]}: {said}")
                differs += said.startswith("differs")
    typer.echo(f"{len(chosen)} tables of profile {profile} computed anew, {differs} differ")
    if differs:
        raise typer.Exit(1)


def _store() -> Any:
    from sameloss.runs.store import Store

    return Store(paths.runs(), lambda text: print(text, file=sys.stderr, flush=True))
