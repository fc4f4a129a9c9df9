"""What a run will take: counted on shapes alone, against counts by hand and a real run; refused if it is too much."""

import os
import re
import subprocess
import sys

import pytest

from sameloss.errors import UserError
from sameloss.learners.lstm import LSTMConfig
from sameloss.learners.pretrain import TrainConfig
from sameloss.learners.transformer import TransformerConfig
from sameloss.runs import experiment, plan
from sameloss.runs.profile import load_profile
from sameloss.runs.progress import Silent
from sameloss.runs.spec import LanguageSpec, Measure, RunSpec, TransformerSpec

MEASURE = Measure(contexts=64, trace_contexts=0, probe_train=0, probe_test=0)


def spec(width=16, **train) -> RunSpec:
    return RunSpec(
        name="one",
        language=LanguageSpec(kind="tree_grammar", share=0, among=1),
        seeds=(7001,),
        model=TransformerSpec(kind="transformer", width=width, heads=2, layers=2),
        train=TrainConfig(**{"steps": 2, "batch": 64, **train}),
        measure=MEASURE,
    )


def test_a_transformers_operations_are_those_counted_by_hand():
    V, T, d, L = 11, 6, 8, 3
    found = plan.traced(TransformerConfig(vocab=V, length=T, width=d, heads=2, layers=L), bf16=False)
    whole = 2 * T * d * 12 * d + 2 * 2 * T * T * d  # qkv, out, up, down; scores and mixture
    last = 2 * T * d * 3 * d + 2 * 2 * T * d + 2 * d * 9 * d  # one query: only keys and values everywhere
    forward = (L - 1) * whole + last + 2 * d * V
    assert found.operations == 3 * forward * plan.TRACED  # backward: each product twice
    assert found.parameters == (V + 3) * d + (T + 1) * d + L * (12 * d * d + 13 * d) + 2 * d + V * (d + 1)


def test_an_lstms_operations_are_those_counted_by_hand():
    V, T, d = 11, 6, 8
    found = plan.traced(LSTMConfig(vocab=V, length=T, width=d), bf16=False)
    forward = 2 * T * (2 * d * 4 * d + 2 * d * 4 * d) + 2 * 2 * d * V
    # The first state is zero and the last one of either direction leads nowhere further: no gradient to the former.
    assert found.operations == pytest.approx(3 * forward * plan.TRACED, rel=0.06)
    assert found.parameters == (V + 3) * d + 2 * (8 * d * d + 4 * d) + V * (2 * d + 1)


def test_half_precision_keeps_less():
    shape = TransformerConfig(vocab=11, length=16, width=64, heads=2, layers=4)
    whole, half = plan.traced(shape, bf16=False), plan.traced(shape, bf16=True)
    assert half.operations == whole.operations
    assert 0.45 < half.kept / whole.kept < 0.75


MEASURED = """
import pathlib, resource, sys
from sameloss.learners.pretrain import pretrain
from sameloss.runs.spec import RunSpec
from sameloss.runs.training import Subject
def peak():
    status = pathlib.Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: in bytes
    # On Linux ru_maxrss begins at the size of the process that started this one.
    return next(1024 * int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
spec = RunSpec.model_validate_json(sys.argv[1])
subject = Subject(spec)
few = spec.train.model_copy(update={"batch": 8})
pretrain(subject.model, subject.languages, few, spec.seeds)
before = peak()
pretrain(subject.model, subject.languages, spec.train, spec.seeds)
print(peak() - before)
"""


def test_memory_is_what_a_real_run_takes():
    large = spec(width=128, batch=4096, steps=1)
    command = [sys.executable, "-c", MEASURED, large.model_dump_json()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    said = plan.memory(large, plan.shape(large))
    assert said > 4e8
    assert 0.6 < said / float(done.stdout) < 1.5


def test_every_model_of_the_gpu_profile_fits_one_gpu_and_the_largest_of_the_paper_does_not():
    told = {}
    for name in ("gpu", "paper"):
        *head, _, last = plan.lines(load_profile(name), ["02_same_loss", "05_dyck"], "h200")
        assert "within a factor" in last
        told[name] = {line.split()[0]: line for line in head[1:]}
        trains = {s.name for s in load_profile(name).runs("02_same_loss") if s.train}
        assert told[name].keys() == trains
        for condition, line in told[name].items():
            claimed = float(re.search(r"[tl](\d+)m-hard", condition)[1])
            assert abs(float(line.split()[2].replace(",", "")) / 1e6 / claimed - 1) <= 0.10
    assert not [line for line in told["gpu"].values() if "does not fit" in line]
    assert [name for name, line in told["paper"].items() if "does not fit into 141 GB" in line] == ["t730m-hard"]


def test_gradients_that_are_taken_more_than_once_are_counted():
    device, plain = plan.DEVICES["h200"], spec(steps=1000)
    once = plan.plan(plain, device).operations
    assert plan.plan(spec(steps=1000, sam=0.05), device).operations == pytest.approx(2 * once, rel=1e-3)
    assert plan.plan(spec(steps=1000, trace={"price": 0.01}), device).operations == pytest.approx(4 * once, rel=1e-3)


def test_this_machine_is_measured_and_an_unknown_device_refused():
    here = plan.device_named("cpu")
    assert 1e8 < here.float32 < 1e14
    assert 1e6 < here.memory < 1e15
    assert plan.plan(spec(steps=200), here).seconds > plan.plan(spec(steps=100), here).seconds > 0
    with pytest.raises(UserError, match=r"--device 'tpu'; allowed: cpu .*h200"):
        plan.device_named("tpu")


def test_a_run_that_does_not_fit_is_refused_before_it_starts(monkeypatch, tmp_path):
    monkeypatch.setenv("SAMELOSS_RUNS", str(tmp_path / "runs"))
    profile, silent = load_profile("smoke"), Silent()
    work = experiment.work_for(profile, silent)
    free = plan.memory(spec(), plan.shape(spec()))
    monkeypatch.setattr(plan, "available", lambda device: 0.9 * free)
    with pytest.raises(
        UserError, match=r"one \w{6}: needs about .* GB of memory on cpu, .* GB are free; allowed: a sm"
    ):
        experiment.compute(spec(), work, profile)
    assert not list((tmp_path / "runs").rglob("*.safetensors"))
    monkeypatch.setattr(plan, "available", lambda device: 1.1 * free)
    assert len(experiment.compute(spec(), work, profile))


def test_a_run_that_several_gpus_share_takes_less_of_each():
    large = spec(width=128, batch=4096)
    shared = plan.memory(large, plan.shape(large), batch=1024)
    assert shared < 0.4 * plan.memory(large, plan.shape(large))
