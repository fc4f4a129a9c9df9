"""The same runs by several processes: a real Dask cluster over TCP with one worker killed; torchrun with gloo."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from sameloss.errors import UserError
from sameloss.learners.contexts import Contexts
from sameloss.learners.share import Share
from sameloss.runs import cluster, experiment, prepare, schedule
from sameloss.runs.profile import load_profile
from sameloss.runs.progress import Silent
from sameloss.runs.store import Store

CHAPTER = "02_same_loss"
CONDITIONS = """
- {name: baselines, language: tree, measure: little}
- {name: small, language: tree, model: d8, train: long, measure: little}
- {name: large, language: tree, model: d8, train: short, measure: little}
- {name: small-sgd, after: small, weights: ema, train: sgd, measure: little}
"""
PARTS = """
languages: {tree: {kind: tree_grammar, share: 0, among: 64}}
models: {d8: {kind: transformer, width: 8, heads: 2, layers: 1}}
training:
  long: {steps: 600, batch: 16, lr: 3e-3, ema: 0.9, checkpoints: [0, 200, 400]}
  short: {steps: 40, batch: 16, lr: 3e-3, ema: 0.9}
  sgd: {optimizer: sgd, steps: 40, batch: 16, lr: 0.05, stage: sgd}
measures: {little: {contexts: 64, trace_contexts: 8, probe_train: 0, probe_test: 0}}
"""


@pytest.fixture
def tiny(tmp_path, root, monkeypatch):
    """A project of one tiny profile; gives the profile."""
    data = yaml.safe_load((root / "book" / "profiles" / "smoke.yaml").read_text())
    for section, parts in yaml.safe_load(PARTS).items():
        data[section] |= parts
    data |= {"name": "tiny", "device": "cpu"}
    data["chapters"][CHAPTER] |= {
        "seeds": [7001],
        "conditions": yaml.safe_load(CONDITIONS),
        "sizes": ["small", "large"],
    }
    folder = tmp_path / "root" / "book" / "profiles"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(data))
    monkeypatch.setenv("SAMELOSS_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("SAMELOSS_RUNS", str(tmp_path / "shared"))
    return load_profile("tiny")


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    """A scheduler and two workers, each a process: the scheduler's address, and the workers by name."""
    folder = tmp_path_factory.mktemp("dask")
    with contextlib.ExitStack() as stack:

        def start(what: str, *options: str) -> subprocess.Popen:
            log = stack.enter_context((folder / f"{what}{len(options)}.log").open("a"))
            command = [sys.executable, "-m", "distributed.cli." + what, *options, "--no-dashboard"]
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        file = str(folder / "scheduler.json")
        start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file)
        options = ("--scheduler-file", file, "--nthreads", "1", "--no-nanny", "--local-directory", str(folder))
        workers = {name: start("dask_worker", "--name", name, *options) for name in ("a", "b")}
        while not Path(file).exists() or not Path(file).read_text().endswith("}"):
            time.sleep(0.1)
        yield yaml.safe_load(Path(file).read_text())["address"], workers


def contents(store: Path) -> dict[str, bytes]:
    files = [f for f in store.rglob("*") if f.is_file() and f.parent.name != "locks" and "origin" not in f.name]
    return {str(f.relative_to(store)): f.read_bytes() for f in files}


def test_a_run_that_fails_takes_along_only_what_continues_it(tiny, dask):
    specs = {spec.name: spec for spec in tiny.runs(CHAPTER)}
    wild = specs["small"].model_copy(update={"train": specs["small"].train.model_copy(update={"lr": 1e30})})
    start = specs["small-sgd"].start.model_copy(update={"parent": wild})
    child = specs["small-sgd"].model_copy(update={"start": start})
    outcome = schedule.work_off(tiny, [wild, child, specs["baselines"]], Silent(), scheduler=dask[0])
    assert [spec.name for spec in outcome.computed] == ["baselines"]
    assert ["diverged" in outcome.errors[0], "not run, because small" in outcome.errors[1]] == [True, True]
    stopped = schedule.work_off(tiny, [specs["large"]], Silent(), until=time.monotonic(), scheduler=dask[0])
    assert [spec.name for spec in stopped.stopped] == ["large"]


def test_runs_on_a_cluster_whose_worker_is_killed_give_the_same_bytes(tiny, dask, tmp_path, monkeypatch):
    address, workers = dask
    killed = []

    class KillOnce(Silent):
        """Kills the worker that trains the parent of another run, in the middle of it."""

        def step(self, label, what, done, total):
            if not killed and label.startswith("small ") and what == "training" and 0 < done < total:
                run = Store(tmp_path / "shared", print).run(tiny.runs(CHAPTER)[1].identity())
                killed.append(run.path.name)
                by_name = {w["name"]: address for address, w in client.scheduler_info()["workers"].items()}
                busy = client.processing()
                name = next(name for name, at in by_name.items() if any("small " in key for key in busy[at]))
                workers[name].kill()

    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        finished = []
        outcome = schedule.work_off(
            tiny, tiny.runs(CHAPTER), KillOnce(), done=lambda spec: finished.append(spec.name), scheduler=address
        )
    assert killed
    assert sorted(process.poll() is None for process in workers.values()) == [False, True]
    assert outcome.errors == []
    assert sorted(finished) == ["baselines", "large", "small", "small-sgd"]
    assert finished.index("small") < finished.index("small-sgd")
    monkeypatch.setenv("SAMELOSS_RUNS", str(tmp_path / "alone"))
    prepare.prepare(tiny, [CHAPTER], jobs=1)
    assert contents(tmp_path / "shared") == contents(tmp_path / "alone")


def test_a_worker_of_another_version_is_told_of(tiny):
    spec = tiny.runs(CHAPTER)[0]
    said = cluster.task(None, "topic", tiny.model_dump_json(), spec.model_dump_json(), "another key", "/nowhere", 0.0)
    assert said.startswith("a worker has another version of sameloss")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense://", "tcp://:"])
def test_no_scheduler_is_one_clear_line(tiny, address, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", "1s")
    with pytest.raises(UserError, match=r"--scheduler '.*': no Dask scheduler answers there") as refused:
        prepare.prepare(tiny, [CHAPTER], scheduler=address)
    assert len(str(refused.value).splitlines()) == 1


TOGETHER = """
from sameloss.runs import prepare, ranks
from sameloss.runs.profile import load_profile
ranks.together(lambda: prepare.prepare(load_profile("tiny"), ["02_same_loss"], jobs=2))
"""


def test_two_ranks_have_the_loss_curve_of_one_process(tiny, tmp_path, monkeypatch):
    """Each takes half of every batch; only rank 0 writes. Equal but for the order in which floats are added."""
    (tmp_path / "together.py").write_text(TOGETHER)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "SAMELOSS_RUNS": str(tmp_path / "two")}
    done = subprocess.run(
        [*launch, str(tmp_path / "together.py")], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("runs: 4 computed") == 1
    tables = []
    for name in ("two", "one"):
        monkeypatch.setenv("SAMELOSS_RUNS", str(tmp_path / name))
        tables.append(experiment.table(tiny, CHAPTER))
    two, one = tables
    trained = one["condition"] != "baselines"
    assert one[~trained]["value"].tolist() == two[~trained]["value"].tolist()
    assert set(one[one["condition"] == "small"]["step"]) == {0, 200, 400, 600}
    assert np.allclose(one["value"], two["value"], rtol=1e-4)
    assert not np.array_equal(one[trained]["value"], two[trained]["value"])  # or only one process has trained
    assert Store(tmp_path / "two", print).verify() == 0


def test_a_batch_that_cannot_be_dealt_out_evenly_is_refused():
    batch = Contexts(torch.zeros(1, 5, 3), torch.zeros(1, 5), torch.zeros(1, 5))
    with pytest.raises(UserError, match="a batch of 5 cannot be shared by 2 processes"):
        Share(0, 2).of(batch)
