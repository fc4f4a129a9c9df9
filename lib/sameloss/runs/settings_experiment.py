"""What a profile may say about a chapter whose table comes from trained models: conditions, and comparisons of them."""

from typing import Annotated

from pydantic import Field, model_validator

from sameloss.runs.fields import ChapterSettings, Count, CountOrNone, Name, Positive, Seeds, Settings, Share, Words
from sameloss.runs.spec import Weights


class Condition(Settings):
    """One condition of an experiment, its parts by their names in the profile.

    A first run: language, model, train, measure. A continued one: after (another condition of the chapter), train,
    measure, and the weights to start from (the EMA, or the raw iterate); rescale: as in `spec.Start`; stacks: the first
    so many stacks of seeds only. The language's baselines: language, measure. seeds: instead of the chapter's.
    """

    name: Name
    measure: Name
    language: Name | None = None
    model: Name | None = None
    train: Name | None = None
    after: Name | None = None
    step: CountOrNone | None = None
    weights: Weights | None = None
    rescale: Positive | None = None
    stacks: Count | None = None
    seeds: Seeds | None = None


class ExperimentSettings(ChapterSettings):
    """A chapter whose table comes from trained models. stack: seeds in one run (all of them when absent)."""

    conditions: tuple[Condition, ...]
    stack: Count | None = None


class SameLossSettings(ExperimentSettings):
    """Chapter 2.

    sizes: conditions that differ in the model's size alone, from small to large. tasks: those with a verdict.
    """

    sizes: tuple[Name, ...] = Field(min_length=2, max_length=4)
    tasks: tuple[Name, ...]

    @model_validator(mode="after")
    def _compares_what_is_trained(self) -> "SameLossSettings":
        for key, found in (("sizes", self.sizes), ("tasks", self.tasks)):
            if len(set(found)) < len(found):
                raise ValueError(f"{key} must differ from each other")
        known = {condition.name: condition for condition in self.conditions}
        if len(known) < len(self.conditions):
            return self  # two of one name: told of where conditions become runs
        for size in self.sizes:
            if size not in known:
                raise ValueError(f"sizes: found {size}; allowed: {', '.join(known)}")
            if known[size].model is None and known[size].after is None:
                raise ValueError(f"sizes: {size} trains no model")
        if "baselines" not in known or known["baselines"].model or known["baselines"].after:
            raise ValueError("conditions: the chapter needs one named baselines, without a model")
        return self


class EqualLoss(Settings):
    """Chapter 4's test at equal KL: start -> SGD -> annealed again, against the start annealed at once, its twin.

    pilot_effect, pilot_spread: mean and standard deviation over seeds of the difference in accuracy that a trial with
    other seeds has shown; the power of the test is computed from them.
    """

    start: Name
    annealed: Name
    twin: Name
    pilot_effect: Positive
    pilot_spread: Positive


class Attack(Settings):
    """Chapter 4's comparison of algorithms: adversarial continuations and the same steps without the attack."""

    runs: tuple[Name, ...] = Field(min_length=1, max_length=3)
    twin: Name


class FlatnessSettings(ExperimentSettings):
    """Chapter 4.

    sizes: families of conditions that differ in the model's size alone, each from small to large; the first has the
    figures. along: SGD continuations after convergence. rates: of these, those that differ in the learning rate alone.
    equal, attack: the further comparisons, where the profile has them.
    """

    sizes: Annotated[tuple[Annotated[tuple[Name, ...], Field(min_length=2, max_length=5)], ...], Field(min_length=1)]
    along: Annotated[tuple[Name, ...], Field(min_length=1, max_length=4)]
    rates: tuple[Name, ...] = ()
    equal: EqualLoss | None = None
    attack: Attack | None = None

    @model_validator(mode="after")
    def _compares_what_is_trained(self) -> "FlatnessSettings":
        known = {condition.name: condition for condition in self.conditions}
        named = {"sizes": [name for family in self.sizes for name in family], "along": self.along, "rates": self.rates}
        if self.equal:
            named["equal"] = (self.equal.start, self.equal.annealed, self.equal.twin)
        if self.attack:
            named["attack"] = (*self.attack.runs, self.attack.twin)
        for key, name in ((key, name) for key, names in named.items() for name in names):
            if name not in known:
                raise ValueError(f"{key}: found {name}; allowed: {', '.join(known)}")
            if known[name].model is None and known[name].after is None:
                raise ValueError(f"{key}: {name} trains no model")
            if key in ("along", "rates") and known[name].after is None:
                raise ValueError(f"{key}: {name} continues no other condition")
        return self


class Rescaled(Settings):
    """Chapter 7: a run from a rescaled start, and the same steps from the start as it is."""

    run: Name
    twin: Name


class InterventionSettings(ExperimentSettings):
    """Chapter 7.

    equal: the main contrast, SGD with hard labels (annealed) against SGD with soft labels (its twin, and that of all
    other interventions). others: what else was done to the flatness, in words -> the annealed condition.
    """

    equal: EqualLoss
    others: Annotated[dict[Words, Name], Field(min_length=1, max_length=6)]
    rescaled: Rescaled | None = None

    @model_validator(mode="after")
    def _compares_what_is_trained(self) -> "InterventionSettings":
        known = {condition.name: condition for condition in self.conditions}
        named = {"equal": [self.equal.annealed, self.equal.twin], "others": list(self.others.values())}
        if self.rescaled:
            named["rescaled"] = [self.rescaled.run, self.rescaled.twin]
        for key, name in ((key, name) for key, names in named.items() for name in names):
            if name not in known:
                raise ValueError(f"{key}: found {name}; allowed: {', '.join(known)}")
            if known[name].after is None:
                raise ValueError(f"{key}: {name} continues no other condition")
        if self.equal.start not in known or known[self.equal.start].model is None:
            raise ValueError(f"equal: found start {self.equal.start}; allowed: a condition that trains a model")
        if self.rescaled and not known[self.rescaled.run].rescale:
            raise ValueError(f"rescaled: {self.rescaled.run} starts as it is; give it a rescale")
        return self


class Schedule(Settings):
    """Chapter 6: a run at a constant learning rate, and runs of the same model whose rate falls to 0."""

    constant: Name
    decayed: tuple[Name, ...] = Field(min_length=1, max_length=4)


class Pool(Settings):
    """Chapter 6: a run on a finite pool of sentences, and the same model on fresh ones."""

    run: Name
    fresh: Name


class ZoomSettings(ExperimentSettings):
    """Chapter 6.

    models: conditions on one plot, of all sizes and architectures. tasks: the first has the verdicts. far, near: KL
    (nats) above and below which a checkpoint is far from the floor or near it. margin: accuracy within which models
    count as alike. agreement: share of pairs of models that two scores have to order alike. schedule, pool, lengths
    (runs on sentences of several lengths): the further comparisons, where the profile has them.
    """

    models: Annotated[tuple[Name, ...], Field(min_length=2, max_length=8)]
    tasks: Annotated[tuple[Name, ...], Field(min_length=1)]
    far: Positive
    near: Positive
    margin: Positive
    agreement: Share
    schedule: Schedule | None = None
    pool: Pool | None = None
    lengths: tuple[Name, ...] = Field(default=(), max_length=3)

    @model_validator(mode="after")
    def _compares_what_is_trained(self) -> "ZoomSettings":
        if self.near > self.far:
            raise ValueError(f"near: found {self.near:g}; allowed: at most far, {self.far:g}")
        known = {condition.name: condition for condition in self.conditions}
        named = {"models": self.models, "lengths": self.lengths}
        if self.schedule:
            named["schedule"] = (self.schedule.constant, *self.schedule.decayed)
        if self.pool:
            named["pool"] = (self.pool.run, self.pool.fresh)
        for key, names in named.items():
            if len(set(names)) < len(names):
                raise ValueError(f"{key} must differ from each other")
            for name in names:
                if name not in known:
                    raise ValueError(f"{key}: found {name}; allowed: {', '.join(known)}")
                if known[name].model is None and known[name].after is None:
                    raise ValueError(f"{key}: {name} trains no model")
        return self
