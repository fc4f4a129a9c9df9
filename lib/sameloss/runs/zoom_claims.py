"""The statistics behind claims N1 to N3, fixed before any run: which models, region, score and margin."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from sameloss.measures.estimate import Estimate
from sameloss.runs import zoom_tables as zoom
from sameloss.runs.settings_experiment import ZoomSettings
from sameloss.runs.spec import ModelSpec
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


def contrasts(models: Mapping[str, ModelSpec]) -> dict[str, tuple[list[str], list[str]]]:
    """What is compared at equal loss, fixed by the models alone: words -> (conditions, conditions to subtract).

    The largest and the smallest transformer (by width, then by layers); the LSTMs and the transformers.
    """
    by_size = sorted((spec.width, getattr(spec, "layers", 1), name) for name, spec in models.items())
    family = {kind: [name for *_, name in by_size if models[name].kind == kind] for kind in ("transformer", "lstm")}
    small, large = family["transformer"][:1], family["transformer"][-1:]
    found = {f"{large[0]} and {small[0]}": (large, small)} if small != large else {}
    return found | ({"LSTMs and transformers": (family["lstm"], family["transformer"])} if all(family.values()) else {})


def statistics(
    views: Mapping[str, pd.DataFrame], models: Mapping[str, ModelSpec], settings: ZoomSettings
) -> list[Statistic]:
    """All of them in the order of the claims.

    views: kind of features -> `points` of all models, the first the main one. models: their shapes, by condition.
    """
    said = {name: "" if i == 0 else f", {name}" for i, name in enumerate(views)}
    found = [one for name, frame in views.items() for one in _far(frame, models, settings, said[name])]
    found += [one for name, frame in views.items() for one in _near(frame, models, settings, said[name])]
    return [*found, *_scores(next(iter(views.values())), settings)]


def differences(values: pd.DataFrame, models: Mapping[str, ModelSpec]) -> Iterator[tuple[str, pd.Series]]:
    """The contrasts of the models of a table (seeds by models, as of `zoom_tables.heights`): words, value by seed."""
    for words, (plus, minus) in contrasts({name: models[name] for name in map(str, values)}).items():
        yield words, values[plus].mean(axis=1, skipna=False) - values[minus].mean(axis=1, skipna=False)


def _far(
    frame: pd.DataFrame, models: Mapping[str, ModelSpec], settings: ZoomSettings, said: str
) -> Iterator[Statistic]:
    """N1: models within the margin at equal loss; and a score that rises as the loss falls."""
    region, where = regions(settings)["far"], f"KL above {settings.far:g}{said}"
    values = zoom.heights(frame, settings.models, "accuracy", region)
    p = zoom.indistinguishable(values.to_numpy())
    for words, of in differences(values, models):
        e = over_seeds(of)
        inside = Estimate(settings.margin - abs(e.value), e.stderr, e.n)
        words = f"margin {settings.margin:g} minus distance of {words} at equal loss, {where}"
        note = _told(f"first minus second {e.value:+.3f}; one curve for all {len(settings.models)}: p {p:.2g}")
        yield Statistic("N1", words, inside, bool(of.notna().all()), note)
    rises = -zoom.slopes(frame, settings.models, "accuracy", region)
    p = zoom.indistinguishable(rises.to_numpy())
    gain, whole = over_seeds(rises.mean(axis=1, skipna=False)), bool(rises.notna().all(axis=None))
    yield Statistic(
        "N1", f"accuracy gained while KL falls by e, {where}", gain, whole, _told(f"one slope for all: p {p:.2g}")
    )


def _near(
    frame: pd.DataFrame, models: Mapping[str, ModelSpec], settings: ZoomSettings, said: str
) -> Iterator[Statistic]:
    """N2: the order by loss is worth less than far away, and models of equal loss are further apart than the margin."""
    names, of = near_models(frame, settings), regions(settings)
    frame = frame[frame["condition"].isin(names)]
    told = {name: zoom.told(frame, "accuracy", region) for name, region in of.items()}
    less = told["far"] - told["near"]
    note = _told(f"{over_seeds(told['far']).value:.2f} far, {over_seeds(told['near']).value:.2f} near")
    words = f"how often the lower loss is the better model, far minus near{said}"
    yield Statistic("N2", words, over_seeds(less), len(less) > 0 and bool(less.notna().all()), note)
    where = f"KL below {settings.near:g}{said}"
    values = zoom.heights(frame, names, "accuracy", of["near"]) if len(names) > 1 else pd.DataFrame()
    found = list(differences(values, models))
    p = zoom.indistinguishable(values.to_numpy())
    for words, by_seed in found:
        e = over_seeds(by_seed)
        beyond = Estimate(abs(e.value) - settings.margin, e.stderr, e.n)
        words = f"distance of {words} at equal loss minus margin {settings.margin:g}, {where}"
        note = _told(f"first minus second {e.value:+.3f}; one curve for all {len(names)}: p {p:.2g}")
        yield Statistic("N2", words, beyond, bool(by_seed.notna().all()), note)
    if not found:
        words = f"distance of models at equal loss minus margin {settings.margin:g}, {where}"
        yield Statistic("N2", words, Estimate(math.nan, math.nan, 0), False, "too few models come that near")


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


def _told(note: str) -> str:
    """A note without the parts that have no value."""
    return "; ".join(part for part in note.split("; ") if "nan" not in part)


def highest_threshold(frame: pd.DataFrame) -> str:
    """The column of the highest threshold that was measured."""
    return max((str(name) for name in frame if str(name).startswith("above_")), key=lambda name: float(name[6:]))
