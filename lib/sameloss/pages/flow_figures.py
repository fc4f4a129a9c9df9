"""The pictures of the chapter on SGD's flow: each takes the tidy table (or points) that it draws."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from sameloss.measures.estimate import Estimate
from sameloss.pages.figures import INK, MARKERS, SERIES, colour, look, ticks

TALL = (5.6, 6.4)  # two panels, one above the other: the letters stay legible on a phone
WHITE = "#ffffff"  # on the colours of the trace, which are the same in light and dark
NOISES = {  # kind: words, role
    "labels": ("the language's labels", "flow"),
    "full": ("full batch", "truth"),
    "soft": ("soft labels", "theory"),
    "self": ("the model's own labels", "small"),
    "isotropic": ("isotropic noise", "random"),
}


def lemma(gaps: pd.DataFrame, rounding: float) -> Figure:
    """|H - Sigma| against the distance from Gamma. Columns: model, move, gap."""
    fig, ax = plt.subplots()
    for name, rows in gaps.groupby("model"):
        ax.loglog(rows["move"], rows["gap"], label=f"model {name}", **look(str(name)))
    ax.axhline(rounding, color=INK[0], linewidth=1)
    ax.annotate("on the manifold", (gaps["move"].min(), rounding * 2))
    ax.set(xlabel="size of the random move away from Γ (per parameter)", ylabel="largest |H - Σ|")
    ax.legend(loc="center right")
    return fig


def drift(errors: pd.DataFrame) -> Figure:
    """Error of the exact one-step drift. Columns: model, B, eta, error."""
    fig, ax = plt.subplots()
    dashes = dict(zip(sorted(errors["B"].unique()), ("-", "--", ":"), strict=True))
    for (name, b), rows in errors.groupby(["model", "B"]):
        style = look(str(name)) | {"linestyle": dashes[b]}
        ax.loglog(rows["eta"], rows["error"], label=f"{name}, B = {b}", **style)
    ax.set(xlabel="learning rate η", ylabel="B · |drift / η² - limit|")
    ticks(ax.xaxis, sorted(errors["eta"].unique()))
    ax.legend(ncols=2)
    return fig


def plane(
    curve: Float[np.ndarray, "n 2"],
    traces: Float[np.ndarray, " n"],
    walks: Float[np.ndarray, "m R 2"],
    ends: Float[np.ndarray, "k 2"],
    times: Sequence[float],
) -> Figure:
    """Model U: the manifold coloured by the trace, raw paths of SGD across it, the flow at some times."""
    fig, ax = plt.subplots(figsize=(6.2, 4.4))
    for i, role in zip(range(walks.shape[1]), ("small", "light"), strict=True):
        ax.plot(*walks[:, i].T, color=colour(role), linewidth=0.5, label=f"SGD, run {i + 1}")
    segments = list(np.stack([curve[:-1], curve[1:]], axis=1))
    lines = LineCollection(segments, cmap="cividis", linewidth=7, capstyle="round", zorder=3)
    lines.set_array(traces[1:])
    ax.add_collection(lines)
    fig.colorbar(lines, ax=ax, label="trace of the Hessian on Γ")
    label = "flow at t = " + ", ".join(f"{t:g}" for t in times)
    ax.plot(*ends.T, "o", color=INK[0], markerfacecolor=WHITE, zorder=4, label=label)
    ax.set(xlabel="u (decoder)", ylabel="v (embedding)", xlim=(0.5, 3.6), ylim=(0, 2.4))
    ax.legend(loc="upper right")
    return fig


def section(
    surface: Float[np.ndarray, "n 2"],
    traces: Float[np.ndarray, " n"],
    path: Float[np.ndarray, "m 2"],
    walks: Float[np.ndarray, "k R 2"],
) -> Figure:
    """Model M: the trace over a section of Gamma, the flow and the limit points of SGD runs."""
    fig, ax = plt.subplots(figsize=(6.2, 4.4))
    limits = np.array([[-0.5, 1.7], [-0.15, 1.4]])
    seen = ((surface > limits[:, 0]) & (surface < limits[:, 1])).all(axis=1)
    levels = np.linspace(traces.min(), traces[seen].max(), 15)
    shades = ax.tricontourf(surface[:, 0], surface[:, 1], traces, levels=levels, extend="max", cmap="cividis")
    fig.colorbar(shades, label="trace of the Hessian on Γ", format="%.2f")
    ax.plot(*path.T, color=WHITE, linewidth=2.5, label="flow")
    for i, role in zip(range(walks.shape[1]), ("small", "sgd", "random"), strict=True):
        style = look(role) | {"linewidth": 1, "markeredgecolor": WHITE, "markeredgewidth": 0.6}
        ax.plot(*walks[:, i].T, label=f"Φ of SGD, run {i + 1}", **style)
    ax.set(xlabel="slowest coordinate of Γ", ylabel="coordinate across it", xlim=limits[0], ylim=limits[1])
    ax.grid(False)
    ax.legend(loc="upper left", labelcolor=WHITE)
    return fig


def ladder(rows: pd.DataFrame) -> Figure:
    """Collapse in rescaled time, and the width and error at the end. Columns: eta, t, mean, low, high, flow."""
    fig, (top, bottom) = plt.subplots(2, 1, figsize=TALL, height_ratios=[4, 3])
    for i, (eta, line) in enumerate(rows.groupby("eta", sort=False)):
        shade = SERIES[i % len(SERIES)][0]
        top.fill_between(line["t"], line["low"], line["high"], color=shade, alpha=0.25, linewidth=0)
        top.plot(line["t"], line["mean"], MARKERS[i % len(MARKERS)], color=shade, label=f"η = {eta:.3f}")
    top.plot(line["t"], line["flow"], color=INK[0], label="flow")
    top.set(xlabel="rescaled time t = η² · step", ylabel="u² after Φ")
    top.legend()
    last = rows[rows["t"] == rows["t"].max()]
    bottom.loglog(last["eta"], last["high"] - last["low"], label="width of the band", **look("sgd"))
    bottom.loglog(last["eta"], (last["mean"] - last["flow"]).abs(), label="|mean - flow|", **look("small"))
    bottom.loglog(last["eta"], last["eta"] * 4, color=INK[0], linewidth=1, label="slope 1")
    bottom.set(xlabel="learning rate η", ylabel="at the last t, in u²")
    ticks(bottom.xaxis, list(last["eta"].round(3)))
    ticks(bottom.yaxis, [0.05, 0.1, 0.2, 0.5, 1])
    bottom.legend()
    return fig


def coefficient(rungs: pd.DataFrame, fits: Mapping[tuple[str, int], Sequence[Estimate]]) -> Figure:
    """Fitted coefficient times 4B with its polynomial, a panel a model. Columns: those of `flow_ladder.ladder`."""
    names = list(dict.fromkeys(name for name, _ in fits))
    fig, panels = plt.subplots(len(names), 1, figsize=TALL, sharex=True, sharey=True)
    fine = np.linspace(0, rungs["eta"].max() * 1.05, 100)
    for (name, b), fitted in fits.items():
        ax, style = panels[names.index(name)], look({1: "flow", 2: "small"}.get(b, "sgd"))
        rows = rungs[(rungs["model"] == name) & (rungs["batch"] == b)]
        bars, points = 3 * rows["kappa_stderr"] * 4 * b, style | {"linestyle": "none"}
        ax.errorbar(rows["eta"], rows["kappa"] * 4 * b, bars, label=f"B = {b}", **points)
        curve = sum(c.value * fine**i for i, c in enumerate(fitted)) * 4 * b
        ax.plot(fine, curve, color=style["color"], linestyle=style["linestyle"], linewidth=1)
    for ax, name in zip(panels, names, strict=True):
        ax.axhline(1, color=INK[0], linewidth=1)
        ax.set(ylabel="fitted coefficient × 4B", title=f"model {name}", xlim=(0, None))
    panels[-1].set(xlabel="learning rate η")
    panels[0].legend()
    return fig


def controls(rows: pd.DataFrame, goal: float) -> Figure:
    """Where five kinds of noise lead. Columns: noise, eta, low, median, high, off; goal: the flow's u^2."""
    fig, (top, bottom) = plt.subplots(2, 1, figsize=TALL)
    for i, (kind, (words, role)) in enumerate(NOISES.items()):
        line, style = rows[rows["noise"] == kind], look(role) | {"marker": MARKERS[i]}
        spread = np.abs(line[["low", "high"]].to_numpy().T - line["median"].to_numpy())
        shifted = line["eta"] * (0.92 + 0.04 * i)
        top.errorbar(shifted, line["median"], spread, label=words, **style | {"linestyle": "none"})
        bottom.plot(line["eta"], line["off"], **style)
    top.axhline(goal, color=INK[0], linewidth=1)
    top.set(xscale="log", xlabel="learning rate η", ylabel="u² after Φ at t = K")
    bottom.set(xscale="log", xlabel="learning rate η", ylabel="distance from Γ (logits)")
    for ax in (top, bottom):
        ticks(ax.xaxis, sorted(rows["eta"].unique()))
    fig.legend(loc="outside lower center", ncols=2)
    return fig


def optimisers(rows: pd.DataFrame, path: pd.DataFrame, rest: Mapping[str, float]) -> Figure:
    """u^2 against rescaled time. Columns: optimiser, t, mean, sd; path: t, x of the flow; rest: resting points."""
    fig, ax = plt.subplots(figsize=(6.2, 4))
    ax.plot(path["t"], path["x"], color=INK[0], label="flow")
    for name, line in rows.groupby("optimiser", sort=False):
        ax.errorbar(line["t"], line["mean"], line["sd"], label=name, **look(str(name)))
        if name in rest:
            ax.plot(
                path["t"].max() * np.array([0.8, 1.05]), [rest[str(name)]] * 2, color=colour(str(name)), linewidth=1
            )
    ax.set(yscale="log", xlabel="t = (effective learning rate)² · step", ylabel="u² after Φ")
    ticks(ax.yaxis, [0.5, 1, 2, 5, 10])
    ax.legend()
    return fig


def network(rows: pd.DataFrame, fits: Mapping[int, Sequence[Estimate]], times: pd.DataFrame) -> Figure:
    """Drift at a network over its prediction, and the prediction against the length of the clean-up.

    rows: batch, eta, mean, half (95 % half-width). fits: coefficients of polynomials in eta, by batch size.
    times: time, drift (of the trace, over that along the manifold).
    """
    fig, (top, bottom) = plt.subplots(2, 1, figsize=TALL)
    for b, line in rows.groupby("batch"):
        style = look("flow" if b == 1 else "sgd")
        beside = 1e4 * line["eta"] + 0.15 * (b != 1)  # bars of one learning rate stand side by side
        top.errorbar(beside, line["mean"], line["half"], label=f"B = {b}", **style | {"linestyle": "none"})
        fitted = fits.get(int(str(b)), ())
        fine = np.linspace(0, 1e-3, 50)
        if len(fitted) > 1:
            curve = sum(c.value * fine**i for i, c in enumerate(fitted))
            top.plot(1e4 * fine, curve, color=style["color"], linestyle=style["linestyle"], linewidth=1)
    top.axhline(1, color=INK[0], linewidth=1)
    top.set(xlabel="learning rate η (in units of 0.0001)", ylabel="drift of the trace / prediction")
    top.set(xlim=(0, 1.05 * top.get_xlim()[1]))
    top.legend(loc="best")
    bottom.loglog(times["time"], times["drift"], **look("theory"))
    bottom.axhline(1, color=INK[0], linewidth=1)
    bottom.set(xlabel="time of gradient flow after the kicks", ylabel="predicted drift / drift along Γ")
    return fig
