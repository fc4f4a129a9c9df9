"""The pictures of the chapter on loss and score: each takes tidy rows and draws them. Bars are 95 % intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sameloss.pages.figures import INK, MARKERS, PAPER, RULE, SERIES, log_ticks, look
from sameloss.pages.flatness_figures import means
from sameloss.pages.same_loss_figures import shares
from sameloss.runs.spec import LSTMSpec, TransformerSpec

TALL = (5.6, 7.6)  # two panels and a legend, one above the other: the letters stay legible on a phone
KL = "KL to the truth (nats)"
Look = dict[str, Any]


def looks(models: Mapping[str, TransformerSpec | LSTMSpec]) -> dict[str, Look]:
    """A look for each condition: colour and marker by size within its architecture; LSTMs dashed, with open markers."""
    found: dict[str, Look] = {}
    for kind in ("transformer", "lstm"):
        own = [(spec.width, getattr(spec, "layers", 1), name) for name, spec in models.items() if spec.kind == kind]
        for i, (*_, name) in enumerate(sorted(own)):
            open_marker = {"linestyle": "--", "markerfacecolor": PAPER[0]} if kind == "lstm" else {"linestyle": "-"}
            found[name] = {"color": SERIES[i][0], "marker": MARKERS[i], **open_marker}
    return {name: found[name] for name in models}


def magnified(frame: pd.DataFrame, styles: Mapping[str, Look], score: str, near: float) -> tuple[Figure, pd.DataFrame]:
    """Score against the KL on a linear axis, twice: the whole of training, and the end of it up to `near`."""
    drawn = means(frame[frame["step"] > 0], ["condition", "step"], ["kl", score])
    fig, (out, zoomed) = plt.subplots(2, 1, figsize=TALL)
    _curves(out, drawn, styles, "kl", score)
    _curves(zoomed, drawn[drawn["kl"] <= near], styles, "kl", score)
    out.axvspan(0, near, color=RULE[0], linewidth=0)
    out.set(title="zoomed out: all of training (grey: what is below)")
    zoomed.set(title="zoomed in: near the floor")
    for ax in (out, zoomed):
        ax.set(xlabel=KL, ylabel=_unit(score))
        ax.invert_xaxis()
    fig.legend(*out.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig, drawn


def against_log_kl(
    views: Mapping[str, pd.DataFrame], styles: Mapping[str, Look], score: str, bounds: Sequence[float] = ()
) -> tuple[Figure, pd.DataFrame]:
    """Score against log KL, a panel for each kind of features; dotted lines where the regions end."""
    fig, axes = plt.subplots(len(views), 1, figsize=(5.6, 1.2 + 3.1 * len(views)), squeeze=False)
    parts = []
    for ax, (title, frame) in zip(axes[:, 0], views.items(), strict=True):
        drawn = means(frame[frame["step"] > 0], ["condition", "step"], ["kl", score])
        parts.append(drawn.assign(features=title))
        _curves(ax, drawn, styles, "kl", score)
        for bound in set(bounds):
            ax.axvline(bound, color=INK[0], linewidth=1, linestyle=":")
        ax.set(title=f"features: {title}", xlabel=KL, ylabel=_unit(score))
        _log_axis(ax)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig, pd.concat(parts, ignore_index=True)


def by_model(
    panels: Mapping[str, Mapping[str, pd.DataFrame]], label: str, margin: float | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Values of every model over seeds: a panel a title, a marker for each kind; tables of seeds by models.

    margin: a grey band of this width about 0.
    """
    fig, axes = plt.subplots(len(panels), 1, figsize=(5.6, 0.9 + 2.8 * len(panels)), squeeze=False, sharex=True)
    parts = []
    names = list(dict.fromkeys(str(name) for kinds in panels.values() for values in kinds.values() for name in values))
    for ax, (title, kinds) in zip(axes[:, 0], panels.items(), strict=True):
        for i, ((kind, values), role) in enumerate(zip(kinds.items(), ("large", "small", "sgd"), strict=False)):
            tidy = values.rename_axis("seed").reset_index().melt("seed", var_name="condition").dropna()
            drawn = means(tidy, ["condition"], ["value"])
            at = [names.index(name) + 0.16 * (i - (len(kinds) - 1) / 2) for name in drawn["condition"]]
            ax.errorbar(at, drawn["value"], drawn["value half"], **look(role) | {"linestyle": "none"}, label=kind)
            parts.append(drawn.assign(panel=title, kind=kind))
        if margin is not None:
            ax.axhspan(-margin / 2, margin / 2, color=RULE[0], linewidth=0)
        ax.axhline(0, color=INK[0], linewidth=1)
        ax.set(title=title, ylabel=label, xlim=(-0.6, max(len(names), 1) - 0.4))
    axes[-1, 0].set_xticks(range(len(names)), [name.removesuffix("-hard") for name in names], rotation=30)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return fig, pd.concat(parts, ignore_index=True)


def scores(frame: pd.DataFrame, words: Mapping[str, str]) -> tuple[Figure, pd.DataFrame]:
    """Several scores of one model against log KL: as they are, and as shares of their rise. words: column -> name."""
    frame = frame[frame["step"] > 0].sort_values(["seed", "step"])
    of = frame.groupby("seed")
    rise = {f"{name} risen": (frame[name] - of[name].transform("first")) for name in words}
    whole = {f"{name} risen": of[name].transform("last") - of[name].transform("first") for name in words}
    # In a seed where nothing rises there is no share of a rise.
    risen = {name: rise[name] / whole[name].where(whole[name] > 0) for name in rise}
    frame = frame.assign(**risen)
    drawn = means(frame, ["step"], ["kl", *words, *risen])
    fig, axes = plt.subplots(2, 1, figsize=TALL)
    roles = ("large", "small", "sgd", "random", "medium")
    for (name, word), role in zip(words.items(), roles, strict=False):
        for ax, column in zip(axes, (name, f"{name} risen"), strict=True):
            ax.errorbar(drawn["kl"], drawn[column], drawn[f"{column} half"], **look(role), label=word)
    for ax, label in zip(axes, ("score", "share of its own rise"), strict=True):
        ax.set(xlabel=KL, ylabel=label)
        ax.set_ylim(max(ax.get_ylim()[0], -0.5), min(ax.get_ylim()[1], 1.5))
        _log_axis(ax)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return fig, drawn


def two_losses(frame: pd.DataFrame, run: str, fresh: str, score: str) -> tuple[Figure, pd.DataFrame]:
    """A run on a pool beside one on fresh sentences: losses along the steps; score against each loss.

    Columns: validation and training (nats above the floor; of the fresh run they are one) and the score.
    """
    drawn = means(frame, ["condition", "step"], ["validation", "training", score])
    fig, (losses, told) = plt.subplots(2, 1, figsize=TALL)
    lines = (
        (run, "training", "on the pool: training loss", "small"),
        (run, "validation", "on the pool: validation loss", "large"),
        (fresh, "validation", "on fresh sentences: the one loss", "sgd"),
    )
    for name, loss, words, role in lines:
        rows = drawn[drawn["condition"] == name]
        losses.errorbar(rows["step"], rows[loss], rows[f"{loss} half"], **look(role), label=words)
        told.errorbar(rows[loss], rows[score], rows[f"{score} half"], **look(role))
    losses.axhline(0, color=INK[0], linewidth=1)
    losses.set(xlabel="training steps", ylabel="loss above the floor (nats)")
    told.set(xlabel="loss above the floor (nats)", ylabel=_unit(score))
    told.invert_xaxis()
    shares(told)
    fig.legend(*losses.get_legend_handles_labels(), loc="outside upper center", ncols=1)
    return fig, drawn


def relative(
    panels: Mapping[str, tuple[pd.DataFrame, str]], styles: Mapping[str, Look], label: str
) -> tuple[Figure, pd.DataFrame]:
    """A column relative to the whole KL along training, a panel each: title -> (rows, column); line at 1."""
    fig, axes = plt.subplots(len(panels), 1, figsize=(5.6, 1.2 + 2.7 * len(panels)), squeeze=False)
    parts = []
    for ax, (title, (frame, column)) in zip(axes[:, 0], panels.items(), strict=True):
        drawn = means(frame[frame["step"] > 0], ["condition", "step"], ["kl", column])
        parts.append(drawn.rename(columns={column: "ratio", f"{column} half": "ratio half"}).assign(panel=title))
        _curves(ax, drawn, styles, "kl", column)
        ax.axhline(1, color=INK[0], linewidth=1)
        ax.set(title=title, xlabel=KL, ylabel=label)
        _log_axis(ax)
    handles = {
        label: handle for ax in axes[:, 0] for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    fig.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
    return fig, pd.concat(parts, ignore_index=True)


def _unit(score: str) -> str:
    return f"{score} (share)" if score == "accuracy" else score


def _curves(ax: Axes, drawn: pd.DataFrame, styles: Mapping[str, Look], x: str, y: str) -> None:
    """One line a condition with intervals in y; the limits hold the means, not intervals that few seeds make huge."""
    for name, style in styles.items():
        rows = drawn[(drawn["condition"] == name) & drawn[y].notna()]
        if len(rows):
            ax.errorbar(rows[x], rows[y], rows[f"{y} half"], **style, label=name.removesuffix("-hard"))
    known = drawn.loc[drawn["condition"].isin(styles), y].dropna()
    if len(known):
        low, high = known.min(), known.max()
        room = 0.25 * (high - low) or 0.1
        bottom, top = ax.get_ylim()
        ax.set_ylim(max(bottom, low - room), min(top, high + room))


def _log_axis(ax: Axes) -> None:
    """A logarithmic axis, the loss falling to the right."""
    ax.set(xscale="log")
    log_ticks(ax.xaxis)
    ax.invert_xaxis()
