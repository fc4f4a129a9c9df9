"""The statistics of chapter 2: right on tables whose answers are known by construction, and told apart from luck."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import prose
import pytest

from sameloss.errors import UserError
from sameloss.measures import matched
from sameloss.measures.estimate import Estimate
from sameloss.pages import claims, same_loss_tables, words
from sameloss.runs import compare, same_loss
from sameloss.runs.families import families
from sameloss.runs.profile import load_profile

B = ("accuracy", "B", "unmasked")


CHAPTER = Path(__file__).resolve().parents[1] / "book" / "02_same_loss.md"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"task": "Z"}, "parameter task: found 'Z'; allowed: one of A, B, C"),
        ({"features": "unmasked-64"}, "parameter features: found 'unmasked-64'; allowed: one of unmasked, masked"),
        ({"profile": "lapotp"}, "no profile 'lapotp'"),
    ],
)
def test_bad_parameters_of_the_chapter_are_refused_in_one_line(given, complaint, monkeypatch, tmp_path):
    monkeypatch.setenv("SAMELOSS_BUILD", str(tmp_path))
    parameters, check = (cell.code for cell in prose.cells(CHAPTER.read_text())[:2])
    names: dict = {}
    exec(parameters, names)
    with pytest.raises(UserError, match=complaint) as refused:
        exec(check, names | given)
    assert "\n" not in str(refused.value)


def run(name, kls, accuracy, seeds=range(8), steps=None, **more):
    """Rows of one condition: KL and accuracies (a function of KL and seed) at each checkpoint."""
    rows = []
    for seed in seeds:
        for step, kl in zip(steps or [100 * (i + 1) for i in range(len(kls))], kls, strict=True):
            base = {"condition": name, "seed": seed, "step": step, "weights": "ema", "stderr": 0.01, "n": 100}
            rows.append(base | {"quantity": "kl", "task": "", "features": "", "value": kl})
            for what, score in {B: accuracy, **more.get("others", {})}.items():
                keys = dict(zip(("quantity", "task", "features"), what, strict=True))
                rows.append(base | keys | {"value": score(kl, seed)})
    return pd.DataFrame(rows)


def law(gap):
    return lambda kl, seed: 0.5 - 0.1 * math.log(kl) + gap + 0.01 * seed


def test_a_gap_that_is_constant_in_log_kl_is_found_at_one_level_and_over_the_range():
    table = pd.concat([run("a", [0.1, 0.02, 0.01], law(0)), run("b", [0.08, 0.015, 0.004], law(0.03))])
    for comparison in (compare.at_equal_kl, compare.over_common_kl):
        pairs = comparison(table, "a", "b", *B)
        assert compare.comparable(pairs)
        assert pairs["kl"].tolist() == pytest.approx([0.01] * 8)
        assert compare.gap(pairs).value == pytest.approx(0.03)


def test_the_untrained_network_is_on_no_trajectory():
    table = run("a", [3.0, 0.02, 0.01], law(0), steps=[0, 10, 20])
    assert compare.path(table, ["a"], *B)["step"].unique().tolist() == [10, 20]
    assert compare.untrained(table, "a", *B)[3] == pytest.approx(law(0)(3.0, 3))


def test_an_attack_is_read_against_its_twins_path_and_not_against_start_or_end():
    table = pd.concat(
        [
            run("start", [0.02, 0.01], law(0)),
            run("twin", [0.008, 0.005], law(0)),
            run("attack", [0.009, 0.007], law(-0.2)),
            run("higher", [0.009, 0.0125], law(-0.2)),
            run("lower", [0.009, 0.0048], law(-0.2)),
            run("beyond", [0.009, 0.002], law(-0.2)),
        ]
    )
    against = {
        b: compare.against_path(table, ["start", "twin"], b, *B) for b in ("attack", "higher", "lower", "beyond")
    }
    assert compare.gap(against["attack"]).value == pytest.approx(-0.2)  # between the twin's checkpoints
    assert compare.gap(against["higher"]).value == pytest.approx(-0.2)  # back on the parent's path
    assert compare.gap(against["lower"]).value == pytest.approx(
        law(-0.2)(0.0048, 0) - law(0)(0.005, 0)
    )  # equal to the end
    assert not compare.comparable(against["beyond"])
    assert math.isnan(compare.gap(against["beyond"]).value)
    ends = compare.last_checkpoints(table, "twin", "attack", *B)
    assert ends["delta"].tolist() == pytest.approx([0.002] * 8)
    assert compare.gap(ends).value < -0.2  # the final twin has the lower loss


def test_a_small_model_never_has_the_lower_loss():
    table = pd.concat(
        [
            run("small", [0.02, 0.004], law(0)),
            run("worse", [0.03, 0.02], law(0)),
            run("attack", [0.01, 0.01], law(-0.1)),
        ]
    )
    assert compare.gap(compare.no_worse_loss(table, "small", "attack", *B)).value == pytest.approx(-0.1)
    pairs = compare.no_worse_loss(table, "worse", "attack", *B)
    assert pairs["kl"].tolist() == [0.02] * 8
    assert pairs["a"].tolist() == pytest.approx([law(0)(0.02, seed) for seed in range(8)])


@pytest.mark.parametrize("extra", [0.0, 0.05])
def test_what_the_loss_explains_is_taken_from_a_gain(extra):
    def longer(kl, seed):  # a gain that goes with training on, beyond the law
        return law(0)(kl, seed) + extra * (math.log(0.04 / kl) / math.log(10))

    table = pd.concat([run("long", [0.04, 0.02, 0.004], longer), run("control", [0.03, 0.006, 0.001], law(0.1))])
    pairs = compare.explained_by_kl(table, "long", "control", *B)
    assert pairs["kl"].tolist() == pytest.approx([0.004] * 8)
    assert pairs["high"].tolist() == pytest.approx([0.03] * 8)
    assert pairs["a"].tolist() == pytest.approx([0.1 * math.log(7.5)] * 8)
    assert compare.gap(pairs).value == pytest.approx(extra * math.log(7.5) / math.log(10))
    apart = pd.concat([run("long", [0.04, 0.02], longer), run("control", [0.01, 0.001], law(0))])
    assert not compare.comparable(compare.explained_by_kl(apart, "long", "control", *B))


def test_training_on_starts_at_a_quarter_of_the_steps():
    table = run("a", [0.1, 0.02, 0.01, 0.005], law(0), steps=[1000, 3000, 6000, 12000])
    pairs = compare.training_on(table, "a", *B)
    assert pairs["fall"].tolist() == pytest.approx([0.015] * 8)
    assert compare.gap(pairs).value == pytest.approx(0.1 * math.log(4))


def test_page_finds_a_trend_and_only_in_its_direction():
    up = pd.concat([run(name, [0.1, 0.01], law(gap)) for name, gap in (("a", 0), ("b", 0.1), ("c", 0.2))])
    level, p = compare.trend(up, ["a", "b", "c"], *B)
    assert level == 8 * (1 + 4 + 9)
    assert p < 1e-4
    assert compare.trend(up, ["c", "b", "a"], *B)[1] > 0.99
    assert math.isnan(compare.trend(up, ["a", "b"], *B)[1])


def test_a_range_needs_two_levels_and_a_mean_stays_inside():
    assert matched.span(np.array([0.1, 0.01]), np.array([0.05, 0.001])) == (0.01, 0.05)
    assert math.isnan(matched.span(np.array([0.1, 0.01]), np.array([0.01, 0.001]))[0])
    assert matched.mean_over(np.array([1.0, 0.01]), np.array([0.0, 1.0]), 0.01, 1.0) == pytest.approx(0.5)
    assert math.isnan(matched.near_kl(np.array([0.1, 0.01]), np.array([0.0, 1.0]), 0.0096))
    assert matched.near_kl(np.array([0.1, 0.01]), np.array([0.0, 1.0]), 0.0098) == 1.0


def test_what_the_table_lacks_is_named():
    with pytest.raises(UserError, match="no condition 'b' in this table; allowed: a"):
        compare.at_equal_kl(run("a", [0.1], law(0)), "a", "b", *B)
    with pytest.raises(UserError, match="a: no rows with task = 'C'; found"):
        compare.at_equal_kl(run("a", [0.1], law(0)), "a", "a", "accuracy", "C", "unmasked")


def test_the_laptops_conditions_find_their_families():
    profile = load_profile("laptop")
    kin = families(profile.runs("02_same_loss"), profile.chapter("02_same_loss").sizes)
    tree, chain, text = (kin[kind] for kind in ("tree_grammar", "twelve_state_chain", "lm_text"))
    assert (tree.baselines, chain.baselines, text.baselines) == ("baselines", "chain-baselines", "text-baselines")
    assert tree.sizes == ("d16-hard", "d32-hard", "d64-hard")  # the smallest is trained for its curve alone
    assert chain.sizes == ("chain-lstm16-hard", "chain-lstm64-hard")
    assert tree.controls == {f"d{d}-hard": f"d{d}-oracle" for d in (16, 32, 64)}
    assert {attack.twin for attack in tree.attacks} == {"d32-twin"}
    assert {attack.parent for attack in tree.attacks} == {tree.studied} == {"d32-hard"}
    assert {("unmasked", "differentiable"), ("masked", "differentiable"), ("unmasked", "fixed")} <= {
        (attack.features, attack.head) for attack in tree.attacks
    }
    assert (chain.main, text.main, text.features, tree.projected) == (
        "state-5",
        "continuation",
        "masked",
        "unmasked-64",
    )
    assert not chain.attacks
    assert text.seeds == (2001, 2002, 2003, 2004, 2005)


@pytest.mark.parametrize("name", ["gpu", "paper"])
def test_profiles_with_fewer_conditions_have_families_too(name):
    profile = load_profile(name)
    kin = families(profile.runs("02_same_loss"), profile.chapter("02_same_loss").sizes)
    assert kin["paper_pcfg"].studied == kin["paper_pcfg"].sizes[-1]
    assert len(kin["paper_pcfg"].seeds) == 8


@pytest.fixture
def made():
    """A PCFG's table at laptop by construction: larger is better by .02, the adversary costs .1, lookup .05."""
    profile = load_profile("laptop")
    kin = families(profile.runs("02_same_loss"), profile.chapter("02_same_loss").sizes)
    views = [("accuracy", "B", kind) for kind in ("unmasked-64", "masked", "masked-64", "fine-tuned")]

    def noisy(gap):
        return lambda kl, seed: law(gap)(kl, 0) + 0.001 * ((seed * 7) % 5)

    def all_views(name, kls, gap, **more):
        return run(name, kls, noisy(gap), others={view: noisy(gap) for view in views}, **more)

    parts = [all_views(f"d{d}-hard", [0.03, 0.02, 0.009], gap) for d, gap in ((16, 0), (32, 0.01), (64, 0.02))]
    parts += [all_views("d32-oracle", [0.04, 0.005], 0.01), all_views("d32-twin", [0.008, 0.007], 0.01)]
    parts += [all_views(attack.name, [0.0075], -0.09) for attack in kin["tree_grammar"].attacks]
    table = pd.concat(parts)
    without = {"lookup": 0.9, "log-lookup": 0.94, "one-hot": 0.5}
    blind = {("accuracy", "B", kind): lambda kl, seed, value=value: value for kind, value in without.items()}
    lookup = run("baselines", [0.01], lambda kl, seed: 0.9, others=blind)
    return pd.concat([table, lookup]), {"tree_grammar": kin["tree_grammar"]}


def test_the_network_is_held_against_probes_that_see_none(made):
    table, kin = made
    family = kin["tree_grammar"]
    network = compare.final(table, "d64-hard", "accuracy", "B", "unmasked").mean()
    gaps = {name: same_loss_tables.ahead(table, family, "B", name) for name in ("lookup table", "one-hot input")}
    assert gaps["lookup table"].value == pytest.approx(network - 0.9)
    assert gaps["one-hot input"].value == pytest.approx(network - 0.5)
    (row,) = same_loss_tables.without_network(table, kin, ["B", "C"]).to_dict("records")  # C has no lookup table here
    assert row["network minus lookup table"] == words.signed(gaps["lookup table"])
    assert row["network"] == "d64-hard"


def test_what_training_adds_to_a_gap_of_untrained_networks(made):
    def grown(kl, seed, gap):  # .02 from the largest to the smallest size once trained, .05 before
        return law(gap if kl < 1 else 2.5 * gap)(kl, seed)

    sizes = [("d16-hard", 0.0), ("d32-hard", 0.01), ("d64-hard", 0.02)]
    steps = [0, 10, 20]
    table = pd.concat([run(name, [3.0, 0.03, 0.009], partial(grown, gap=gap), steps=steps) for name, gap in sizes])
    (row,) = same_loss_tables.untrained(table, made[1], ["B", "C"]).to_dict("records")
    said = {name: float(row[name].split()[0]) for name in ("trained", "untrained", "beyond untrained")}
    assert said == pytest.approx({"trained": 0.02, "untrained": 0.05, "beyond untrained": -0.03}, abs=1e-4)


def test_every_claim_has_its_statistics_and_the_rule_decides(made):
    found = same_loss.statistics(*made, ["B"])
    assert list(dict.fromkeys(one.claim for one in found)) == ["C1", "C2", "C3", "C4", "C5", "C6"]

    def decided(claim, part, profile="laptop"):
        one = same_loss.find(found, claim, part)
        return claims.verdict(one.gap, profile=profile, direction=one.direction, comparable=one.comparable)

    assert decided("C2", "d64-hard minus d16-hard, task B") == "reproduced"
    assert decided("C3", "attack-unmasked minus its twin") == "reproduced"
    assert decided("C4", "attack-unmasked minus d16-hard") == "reproduced"
    assert decided("C5", "task B") == "reproduced"
    assert decided("C6", "task B") == "reproduced"
    assert decided("C6", "task B", profile="smoke") == "not run"
    assert same_loss.find(found, "C2", "task B").gap.value == pytest.approx(0.02)
    assert "Page's L 112" in same_loss.find(found, "C2", "task B").note
    assert same_loss.find(found, "C3", "attack-unmasked minus").gap.value == pytest.approx(-0.1)
    # The fall of KL is larger than what counts as converged; beyond it the run gains nothing.
    assert decided("C1", "end minus a quarter") == "not comparable"
    assert same_loss.find(found, "C1", "over the same KL").gap.value == pytest.approx(0, abs=1e-9)
    assert decided("C2", "fine-tuned") == "reproduced"  # last checkpoints of equal KL
    assert decided("C3", "attack-unmasked minus d32-twin, task B, fine-tuned") == "not comparable"


def test_statistics_that_are_not_there_have_no_value(made):
    one = same_loss.find(same_loss.statistics(*made, ["B"]), "C2", "task Z")
    assert (one.gap.n, words.signed(one.gap), one.comparable) == (0, "no value", False)


def test_seeds_stand_by_themselves(made):
    rows = same_loss.by_seed(same_loss.statistics(*made, ["B"]))
    assert set(rows.groupby("what")["seed"].nunique()) == {8}


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        (Estimate(0.1, 0.01, 8), "ahead"),
        (Estimate(-0.1, 0.01, 8), "behind"),
        (Estimate(0.01, 0.01, 8), "level"),
        (Estimate(0.1, math.nan, 1), "level"),
        (Estimate(math.nan, math.nan, 0), "level"),
    ],
)
def test_words_follow_the_interval(estimate, said):
    assert words.compared(estimate, "ahead", "behind", "level") == said


def test_differences_are_written_with_sign_and_interval():
    assert words.signed(Estimate(0.1, 0.01, 8)) == "+0.1000 [0.0764, 0.1236]"
    assert words.signed(Estimate(-0.1, math.nan, 1)) == "-0.1000 (no interval)"
