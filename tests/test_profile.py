"""Profiles: every key checked, every error one line that names file and key, whatever the file holds."""

import os

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sameloss.errors import UserError
from sameloss.runs import profile as profiles
from sameloss.runs.fields import PILOT_SEEDS
from sameloss.runs.profile import load_profile, names, read_profile
from sameloss.runs.settings import CHAPTERS

MINE = """
languages:
  tree: {kind: tree_grammar}
models:
  d16: {kind: transformer, width: 16, heads: 2, layers: 2}
  d32: {kind: transformer, width: 32, heads: 2, layers: 2}
training:
  hard: {objective: tokens, steps: 1000, lr: 0.003, checkpoints: [0, 500, 1000]}
measures:
  small: {contexts: 2048}
  scored: {contexts: 64, thresholds: [0.5], rare: 0.25}
"""
CONDITIONS = """
- {name: baselines, language: tree, measure: small}
- {name: d16-hard, language: tree, model: d16, train: hard, measure: small}
- {name: d32-hard, language: tree, model: d32, train: hard, measure: small}
"""


def smoke_with_known_parts() -> str:
    """The smoke profile as text, its parts and conditions replaced by those above."""
    data = yaml.safe_load((profiles.folder() / "smoke.yaml").read_text()) | yaml.safe_load(MINE)
    data["chapters"]["01_languages"] |= {"seeds": [7001], "floor_sentences": 4000}
    data["chapters"]["02_same_loss"]["conditions"] = yaml.safe_load(CONDITIONS)
    after = {"name": "d16-sgd", "after": "d16-hard", "weights": "ema", "train": "hard", "measure": "small"}
    data["chapters"]["04_flatness"] = {
        "seeds": [7001, 7002],
        "sizes": [["d16-hard", "d32-hard"]],
        "along": ["d16-sgd"],
        "conditions": [*yaml.safe_load(CONDITIONS), after],
    }
    zoom = {"models": ["d16-hard", "d32-hard"], "schedule": None, "pool": None, "lengths": []}
    scored = CONDITIONS.replace("measure: small", "measure: scored")
    data["chapters"]["06_zooming_out"] |= {"conditions": yaml.safe_load(scored)} | zoom
    equal = {"start": "d16-hard", "annealed": "d16-sgd", "twin": "d16-sgd", "pilot_effect": 0.1, "pilot_spread": 0.1}
    rescaled = after | {"name": "d16-rescaled", "rescale": 4}
    data["chapters"]["07_is_it_flatness"] |= {
        "equal": equal,
        "others": {"SAM": "d16-sgd"},
        "rescaled": {"run": "d16-rescaled", "twin": "d16-sgd"},
        "conditions": [*yaml.safe_load(CONDITIONS), dict(after), rescaled],
    }
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=10_000)


SMOKE = smoke_with_known_parts()


@pytest.fixture
def complaint(tmp_path):
    """The one line that reading a profile of this text ends with."""

    def read(text: str | bytes) -> str:
        file = tmp_path / "mine.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UserError) as caught:
            read_profile(file)
        line = str(caught.value)
        assert line.startswith(str(file))
        assert len(line.splitlines()) == 1
        return line

    return read


def changed(old: str, new: str) -> str:
    assert old in SMOKE
    return SMOKE.replace(old, new, 1)


def test_every_profile_of_the_book_is_valid():
    assert names()[:4] == ["smoke", "laptop", "gpu", "paper"]
    for name in names():
        assert load_profile(name).name == name


def test_no_profile_uses_a_seed_of_the_pilot():
    for name in names():
        for chapter in CHAPTERS:
            assert not PILOT_SEEDS.intersection(load_profile(name).chapter(chapter).seeds)


def test_profile_that_does_not_exist_names_those_that_do():
    with pytest.raises(UserError, match=r"no profile 'smok' .*did you mean 'smoke'.*smoke, laptop, gpu, paper"):
        load_profile("smok")


@pytest.mark.parametrize("name", ["../smoke", "/etc/passwd", "", "smoke.yaml", "smoke\n"])
def test_profile_name_is_no_path(name):
    with pytest.raises(UserError, match="no profile"):
        load_profile(name)


def test_chapter_without_settings_names_those_that_have_some():
    with pytest.raises(UserError, match=r"'02_sameloss'.*did you mean '02_same_loss'"):
        load_profile("smoke").chapter("02_sameloss")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "floor_sentences:",
            "floor_sentance:",
            "chapters.01_languages.floor_sentance: unknown key (did you mean 'floor_s",
        ),
        (
            "floor_sentences: 4000",
            "floor_sentences: -3",
            "floor_sentences: Input should be greater than or equal to 1; found -3",
        ),
        (
            "floor_sentences: 4000",
            'floor_sentences: "5"',
            "floor_sentences: Input should be a valid integer; found '5'",
        ),
        ("floor_sentences: 4000", "floor_sentences: true", "valid integer; found True"),
        ("floor_sentences: 4000", "floor_sentences: 4.5", "valid integer"),
        ("floor_sentences: 4000", "floor_sentences:", "found None"),
        ("floor_sentences: 4000", "floor_sentences: 10000000000000", "less than or equal to"),
        ("02_same_loss:", "02_sameloss:", "chapters.02_sameloss: unknown key (did you mean '02_same_loss'?)"),
        ("width: 16", "widht: 16", "models.d16.transformer.widht: unknown key (did you mean 'width'?); allowed: heads"),
        ("width: 16", "width: 0", "models.d16.transformer.width: Input should be greater"),
        ("kind: transformer, width: 16", "kind: transfomer, width: 16", "models.d16"),
        ("lr: 0.003", "lr: -1", "training.hard.lr: Input should be greater than 0; found -1"),
        ("lr: 0.003", "lr: fast", "training.hard.lr: Input should be a valid number; found 'fast'"),
        ("objective: tokens", "objectiv: tokens", "training.hard.objectiv: unknown key (did you mean 'objective'?)"),
        ("kind: tree_grammar", "kind: three_grammar", "languages.tree.kind: Input should be 'tree_grammar'"),
        (
            "model: d16, train: hard",
            "model: d17, train: hard",
            "d16-hard: model 'd17' is not defined; allowed: d16, d32",
        ),
        ("{name: d16-hard,", "{name: d16-hard, after: none,", "after 'none' is not defined; allowed: baselines"),
        ("{name: d32-hard,", "{name: d16-hard,", "d16-hard: two conditions of this name"),
        ("model: d16, train: hard,", "model: d16,", "d16-hard: model and train belong together"),
        ("[0, 500, 1000]", "[0, 2000]", "d16-hard: checkpoint 2000 is behind the last step, 1000"),
        ("name: smoke", "name: ../smoke", "name: String should match pattern"),
    ],
)
def test_a_fault_is_named_with_its_key(complaint, old, new, expected):
    assert expected in complaint(changed(old, new))


def test_seeds_of_the_pilot_and_repeated_seeds_are_refused(complaint):
    assert "belong to the pilot" in complaint(changed("seeds: [7001]", "seeds: [101]"))
    assert "must differ" in complaint(changed("seeds: [7001]", "seeds: [7001, 7001]"))
    assert "seeds" in complaint(changed("seeds: [7001]", "seeds: []"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SMOKE + "name: again\n", "duplicate key 'name'"),
        (SMOKE.replace("about:", "base: &b [1]\nmore: *b\nabout:"), "aliases (*name) are not allowed"),
        (SMOKE + "1: one\n", "keys must be text, found '1'"),
        (SMOKE + "? [a]\n: 1\n", "keys must be text"),
        ("[" * 5000, "nested too deeply"),
        ("a: " + "9" * 5000, "only text, finite numbers"),
        ("a: .nan", "only text, finite numbers"),
        ("a: 2020-01-01", "only text, finite numbers"),
        ("", "a profile is a mapping"),
        ("- a", "a profile is a mapping"),
        ("a: !!python/object/apply:os.system [touch planted]", "could not determine a constructor"),
        ("a: [", "line 1"),
        (b"\xff\xfe\x00", "not YAML text"),
        ("a: " + "x" * 1_000_000, "at most 1000000"),
    ],
)
def test_what_is_not_a_profile_is_refused_with_one_line(complaint, text, expected):
    assert expected in complaint(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_profile(tmp_path)


def test_scientific_notation_is_a_number(tmp_path):
    (tmp_path / "mine.yaml").write_text(changed("lr: 0.003", "lr: 4e-3"))
    assert read_profile(tmp_path / "mine.yaml").training["hard"].lr == 0.004


def test_name_in_the_file_has_to_be_the_files(monkeypatch, tmp_path):
    (tmp_path / "book" / "profiles").mkdir(parents=True)
    (tmp_path / "book" / "profiles" / "mine.yaml").write_text(SMOKE)
    monkeypatch.setenv("SAMELOSS_ROOT", str(tmp_path))
    with pytest.raises(UserError, match=r"name: found 'smoke'; it must be the file's name, 'mine'"):
        load_profile("mine")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.dates(),
    st.sampled_from(["1e-3", "0x1F"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10) | st.integers(), inner, max_size=4)
    ),
)


@st.composite
def mutated(draw):
    """The smoke profile with one value somewhere replaced, removed or added; or a text with a piece cut or put in."""
    if draw(st.booleans()):
        text = SMOKE
        i, j = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        return (text[:i] + draw(st.text(max_size=30)) + text[j:]).encode("utf-8", "surrogatepass")
    data = yaml.safe_load(SMOKE)
    node = data
    for _ in range(draw(st.integers(0, 5))):
        if not isinstance(node, (dict, list)) or not node:
            break
        key = draw(st.sampled_from(list(node) if isinstance(node, dict) else list(range(len(node)))))
        if draw(st.integers(0, 3)) == 0:
            node[key] = draw(VALUES)
            break
        node = node[key]
    else:
        if isinstance(node, dict):
            node[draw(st.text(max_size=10))] = draw(VALUES)
    return yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "surrogatepass")


def only_user_errors(file, data):
    file.write_bytes(data)
    try:
        text = read_profile(file).model_dump_json()
    except UserError as error:
        text = str(error)
    assert text
    assert len(text.splitlines()) == 1


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.one_of(mutated(), st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode("utf-8", "ignore")))
)
def test_whatever_the_file_holds_only_user_errors_come_out(tmp_path, data):
    only_user_errors(tmp_path / "fuzz.yaml", data)


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.one_of(mutated(), st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode("utf-8", "ignore")))
)
def test_soak_whatever_the_file_holds_only_user_errors_come_out(tmp_path, data):
    only_user_errors(tmp_path / "fuzz.yaml", data)


def test_reading_a_profile_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.yaml").write_text("name: !!python/object/apply:os.mkdir [planted]\n")
    with pytest.raises(UserError):
        read_profile(tmp_path / "evil.yaml")
    assert os.listdir(tmp_path) == ["evil.yaml"]


def test_heads_that_do_not_divide_the_width_are_named_without_the_whole_section(complaint):
    line = complaint(changed("width: 16, heads: 2", "width: 16, heads: 3"))
    assert line.endswith("models.d16.transformer: heads: found 3; allowed: divisors of the width, 16")
    data = yaml.safe_load(SMOKE)
    data["chapters"]["03_sgd_flow"]["network"]["model"]["heads"] = 3
    assert "chapters.03_sgd_flow.network.model: heads: found 3; allowed: divisors" in complaint(yaml.safe_dump(data))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            "steps",
            [64, 1024, 256, 4096],
            "steps: found [64, 1024, 256, 4096]; allowed: each larger than the one before",
        ),
        ("live_steps", [64, 64, 256], "live_steps: found [64, 64, 256]; allowed: each larger"),
        ("replicas", 1, "replicas: Input should be greater than or equal to 2; found 1"),
        ("live_replicas", 1, "live_replicas: Input should be greater than or equal to 2; found 1"),
        ("fit_below", 0.1, "fit_below: found 0.1, with 2 of the learning rates sqrt(duration / steps) below it"),
    ],
)
def test_a_ladder_that_cannot_be_fitted_is_refused(complaint, key, value, expected):
    data = yaml.safe_load(SMOKE)
    data["chapters"]["03_sgd_flow"][key] = value
    line = complaint(yaml.safe_dump(data))
    assert "chapters.03_sgd_flow" in line
    assert expected in line


@pytest.mark.parametrize("duration", [3.01, 0.02])
def test_a_descent_that_misses_its_end_is_refused(complaint, duration):
    data = yaml.safe_load(SMOKE)
    data["chapters"]["05_dyck"]["duration"] = duration
    line = complaint(yaml.safe_dump(data))
    assert f"duration: found {duration:g}; allowed: whole multiples of the rate, 0.04" in line


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("sizes: [d16-hard, d32-hard]", "sizes: [d16-hard, nope]", "sizes: found nope; allowed: baselines, d16-hard"),
        ("sizes: [d16-hard, d32-hard]", "sizes: [d16-hard, d16-hard]", "sizes must differ from each other"),
        ("sizes: [d16-hard, d32-hard]", "sizes: [d16-hard, baselines]", "sizes: baselines trains no model"),
        ("name: baselines", "name: floor", "conditions: the chapter needs one named baselines, without a model"),
        ("tasks: [A, B, C]", "tasks: [A, Z]", "task 'Z' is none of tree_grammar's; allowed: A, B, C, left"),
        ("tasks: [A, B, C]", "tasks: [A, A]", "tasks must differ from each other"),
        ("contexts: 2048", "contexts: 2048, tasks: [Z]", "task 'Z' is none of tree_grammar's"),
        ("contexts: 2048", "contexts: 2048, tasks: [A, B]", "task 'C' is not measured by d16-hard; allowed: A, B"),
        ("checkpoints: [0, 500, 1000]", "checkpoints: [-1, 500]", "checkpoints: found -1; allowed: steps from 0"),
        ("checkpoints: [0, 500, 1000]", "checkpoints: [5, 5]", "checkpoints must differ from each other"),
    ],
)
def test_what_would_be_noticed_after_training_is_refused_before(complaint, old, new, expected):
    assert expected in complaint(changed(old, new))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sizes": [["d16-hard"]]}, "sizes"),
        ({"along": ["d16"]}, "along: found d16; allowed: baselines, d16-hard, d32-hard, d16-sgd"),
        ({"along": ["d16-hard"]}, "along: d16-hard continues no other condition"),
        ({"attack": {"runs": ["d16-sgd"], "twin": "baselines"}}, "attack: baselines trains no model"),
        ({"equal": {"start": "d16-hard", "annealed": "d16-sgd", "twin": "d32-hard"}}, "equal.pilot_effect"),
    ],
)
def test_chapter_four_compares_what_is_trained(complaint, changes, says):
    data = yaml.safe_load(SMOKE)
    data["chapters"]["04_flatness"] |= changes
    line = complaint(yaml.safe_dump(data))
    assert "chapters.04_flatness" in line
    assert says in line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"near": 0.2}, "near: found 0.2; allowed: at most far, 0.1"),
        ({"models": ["d16-hard", "nope"]}, "models: found nope; allowed: baselines, d16-hard, d32-hard"),
        ({"models": ["d16-hard", "d16-hard"]}, "models must differ from each other"),
        ({"lengths": ["baselines"]}, "lengths: baselines trains no model"),
        ({"pool": {"run": "d32-hard", "fresh": "d32"}}, "pool: found d32; allowed: baselines, d16-hard"),
        ({"schedule": {"constant": "d32-hard", "decayed": []}}, "schedule.decayed"),
        ({"tasks": ["Z"]}, "task 'Z' is none of tree_grammar's"),
        ({"conditions": yaml.safe_load(CONDITIONS)}, "d16-hard: its measure has no thresholds"),
        ({"pool": {"run": "d32-hard", "fresh": "d16-hard"}}, "d32-hard: its measure has no pool_contexts"),
    ],
)
def test_chapter_six_compares_what_is_trained(complaint, changes, says):
    data = yaml.safe_load(SMOKE)
    data["chapters"]["06_zooming_out"] |= changes
    line = complaint(yaml.safe_dump(data))
    assert "chapters.06_zooming_out" in line
    assert says in line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"others": {"SAM": "nope"}}, "others: found nope; allowed: baselines, d16-hard"),
        ({"others": {"SAM": "d32-hard"}}, "others: d32-hard continues no other condition"),
        ({"others": {"": "d16-sgd"}}, "String should match pattern"),
        ({"rescaled": {"run": "d16-sgd", "twin": "d16-sgd"}}, "rescaled: d16-sgd starts as it is; give it a rescale"),
        ({"rescaled": {"run": "d16-rescaled", "twin": "d16"}}, "rescaled: found d16; allowed: baselines"),
    ],
)
def test_chapter_seven_compares_what_is_continued(complaint, changes, says):
    data = yaml.safe_load(SMOKE)
    data["chapters"]["07_is_it_flatness"] |= changes
    line = complaint(yaml.safe_dump(data))
    assert "chapters.07_is_it_flatness" in line
    assert says in line


def test_chapter_seven_starts_from_a_trained_model(complaint):
    line = complaint(changed("start: d16-hard", "start: baselines"))
    assert "equal: found start baselines; allowed: a condition that trains a model" in line


@pytest.mark.parametrize("key", ["rescale: 4", "stacks: 1"])
def test_what_belongs_to_a_continued_run_is_refused_elsewhere(complaint, key):
    old = "{name: d32-hard, language: tree, model: d32, train: hard, measure: small"
    line = complaint(changed(old, f"{old}, {key}"))
    assert f"d32-hard: {key.split(':')[0]} belongs to a condition with `after`" in line


def test_stacks_leave_the_later_seeds_out():
    profile = load_profile("laptop")
    by_name = {spec.name: spec for spec in profile.runs("07_is_it_flatness")}
    runs = [spec for spec in profile.runs("07_is_it_flatness") if spec.name in ("d16-soft", "d16-sam")]
    assert [len(spec.seeds) for spec in runs] == [8, 8, 8, 8]
    assert by_name["d16-sam"].seeds == profile.chapter("07_is_it_flatness").seeds


def test_a_loss_on_the_pool_needs_a_pool(complaint):
    line = complaint(changed("contexts: 2048", "contexts: 2048, pool_contexts: 64"))
    assert "pool_contexts: this run is trained on fresh sentences; give train a pool" in line
