"""The statistics behind claims N1 to N3, fixed before any run: which models, region, score and margin."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from sameloss.measures.estimate import Estimate
from sameloss.runs import zoom_tables as zoom
from sameloss.runs.settings_experiment import ZoomSettings
from sameloss.runs.zoom_tables import Region, over_seeds

MIN_SEEDS = 5


@dataclass(frozen=True)
class Statistic:
    """One row of the ledger: the claim says that `estimate` is above 0. comparable: every seed has a value."""

    claim: str
    words: str
    estimate: Estimate
    comparable: bool
    note: str = ""


def regions(settings: ZoomSettings) -> dict[str, Region]:
    """The two regions of KL (nats) by name."""
    return {"far": (settings.far, math.inf), "near": (0.0, settings.near)}


def near_models(frame: pd.DataFrame, settings: ZoomSettings) -> list[str]:
    """The models that are compared near the floor: those that come to half of `near` in every seed."""
    return zoom.reaching(frame, settings.models, settings.near / 2)


def statistics(views: Mapping[str, pd.DataFrame], settings: ZoomSettings) -> list[Statistic]:
    """All of them in the order of the claims. views: kind of features -> `points` of all models, the first the main."""
    found = [one for name, frame in views.items() for one in _far(frame, settings, _said(views, name))]
    found += [one for name, frame in views.items() for one in _near(frame, settings, _said(views, name))]
    return [*found, *_scores(next(iter(views.values())), settings)]


def _said(views: Mapping[str, pd.DataFrame], name: str) -> str:
    return "" if name == next(iter(views)) else f", {name}"


def _far(frame: pd.DataFrame, settings: ZoomSettings, said: str) -> Iterator[Statistic]:
    """N1: models within the margin at equal loss; and a score that rises as the loss falls."""
    models, region, where = settings.models, regions(settings)["far"], f"KL above {settings.far:g}{said}"
    values = zoom.heights(frame, models, "accuracy", region)
    apart, whole = zoom.spread(values.to_numpy()), bool(values.notna().all(axis=None))
    p = zoom.indistinguishable(values.to_numpy())
    inside = Estimate(settings.margin - apart.value, apart.stderr, apart.n)
    words = f"margin {settings.margin:g} minus the distance of best and worst of {len(models)} models at equal loss"
    yield Statistic("N1", f"{words}, {where}", inside, whole, f"one curve for all: p {p:.2g}")
    rises = -zoom.slopes(frame, models, "accuracy", region)
    p = zoom.indistinguishable(rises.to_numpy())
    gain, whole = over_seeds(rises.mean(axis=1, skipna=False)), bool(rises.notna().all(axis=None))
    yield Statistic("N1", f"accuracy gained while KL falls by e, {where}", gain, whole, f"one slope for all: p {p:.2g}")


def _near(frame: pd.DataFrame, settings: ZoomSettings, said: str) -> Iterator[Statistic]:
    """N2: the order by loss is worth less than far away, and models of equal loss are further apart than the margin."""
    models, of = near_models(frame, settings), regions(settings)
    frame = frame[frame["condition"].isin(models)]
    told = {name: zoom.told(frame, "accuracy", region) for name, region in of.items()}
    less = told["far"] - told["near"]
    note = f"{over_seeds(told['far']).value:.2f} far, {over_seeds(told['near']).value:.2f} near"
    words = f"how often the lower loss is the better model, far minus near{said}"
    yield Statistic("N2", words, over_seeds(less), bool(less.notna().all()), note)
    where = f"KL below {settings.near:g}{said}"
    words = (
        f"distance of best and worst of {len(models)} models at equal loss minus margin {settings.margin:g}, {where}"
    )
    if len(models) < 2:
        yield Statistic("N2", words, Estimate(math.nan, math.nan, 0), False, "fewer than two models come that near")
        return
    values = zoom.heights(frame, models, "accuracy", of["near"])
    apart, p = zoom.spread(values.to_numpy()), zoom.indistinguishable(values.to_numpy())
    beyond = Estimate(apart.value - settings.margin, apart.stderr, apart.n)
    whole = bool(values.notna().all(axis=None))
    yield Statistic("N2", words, beyond, whole, f"one curve for all: p {p:.2g}")


def _scores(frame: pd.DataFrame, settings: ZoomSettings) -> Iterator[Statistic]:
    """N3: other scores put the models into one order; a threshold makes the rise steeper than what it cuts."""
    for score, sign in (("brier", -1), ("probability", 1)):
        same = orders(frame, settings, score, sign)
        words = f"pairs of models that accuracy and {score} order alike at equal loss, minus {settings.agreement:g}"
        gain = over_seeds(same - settings.agreement)
        yield Statistic("N3", words, gain, bool(len(same) and same.notna().all()))
    smooth = zoom.steepness(frame, settings.models, "probability")
    for score in ("accuracy", highest_threshold(frame)):
        more = zoom.steepness(frame, settings.models, score) - smooth
        by_seed = more.mean(axis=1)  # a model that never covers a factor of KL has no steepness
        words = f"share of the rise within the steepest factor of 3 in KL, {score} minus probability"
        yield Statistic("N3", words, over_seeds(by_seed), bool(by_seed.notna().all()))


def orders(frame: pd.DataFrame, settings: ZoomSettings, score: str, sign: int) -> pd.Series:
    """How many pairs of models a score orders as accuracy does, mean of both regions, by seed."""
    parts = []
    for name, region in regions(settings).items():
        models: Sequence[str] = settings.models if name == "far" else near_models(frame, settings)
        if len(models) > 1:
            of = frame[frame["condition"].isin(models)]
            by = [zoom.heights(of, models, column, region) for column in ("accuracy", score)]
            parts.append(zoom.alike(by[0], sign * by[1]))
    return pd.concat(parts, axis=1).mean(axis=1, skipna=False)


def highest_threshold(frame: pd.DataFrame) -> str:
    """The column of the highest threshold that was measured."""
    return max((str(name) for name in frame if str(name).startswith("above_")), key=lambda name: float(name[6:]))
