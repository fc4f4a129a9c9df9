"""Experiments: the same spec gives the same bytes, whatever happens on the way; a changed spec is another run."""

import copy
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load

from sameloss import paths
from sameloss.errors import UserError
from sameloss.runs import experiment, prepare, provenance, results, schedule
from sameloss.runs import profile as profiles
from sameloss.runs.profile import load_profile
from sameloss.runs.progress import Silent
from sameloss.runs.settings import CHAPTERS
from sameloss.runs.spec import RunSpec
from sameloss.runs.store import Store
from sameloss.runs.training import StageOver, Work, checkpoint_name

CHAPTER = "02_same_loss"
TINY = """
languages:
  tree: {kind: tree_grammar, share: 0.01, among: 1024}
models:
  d8: {kind: transformer, width: 8, heads: 2, layers: 1}
training:
  short: {steps: 150, batch: 16, lr: 3e-3, ema: 0.9, checkpoints: [0, 100]}
  brief: {steps: 40, batch: 16, lr: 3e-3, ema: 0.9}
  sgd: {optimizer: sgd, steps: 60, batch: 16, lr: 0.05, momentum: 0.9, ema: 0.9, stage: sgd}
measures:
  little:
    {contexts: 64, trace_contexts: 8, probe_train: 256, probe_test: 99, projection: 8, tasks: [B], weights: [ema, raw]}
  tuned:
    {contexts: 64, trace_contexts: 0, probe_train: 256, probe_test: 99, projection: 0, masked: false, tasks: [B],
     fine_tune: [A]}
  scored:
    {contexts: 64, trace_contexts: 0, probe_train: 256, probe_test: 99, projection: 8, masked: false, tasks: [B],
     thresholds: [0.5], rare: 0.25}
"""
CONDITIONS = """
- {name: baselines, language: tree, measure: little}
- {name: small, language: tree, model: d8, train: short, measure: little}
- {name: small-sgd, after: small, weights: ema, train: sgd, measure: little}
- {name: early-sgd, after: small, step: 100, weights: raw, train: sgd, measure: little}
- {name: small-tuned, language: tree, model: d8, train: brief, measure: tuned}
"""


def write_profile(root: Path, **changes) -> None:
    data = yaml.safe_load((profiles.folder() / "smoke.yaml").read_text()) | yaml.safe_load(TINY)
    data |= {"name": "tiny", "device": "cpu"}
    data["chapters"][CHAPTER] |= {"seeds": [7001, 7002], "conditions": yaml.safe_load(CONDITIONS)}
    data["chapters"][CHAPTER] |= {"sizes": ["small", "small-sgd"], "tasks": ["B"]}
    seen = {"seeds": [7001, 7002], "conditions": yaml.safe_load(CONDITIONS)}
    data["chapters"]["04_flatness"] = seen | {"sizes": [["small", "small-sgd"]], "along": ["small-sgd"]}
    zoom = {"models": ["small", "small-sgd"], "schedule": None, "pool": None, "lengths": []}
    scored = [condition | {"measure": "scored"} for condition in seen["conditions"]]
    data["chapters"]["06_zooming_out"] |= {"seeds": [7001, 7002], "conditions": scored} | zoom
    continued = {"equal": {"start": "small", "annealed": "small-sgd", "twin": "early-sgd"}, "rescaled": None}
    continued["equal"] |= {"pilot_effect": 0.0026, "pilot_spread": 0.0042}
    data["chapters"]["07_is_it_flatness"] |= copy.deepcopy(seen) | continued | {"others": {"early": "early-sgd"}}
    for section, values in changes.items():
        data[section] = data.get(section, {}) | values
    folder = root / "book" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(data))


def commit(root: Path, message: str) -> None:
    git = ["git", "-C", str(root), "-c", "user.name=Reader", "-c", "user.email=reader@example.org"]
    subprocess.run(["git", "-C", str(root), "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", message], check=True)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A project of one tiny profile with a store of its own; gives the profile."""
    write_profile(tmp_path / "root")
    monkeypatch.setenv("SAMELOSS_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("SAMELOSS_RUNS", str(tmp_path / "runs"))
    return load_profile("tiny")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The tiny experiment, its profile committed, computed once without interruption: a folder of root and runs."""
    folder = tmp_path_factory.mktemp("finished")
    write_profile(folder / "root")
    commit(folder / "root", "profile and predictions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAMELOSS_ROOT", str(folder / "root"))
        patch.setenv("SAMELOSS_RUNS", str(folder / "runs"))
        experiment.table(load_profile("tiny"), CHAPTER)
    return folder


def contents(runs: Path) -> dict[str, bytes]:
    """Every lasting file of a store but the provenance, which tells of date and machine."""
    files = [f for f in runs.rglob("*") if f.is_file() and f.parent.name != "locks" and "origin" not in f.name]
    return {str(f.relative_to(runs)): f.read_bytes() for f in files if ".corrupt-" not in f.name}


def spec_named(profile, name: str) -> RunSpec:
    return next(spec for spec in profile.runs(CHAPTER) if spec.name == name)


def work(profile, **options) -> Work:
    silent = Silent()
    return Work(Store(Path(os.environ["SAMELOSS_RUNS"]), silent.note), silent, **options)


def use(monkeypatch, folder: Path, runs: Path | None = None):
    monkeypatch.setenv("SAMELOSS_ROOT", str(folder / "root"))
    monkeypatch.setenv("SAMELOSS_RUNS", str(runs or folder / "runs"))
    return load_profile("tiny")


@pytest.fixture
def copied(finished, monkeypatch, tmp_path):
    """The finished experiment with a copy of its store, to be changed; gives the profile."""
    shutil.copytree(finished / "runs", tmp_path / "copy")
    return use(monkeypatch, finished, tmp_path / "copy")


def test_table_holds_every_condition_seed_and_checkpoint(finished, monkeypatch):
    frame = experiment.table(use(monkeypatch, finished), CHAPTER)
    assert list(frame.columns) == [*experiment.COLUMNS, "source"]
    assert set(frame["source"]) == {"computed"}
    seen = frame.groupby("condition")["step"].unique().map(list).to_dict()
    assert seen == {
        "baselines": [0],
        "small": [0, 100, 150],
        "small-sgd": [60],
        "early-sgd": [60],
        "small-tuned": [40],
    }
    assert set(frame["seed"]) == {7001, 7002}
    tuned = frame[frame["features"] == "fine-tuned"]
    assert set(tuned["step"]) == {40}
    assert set(tuned["condition"]) == {"small-tuned"}
    assert set(tuned["task"]) == {"A"}
    assert len(tuned) == 3 * 2  # three scores, two seeds
    per_checkpoint = (
        frame[~frame["condition"].isin(["baselines", "small-tuned"])]
        .groupby(["condition", "seed", "step", "weights"])
        .size()
    )
    assert per_checkpoint.nunique() == 1
    kl = frame[(frame["quantity"] == "kl") & (frame["condition"] == "small") & (frame["weights"] == "raw")]
    assert (kl[kl["step"] == 150]["value"].to_numpy() < kl[kl["step"] == 0]["value"].to_numpy()).all()
    loss = frame[frame["quantity"] == "expected_cross_entropy"].set_index(["condition", "seed", "step", "weights"])[
        "value"
    ]
    kl = frame[frame["quantity"] == "kl"].set_index(["condition", "seed", "step", "weights"])["value"]
    floor = frame[frame["quantity"] == "floor"].set_index("seed")["value"]
    assert (loss - kl - floor.reindex(loss.index.get_level_values("seed")).to_numpy()).abs().max() < 1e-9
    views = set(frame[frame["condition"] == "small"]["features"])
    assert views == {"", "unmasked", "unmasked-8", "masked", "masked-8"}
    views = set(frame[frame["condition"] == "baselines"]["features"])
    assert views == {"", "one-hot", "one-hot-8", "lookup", "lookup-8", "log-lookup", "log-lookup-8", "bayes"}


def test_provenance_names_machine_and_versions_but_no_host_and_no_user(finished, monkeypatch):
    origin = experiment.table(use(monkeypatch, finished), CHAPTER).attrs["origin"]
    assert set(origin) == {"source", "revision", "profile_revision", "recipe", "date", "machine", "versions"}
    assert set(origin["recipe"]) == set(provenance.WINGS)
    assert origin["versions"]["torch"] == torch.__version__
    assert "core" in origin["machine"]
    text = json.dumps(origin)
    assert os.uname().nodename not in text
    assert str(Path.home()) not in text


def test_a_finished_run_is_never_computed_again(finished, monkeypatch):
    profile = use(monkeypatch, finished)
    for name in ("train", "checkpoint_rows", "baseline_rows"):
        monkeypatch.setattr(experiment, name, None)
    assert len(experiment.table(profile, CHAPTER))


def test_a_changed_spec_is_always_another_run(tiny):
    base = spec_named(tiny, "small")
    changes = {
        "seeds": (7001, 7003),
        "language": base.language.model_copy(update={"share": 0.02}),
        "model": base.model.model_copy(update={"width": 16}),
        "train": base.train.model_copy(update={"lr": 1e-3}),
    }
    ids = {base.id} | {base.model_copy(update={key: value}).id for key, value in changes.items()}
    assert len(ids) == 1 + len(changes)
    child = spec_named(tiny, "small-sgd")
    for key in ("model", "train"):
        parent = base.model_copy(update={key: changes[key]})
        assert child.model_copy(update={"start": child.start.model_copy(update={"parent": parent})}).id != child.id
    assert child.model_copy(update={"start": child.start.model_copy(update={"weights": "raw"})}).id != child.id
    assert child.model_copy(update={"start": child.start.model_copy(update={"step": 0})}).id != child.id


def test_what_is_measured_changes_the_table_but_not_the_run(tiny):
    base = spec_named(tiny, "small")
    more = base.model_copy(update={"measure": base.measure.model_copy(update={"contexts": 128})})
    assert more.id == base.id
    assert more.key() != base.key()
    assert base.model_copy(update={"name": "other"}).key() == base.key()


@pytest.mark.parametrize("wing", provenance.WINGS)
def test_a_recipe_changes_what_it_decides(tiny, monkeypatch, wing):
    base = spec_named(tiny, "small")
    before = base.id, base.key()
    monkeypatch.setattr(f"sameloss.{wing}.RECIPE", 999)
    assert (base.id != before[0]) == (wing in ("languages", "learners"))
    assert (base.key() != before[1]) == (wing != "theory")


def test_a_new_field_that_is_left_out_keeps_the_hash(tiny):
    """The rule for fields added later (None by default) rests on None being left out of the identity."""
    assert "start" not in spec_named(tiny, "small").identity()
    assert None not in spec_named(tiny, "small-sgd").identity()["start"].values()


def test_continued_runs_start_from_the_weights_they_name(copied):
    """A start trained for no step at all is the parent's checkpoint, in the weights asked for."""
    profile = copied
    store = work(profile).store
    parent = spec_named(profile, "small")
    kept = load(store.run(parent.identity()).read(checkpoint_name(100)))
    for weights, group in (("raw", "params"), ("ema", "ema")):
        child = spec_named(profile, "early-sgd")
        start = child.start.model_copy(update={"weights": weights})
        child = child.model_copy(update={"start": start, "train": child.train.model_copy(update={"steps": 0})})
        experiment.compute(child, work(profile), profile)
        begun = load(store.run(child.identity()).read(checkpoint_name(0)))
        for name in (n.split("/", 1)[1] for n in kept if n.startswith(group)):
            assert torch.equal(begun[f"params/{name}"], kept[f"{group}/{name}"])


def test_more_checkpoints_of_a_trained_run_agree_with_the_old_ones(copied, tmp_path):
    """A checkpoint asked for later is made without a change to those that are there."""
    base = spec_named(copied, "small")
    before = contents(tmp_path / "copy")
    more = base.model_copy(update={"train": base.train.model_copy(update={"checkpoints": (0, 50, 100)})})
    experiment.compute(more, work(copied), copied)
    after = contents(tmp_path / "copy")
    assert {name: after[name] for name in before} == before
    assert f"{base.id}/{checkpoint_name(50)}" in after


RUN_ALL = (
    "import sys\n"
    "from pathlib import Path\n"
    "from sameloss.runs import experiment\n"
    "from sameloss.runs.profile import load_profile\n"
    "from sameloss.runs.progress import Silent\n"
    "from sameloss.runs.store import Store\n"
    "from sameloss.runs.training import Work\n"
    "profile = load_profile('tiny')\n"
    "silent = Silent()\n"
    "experiment.work_for(profile, silent)\n"
    "work = Work(Store(Path(sys.argv[1]), silent.note), silent, save_seconds=0.0)\n"
    "print('ready', flush=True)\n"
    "for spec in profile.runs('02_same_loss'):\n"
    "    experiment.compute(spec, work, profile)\n"
    "print('done', flush=True)\n"
)


def start_run(folder: Path, runs: Path) -> subprocess.Popen:
    """A process that works on the whole tiny experiment; returns when it begins."""
    env = os.environ | {"SAMELOSS_ROOT": str(folder / "root"), "SAMELOSS_RUNS": str(runs), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", RUN_ALL, str(runs)], stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout.readline() == "ready\n"
    return process


def kill_and_resume(finished: Path, runs: Path, kills: int, seed: int) -> None:
    """Kill the experiment at random moments until `kills` have hit it, then let it end; compare with the whole run."""
    draw = random.Random(seed)
    hits, longest = 0, 6.0
    while hits < kills:
        process = start_run(finished, runs)
        begun = time.monotonic()
        try:
            process.wait(timeout=draw.uniform(0.0, longest))
            longest = min(longest, 1.5 * (time.monotonic() - begun))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            hits += 1
            continue
        # It ended before the kill: begin again, all but finished.
        assert process.returncode == 0
        for folder in sorted(runs.iterdir())[:2]:
            shutil.rmtree(folder)
    process = start_run(finished, runs)
    assert process.communicate(timeout=300)[0] == "done\n"
    assert contents(runs) == contents(finished / "runs")
    assert not list(runs.rglob("*.corrupt-*"))
    assert not list(runs.rglob(".writing-*"))


def test_killed_and_resumed_gives_the_same_bytes(finished, tmp_path):
    kill_and_resume(finished, tmp_path / "runs", kills=2, seed=1)


@pytest.mark.soak
def test_soak_killed_thirty_times_and_resumed_gives_the_same_bytes(finished, tmp_path):
    kill_and_resume(finished, tmp_path / "runs", kills=30, seed=2)


def test_two_processes_share_one_run(finished, monkeypatch, tmp_path):
    """While another process works on the runs this one asks for them as well."""
    process = start_run(finished, tmp_path / "runs")
    frame = experiment.table(use(monkeypatch, finished, tmp_path / "runs"), CHAPTER)
    assert process.communicate(timeout=300)[0] == "done\n"
    assert any("another process works on it" in note for note in frame.attrs["notes"])
    assert contents(tmp_path / "runs") == contents(finished / "runs")


@pytest.mark.parametrize("part", ["checkpoint-00000100.safetensors", "table-", "spec.json", "origin-"])
@pytest.mark.parametrize("cut", [True, False])
def test_damage_of_every_kind_of_file_is_made_good(finished, copied, tmp_path, part, cut):
    profile, runs = copied, tmp_path / "copy"
    spec = spec_named(profile, "small")
    (file,) = [f for f in (runs / spec.id).iterdir() if f.name.startswith(part) and not f.name.endswith(".sha256")]
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] if cut else data[:-3] + bytes([data[-3] ^ 4]) + data[-2:])
    job = work(profile)
    assert job.store.verify() == 1
    assert str(file) in job.progress.notes[0]
    if part.startswith("checkpoint"):  # only a fresh measurement asks for it
        spec = spec.model_copy(update={"measure": spec.measure.model_copy(update={"contexts": 32})})
    experiment.compute(spec, job, profile)
    assert contents(finished / "runs").items() <= contents(runs).items()


def test_what_a_kill_behind_the_last_write_leaves_is_cleared_away(finished, copied, tmp_path):
    job, spec = work(copied), spec_named(copied, "small")
    run = job.store.run(spec.identity())
    run.write(f"part-{spec.key()}-7001-00000000.csv", b"a part")
    experiment.compute(spec, job, copied)
    assert contents(tmp_path / "copy") == contents(finished / "runs")
    more = spec.model_copy(update={"measure": spec.measure.model_copy(update={"contexts": 32})})
    run.write("resume-00000100.safetensors", run.read("checkpoint-00000100.safetensors"))
    experiment.compute(more, job, copied)
    assert run.names("resume-") == run.names("part-") == []


def test_a_damaged_resume_state_is_passed_over(finished, monkeypatch, tmp_path):
    profile = use(monkeypatch, finished, tmp_path / "runs")
    spec = spec_named(profile, "small")
    stop = work(profile, save_seconds=0.0)

    def stop_at(label, what, done, total):
        if done == 110:
            raise KeyboardInterrupt

    monkeypatch.setattr(stop.progress, "step", stop_at)
    with pytest.raises(KeyboardInterrupt):
        experiment.compute(spec, stop, profile)
    run = stop.store.run(spec.identity())
    states = run.names("resume-")
    assert states == ["resume-00000050.safetensors", "resume-00000100.safetensors"]
    (run.path / states[-1]).write_bytes(b"nonsense")
    job = work(profile)
    experiment.compute(spec, job, profile)
    assert states[-1] in job.progress.notes[0]
    whole = {n: c for n, c in contents(finished / "runs").items() if n.startswith(spec.id)}
    assert contents(tmp_path / "runs") == whole


def test_a_stage_that_is_over_stops_cleanly_and_goes_on(finished, monkeypatch, tmp_path):
    profile = use(monkeypatch, finished, tmp_path / "runs")
    specs = profile.runs(CHAPTER)
    stages = 0
    while True:
        stages += 1
        outcome = schedule.work_off(profile, specs, Silent(), until=time.monotonic() + 1.0)
        if not outcome.stopped:
            break
        assert stages < 100
    assert stages > 1
    assert contents(tmp_path / "runs") == contents(finished / "runs")
    with pytest.raises(StageOver):
        work(profile, until=0.0).check_time()


def test_runs_side_by_side_give_the_same_bytes(finished, monkeypatch, tmp_path):
    profile = use(monkeypatch, finished, tmp_path / "runs")
    seen = []
    outcome = schedule.work_off(
        profile, profile.runs(CHAPTER), Silent(), jobs=2, done=lambda spec: seen.append(spec.name)
    )
    assert not outcome.errors
    assert sorted(seen) == ["baselines", "early-sgd", "small", "small-sgd", "small-tuned"]
    assert seen.index("small") < min(seen.index("small-sgd"), seen.index("early-sgd"))
    assert contents(tmp_path / "runs") == contents(finished / "runs")


@pytest.mark.parametrize("moment", ["with its run unread", "while idle"])
def test_a_killed_worker_is_one_error_and_the_others_go_on(finished, monkeypatch, tmp_path, moment):
    profile, start, killed = use(monkeypatch, finished, tmp_path / "runs"), schedule._start_worker, []

    def start_and_kill(context, workers, *others):
        pipe = start(context, workers, *others)
        if not killed:
            killed.append(workers[pipe])
            workers[pipe].kill()
            if moment == "while idle":
                workers[pipe].join()
        return pipe

    monkeypatch.setattr(schedule, "_start_worker", start_and_kill)
    specs = [spec_named(profile, "baselines"), spec_named(profile, "small")]
    outcome = schedule.work_off(profile, specs, Silent(), jobs=2)
    assert [spec.name for spec in outcome.computed] == ["small"]
    assert len(outcome.errors) == 1
    assert "baselines" in outcome.errors[0]
    assert "its process ended with code -9; run again to resume" in outcome.errors[0]
    assert not schedule.work_off(profile, specs, Silent(), jobs=2).errors


def test_a_run_that_diverges_ends_with_a_message_and_does_not_stop_the_others(tiny):
    wild = spec_named(tiny, "small")
    wild = wild.model_copy(update={"name": "wild", "train": wild.train.model_copy(update={"lr": 1e30})})
    child = spec_named(tiny, "small-sgd")
    child = child.model_copy(update={"start": child.start.model_copy(update={"parent": wild})})
    outcome = schedule.work_off(tiny, [wild, child, spec_named(tiny, "baselines")], Silent())
    assert [spec.name for spec in outcome.computed] == ["baselines"]
    assert "diverged" in outcome.errors[0]
    assert "not run, because wild" in outcome.errors[1]


def test_a_broken_disk_is_one_clear_error(tiny, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SAMELOSS_RUNS", str(tmp_path / "file" / "runs"))
    with pytest.raises(UserError, match="cannot be written"):
        experiment.table(tiny, CHAPTER)


@pytest.fixture
def committed(finished, monkeypatch, tmp_path):
    """A copy of the finished project: a git repository whose profile is committed, and its store."""
    shutil.copytree(finished / "root", tmp_path / "root")
    shutil.copytree(finished / "runs", tmp_path / "runs")
    use(monkeypatch, tmp_path)
    return tmp_path / "root"


def test_results_are_published_with_provenance_and_read_instead_of_computed(committed, monkeypatch, tmp_path):
    tiny = load_profile("tiny")
    assert prepare.publish(tiny, [name for name in CHAPTERS if tiny.runs(name)], jobs=1)
    computed = experiment.table(tiny, CHAPTER)
    files = sorted((committed / "book" / "results" / "tiny" / CHAPTER).iterdir())
    assert sorted(file.name.split(".")[0] for file in files) == [
        "baselines",
        "early-sgd",
        "small",
        "small-sgd",
        "small-tuned",
    ]
    for file in files:
        rows = pd.read_csv(file)
        assert rows[[fact for fact in results.FACTS if fact not in results.ONCE]].notna().all(axis=None)
        assert rows.loc[0, list(results.FACTS)].notna().all()
        assert rows.loc[1:, results.ONCE].isna().all(axis=None), "in every row they are most of a file"
        assert rows["profile_revision"].iloc[0] == provenance.revision(committed / "book" / "profiles" / "tiny.yaml")
    assert experiment.complete("tiny")
    monkeypatch.setenv("SAMELOSS_RUNS", str(tmp_path / "empty"))
    read = experiment.table(tiny, CHAPTER)
    assert set(read["source"]) == {"from results"}
    assert read.attrs["origin"]["source"] == "from results"
    pd.testing.assert_frame_equal(read.drop(columns="source"), computed.assign(source=None).drop(columns="source"))
    assert not (tmp_path / "empty").exists()
    assert complaints("tiny") == []


def test_published_rows_are_for_exactly_their_spec(committed, monkeypatch, tmp_path):
    tiny = load_profile("tiny")
    prepare.publish(tiny, [CHAPTER], jobs=1)
    spec = spec_named(tiny, "small")
    more = spec.model_copy(update={"measure": spec.measure.model_copy(update={"contexts": 32})})
    assert results.read("tiny", CHAPTER, "small", spec.key()) is not None
    assert results.read("tiny", CHAPTER, "small", more.key()) is None
    file = results.path("tiny", CHAPTER, "small", spec.key())
    file.rename(results.path("tiny", CHAPTER, "small", more.key()))
    with pytest.raises(UserError, match="rows of another spec"):
        results.read("tiny", CHAPTER, "small", more.key())


def test_rows_that_each_name_their_whole_origin_are_read_alike_and_two_origins_are_refused(committed):
    tiny = load_profile("tiny")
    prepare.publish(tiny, [CHAPTER], jobs=1)
    key = spec_named(tiny, "small").key()
    file = results.path("tiny", CHAPTER, "small", key)
    expected = results.read("tiny", CHAPTER, "small", key)
    rows = pd.read_csv(file, dtype=str, keep_default_na=False)
    whole = rows.assign(**{fact: rows.loc[0, fact] for fact in results.ONCE})
    file.write_bytes(results.to_bytes(whole))
    again = results.read("tiny", CHAPTER, "small", key)
    pd.testing.assert_frame_equal(again, expected)
    assert again.attrs == expected.attrs
    for row, fact in ((3, "versions"), (0, "machine"), (2, "recipe")):
        changed = rows.copy()
        changed.loc[row, fact] = "" if row == 0 else "{}"
        file.write_bytes(results.to_bytes(changed))
        with pytest.raises(UserError, match="rows of another spec or profile"):
            results.read("tiny", CHAPTER, "small", key)


@pytest.mark.parametrize("damage", [b"", b"run,seed\n1", b"\xff\xfe\x00\x00", b'a,b\n"1'])
def test_a_damaged_results_file_is_named(committed, damage):
    file = results.path("tiny", CHAPTER, "small", "0" * 20)
    file.parent.mkdir(parents=True)
    file.write_bytes(damage)
    with pytest.raises(UserError) as caught:
        results.read("tiny", CHAPTER, "small", "0" * 20)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("{", "[", "recipe or versions are not JSON"), ("\n0.5,", "\n0.5x,", "column value, row 3: '0.5x' among numbers")],
)
def test_a_flipped_bit_in_a_results_file_is_named(committed, old, new, said):
    facts = {fact: "{}" if fact in ("recipe", "versions") else "0" for fact in results.FACTS}
    rows = pd.DataFrame({"value": [0.25, 0.5, 0.75], "n": 1}).assign(**facts | {"profile": "tiny", "key": "0" * 20})
    file = results.path("tiny", CHAPTER, "small", "0" * 20)
    file.parent.mkdir(parents=True)
    file.write_bytes(results.to_bytes(rows))
    assert results.read("tiny", CHAPTER, "small", "0" * 20) is not None
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(UserError) as caught:
        results.read("tiny", CHAPTER, "small", "0" * 20)
    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)


def test_nothing_is_published_before_the_predictions_are_committed(committed):
    tiny = load_profile("tiny")
    with (committed / "book" / "profiles" / "tiny.yaml").open("a") as file:
        file.write("# changed\n")
    with pytest.raises(UserError, match=r"commit it, with its predictions, before"):
        prepare.publish(tiny, [CHAPTER], jobs=1)
    shutil.rmtree(committed.parent / "runs" / spec_named(tiny, "baselines").id)
    frame = experiment.compute(spec_named(tiny, "baselines"), work(tiny), tiny)
    commit(committed, "too late")
    with pytest.raises(UserError, match="was run before the profile"):
        results.publish("tiny", CHAPTER, "baselines", "0" * 20, frame, [])
    assert not (committed / "book" / "results").exists()


def complaints(profile: str) -> list[str]:
    """What is wrong with the order of things: predictions have to be committed first and stay as they were.

    One line for every published file whose profile commit does not precede the run, whose predictions have changed, or
    that is another than it was when it was committed.
    """
    folder, file = f"book/results/{profile}", f"book/profiles/{profile}.yaml"
    changed = provenance.git("diff", "--name-only", "--diff-filter=M", "HEAD", "--", folder).splitlines()
    found = [f"{paths.root() / name}: differs from what was committed; restore it from git" for name in changed]
    now = predictions((paths.root() / file).read_text())
    for table in sorted((paths.root() / "book" / "results" / profile).glob("*/*.csv")):
        facts = results.parse(table.read_bytes())[["profile_revision", "date"]].drop_duplicates()
        chapter = table.parent.name
        for revision, date in facts.itertuples(index=False):
            when = provenance.git("show", "-s", "--format=%cI", revision) if results.committed(revision) else ""
            if not when:
                found.append(f"{table}: profile revision {revision} is no commit of this repository")
            elif pd.Timestamp(when) > pd.Timestamp(date):
                found.append(f"{table}: ran at {date}, before its profile was committed ({revision}, {when})")
            elif predictions(provenance.git("show", f"{revision}:{file}")).get(chapter) != now.get(chapter):
                found.append(f"{table}: the predictions of {chapter} have changed since {revision}")
    return found


def predictions(profile: str) -> dict[str, dict[str, str]]:
    chapters = (yaml.safe_load(profile) or {}).get("chapters") or {}
    return {name: settings.get("predictions") for name, settings in chapters.items()}


def test_predictions_changed_after_the_run_are_noticed(committed):
    tiny = load_profile("tiny")
    prepare.publish(tiny, [CHAPTER], jobs=1)
    data = yaml.safe_load((committed / "book" / "profiles" / "tiny.yaml").read_text())
    data["chapters"][CHAPTER]["predictions"] = {"C2": "as it came out"}
    (committed / "book" / "profiles" / "tiny.yaml").write_text(yaml.safe_dump(data))
    found = complaints("tiny")
    assert len(found) == 5
    assert "predictions of 02_same_loss have changed" in found[0]


def test_a_row_older_than_its_profile_is_noticed(committed):
    tiny = load_profile("tiny")
    prepare.publish(tiny, [CHAPTER], jobs=1)
    file = next((committed / "book" / "results" / "tiny" / CHAPTER).glob("small.*.csv"))
    text = file.read_text()
    date = pd.read_csv(file)["date"].iloc[0]
    file.write_text(text.replace(date, "2001-01-01T00:00:00Z"))
    assert "before its profile was committed" in complaints("tiny")[0]
    file.write_text(text.replace(provenance.revision(profiles.folder() / "tiny.yaml"), "0" * 12))
    assert "is no commit" in complaints("tiny")[0]


def test_a_committed_row_that_was_changed_is_noticed(committed):
    prepare.publish(load_profile("tiny"), [CHAPTER], jobs=1)
    commit(committed, "results")
    file = next((committed / "book" / "results" / "tiny" / CHAPTER).glob("small.*.csv"))
    head, _, last = file.read_text().rstrip("\n").rpartition("\n")
    file.write_text(f"{head}\n{last.replace('8', '9', 1)}\n")  # a digit: still a table, of the same spec
    assert complaints("tiny") == [f"{file}: differs from what was committed; restore it from git"]


def test_published_results_of_the_book_follow_their_predictions():
    for name in profiles.names():
        assert complaints(name) == []


def test_every_published_estimate_has_its_standard_error():
    files = list((Path(__file__).parents[1] / "book" / "results").glob("*/*/*.csv"))
    estimates = [table for table in map(pd.read_csv, files) if "quantity" in table]
    assert len(estimates) >= 10
    for table in estimates:
        assert (table["stderr"] >= 0).all(), table.loc[~(table["stderr"] >= 0), ["condition", "quantity"]]
        assert (table["n"] >= 1).all()


def test_a_table_that_a_chapter_computes_is_remembered(committed, monkeypatch):
    tiny = load_profile("tiny")
    calls = []

    def compute():
        calls.append(1)
        return pd.DataFrame({"rate": [0.1, 1 / 3], "what": ["a", ""]})

    first = experiment.remember(tiny, "03_sgd_flow", "ladder", {"steps": [1, 2]}, compute)
    again = experiment.remember(tiny, "03_sgd_flow", "ladder", {"steps": [1, 2]}, compute)
    pd.testing.assert_frame_equal(first, again)
    assert calls == [1]
    assert first["rate"].tolist() == [0.1, 1 / 3]
    assert first["what"].tolist() == ["a", ""]
    experiment.remember(tiny, "03_sgd_flow", "ladder", {"steps": [1, 3]}, compute)
    monkeypatch.setattr("sameloss.theory.RECIPE", 999)
    experiment.remember(tiny, "03_sgd_flow", "ladder", {"steps": [1, 2]}, compute)
    assert calls == [1, 1, 1]


def test_a_remembered_table_is_published_on_request(committed, monkeypatch, tmp_path):
    tiny = load_profile("tiny")
    monkeypatch.setenv("SAMELOSS_PUBLISH", "1")
    made = experiment.remember(tiny, "03_sgd_flow", "ladder", {}, lambda: pd.DataFrame({"rate": [0.5]}))
    monkeypatch.setenv("SAMELOSS_RUNS", str(tmp_path / "empty"))
    read = experiment.remember(tiny, "03_sgd_flow", "ladder", {}, lambda: pd.DataFrame())
    assert read["rate"].tolist() == made["rate"].tolist() == [0.5]
    assert read.attrs["origin"]["source"] == "from results"
