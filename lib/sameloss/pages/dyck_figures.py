"""Drawing the bracket network: its weights as lines, its attention map as it turns rank one."""

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from sameloss.pages import figures
from sameloss.theory.dyck_net import DyckNet

LAYERS = ("brackets", "attention\noutput z", "ReLU\nneurons", "answer f")


def draw_network(ax: Axes, net: DyckNet, title: str, most: int = 8) -> None:
    """The net from left to right; a line's width is the weight's size, its colour and dash the sign.

    Only the first `most` neurons are drawn; the rest are counted in words.
    """
    hidden, output = net.hidden[:most], net.output[:most]
    sizes = (net.attention.shape[1], net.attention.shape[0], len(output), 1)
    spots = [np.linspace(1, -1, size + 2)[1:-1] for size in sizes]
    for layer, weights in enumerate((net.attention, hidden, output[None, :])):
        largest = np.abs(weights).max()
        for (to, source), weight in np.ndenumerate(weights):
            if abs(weight) > 1e-9:
                role, dash = ("large", "-") if weight > 0 else ("small", (0, (4, 2)))
                ends = spots[layer][source], spots[layer + 1][to]
                strength = abs(weight) / largest
                ax.plot(
                    (layer, layer + 1), ends, color=figures.colour(role), ls=dash, lw=0.4 + 2 * strength, alpha=0.85
                )
    for layer, heights in enumerate(spots):
        ax.scatter(np.full(len(heights), layer), heights, s=70, color=figures.RULE[0], ec=figures.INK[0], zorder=3)
    ax.set(xticks=range(4), xticklabels=LAYERS, yticks=[], xlim=(-0.3, 3.3), ylim=(-1.1, 1), title=title)
    if len(net.output) > most:
        ax.annotate(f"… and {len(net.output) - most} more", (2, -1.05), ha="center", va="bottom", fontsize=9)
    ax.grid(False)
    ax.spines[["left", "bottom"]].set_visible(False)


def draw_attention(ax: Axes, attention: Float[np.ndarray, "d T"], scale: float, title: str) -> None:
    """The map A as a grid of squares: area for size, colour and filling for sign, so that grey prints keep it."""
    for sign, role, filled in ((1, "large", True), (-1, "small", False)):
        rows, columns = np.nonzero(attention * sign > 0.01 * scale)
        area = 110 * np.abs(attention[rows, columns]) / scale
        face = figures.colour(role) if filled else "none"
        ax.scatter(columns + 1, rows + 1, s=area, marker="s", fc=face, ec=figures.colour(role))
    depth, length = attention.shape
    ax.set(xlim=(0.4, length + 0.6), ylim=(depth + 0.6, 0.4), title=title, aspect="equal")
    ax.set(xticks=range(1, length + 1), yticks=range(1, depth + 1))
    ax.tick_params(labelsize=8, length=0)
    ax.grid(False)


def draw_shares(ax: Axes, attention: Float[np.ndarray, "d T"]) -> None:
    """The squared singular values of A as shares of their sum, from a millionth up: one bar means one direction."""
    squared = np.linalg.svd(attention, compute_uv=False) ** 2
    shares = squared / squared.sum()
    ax.bar(range(1, len(shares) + 1), shares, color=figures.colour("theory"))
    ax.set(yscale="log", ylim=(1e-6, 2), yticks=(1e-6, 1e-3, 1), xticks=range(1, len(shares) + 1))
    ax.tick_params(labelsize=8)
    ax.minorticks_off()
