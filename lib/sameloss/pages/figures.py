"""One style for every figure: colours that the colour-blind and a grey printer tell apart, legible in light and dark.

A figure becomes one SVG whose colours are CSS variables with a light and a dark value: the picture follows the page
(`prefers-color-scheme`), background included, so that it can always be read.
"""

import io
import re
from collections.abc import Sequence

import matplotlib as mpl
import seaborn as sns
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

SHARE = re.compile(r"\baccuracy\b", re.I)
LOSS = re.compile(r"((sampled|training|validation) )?(loss|KL|entropy)\b", re.I)
# name -> (light, dark). Matplotlib draws with the light value; `to_svg` turns each into a variable.
INK = ("#24292e", "#d5d9de")
PAPER = ("#fefefe", "#15191e")
RULE = ("#d9dce0", "#3a4149")
# Okabe and Ito's hues; the luminance rises along the list, so that grey prints keep the order.
SERIES = (
    ("#0b4f8a", "#5aa9e6"),
    ("#b5460f", "#f08a4b"),
    ("#00795c", "#3fc39b"),
    ("#a8508a", "#e08cc4"),
    ("#8a6d00", "#e2c044"),
    ("#4f8fb8", "#a9d6f2"),
    ("#6b7079", "#9aa1ab"),
)
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

# What a colour means, the same in every chapter.
ROLES = {
    "large": 0, "adamw": 0, "pcfg": 0, "flow": 0,
    "small": 1, "adversarial": 1, "hmm": 1, "lookup": 1,
    "sgd": 2, "lm": 2, "theory": 2, "embedded": 2,
    "random": 3, "untrained": 3, "oracle": 3,
    "medium": 4, "twin": 4, "fisher": 4,
    "light": 5, "hessian": 5,
    "U": 1, "E": 2, "M": 3, "momentum": 1, "adam": 3,
    "truth": 6, "floor": 6, "bayes": 6, "chance": 6,
}  # fmt: skip


def use() -> None:
    """Set matplotlib and seaborn to the book's style."""
    sns.set_theme(
        context="notebook",
        style="ticks",
        palette=[light for light, _ in SERIES],
        rc={
            "figure.figsize": (6.2, 3.6),
            "figure.constrained_layout.use": True,
            "font.size": 11,
            "axes.titlesize": 11,
            "axes.labelsize": 11,
            "xtick.labelsize": 10,
            "ytick.labelsize": 10,
            "legend.fontsize": 10,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": RULE[0],
            "grid.linewidth": 0.7,
            "lines.linewidth": 1.8,
            "lines.markersize": 5.5,
            "errorbar.capsize": 3,
            "svg.fonttype": "path",
            "svg.hashsalt": "sameloss",
            **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK[0]),
            **dict.fromkeys(("axes.edgecolor", "axes.titlecolor"), INK[0]),
            **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER[0]),
        },
    )


def colour(role: str) -> str:
    """The colour of a role ("large", "adversarial", ...; KeyError names those that exist)."""
    return SERIES[_index(role)][0]


def look(role: str) -> dict:
    """Colour, marker and dash of a role, for `ax.plot(..., **look("large"))`."""
    i = _index(role)
    return {"color": SERIES[i][0], "marker": MARKERS[i], "linestyle": DASHES[i]}


def ticks(axis: Axis, values: Sequence[float]) -> None:
    """Label a (logarithmic) axis at exactly these values: matplotlib's own labels overlap within one decade."""
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def log_ticks(axis: Axis, most: int = 6) -> None:
    """Label a logarithmic axis at round numbers, `most` at the most: the coarsest that leave three of them, or all."""
    low, high = sorted(axis.get_view_interval())
    inside: list[float] = []
    for marks in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        inside = [value for value in (m * 10.0**e for e in range(-9, 10) for m in marks) if low <= value <= high]
        if len(inside) > 2:
            break
    if len(inside) < 2:  # an axis too short for round numbers of the logarithm
        inside = [value for value in MaxNLocator(3).tick_values(low, high) if low <= value <= high]
    ticks(axis, inside[:: -(-len(inside) // most)])


def _index(role: str) -> int:
    if role not in ROLES:
        raise KeyError(f"no figure role {role!r}; known: {', '.join(ROLES)}")
    return ROLES[role]


def unlabelled(fig: Figure) -> list[str]:
    """The directions ("x", "y") in which no panel says what it shows: no label, and ticks that are bare numbers."""
    shown = [ax for ax in fig.axes if ax.axison and ax.get_visible()]
    axes: dict[str, list[Axis]] = {"x": [ax.xaxis for ax in shown], "y": [ax.yaxis for ax in shown]}
    return [name for name, some in axes.items() if some and not any(_says(axis) for axis in some)]


def _says(axis: Axis) -> bool:
    if not len(axis.get_ticklocs()):  # an axis without ticks measures nothing
        return True
    words = [axis.get_label_text(), *(label.get_text() for label in axis.get_ticklabels())]
    return any(re.search(r"[^\W\d_]", re.sub(r"\$.*?\$|\\\w+", "", word)) for word in words) or bool(words[0])


def without_unit(fig: Figure) -> list[str]:
    """Labels of axes that show a loss, a divergence or an entropy not said to be in nats, or an accuracy no share."""
    labels = [axis.get_label_text() for ax in fig.axes for axis in (ax.xaxis, ax.yaxis)]
    losses = [label for label in labels if LOSS.match(label) and not re.search(r"\(nats\b|relative", label)]
    return losses + [label for label in labels if SHARE.search(label) and "(share" not in label]


def to_svg(fig: Figure) -> str:
    """The figure as SVG text whose ink, paper and series colours follow the reader's light or dark mode.

    ValueError for a figure with unlabelled axes, or a loss or an accuracy without its unit.
    """
    if missing := without_unit(fig):
        raise ValueError(f"a figure with the axis {missing[0]!r}: name the unit, (nats) or (share)")
    if missing := unlabelled(fig):
        raise ValueError(
            f"a figure without a label on its {' and '.join(missing)} axis: say what it shows, and in which unit"
        )
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "sameloss"}):
        out = io.StringIO()
        fig.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    names = {"ink": INK, "paper": PAPER, "rule": RULE} | {f"c{i}": pair for i, pair in enumerate(SERIES)}
    svg = out.getvalue()
    for name, (light, _) in names.items():
        # Attributes take no var(); style properties do, and matplotlib writes styles.
        svg = re.sub(rf"(:\s*){light}(?=[;\"])", rf"\g<1>var(--{name})", svg, flags=re.I)
    light_mode = "".join(f"--{name}:{light};" for name, (light, _) in names.items())
    dark_mode = "".join(f"--{name}:{dark};" for name, (_, dark) in names.items())
    style = f"<style>:root{{{light_mode}}}@media (prefers-color-scheme:dark){{:root{{{dark_mode}}}}}</style>"
    start = svg.index("<svg")
    cut = svg.index(">", start) + 1
    return svg[start:cut] + style + svg[cut:]
