"""The pictures of the chapter on interventions: what each of them does to flatness and to transfer at one loss."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from sameloss.measures.estimate import Estimate
from sameloss.pages.figures import INK, colour, log_ticks, look
from sameloss.pages.flatness_figures import TALL, means
from sameloss.pages.same_loss_figures import shares

ROLES = ("sgd", "light", "medium", "large", "random", "small", "truth")  # seven looks that differ without colour


def contrast(
    frame: pd.DataFrame, path: Sequence[str], run: str, accuracy: str, words: Mapping[str, str]
) -> tuple[Figure, pd.DataFrame]:
    """Trace and accuracy against the KL: the trajectory of the twin (a start, then what continues it), and one run.

    frame: of `intervention_tables.wide`. words: condition -> what the legend says. The run is a point, its last
    checkpoint; the untrained network is left out.
    """
    known = frame[frame["condition"].isin([*path, run]) & ((frame["condition"] != path[0]) | (frame["step"] > 0))]
    drawn = means(known, ["condition", "step"], ["kl", "trace", accuracy])
    last = drawn[drawn["condition"] == run].tail(1)
    drawn = pd.concat([drawn[drawn["condition"] != run], last], ignore_index=True)
    fig, axes = plt.subplots(2, 1, figsize=TALL, sharex=True)
    for ax, name in zip(axes, ("trace", accuracy), strict=True):
        for condition, role in zip((*path, run), ("twin", "large", "sgd"), strict=True):
            rows = drawn[drawn["condition"] == condition]
            style = look(role) | ({"linestyle": "none", "markersize": 9} if condition == run else {})
            ax.errorbar(rows["kl"], rows[name], rows[f"{name} half"], rows["kl half"], **style, label=words[condition])
    axes[0].set(ylabel="trace", yscale="log")
    axes[1].set(ylabel=f"probe {accuracy} (share)")
    shares(axes[1])
    axes[1].set(xlabel="KL to the truth (nats)", xscale="log")
    log_ticks(axes[0].yaxis, most=4)
    log_ticks(axes[1].xaxis, most=4)
    axes[1].invert_xaxis()
    axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1))
    return fig, drawn


def doses(
    rows: pd.DataFrame, x: str, panels: Mapping[str, str], slopes: Mapping[str, Estimate]
) -> tuple[Figure, pd.DataFrame]:
    """Change of accuracy against the change of log trace at equal KL, one mark an intervention, one panel a column.

    rows: of `intervention_tables.effects`. panels: column -> title. slopes: column -> slope through the twin.
    """
    drawn = means(rows.dropna(), ["intervention"], [x, *panels])
    fig, axes = plt.subplots(len(panels), 1, figsize=(5.6, 0.9 + 2.9 * len(panels)), sharex=True, squeeze=False)
    reach = np.array([min(0.0, drawn[x].min()), max(0.0, drawn[x].max())]) * 1.1
    for ax, (name, title) in zip(axes.flat, panels.items(), strict=True):
        for (_, row), role in zip(drawn.iterrows(), ROLES, strict=False):
            style = look(role) | {"linestyle": "none"}
            bars = [row[f"{name} half"]], [row[f"{x} half"]]
            ax.errorbar([row[x]], [row[name]], *bars, **style, label=row["intervention"])
        if np.isfinite(slopes[name].value):
            ax.plot(
                reach, slopes[name].value * reach, color=colour("truth"), linewidth=1, label="slope through the twin"
            )
        ax.axhline(0, color=INK[0], linewidth=1)
        ax.axvline(0, color=INK[0], linewidth=1)
        ax.set(title=title, ylabel="change of accuracy (share)")
    axes[-1, 0].set_xlabel("change of log trace, against the twin at equal KL")
    axes[-1, 0].invert_xaxis()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=2)
    return fig, drawn


def decomposition(rows: pd.DataFrame, names: Mapping[str, str]) -> tuple[Figure, pd.DataFrame]:
    """Change of each logarithm (column -> words) for each intervention, side by side; rows of `effects` and alike."""
    drawn = means(rows, ["intervention"], list(names))
    at = np.arange(len(drawn))
    fig, ax = plt.subplots(figsize=(5.6, 1.6 + 0.62 * len(drawn)))
    for i, ((name, words), role) in enumerate(zip(names.items(), ("small", "large", "medium"), strict=False)):
        style = look(role) | {"linestyle": "none"}
        ax.errorbar(drawn[name], at + 0.2 * (i - 1), xerr=drawn[f"{name} half"], **style, label=words)
    ax.axvline(0, color=INK[0], linewidth=1)
    ax.set(yticks=at, yticklabels=drawn["intervention"], xlabel="change of the logarithm, against the twin")
    ax.invert_yaxis()
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1))
    return fig, drawn
