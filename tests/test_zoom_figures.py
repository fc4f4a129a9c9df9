"""Chapter 6's pictures on made-up training runs of eight models: what they draw, and what their axes say."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from sameloss.pages import figures
from sameloss.pages import zoom_figures as draw
from sameloss.runs import zoom_tables as zoom
from sameloss.runs.spec import LSTMSpec, TransformerSpec

SHAPES = {f"d{w}-hard": TransformerSpec(kind="transformer", width=w) for w in (8, 16, 32, 64)}
SHAPES["d32x1-hard"] = TransformerSpec(kind="transformer", width=32, layers=1)
SHAPES |= {f"lstm{w}-hard": LSTMSpec(kind="lstm", width=w) for w in (16, 32, 64)}
STEPS = (0, 50, 100, 200, 400, 800, 1500, 3000, 6000)


def made_up(names=tuple(SHAPES), seeds=range(4)) -> pd.DataFrame:
    """Training runs in which score and loss follow laws with a level of their own for every model."""
    rng, rows = np.random.default_rng(0), []
    for i, name in enumerate(names):
        for seed in seeds:
            for step in STEPS:
                kl = 0.35 * (1 + step / (60 + 20 * i)) ** -0.8 * np.exp(rng.normal(0, 0.05))
                accuracy = 0.72 + 0.01 * i - 0.05 * np.log(kl) + rng.normal(0, 0.004)
                row = {"condition": name, "seed": seed, "step": step, "kl": kl, "log_kl": np.log(kl)}
                row |= {"accuracy": accuracy, "probability": accuracy - 0.1, "good": accuracy**2}
                row |= {"above_0.9": max(0, accuracy - 0.6), "rare": 1 + 2 * kl, "validation": kl, "training": kl / 2}
                rows.append(row)
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    figures.use()
    return made_up()


def pictures(frame: pd.DataFrame) -> dict:
    """Every picture of the chapter, with the numbers that it shows."""
    styles, names = draw.looks(SHAPES), list(SHAPES)
    one = frame[frame["condition"] == "d64-hard"]
    heights = {p: zoom.heights(frame, names, "accuracy", r) for p, r in (("far", (0.1, 9)), ("near", (0, 0.03)))}
    panels = {place: {"unmasked": of, "unmasked-64": of / 2} for place, of in heights.items()}
    words = {"accuracy": "accuracy", "probability": "probability", "good": "1 - Brier / 2", "above_0.9": "share above"}
    return {
        "magnified": draw.magnified(frame, styles, "accuracy", 0.03),
        "log": draw.against_log_kl({"unmasked": frame, "unmasked-64": frame}, styles, "accuracy", (0.1, 0.03)),
        "models": draw.by_model(panels, "accuracy (share) minus mean", 0.02),
        "scores": draw.scores(one, words),
        "pool": draw.two_losses(frame[frame["step"] > 0], "d32-hard", "d64-hard", "accuracy"),
        "parts": draw.relative({"rare": (frame, "rare")}, styles, "KL relative to all"),
    }


def test_every_picture_is_labelled_and_carries_its_numbers(frame):
    for name, (fig, numbers) in pictures(frame).items():
        assert figures.unlabelled(fig) == [], name
        assert figures.to_svg(fig).startswith("<svg"), name
        assert len(numbers) > 0
        assert len(numbers.to_csv(float_format="%.6g")) < 100_000
        plt.close(fig)


def test_every_model_has_a_look_of_its_own_without_colour():
    styles = draw.looks(SHAPES)
    assert list(styles) == list(SHAPES)
    assert len({(s["marker"], s["linestyle"]) for s in styles.values()}) == len(SHAPES)
    assert styles["d8-hard"]["color"] == styles["lstm16-hard"]["color"]


def test_what_the_lower_panel_magnifies_is_what_is_near_the_floor(frame):
    fig, drawn = draw.magnified(frame, draw.looks(SHAPES), "accuracy", 0.03)
    lines = [line for line in fig.axes[1].get_lines() if len(line.get_xdata()) > 1]
    assert max(line.get_xdata().max() for line in lines) <= 0.03
    assert drawn["kl"].max() > 0.1
    plt.close(fig)


def test_a_picture_without_any_value_is_still_one(frame):
    empty = pd.DataFrame(columns=list(SHAPES), dtype=float)
    fig, numbers = draw.by_model({"far": {"unmasked": empty}}, "value", 0.02)
    assert len(numbers) == 0
    assert figures.to_svg(fig)
    plt.close(fig)
