"""From the conditions of a profile, which use names, to the specs of runs, which hold everything."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sameloss.errors import UserError
from sameloss.runs.settings_experiment import Condition, ExperimentSettings, SameLossSettings, ZoomSettings
from sameloss.runs.spec import TASKS, RunSpec, Start

if TYPE_CHECKING:
    from sameloss.runs.profile import Profile


def specs(profile: "Profile", settings: ExperimentSettings) -> list[RunSpec]:
    """One spec per condition and stack of seeds, in the order of the profile.

    UserError for a name that is not defined, a condition without what it needs, or one that continues a later one.
    """
    found: dict[str, list[RunSpec]] = {}
    for condition in settings.conditions:
        if condition.name in found:
            raise UserError(f"{condition.name}: two conditions of this name")
        if condition.after is None:
            found[condition.name] = _first(profile, settings, condition)
        else:
            parents = _named(condition, "after", condition.after, found)
            found[condition.name] = [_continued(profile, condition, p) for p in parents[: condition.stacks]]
    _check_tasks(settings, found)
    if isinstance(settings, ZoomSettings):
        _check_scores(settings, found)
    return [spec for stacks in found.values() for spec in stacks]


def _check_tasks(settings: ExperimentSettings, found: Mapping[str, list[RunSpec]]) -> None:
    """Every task that is measured exists, and every task with a verdict is measured; as far as a kind fixes them."""
    for spec in (spec for stacks in found.values() for spec in stacks):
        known = TASKS.get(spec.language.kind)
        if known is None:
            continue
        wanted = settings.tasks if isinstance(settings, SameLossSettings | ZoomSettings) else ()
        for task in (*(spec.measure.tasks or ()), *(spec.measure.fine_tune or ()), *wanted):
            if task not in known:
                raise UserError(f"task {task!r} is none of {spec.language.kind}'s; allowed: {', '.join(known)}")
        compared = getattr(settings, "sizes", getattr(settings, "models", ()))
        for task in wanted if spec.name in compared else ():
            if spec.measure.tasks and task not in spec.measure.tasks:
                raise UserError(
                    f"task {task!r} is not measured by {spec.name}; allowed: {', '.join(spec.measure.tasks)}"
                )


def _check_scores(settings: ZoomSettings, found: Mapping[str, list[RunSpec]]) -> None:
    """Chapter 6 has every score, the common projection and the loss on parts of every model, the pool's of one."""
    for name in (*settings.models, *settings.lengths):
        measure = found[name][0].measure
        for key in ("thresholds", "rare", "projection"):
            if not getattr(measure, key):
                raise UserError(f"{name}: its measure has no {key}; allowed: any value, the chapter shows it")
    if settings.pool and not found[settings.pool.run][0].measure.pool_contexts:
        raise UserError(f"{settings.pool.run}: its measure has no pool_contexts; the chapter compares the losses")


def _first(profile: "Profile", settings: ExperimentSettings, condition: Condition) -> list[RunSpec]:
    for key in ("step", "weights", "rescale", "stacks"):
        if getattr(condition, key) is not None:
            raise UserError(f"{condition.name}: {key} belongs to a condition with `after`")
    if condition.language is None:
        raise UserError(f"{condition.name}: language is missing; allowed: {_list(profile.languages)}")
    seeds = condition.seeds or settings.seeds
    size = settings.stack or len(seeds)
    return [
        RunSpec(
            name=condition.name,
            language=_named(condition, "language", condition.language, profile.languages),
            seeds=seeds[i : i + size],
            model=_named(condition, "model", condition.model, profile.models),
            train=_named(condition, "train", condition.train, profile.training),
            measure=_named(condition, "measure", condition.measure, profile.measures),
        )
        for i in range(0, len(seeds), size)
    ]


def _continued(profile: "Profile", condition: Condition, parent: RunSpec) -> RunSpec:
    if condition.language or condition.model or condition.seeds:
        raise UserError(f"{condition.name}: language, model and seeds are those of {parent.name}; leave them out")
    if condition.train is None or condition.weights is None:
        raise UserError(f"{condition.name}: a continued run needs train, and weights: ema or raw")
    return RunSpec(
        name=condition.name,
        language=parent.language,
        seeds=parent.seeds,
        model=parent.model,
        train=_named(condition, "train", condition.train, profile.training),
        start=Start(parent=parent, weights=condition.weights, step=condition.step, rescale=condition.rescale),
        measure=_named(condition, "measure", condition.measure, profile.measures),
    )


def _named(condition: Condition, key: str, name: str | None, allowed: Mapping[str, Any]) -> Any:
    if name is None:
        return None
    if name not in allowed:
        raise UserError(f"{condition.name}: {key} {name!r} is not defined; allowed: {_list(allowed)}")
    return allowed[name]


def _list(allowed: Mapping[str, Any]) -> str:
    return ", ".join(allowed) or "none is defined yet"
