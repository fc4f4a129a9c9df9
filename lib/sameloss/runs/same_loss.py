"""The statistics behind claims C1 to C6: which conditions of which family are compared, where, and under which rule."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sameloss.measures.estimate import Estimate
from sameloss.measures.matched import EQUAL, SATURATED
from sameloss.runs import compare
from sameloss.runs.families import Family

PCFG = ("tree_grammar", "paper_pcfg")
HMM = ("twelve_state_chain", "paper_hmm")


@dataclass(frozen=True)
class Statistic:
    """b - a of `pairs` (as `compare` makes them), which the paper expects on the side of `direction`.

    fair: False where the losses are not equal by the chapter's rule although both values are known.
    """

    claim: str
    words: str
    pairs: pd.DataFrame
    direction: int = 1
    fair: bool = True
    note: str = ""
    min_seeds: int = 8

    @property
    def gap(self) -> Estimate:
        return compare.gap(self.pairs)

    @property
    def comparable(self) -> bool:
        return self.fair and compare.comparable(self.pairs)


def statistics(table: pd.DataFrame, families: Mapping[str, Family], tasks: Sequence[str]) -> list[Statistic]:
    """All of them in the order of the claims, as far as the table holds what they need.

    tasks: those of a PCFG with a verdict; a chain has all of its own, LM text its main one.
    """
    known = {kind: tasks if kind in PCFG else _tasks(table, family) for kind, family in families.items()}
    makers = (_training_on, _size, _attack, _attacked_below_small, _lookup, _log_kl)
    return [
        statistic
        for maker in makers
        for kind, family in families.items()
        if family.sizes
        for statistic in maker(table, family, known[kind])
    ]


def measured(table: pd.DataFrame, condition: str | None, *what: str) -> bool:
    """Whether the table holds such rows: condition, then quantity, task, features as far as given."""
    columns = ("condition", "quantity", "task", "features")
    hit = np.ones(len(table), dtype=bool)
    for column, value in zip(columns, (condition, *what), strict=False):
        hit &= (table[column] == value).to_numpy()
    return bool(hit.any())


def by_seed(found: Sequence[Statistic]) -> pd.DataFrame:
    """Every seed's own difference: claim, what, seed, difference."""
    parts = [
        pd.DataFrame({"seed": s.pairs["seed"], "difference": s.pairs["b"] - s.pairs["a"]}).assign(
            claim=s.claim, what=s.words
        )
        for s in found
    ]
    return (
        pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["claim", "what", "seed", "difference"])
    )


def beside_untrained(table: pd.DataFrame, family: Family, task: str, features: str) -> dict[str, Estimate]:
    """Largest minus smallest size: trained, at equal KL; untrained; and the first minus the second, within seeds."""
    small, large = family.sizes[0], family.sizes[-1]
    what = ("accuracy", task, features)
    trained = compare.at_equal_kl(table, small, large, *what).set_index("seed")
    first, last = (compare.untrained(table, name, *what) for name in (small, large))
    both = pd.concat({"a": last - first, "b": trained["b"] - trained["a"]}, axis=1)
    of = {"trained": trained, "untrained": pd.DataFrame({"a": first, "b": last}), "beyond untrained": both}
    return {name: compare.gap(pairs) for name, pairs in of.items()}


def _tasks(table: pd.DataFrame, family: Family) -> list[str]:
    if family.kind not in HMM:
        return [family.main]
    rows = (
        table[(table["condition"] == family.sizes[-1]) & (table["quantity"] == "accuracy")] if family.sizes else table
    )
    return sorted(set(rows["task"]).difference([""]))


def _seeds(family: Family) -> int:
    return 5 if family.kind == "lm_text" else 8


def _note(pairs: pd.DataFrame) -> str:
    return "unsaturated" if pairs["kl"].mean() > SATURATED else ""


def _training_on(table: pd.DataFrame, family: Family, tasks: Sequence[str]) -> Iterator[Statistic]:
    if family.kind in HMM:
        return
    run = family.studied
    for task in tasks:
        what = ("accuracy", task, family.features)
        pairs = compare.training_on(table, run, *what)
        fall = pairs["fall"].mean()
        end = pairs["kl"].mean()
        note = f"KL falls from {end + fall:.4f} to {end:.4f}"
        words = f"{run}, end minus a quarter of the steps, task {task}"
        yield Statistic("C1", words, pairs, fair=fall <= SATURATED, note=note, min_seeds=_seeds(family))
        if run in family.controls:
            pairs = compare.explained_by_kl(table, run, family.controls[run], *what)
            note = f"from KL {pairs['high'].mean():.4f} to {pairs['kl'].mean():.4f}"
            words = f"{run}, gain beyond that of {family.controls[run]} over the same KL, task {task}"
            yield Statistic("C1", words, pairs, note=note)


def _size(table: pd.DataFrame, family: Family, tasks: Sequence[str]) -> Iterator[Statistic]:
    small, large = family.sizes[0], family.sizes[-1]
    if small == large:
        return
    views = [(task, family.features) for task in tasks] + [(family.main, family.projected)]
    for task, features in views:
        what = ("accuracy", task, features)
        if not all(measured(table, name, *what) for name in (small, large)):
            continue
        pairs = compare.at_equal_kl(table, small, large, *what)
        level, p = compare.trend(table, family.sizes, *what)
        trend = f"trend over {len(family.sizes)} sizes: Page's L {level:.0f}, p {p:.2g}" if np.isfinite(p) else ""
        note = "; ".join(filter(None, (_note(pairs), trend)))
        shown = "" if features == family.features else f", {features}"
        words = f"{large} minus {small}, task {task}{shown}"
        yield Statistic("C2", words, pairs, note=note, min_seeds=_seeds(family))
    yield from _tuned(table, "C2", family, small, large, 1)


def _tuned(
    table: pd.DataFrame, claim: str, family: Family, a: str, b: str, direction: int, task: str = ""
) -> Iterator[Statistic]:
    """After fine-tuning, from last checkpoints: their losses have to be equal as they are."""
    what = ("accuracy", task or family.main, "fine-tuned")
    if not all(measured(table, name, *what) for name in (a, b)):
        return
    pairs = compare.last_checkpoints(table, a, b, *what)
    apart = pairs["delta"].abs().mean()
    words = f"{b} minus {a}, task {what[1]}, fine-tuned"
    note = f"|ΔKL| {apart:.4f}"
    yield Statistic(claim, words, pairs, direction, bool(apart <= EQUAL), note, _seeds(family))


def _attack(table: pd.DataFrame, family: Family, tasks: Sequence[str]) -> Iterator[Statistic]:
    for attack in family.attacks:
        path = [attack.parent, *([attack.twin] if attack.twin else [])]
        for features in (attack.features, f"{attack.features}-{family.dimension}"):
            what = ("accuracy", attack.task, features)
            if measured(table, attack.name, *what):
                pairs = compare.against_path(table, path, attack.name, *what)
                words = f"{attack.name} minus its twin at equal KL, task {attack.task}, {features}"
                yield Statistic("C3", words, pairs, -1, note=_note(pairs))
        if attack.twin:
            yield from _tuned(table, "C3", family, attack.twin, attack.name, -1, attack.task)


def _attacked_below_small(table: pd.DataFrame, family: Family, tasks: Sequence[str]) -> Iterator[Statistic]:
    for attack in family.attacks:
        small = family.sizes[0]
        for features in (attack.features, f"{attack.features}-{family.dimension}"):
            what = ("accuracy", attack.task, features)
            if small != attack.parent and measured(table, attack.name, *what):
                pairs = compare.no_worse_loss(table, small, attack.name, *what)
                words = f"{attack.name} minus {small}, task {attack.task}, {features}"
                yield Statistic("C4", words, pairs, -1, note=_note(pairs))


def _lookup(table: pd.DataFrame, family: Family, tasks: Sequence[str]) -> Iterator[Statistic]:
    large = family.sizes[-1]
    for task in tasks:
        if family.baselines and measured(table, family.baselines, "accuracy", task, "lookup"):
            network = compare.final(table, large, "accuracy", task, family.features)
            lookup = compare.final(table, family.baselines, "accuracy", task, "lookup")
            of = {"a": lookup, "b": network, "kl": compare.final(table, large, "kl")}
            pairs = pd.concat(of, axis=1, join="inner").rename_axis("seed").reset_index()
            yield Statistic("C5", f"{large} minus lookup table, task {task}", pairs, min_seeds=_seeds(family))


def _log_kl(table: pd.DataFrame, family: Family, tasks: Sequence[str]) -> Iterator[Statistic]:
    small, large = family.sizes[0], family.sizes[-1]
    if small != large:
        pairs = compare.over_common_kl(table, small, large, "accuracy", family.main, family.features)
        words = f"{large} minus {small}, mean over the common range of log KL, task {family.main}"
        yield Statistic("C6", words, pairs, note=_note(pairs), min_seeds=_seeds(family))


def find(found: Sequence[Statistic], claim: str, part: str) -> Statistic:
    """The first statistic of a claim whose words hold `part`; one without any seed where there is none."""
    nothing = Statistic(claim, part, pd.DataFrame({name: [] for name in compare.PAIRS}, dtype=float))
    return next((s for s in found if s.claim == claim and part in s.words), nothing)
