"""Tables of the chapter on equal loss, as texts: values with standard errors over seeds, differences with intervals."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats

from sameloss.measures.estimate import Estimate
from sameloss.measures.matched import SATURATED
from sameloss.pages.words import signed
from sameloss.runs import compare, same_loss
from sameloss.runs.families import Family
from sameloss.runs.same_loss import Statistic, measured

BASELINES = {"lookup table": "lookup", "its logarithm": "log-lookup", "one-hot input": "one-hot", "posterior": "bayes"}


def mean(table: pd.DataFrame, condition: str | None, *what: str) -> str:
    """Mean over seeds at the last checkpoint with its standard error; a dash where it was not measured."""
    if condition is None or not measured(table, condition, *what):
        return "-"
    return str(Estimate.of(compare.final(table, condition, *what).to_numpy()))


def losses(table: pd.DataFrame, families: Mapping[str, Family]) -> pd.DataFrame:
    """Every size at its last checkpoint: the loss a sample shows, the KL behind it, how many seeds are saturated."""
    rows = []
    for family in families.values():
        floor = compare.final(table, family.baselines, "floor") if family.baselines else None
        for name in (*family.sizes, *family.controls.values()):
            kl, largest = (compare.final(table, of, "kl") for of in (name, family.sizes[-1]))
            apart = compare.gap(pd.concat({"a": largest, "b": kl}, axis=1))
            known = compare.select(table, name, "kl").groupby("seed")["stderr"].last().mean()
            sampled = compare.select(table, name, "cross_entropy").groupby("seed").last()
            above = sampled["value"] - floor if floor is not None else sampled["value"] - float("nan")
            rows.append(
                {
                    "model": name,
                    "steps": int(sampled["step"].max()),
                    "sampled loss (nats)": str(Estimate.of(sampled["value"].to_numpy())),
                    "above the floor": f"{above.mean():.4f}",
                    "error of one run": f"{sampled['stderr'].mean():.4f}",
                    "KL (nats)": str(Estimate.of(kl.to_numpy())),
                    "KL, error of one run": f"{known:.5f}",
                    "KL minus that of the largest": "-" if name == family.sizes[-1] else signed(apart),
                    "saturated": f"{int((kl <= SATURATED).sum())} of {len(kl)}",
                }
            )
    return pd.DataFrame(rows)


def differences(found: Sequence[Statistic]) -> pd.DataFrame:
    """Statistics as a table: words, KL, difference with its 95 % interval, note."""
    rows = [
        {
            "statistic": one.words,
            "KL (nats)": "-" if one.pairs["kl"].isna().all() else f"{one.pairs['kl'].mean():.4f}",
            "difference [95 %]": signed(one.gap),
            "seeds": one.gap.n,
            "equal loss": "yes" if one.comparable else "no",
            "note": one.note,
        }
        for one in found
    ]
    return pd.DataFrame(rows)


def untrained(table: pd.DataFrame, families: Mapping[str, Family], tasks: Sequence[str]) -> pd.DataFrame:
    """Large minus small by task and features: trained at equal KL, untrained, and one beyond the other.

    tasks: those of a PCFG; another language has its main one.
    """
    rows = []
    for family, task in _asked(families, tasks):
        kinds = [f"{kind}{end}" for kind in ("unmasked", "masked") for end in ("", f"-{family.dimension}")]
        for kind in kinds if len(family.sizes) > 1 else ():
            if all(measured(table, name, "accuracy", task, kind) for name in family.sizes):
                found = same_loss.beside_untrained(table, family, task, kind)
                rows.append({"task": task, "features": kind} | {name: signed(e) for name, e in found.items()})
    return pd.DataFrame(rows)


def _asked(families: Mapping[str, Family], tasks: Sequence[str]) -> list[tuple[Family, str]]:
    """Each family that has sizes, with the tasks of a PCFG or the main one of another language."""
    return [
        (family, task)
        for language, family in families.items()
        if family.sizes
        for task in (tasks if language in same_loss.PCFG else [family.main])
    ]


def algorithms(table: pd.DataFrame, family: Family, tasks: Sequence[str]) -> pd.DataFrame:
    """The paper's Table 1: how a model was trained, its loss, and what a probe and fine-tuning make of it."""
    runs = list(dict.fromkeys(name for a in family.attacks for name in (a.parent, a.twin, a.name) if name))
    rows = []
    for name in [*runs, family.sizes[0]]:
        row = {"run": name, "sampled loss": mean(table, name, "cross_entropy"), "KL": mean(table, name, "kl")}
        for task in tasks:
            for kind in ("unmasked", f"unmasked-{family.dimension}", "masked", "fine-tuned"):
                if any(measured(table, run, "accuracy", task, kind) for run in runs):
                    row[f"{task}, {kind}"] = mean(table, name, "accuracy", task, kind)
        rows.append(row)
    last = {"run": "lookup table", "sampled loss": mean(table, family.baselines, "floor"), "KL": "0"}
    last |= {f"{task}, unmasked": mean(table, family.baselines, "accuracy", task, "lookup") for task in tasks}
    return pd.DataFrame([*rows, last]).astype(object).fillna("-")


def truth(table: pd.DataFrame, families: Mapping[str, Family]) -> pd.DataFrame:
    """Probe accuracy of the largest network, untrained and trained, beside probes that see no network."""
    rows = []
    for family in families.values():
        if not family.baselines or not family.sizes:
            continue
        large = family.sizes[-1]
        of = table[(table["condition"] == large) & (table["quantity"] == "accuracy")]
        for task in sorted(set(of["task"])):
            what = ("accuracy", task, family.features)
            start = Estimate.of(compare.untrained(table, large, *what).to_numpy())
            row = {"task": task, "network": large, "trained": mean(table, large, *what), "untrained": str(start)}
            row |= {name: mean(table, family.baselines, "accuracy", task, kind) for name, kind in BASELINES.items()}
            rows.append(row)
    return pd.DataFrame(rows)


def ahead(table: pd.DataFrame, family: Family, task: str, baseline: str) -> Estimate:
    """Largest network minus a probe that sees no network (a name of BASELINES), within seeds."""
    network = compare.final(table, family.sizes[-1], "accuracy", task, family.features)
    other = compare.final(table, str(family.baselines), "accuracy", task, BASELINES[baseline])
    return compare.gap(pd.concat({"a": other, "b": network}, axis=1))


def without_network(table: pd.DataFrame, families: Mapping[str, Family], tasks: Sequence[str]) -> pd.DataFrame:
    """Largest network minus lookup table, its logarithm and the words themselves; tasks as for `untrained`."""
    rows = []
    for family, task in _asked(families, tasks):
        if measured(table, family.baselines, "accuracy", task, "lookup"):
            names = ("lookup table", "its logarithm", "one-hot input")
            row = {f"network minus {name}": signed(ahead(table, family, task, name)) for name in names}
            rows.append({"task": task, "network": family.sizes[-1]} | row)
    return pd.DataFrame(rows)


def attacked(table: pd.DataFrame, family: Family, task: str) -> pd.DataFrame:
    """Rows for the picture of the attacks: the twin's path and where each attack ended, by kind of features."""
    runs = [a.name for a in family.attacks]
    path = [name for a in family.attacks[:1] for name in (a.parent, a.twin) if name]
    frames = []
    for kind in (f"{kind}{end}" for kind in ("unmasked", "masked") for end in ("", f"-{family.dimension}")):
        what = ("accuracy", task, kind)
        if not all(measured(table, name, *what) for name in (*path, *runs)) or not runs:
            continue
        own = compare.path(table, path, *what).assign(run="twin, with its parent", part="path")
        ends = [compare.path(table, [n], *what).groupby("seed").last().assign(run=n, part="end") for n in runs]
        both = pd.concat([own, *(end.reset_index() for end in ends)])
        both["order"] = both.groupby(["run", "seed"]).cumcount()
        of = both.groupby(["run", "part", "order"], sort=False)
        half = of["value"].sem() * stats.t.ppf(0.975, np.maximum(of["value"].count() - 1, 1))
        frames.append(of[["kl", "value"]].mean().assign(half=half, features=kind).reset_index())
    columns = ["run", "part", "order", "kl", "value", "half", "features"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
