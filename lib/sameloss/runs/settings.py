"""What a profile may say about each chapter: one class a chapter, every key checked.

To add a setting: add the field to the chapter's class below (with a type that refuses nonsense: `Count`, `Positive`,
`Share`, `Literal[...]`), then its value to the chapter's section in each `book/profiles/*.yaml`. A field without a
default has to stand in every profile; that is the rule for whatever decides what is computed. To add a chapter: a class
here (in `settings_experiment.py` if it trains models) and an entry in `CHAPTERS`; the key is the chapter's file name
without `.md`.
"""

import math
from itertools import pairwise
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from sameloss.learners.pretrain import TrainConfig
from sameloss.runs.fields import ChapterSettings, Count, Positive, Settings
from sameloss.runs.settings_experiment import FlatnessSettings, InterventionSettings, SameLossSettings, ZoomSettings
from sameloss.runs.spec import LanguageSpec, TransformerSpec
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

    @model_validator(mode="after")
    def _duration_is_reached(self) -> "DyckSettings":
        steps = self.duration / self.rate
        if steps < 1 or abs(steps - round(steps)) > 1e-6 * steps:
            raise ValueError(f"duration: found {self.duration:g}; allowed: whole multiples of the rate, {self.rate:g}")
        return self


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
    "06_zooming_out": ZoomSettings,
    "07_is_it_flatness": InterventionSettings,
    "08_your_checkpoints": CheckpointSettings,
}


def fields_of(model: type[BaseModel]) -> dict[str, Any]:
    """Annotations of a model's fields."""
    return {name: info.annotation for name, info in model.model_fields.items()}
