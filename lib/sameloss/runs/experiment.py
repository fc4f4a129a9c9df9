"""From specs to tables: train and measure what is missing, keep both; the same spec gives the same rows."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pandas as pd
import torch

from sameloss import paths
from sameloss.learners.stack import Model, member
from sameloss.runs import plan, provenance, ranks, results, verify
from sameloss.runs.measure import COLUMNS, Bench, baseline_rows, checkpoint_rows, fine_tuned_rows
from sameloss.runs.measure_moved import moved_rows, shifted_baseline_rows
from sameloss.runs.profile import Profile, folder, load_profile
from sameloss.runs.progress import Progress, Silent
from sameloss.runs.settings import CHAPTERS
from sameloss.runs.spec import RunSpec
from sameloss.runs.store import Run, Store, digest, write_atomically
from sameloss.runs.training import Subject, Work, checkpoint_name, origin, read_state, train


def table(profile: Profile, chapter: str) -> pd.DataFrame:
    """The rows of a chapter's experiment: from `book/results/` where they are there for exactly this spec, else run.

    Columns: `measure.COLUMNS` and `source` ("from results" or "computed"). attrs["origin"]: where the numbers come
    from, as in `provenance.here`; attrs["notes"]: what a person should know (damaged files that were set aside).
    """
    silent = Silent()
    work = work_for(profile, silent)
    frames = []
    for spec in profile.runs(chapter):
        found = results.read(profile.name, chapter, spec.name, spec.key())
        frames.append(found if found is not None else compute(spec, work, profile))
        frames[-1]["source"] = frames[-1].attrs["origin"]["source"]
    if not frames:
        return pd.DataFrame(columns=[*COLUMNS, "source"])
    origins = [frame.attrs.pop("origin") for frame in frames]
    table = pd.concat(frames, ignore_index=True)
    table.attrs = {"origin": results.merge(origins), "notes": silent.notes}
    return table


def remember(
    profile: Profile,
    chapter: str,
    name: str,
    spec: dict[str, Any],
    compute: Callable[[], pd.DataFrame],
    wings: Sequence[str] = provenance.WINGS,
) -> pd.DataFrame:
    """A table that a chapter computes by itself, kept like that of a run: from `book/results/`, the store, or computed.

    spec: plain JSON that, with the recipes of the `wings` it rests on, decides the numbers. attrs as in `table`.
    Published, it takes the place of what was published under this name before.
    """
    recipe = {wing: number for wing, number in provenance.recipes().items() if wing in wings}
    identity = {"chapter": chapter, "table": name, "spec": spec, "recipe": recipe}
    key, file, silent = digest(identity), "table.csv", Silent()
    found = results.read(profile.name, chapter, name, key)
    if found is not None and (outcome := verify.asked(chapter, name)):
        said = verify.compared(found, results.parse(results.to_bytes(compute())))
        write_atomically(outcome, json.dumps(said).encode())
    if found is None:
        store = Store(paths.runs(), silent.note)
        rows = _read_finished(store.run(identity), file)
        if rows is None:
            with store.locked(identity) as run:
                rows = _read_finished(run, file)
                if rows is None:
                    origin = _origin(profile, "cpu")
                    data = results.to_bytes(compute())
                    run.write(_origin_name(file), json.dumps(origin).encode())
                    run.write(file, data)
                    rows = results.parse(data), origin
        found = rows[0].assign(run=key)
        found.attrs = {"origin": rows[1]}
        if results.publishing():
            results.publish(profile.name, chapter, name, key, found, ())
    found["source"] = found.attrs["origin"]["source"]
    found.attrs["notes"] = silent.notes
    return found


def complete(profile_name: str) -> bool:
    """Whether `book/results/` holds every run of every chapter at this profile (at least one), for exactly its spec."""
    profile = load_profile(profile_name)
    wanted = [(chapter, spec) for chapter in CHAPTERS for spec in profile.runs(chapter)]
    return bool(wanted) and all(results.path(profile.name, c, s.name, s.key()).is_file() for c, s in wanted)


def work_for(profile: Profile, progress: Progress, until: float = float("inf")) -> Work:
    """How this profile's runs are worked on here. Sets the number of threads of this process."""
    torch.set_num_threads(profile.threads)
    device = profile.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Work(Store(paths.runs(), progress.note), progress, device, until=until)


def compute(spec: RunSpec, work: Work, profile: Profile) -> pd.DataFrame:
    """The table of one run, from the store where it is finished, else worked out by this process.

    Another process that works on the same run is waited for. StageOver when the time is up.
    """
    name, run = f"table-{spec.key()}.csv", work.store.run(spec.identity())
    rows = _read_finished(run, name)
    parts = f"part-{spec.key()}"
    if rows is None or run.read("spec.json") is None or run.names(parts):
        with work.store.locked(spec.identity()) as run:
            rows = _read_finished(run, name)
            if rows is None:
                rows = _work_out(run, spec, work, profile)
            for left in run.names(parts):  # after the table, so that a kill in between loses none of them
                run.drop(left)
    frame, origin = rows
    frame = frame.assign(condition=spec.name)[[*COLUMNS]]
    frame.attrs = {"origin": origin}
    return frame


def is_finished(spec: RunSpec, store: Store) -> bool:
    """Whether the run's table is there (its checksum is looked at when it is read)."""
    return f"table-{spec.key()}.csv" in store.run(spec.identity()).names("table-")


def _read_finished(run: Run, name: str) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    data, origin = run.read(name), run.read(_origin_name(name))
    if data is None or origin is None:
        return None
    try:
        return results.parse(data), json.loads(origin)
    except ValueError:  # with a checksum made to fit
        run.set_aside(name, "it is no table")
        return None


def _work_out(run: Run, spec: RunSpec, work: Work, profile: Profile) -> tuple[pd.DataFrame, dict[str, Any]]:
    subject, key = Subject(spec), spec.key()
    name = f"table-{key}.csv"
    if spec.train is not None:
        plan.refuse_if_too_large(spec, subject.model, work.device, ranks.count())
        train(run, spec, subject, work)
    origin = _origin(profile, work.device)
    parts = [(i, step) for i in range(len(spec.seeds)) for step in spec.steps]
    frames = []
    bench = None
    for done, (i, step) in enumerate(parts):
        part = f"part-{key}-{spec.seeds[i]}-{step:08d}.csv"
        data = run.read(part)
        if data is None:
            work.check_time()
            work.progress.step(spec.label, "measuring", done, len(parts))
            if bench is None or bench.seed != spec.seeds[i]:
                pool = spec.train.pool if spec.train else 0
                bench = Bench(*subject.drawn[i], spec.seeds[i], spec.measure, work.device, pool)
            run.write(part, results.to_bytes(pd.DataFrame(list(_rows(run, spec, subject, work, bench, i, step)))))
            data = run.read(part)
            assert data is not None
        frames.append(results.parse(data))
    frame = pd.concat(frames, ignore_index=True).sort_values(["step", "weights", "seed"], kind="stable")
    run.write(_origin_name(name), json.dumps(origin).encode())
    run.write(name, results.to_bytes(frame))
    work.progress.step(spec.label, "measuring", len(parts), len(parts))
    return results.parse(results.to_bytes(frame)), origin


def _rows(
    run: Run, spec: RunSpec, subject: Subject, work: Work, bench: Bench, index: int, step: int
) -> Iterator[dict[str, Any]]:
    """Rows of one seed at one checkpoint, in every kind of weights asked for."""
    fixed = {"run": spec.id, "seed": spec.seeds[index], "step": step}
    if spec.train is None:
        rows = chain(baseline_rows(bench), shifted_baseline_rows(bench))
        yield from ({**fixed, "weights": "", **row} for row in rows)
        return
    state = read_state(run, checkpoint_name(step))
    if state is None:  # damaged since it was trained: one more round makes it again
        train(run, spec, subject, work)
        state = read_state(run, checkpoint_name(step))
        assert state is not None
    for weights in spec.measure.weights:
        params = state.ema if weights == "ema" else state.params
        model = member(subject.model, params, index).to(work.device)
        rows = chain(
            checkpoint_rows(bench, model, subject.model),
            moved_rows(bench, model, _first(spec, subject, work, index), subject.model),
        )
        if step == spec.steps[-1]:
            rows = chain(rows, fine_tuned_rows(bench, model, subject.model))
        yield from ({**fixed, "weights": weights, **row} for row in rows)


def _first(spec: RunSpec, subject: Subject, work: Work, index: int) -> Model | None:
    """The model of one seed that a chain of continued runs began with; None where its features are not asked for."""
    if spec.start is None or not spec.measure.change:
        return None
    start = spec.start
    while start.parent.start is not None:
        start = start.parent.start
    state = origin(start, subject, work)
    return member(subject.model, state.ema if start.weights == "ema" else state.params, index).to(work.device)


def _origin(profile: Profile, device: str) -> dict[str, Any]:
    return {**provenance.here(device), "profile_revision": provenance.revision(folder() / f"{profile.name}.yaml")}


def _origin_name(table: str) -> str:
    return table.replace("table", "origin").replace(".csv", ".json")
