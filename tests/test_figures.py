"""The one figure style: told apart by the colour-blind and in grey, readable in light and dark, the same bytes."""

import re
import xml.etree.ElementTree as ET

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from sameloss.pages import figures

matplotlib.use("Agg")


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1])
def test_text_and_lines_stand_out_from_the_paper_in_both_modes(mode):
    assert contrast(figures.INK[mode], figures.PAPER[mode]) > 7
    for pair in figures.SERIES:
        assert contrast(pair[mode], figures.PAPER[mode]) >= 3, pair


@pytest.mark.parametrize("mode", [0, 1])
def test_the_first_three_colours_differ_for_the_colour_blind(mode):
    # Machado, Oliveira and Fernandes 2009, severity 1.
    blind = {
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    }
    for matrix in blind.values():
        seen = [np.clip(np.array(matrix) @ to_rgb(pair[mode]), 0, 1) for pair in figures.SERIES[:3]]
        gaps = [np.linalg.norm(seen[i] - seen[j]) for i in range(3) for j in range(i)]
        assert min(gaps) > 0.2, gaps


def test_series_differ_without_colour():
    looks = [figures.look(role) for role in ("large", "small", "sgd", "random", "twin", "light", "truth")]
    assert len({look["marker"] for look in looks}) == len({str(look["linestyle"]) for look in looks}) == len(looks)


def test_an_unknown_role_is_named():
    with pytest.raises(KeyError, match="no figure role 'blue'"):
        figures.colour("blue")


def draw() -> str:
    figures.use()
    fig, ax = plt.subplots()
    ax.errorbar([1, 2], [3, 4], yerr=0.1, label="large", **figures.look("large"))
    ax.set(xlabel="steps", ylabel="loss (nats)")
    ax.legend()
    svg = figures.to_svg(fig)
    plt.close(fig)
    return svg


def test_a_figure_is_well_formed_svg_with_a_dark_mode_and_no_colour_of_its_own():
    svg = draw()
    ET.fromstring(svg)
    assert "prefers-color-scheme:dark" in svg
    drawn = re.sub(r"<style>.*?</style>", "", svg, count=1)
    assert "var(--ink)" in drawn
    assert "var(--c0)" in drawn
    fixed = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", drawn))
    assert not fixed, f"colours that dark mode cannot change: {fixed}"
    assert not re.search(r"https?://(?!www\.w3\.org|purl\.org|creativecommons\.org|matplotlib\.org)", svg)


def test_the_same_figure_gives_the_same_bytes():
    assert draw() == draw()


def test_a_figure_says_what_its_axes_show():
    fig, ax = plt.subplots()
    ax.plot([1, 2], [3, 4])
    assert figures.unlabelled(fig) == ["x", "y"]
    with pytest.raises(ValueError, match="without a label on its x and y axis"):
        figures.to_svg(fig)
    ax.set(ylabel="loss (nats)")
    assert figures.unlabelled(fig) == ["x"]
    ax.set_xticks([1, 2], ["small", "large"])  # names are their own label
    assert figures.unlabelled(fig) == []
    plt.close(fig)
    fig, (top, bottom) = plt.subplots(2, 1, sharex=True)
    bottom.set(xlabel="$n$")
    top.set(ylabel="share")
    assert figures.unlabelled(fig) == []
    for ax in (top, bottom):
        ax.axis("off")  # a drawing has no axes
    assert figures.unlabelled(fig) == []
    plt.close(fig)


@pytest.mark.parametrize(
    "label", ["loss", "KL to the truth", "sampled loss\nabove the floor", "Entropy of a word (bits)"]
)
def test_a_loss_has_its_unit(label):
    fig, ax = plt.subplots()
    ax.set(xlabel="training steps", ylabel=label)
    with pytest.raises(ValueError, match=r"name the unit, \(nats\) or \(share\)"):
        figures.to_svg(fig)
    for sound in (f"{label.split('(')[0]} (nats)", "KL relative to all"):
        ax.set(ylabel=sound)
        assert figures.without_unit(fig) == []
    plt.close(fig)


def test_an_accuracy_is_said_to_be_a_share():
    fig, ax = plt.subplots()
    ax.set(xlabel="training steps", ylabel="probe accuracy B")
    assert figures.without_unit(fig) == ["probe accuracy B"]
    ax.set(ylabel="probe accuracy B (share) at equal KL")
    assert figures.without_unit(fig) == []
    plt.close(fig)


@pytest.mark.parametrize("ends", [(1e-4, 3.0), (0.02, 0.09), (0.115, 0.119), (30.0, 31.0), (0.9, 1.1)])
def test_a_logarithmic_axis_has_two_labels_or_more_inside_it(ends):
    fig, ax = plt.subplots()
    ax.set(yscale="log", ylim=ends)
    figures.log_ticks(ax.yaxis)
    shown = ax.yaxis.get_majorticklocs()
    assert 2 <= len(shown) <= 6
    assert all(ends[0] <= value <= ends[1] for value in shown)
    plt.close(fig)
