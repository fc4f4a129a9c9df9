"""What a profile may say about each chapter: one class a chapter, every key checked.

To add a setting: add the field to the chapter's class below (with a type that refuses nonsense: `Count`, `Positive`,
`Share`, `Literal[...]`), then its value to the chapter's section in each `book/profiles/*.yaml`. A field without a
default has to stand in every profile; that is the rule for whatever decides what is computed. To add a chapter: a class
here and an entry in `CHAPTERS`; the key is the chapter's file name without `.md`.
"""

import math
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from sameloss.learners.pretrain import TrainConfig
from sameloss.runs.fields import ChapterSettings, Count, CountOrNone, Name, Positive, Seeds, Settings
from sameloss.runs.spec import LanguageSpec, TransformerSpec, Weights
from sameloss.theory.flow_network import replicas_needed

FITTED_RUNGS = 4  # learning rates behind a parabola and a measure of its misfit
Replicas = Annotated[int, Field(ge=2, le=10**12)]  # a spread needs two


class LanguagesSettings(ChapterSettings):
    """Chapter 1.

    floor_sentences: sentences behind each entropy floor of a small language.
    paper_sentences: the same for languages of the paper's sizes and for LM text; also examples behind each task.
    """

    floor_sentences: Count
    paper_sentences: Count


class Condition(Settings):
    """One condition of an experiment, its parts by their names in the profile.

    A first run: language, model, train, measure. A continued one: after (another condition of the chapter), train,
    measure, and the weights to start from (the EMA, or the raw iterate). The language's baselines: language, measure.
    seeds: instead of the chapter's.
    """

    name: Name
    measure: Name
    language: Name | None = None
    model: Name | None = None
    train: Name | None = None
    after: Name | None = None
    step: CountOrNone | None = None
    weights: Weights | None = None
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


class DriftCondition(Settings):
    """SGD at one learning rate and batch size."""

    eta: Positive
    batch: Count


class DriftSettings(Settings):
    """The drift of the trace at a trained transformer that is made its own truth.

    contexts: masked sentences that make up its language. kicks: SGD steps of each replica. together: replicas that are
    computed at once. Replicas of each condition: enough for a 95 % interval of +- `precision` (a share of
    the drift), their spread (standard deviation over mean) being `pilot_spread`, as a run with another seed has shown.
    """

    language: LanguageSpec
    model: TransformerSpec
    train: TrainConfig
    contexts: Count
    kicks: Count
    together: Count
    pilot_spread: Positive
    precision: Positive
    conditions: tuple[DriftCondition, ...]
    prediction: str = ""

    @property
    def replicas(self) -> int:
        """The power computation: replicas of each condition."""
        return replicas_needed(self.pilot_spread, self.precision)


class FlowSettings(ChapterSettings):
    """Chapter 3 (SGD follows the trace's gradient on the manifold of minimisers).

    The coefficient is fitted to a ladder of learning rates sqrt(duration / n), n in `steps`, as far as they are at most
    `fit_below`, with `replicas` independent runs at each and the chapter's first seed. live_steps, live_replicas: the
    shorter ladder and the smaller stacks that the page computes while it is made. network: the last section.
    """

    duration: Positive
    steps: Annotated[tuple[Count, ...], Field(min_length=FITTED_RUNGS)]
    fit_below: Positive
    replicas: Replicas
    live_steps: Annotated[tuple[Count, ...], Field(min_length=2)]
    live_replicas: Replicas
    network: DriftSettings

    @model_validator(mode="after")
    def _ladder_can_be_fitted(self) -> "FlowSettings":
        for key, steps in (("steps", self.steps), ("live_steps", self.live_steps)):
            if any(after <= before for before, after in pairwise(steps)):
                raise ValueError(f"{key}: found {list(steps)}; allowed: each larger than the one before")
        below = sum(math.sqrt(self.duration / n) <= self.fit_below for n in self.steps)
        if below < FITTED_RUNGS:
            raise ValueError(
                f"fit_below: found {self.fit_below:g}, with {below} of the learning rates sqrt(duration / steps) "
                f"below it; the fit needs {FITTED_RUNGS}"
            )
        return self


class DyckSettings(ChapterSettings):
    """Chapter 5 (the Dyck example of section 6).

    seeds: one flattened net each. widths: widths of random features, in multiples of what interpolation needs; draws:
    random nets behind each of them. trials: samples behind a Monte Carlo success rate. rate: step of the projected
    descent; noise_rate: step of label-noise SGD. duration: how long both run, in units of the flow's time.
    """

    widths: Annotated[tuple[Positive, ...], Field(min_length=1)]
    draws: Count
    trials: Count
    rate: Positive
    noise_rate: Positive
    duration: Positive


class CheckpointSettings(ChapterSettings):
    """Chapter 8: pairs of small BERTs that are trained on the page and compared as anybody's checkpoints are.

    seeds: one pair each. width, steps, batch: of both; slow, fast: their learning rates. checkpoints: of the fast one,
    among which the nearest in loss is taken. sentences: they are trained on; lines: of the text they are compared on.
    margin: within which losses are matched (nats a token).
    """

    width: Count
    steps: Count
    batch: Count
    slow: Positive
    fast: Positive
    checkpoints: Count
    sentences: Count
    lines: Annotated[int, Field(ge=100, le=10**6)]
    margin: Positive


CHAPTERS: dict[str, type[ChapterSettings]] = {
    "01_languages": LanguagesSettings,
    "02_same_loss": SameLossSettings,
    "03_sgd_flow": FlowSettings,
    "04_flatness": FlatnessSettings,
    "05_dyck": DyckSettings,
    "08_your_checkpoints": CheckpointSettings,
}


def fields_of(model: type[BaseModel]) -> dict[str, Any]:
    """Annotations of a model's fields."""
    return {name: info.annotation for name, info in model.model_fields.items()}
