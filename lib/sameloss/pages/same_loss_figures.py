"""The pictures of the chapter on equal loss: each takes tidy rows and draws them, seeds thin, means with intervals."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from sameloss.pages.figures import INK, colour, log_ticks, look
from sameloss.runs import compare

TALL = (5.6, 7.6)  # panels one above the other: the letters stay legible on a phone
SIZES = ("small", "medium", "light", "large")
LEVELS = {"loss": "sampled loss above the floor (nats)", "kl": "KL to the truth (nats)"}


def roles(sizes: Sequence[str]) -> dict[str, str]:
    """A look for each size, the largest always the same."""
    return dict(zip(sizes, (*SIZES[: len(sizes) - 1], "large"), strict=True))


def learning(table: pd.DataFrame, conditions: Sequence[str], floor: pd.Series, *what: str) -> pd.DataFrame:
    """Rows for the pictures: condition, seed, step, kl, value and the sampled loss above the floor with its error.

    floor: the entropy floor by seed, on the same contexts. sampling: 95 % half-width of one run's sampled loss.
    """
    frames = []
    for name in conditions:
        rows = compare.path(table, [name], *what)
        sampled = compare.select(table, name, "cross_entropy").set_index(["seed", "step"])
        keys = pd.MultiIndex.from_frame(rows[["seed", "step"]])
        above = sampled["value"].reindex(keys).to_numpy() - floor.reindex(rows["seed"]).to_numpy()
        half = 1.96 * sampled["stderr"].reindex(keys).to_numpy()
        frames.append(rows.drop(columns="part").assign(condition=name, loss=above, sampling=half))
    return pd.concat(frames, ignore_index=True)


def means(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds by condition and step; half: of the 95 % interval (Student's t) of the value's mean."""
    of = rows.groupby(["condition", "step"], sort=False)
    found = of[["kl", "loss", "value", "sampling"]].mean()
    n = of["value"].count()
    return found.assign(half=of["value"].sem() * stats.t.ppf(0.975, np.maximum(n - 1, 1)), n=n).reset_index()


def training(rows: pd.DataFrame, score: str) -> Figure:
    """One run over its steps: what a sample of the loss shows, the KL, the score. Rows as from `learning`."""
    fig, axes = plt.subplots(3, 1, figsize=TALL, sharex=True)
    mean = means(rows)
    for ax, of in zip(axes, ("loss", "kl", "value"), strict=True):
        for _, own in rows.groupby("seed"):
            ax.plot(own["step"], own[of], color=colour("large"), alpha=0.35, linewidth=1)
        half = {"loss": mean["sampling"], "value": mean["half"]}.get(of)
        ax.errorbar(mean["step"], mean[of], half, **look("large"))
    axes[0].axhline(0, color=colour("floor"), linewidth=1)
    axes[0].set(ylabel="sampled loss\nabove the floor (nats)")
    axes[1].set(ylabel="KL to the truth\n(nats)", yscale="log")
    axes[2].set(ylabel=score, xlabel="training steps")
    shares(axes[2])
    return fig


def against_loss(panels: Mapping[str, pd.DataFrame], looks: Mapping[str, str], score: str) -> Figure:
    """Score against the KL, which falls to the right: a panel a title, a line a condition."""
    fig, axes = plt.subplots(max(1, len(panels)), 1, figsize=(5.6, 0.8 + 3.2 * len(panels)), squeeze=False)
    if not panels:
        _nothing(axes[0, 0])
    for ax, (title, rows) in zip(axes[:, 0], panels.items(), strict=False):
        _curves(ax, rows, looks, "kl")
        ax.set(title=title, ylabel=score, xlabel=LEVELS["kl"])
        ax.legend()
    return fig


def both_losses(rows: pd.DataFrame, looks: Mapping[str, str], score: str, line: float, words: str) -> Figure:
    """Score against the sampled loss above, against the KL below; a dotted line for a score without a network."""
    fig, axes = plt.subplots(2, 1, figsize=TALL)
    for ax, level in zip(axes, ("loss", "kl"), strict=True):
        ax.axhline(line, color=colour("truth"), linestyle=":", label=words)  # first: the limits are to hold it
        _curves(ax, rows, looks, level)
        ax.set(xlabel=LEVELS[level], ylabel=score)
    axes[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)  # below, for the line may lie anywhere
    return fig


def _curves(ax: Axes, rows: pd.DataFrame, looks: Mapping[str, str], level: str) -> None:
    for name, role in looks.items():
        own, mean = rows[rows["condition"] == name], means(rows[rows["condition"] == name])
        for _, one in own.groupby("seed"):
            ax.plot(one[level], one["value"], color=colour(role), alpha=0.35, linewidth=1)
        across = mean["sampling"] if level == "loss" else None
        ax.errorbar(mean[level], mean["value"], mean["half"], across, label=name, **look(role))
    if level == "kl":
        ax.set(xscale="log")
        log_ticks(ax.xaxis)
    ax.invert_xaxis()
    shares(ax)


def shares(ax: Axes) -> None:
    """End a vertical axis of shares at 0 and 1: intervals over few seeds go beyond."""
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, -0.02), min(high, 1.02))


def attacks(rows: pd.DataFrame, looks: Mapping[str, str], score: str) -> Figure:
    """Attacked runs beside the trajectory of their twin, a panel for each kind of features.

    Columns: features, run, part ("path", "end"), kl, value, half (95 %).
    """
    kinds = list(dict.fromkeys(rows["features"]))
    fig, axes = plt.subplots(max(1, len(kinds)), 1, figsize=(5.6, 0.8 + 2.4 * len(kinds)), squeeze=False, sharex=True)
    if not kinds:
        _nothing(axes[0, 0])
        return fig
    for ax, kind in zip(axes[:, 0], kinds, strict=True):
        for name, role in looks.items():
            own = rows[(rows["features"] == kind) & (rows["run"] == name)]
            if len(own):
                style = look(role) | ({} if (own["part"] == "path").all() else {"linestyle": "none"})
                ax.errorbar(own["kl"], own["value"], own["half"], label=name, **style)
        ax.set(title=f"features: {kind}", ylabel=score)
        shares(ax)
    axes[-1, 0].set(xlabel=LEVELS["kl"], xscale="log")
    log_ticks(axes[-1, 0].xaxis)
    axes[-1, 0].invert_xaxis()  # all of them, for they share it
    axes[0, 0].legend()
    return fig


def _nothing(ax: Axes) -> None:
    ax.annotate("no such run at this profile", (0.5, 0.5), xycoords="axes fraction", ha="center")
    ax.set(xticks=[], yticks=[])


def spread(rows: pd.DataFrame, label: str) -> Figure:
    """Every seed's own difference, the mean and its 95 % interval beside it. Columns: what, seed, difference."""
    names = list(dict.fromkeys(rows["what"]))
    fig, ax = plt.subplots(figsize=(5.6, 1.2 + 0.55 * len(names)))
    for i, name in enumerate(names):
        own = rows.loc[rows["what"] == name, "difference"].dropna()
        ax.plot(own, np.full(len(own), i), "o", color=colour("light"), markersize=4, alpha=0.8)
        if len(own) > 1:
            half = own.sem() * stats.t.ppf(0.975, len(own) - 1)
            ax.errorbar(own.mean(), i + 0.22, xerr=half, **look("large") | {"linestyle": "none"})
        ax.annotate(name, (0, i - 0.3), xycoords=("axes fraction", "data"), fontsize=10, va="center")
    rows_at = np.arange(len(names))
    ax.vlines(np.zeros(len(names)), rows_at - 0.1, rows_at + 0.4, color=INK[0], linewidth=1)  # not through the words
    ax.set(yticks=[], xlabel=label, ylim=(len(names) - 0.4, -0.6))
    return fig
