"""The picture on the front page: solutions of one loss, where SGD takes them, and what they are worth."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from sameloss.languages.dyck import enumerate_words, masked_inputs
from sameloss.measures.estimate import Estimate
from sameloss.pages.figures import INK, PAPER, colour, look, ticks
from sameloss.seeds import stream
from sameloss.theory import dyck_net, dyck_net_heads, dyck_net_solutions, flow, flow_landscape, flow_models, flow_sgd

LENGTH, NEURONS = 6, 128
EXAMPLES = (1, 2, 4, 8, 16)
ETA, STEPS, START = 0.1, 3000, 3.0


def valley(seed: int) -> pd.DataFrame:
    """The perfect models of the smallest language model that has many, and one run of SGD among them.

    Columns: what ("solution" or "sgd"), u, v, trace (of the Hessian; solutions only).
    """
    toy = flow_models.one_context(0.8)
    curve = flow.on_curve(toy, np.linspace(-3, 9, 161))
    seen = [round(step) for step in np.linspace(0, STEPS, 401)]
    walk = flow_sgd.train(toy, flow_models.start(toy, START), ETA, seen, 1, seed)[:, 0]
    traces = flow_landscape.manifold_trace(toy, curve)
    solutions = pd.DataFrame({"what": "solution", "u": curve[:, 0], "v": curve[:, 1], "trace": traces})
    return pd.concat([solutions, pd.DataFrame({"what": "sgd", "u": walk[:, 0], "v": walk[:, 1]})], ignore_index=True)


def transfer(seed: int, trials: int) -> pd.DataFrame:
    """Error of counting brackets after n labelled examples for two networks without pre-training loss.

    Columns: net, trace, n, error (share of what a head that always says "balanced" would make), stderr.
    """
    x, y = masked_inputs(enumerate_words(LENGTH, "equal-count"))
    drawn = dyck_net_solutions.random_solution(x, y, "equal-count", NEURONS, seed)
    nets = {"flattest": dyck_net_solutions.two_neurons(LENGTH), "random features": dyck_net.rescale(drawn, x)}
    rows = []
    for name, net in nets.items():
        assert dyck_net.worst_error(net, x, y) < dyck_net.INTERPOLATES  # the same loss: none
        for n in EXAMPLES:
            errors = dyck_net_heads.sampled_errors(net, "attention", n, trials, stream(seed, f"theory/front/{n}"))
            error = Estimate.of(errors / LENGTH)
            trace = 2 * dyck_net.half_trace(net, x)
            rows.append({"net": name, "trace": trace, "n": n, "error": error.value, "stderr": error.stderr})
    return pd.DataFrame(rows)


def draw(ground: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """Above: the valley of perfect models with the path of SGD. Below: what two perfect networks are worth."""
    fig, (top, bottom) = plt.subplots(2, 1, figsize=(5.8, 7.0), height_ratios=(1.15, 1))
    _draw_valley(fig, top, ground)
    for name, role in (("random features", "random"), ("flattest", "flow")):
        rows = curves[curves["net"] == name]
        label = f"{name}, trace {rows['trace'].iloc[0]:.0f}"
        bottom.errorbar(rows["n"], rows["error"], 2 * rows["stderr"], **look(role), label=label)
    bottom.set(xscale="log", xlabel="labelled examples", ylabel="downstream error (share)", ylim=(-0.04, None))
    bottom.set_title("Two networks with zero loss on brackets", loc="left")
    ticks(bottom.xaxis, EXAMPLES)
    bottom.legend()
    return fig


def _draw_valley(fig: Figure, ax: plt.Axes, ground: pd.DataFrame) -> None:
    walk, curve = (ground[ground["what"] == what] for what in ("sgd", "solution"))
    points: Float[np.ndarray, "n 2"] = curve[["u", "v"]].to_numpy()
    ax.plot(walk["u"], walk["v"], color=colour("small"), linewidth=0.6, label="SGD")
    lines = LineCollection(list(np.stack([points[:-1], points[1:]], axis=1)), cmap="cividis", linewidth=7, zorder=3)
    lines.set_array(curve["trace"].to_numpy()[1:])
    ax.add_collection(lines)
    fig.colorbar(lines, ax=ax, label="trace of the Hessian")
    for row, word, beside in ((walk.iloc[0], "start", (9, 9)), (walk.iloc[-1], "end", (-36, -22))):
        ax.plot(row["u"], row["v"], "o", color=INK[0], markerfacecolor=PAPER[0], zorder=4)
        ax.annotate(word, (row["u"], row["v"]), xytext=beside, textcoords="offset points", zorder=5)
    ax.set(xlabel="first weight", ylabel="second weight", xlim=(0.5, 3.5), ylim=(0, 2.4))
    ax.set_title("Every point of the coloured curve has the least loss", loc="left")
    ax.legend(loc="upper right")
