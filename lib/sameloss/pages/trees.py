"""A parse tree as a drawing."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from sameloss.languages.pcfg_trees import Tree
from sameloss.pages import figures


def draw(tree: Tree) -> Figure:
    """The tree with its words in a row at the bottom, every symbol above the middle of the words it covers."""
    depth = _depth(tree)
    fig, ax = plt.subplots(figsize=(max(5.0, 0.72 * tree.end), 0.55 * depth + 0.5))

    def place(node: Tree, level: int) -> tuple[float, float]:
        x, y = (node.start + node.end - 1) / 2, depth - level if node.children else 0
        for child in node.children:
            cx, cy = place(child, level + 1)
            ax.plot([x, cx], [y, cy], color=figures.RULE[0], linewidth=1.4, zorder=1)
        box = {"boxstyle": "round,pad=0.25", "facecolor": figures.PAPER[0], "edgecolor": figures.PAPER[0]}
        colour = figures.colour("pcfg") if node.children else figures.INK[0]
        ax.text(x, y, node.label, ha="center", va="center", color=colour, bbox=box, zorder=2)
        return x, y

    place(tree, 0)
    ax.set(xlim=(-0.6, tree.end - 0.4), ylim=(-0.5, depth + 0.5))
    ax.axis("off")
    return fig


def _depth(tree: Tree) -> int:
    return 1 + max(map(_depth, tree.children), default=-1)
