"""The pictures of the chapter on flatness: each takes the tidy table that it draws. Bars are 95 % intervals."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import stats

from sameloss.measures.estimate import Estimate
from sameloss.pages.figures import INK, colour, log_ticks, look, ticks
from sameloss.pages.same_loss_figures import roles, shares

TALL = (5.6, 6.2)  # two panels, one above the other: the letters stay legible on a phone
ROLES = ("large", "small", "sgd", "random", "medium")
METHODS = {"trace_replicate": ("replicated", "embedded"), "trace_zero-gain": ("zero gain", "random")}


def means(frame: pd.DataFrame, by: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Mean over seeds of each column with the half width of its t interval (0 for one seed), as "NAME half"."""
    grouped = frame.groupby(list(by), sort=False)
    n = grouped["seed"].nunique()
    width = stats.t.ppf(0.975, np.maximum(n - 1, 1))
    columns = {name: grouped[name].mean() for name in names}
    halves = {f"{name} half": (grouped[name].sem() * width).fillna(0.0) for name in names}
    return pd.DataFrame(columns | halves | {"seeds": n}).reset_index()


def two_traces(frame: pd.DataFrame, conditions: Sequence[str]) -> tuple[Figure, pd.DataFrame]:
    """Above: both traces of the last condition against the KL; below: their relative difference, all conditions.

    frame: of `flatness_tables.wide`, with hessian_trace and gauss_newton_trace.
    """
    excess = frame["hessian_trace"] / frame["gauss_newton_trace"] - 1
    frame = frame.assign(excess=excess)
    names = ["kl", "hessian_trace", "gauss_newton_trace", "excess"]
    drawn = means(frame, ["condition", "step"], names)
    fig, (above, below) = plt.subplots(2, 1, figsize=TALL)
    last = drawn[drawn["condition"] == conditions[-1]]
    for name, words, role in (
        ("hessian_trace", "Hessian", "hessian"),
        ("gauss_newton_trace", "Gauss-Newton = Fisher", "fisher"),
    ):
        above.errorbar(last["kl"], last[name], last[f"{name} half"], **look(role), label=words)
    above.set(ylabel=f"trace, {conditions[-1]}", yscale="log")
    for condition, role in roles(conditions).items():
        rows = drawn[drawn["condition"] == condition]
        below.errorbar(rows["kl"], rows["excess"], rows["excess half"], **look(role), label=condition)
    below.axhline(0, color=INK[0], linewidth=1)
    below.set(ylabel="Hessian / Fisher - 1")
    below.set_yscale("symlog", linthresh=0.1)
    for ax in (above, below):
        ax.set(xscale="log", xlabel="KL to the truth (nats)")
        ax.invert_xaxis()
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return fig, drawn


def estimators(runs: pd.DataFrame, exact: float) -> Figure:
    """Mean of an estimator against the number of tokens drawn at each context. Columns: tokens, source, mean, half."""
    fig, ax = plt.subplots()
    for (source, rows), role in zip(runs.groupby("source", sort=False), ("fisher", "random"), strict=False):
        ax.errorbar(rows["tokens"], rows["mean"], rows["half"], **look(role), label=f"tokens drawn from the {source}")
    ax.axhline(exact, color=INK[0], linewidth=1, label="sum over the vocabulary")
    ax.set(xscale="log", xlabel="tokens drawn at each context", ylabel="estimated trace")
    ticks(ax.xaxis, sorted(runs["tokens"].unique()))
    ax.legend()
    return fig


def rescaled(points: pd.DataFrame) -> Figure:
    """What a rescaling that keeps the function does to each measure, relative to no rescaling. First column: factor."""
    fig, ax = plt.subplots()
    for name, role in zip(points.columns[1:], ("fisher", "large", "truth"), strict=False):
        ax.plot(points.iloc[:, 0], points[name] / points[name].iloc[len(points) // 2], **look(role), label=name)
    ax.set(xscale="log", yscale="log", xlabel="factor on the gain of a layer norm", ylabel="relative to factor 1")
    ticks(ax.xaxis, points.iloc[:, 0].tolist())
    ax.legend()
    return fig


def along(frame: pd.DataFrame, tasks: Sequence[str], colours: Mapping[str, str]) -> tuple[Figure, pd.DataFrame]:
    """Change of accuracy since the start of SGD against the trace, one panel a task; colours: condition -> role."""
    names = [f"accuracy {task}" for task in tasks]
    start = frame.sort_values("step").groupby(["condition", "seed"])[names].transform("first")
    drawn = means(frame.assign(**{n: frame[n] - start[n] for n in names}), ["condition", "step"], ["trace", *names])
    columns = min(2, len(tasks))
    lines = -(-len(tasks) // columns)
    fig, axes = plt.subplots(lines, columns, figsize=(5.6, 0.6 + 2.5 * lines), squeeze=False, sharey=True)
    for ax, name in zip(axes.flat, names, strict=False):
        for condition, role in colours.items():
            rows = drawn[(drawn["condition"] == condition) & drawn[name].notna()]
            if len(rows):
                bars = (rows[f"{name} half"], rows["trace half"])
                ax.errorbar(rows["trace"], rows[name], *bars, **look(role), label=condition)
                ax.plot(rows["trace"].iloc[:1], rows[name].iloc[:1], "o", color=colour(role), markersize=9)
        ax.axhline(0, color=INK[0], linewidth=1)
        ax.set(title=name.replace("accuracy", "task"), xlabel="trace", xscale="log")
        log_ticks(ax.xaxis, most=4)
        ax.invert_xaxis()
    for ax in axes.flat[len(names) :]:
        ax.remove()
    for ax in axes[:, 0]:
        ax.set_ylabel("accuracy (share) since the start")
    handles = [Line2D([], [], **look(role), label=condition) for condition, role in colours.items()]
    fig.legend(handles=handles, loc="outside upper center", ncols=2)
    return fig, drawn


def forest(panels: Mapping[str, Mapping[str, Estimate]]) -> Figure:
    """Differences with their intervals, one line each; a panel for each unit, by the label of its axis."""
    lengths = [max(1, len(rows)) for rows in panels.values()]
    size = (6.2, 0.75 * len(panels) + 0.45 * (sum(lengths) + 1))
    fig, axes = plt.subplots(len(panels), 1, figsize=size, squeeze=False, height_ratios=lengths)
    for ax, (label, rows) in zip(axes[:, 0], panels.items(), strict=True):
        for i, found in enumerate(rows.values()):
            low, high = found.interval()
            bar = [[found.value - low], [high - found.value]]
            ax.errorbar([found.value], [i], xerr=bar if np.isfinite(low) else None, fmt="o", color=colour("sgd"))
        ax.axvline(0, color=INK[0], linewidth=1)
        ax.set(yticks=range(len(rows)), yticklabels=list(rows), xlabel=label, ylim=(max(1, len(rows)) - 0.5, -0.5))
    return fig


def sizes(pairs: pd.DataFrame, conditions: Sequence[str], accuracy: str) -> tuple[Figure, pd.DataFrame]:
    """Above: traces of sizes at equal KL, as they are and embedded in the largest; below: accuracy there."""
    names = ["trace", *METHODS, accuracy]
    drawn = means(pairs.dropna(), ["condition"], names).set_index("condition").reindex(list(conditions)).reset_index()
    fig, (above, below) = plt.subplots(2, 1, figsize=TALL)
    at = np.arange(len(conditions))
    for i, (name, (words, role)) in enumerate({"trace": ("as trained", "large"), **METHODS}.items()):
        above.errorbar(at + 0.08 * (i - 1), drawn[name], drawn[f"{name} half"], **look(role), label=words)
    below.errorbar(at, drawn[accuracy], drawn[f"{accuracy} half"], **look("large"))
    above.set(ylabel="trace at equal KL", yscale="log")
    below.set(ylabel=f"probe {accuracy} (share) at equal KL")
    shares(below)
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    for ax in (above, below):
        ax.set(xticks=at, xticklabels=[name.removesuffix("-hard") for name in conditions])
    return fig, drawn
