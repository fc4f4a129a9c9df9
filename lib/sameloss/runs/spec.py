"""What identifies a run: a stack of seeds of one condition, from its language to what is measured on it.

Two hashes. `RunSpec.identity()` holds all that decides the weights (language, seeds, model, training, what it starts
from, recipe versions): its hash names the run's folder. `RunSpec.key()` adds what is measured: it names the table.
So measuring more trains nothing again, and whatever decides a number changes the hash under which the number is kept.

A field added later must default to None: what is None is left out, and the hashes of all earlier runs stay.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sameloss import languages, learners, measures, runs
from sameloss.learners.pretrain import TrainConfig
from sameloss.runs.fields import Count, CountOrNone, Name, Positive, Seeds, Settings, Share
from sameloss.runs.store import digest

LanguageKind = Literal["tree_grammar", "uneven_tree", "paper_pcfg", "twelve_state_chain", "paper_hmm", "lm_text"]
# Kinds whose every draw has the same.
TASKS: dict[str, tuple[str, ...]] = dict.fromkeys(("tree_grammar", "uneven_tree"), ("A", "B", "C", "left"))
Weights = Literal["ema", "raw"]


class LanguageSpec(Settings):
    """A family of languages, one drawn per seed.

    share, among: redrawn with the next sub-seed while the rarest label of a task holds less than `share` of `among`
    sentences.
    """

    kind: LanguageKind
    share: Share = 0.02
    among: Count = 16384


class TransformerSpec(Settings):
    """Shape of a transformer; vocabulary and length are the language's."""

    kind: Literal["transformer"]
    width: Count
    layers: Count = 2
    heads: Count = 2
    mlp: Count = 4
    tied: bool = False

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "TransformerSpec":
        if self.width % self.heads:
            raise ValueError(f"heads: found {self.heads}; allowed: divisors of the width, {self.width}")
        return self


class LSTMSpec(Settings):
    """Shape of a bidirectional LSTM of one layer, `width` units in each direction."""

    kind: Literal["lstm"]
    width: Count


ModelSpec = Annotated[TransformerSpec | LSTMSpec, Field(discriminator="kind")]


class Curvature(Settings):
    """What is measured of flatness besides the Fisher trace, on the first `contexts` contexts; 0 leaves it out.

    probes: random vectors for each chunk of contexts, the same for the Hessian's trace and the Gauss-Newton trace.
    directions, rho: of the adaptive sharpness. embed: the width into which a smaller model is embedded by both methods
    before its trace is taken again, over all contexts of the trace; embed_layers: and the depth.
    """

    contexts: Count = 1024
    probes: CountOrNone = 4
    directions: CountOrNone = 32
    rho: Positive = 0.05
    embed: Count | None = None
    embed_layers: Count | None = None


class Measure(Settings):
    """What is measured at each checkpoint; 0 leaves a measurement out.

    contexts: masked sentences for the KL to the truth and the cross-entropy.
    trace_contexts: of these, how many for the trace. probe_train, probe_test: labelled sentences. l2: of the probe.
    projection: dimension of the common random projection. masked: also probe each position's vector while it is masked.
    tasks: all of the language's when absent. fine_tune: tasks on which the last checkpoint is fine-tuned as well.
    curvature: more measures of flatness than the Fisher trace. thresholds: the probes' probability of the right answer
    as well, and the shares of sentences whose right answer gets more than each of these. rare: the loss on parts of the
    language as well: words that together make at most this share of the text and all others, short sentences and long
    ones. pool_contexts: masked sentences for the loss on the pool that the run was trained on. shift: KL and unmasked
    probes as well on a language of which this share is drawn afresh. least_trace: contexts for the smallest trace that
    rescalings reach. change: sentences on which the features are compared with those of the first start of the run.
    """

    contexts: Count = 8192
    weights: tuple[Weights, ...] = ("ema",)
    trace_contexts: CountOrNone = 1024
    probe_train: CountOrNone = 16384
    probe_test: CountOrNone = 16384
    l2: Annotated[float, Field(gt=0)] = 1e-4
    projection: CountOrNone = 64
    masked: bool = True
    tasks: tuple[Name, ...] | None = None
    fine_tune: tuple[Name, ...] | None = None
    curvature: Curvature | None = None
    thresholds: tuple[Share, ...] | None = None
    rare: Share | None = None
    shift: Share | None = None
    least_trace: Count | None = None
    change: Count | None = None
    pool_contexts: Count | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> "Measure":
        if bool(self.probe_train) != bool(self.probe_test):
            raise ValueError("probe_train and probe_test: both 0, or neither")
        if self.fine_tune and not self.probe_train:
            raise ValueError("fine_tune: needs labelled sentences; give probe_train and probe_test")
        return self


class Start(Settings):
    """Where a continued run begins: a checkpoint of another run (the last one if `step` is absent).

    rescale: multiply the layer norms inside the blocks by this and divide what reads them by it: the same function.
    """

    parent: "RunSpec"
    weights: Weights
    step: CountOrNone | None = None
    rescale: Positive | None = None

    @property
    def at(self) -> int:
        """The checkpoint's step."""
        return self.parent.steps[-1] if self.step is None else self.step


class RunSpec(Settings):
    """A stack of seeds of one condition. Without model and training it is the language's baselines.

    The name is a label and no part of the identity: two chapters that ask for the same run share it.
    """

    name: Name
    language: LanguageSpec
    seeds: Seeds
    model: ModelSpec | None = None
    train: TrainConfig | None = None
    start: Start | None = None
    measure: Measure = Measure()

    @model_validator(mode="after")
    def _fits_together(self) -> "RunSpec":
        if (self.model is None) != (self.train is None):
            raise ValueError(f"{self.name}: model and train belong together: give both or neither")
        if self.train and self.steps[-1] > self.train.steps:
            raise ValueError(f"{self.name}: checkpoint {self.steps[-1]} is behind the last step, {self.train.steps}")
        if self.measure.pool_contexts and not (self.train and self.train.pool):
            raise ValueError(f"{self.name}: pool_contexts: this run is trained on fresh sentences; give train a pool")
        if self.start is not None:
            parent = self.start.parent
            if (parent.language, parent.seeds, parent.model) != (
                self.language,
                self.seeds,
                self.model,
            ) or not self.train:
                raise ValueError(f"{self.name}: a continued run has language, seeds and model of {parent.name}")
            if self.start.step is not None and self.start.step not in parent.steps:
                raise ValueError(f"{self.name}: {parent.name} keeps no checkpoint {self.start.step}; {parent.steps}")
        return self

    @property
    def steps(self) -> tuple[int, ...]:
        """The checkpoints that are kept and measured: those asked for and the last; (0,) for baselines."""
        return tuple(sorted({*self.train.checkpoints, self.train.steps})) if self.train else (0,)

    def identity(self) -> dict[str, Any]:
        """All that decides the weights, as plain JSON."""
        spec = self.model_dump(mode="json", exclude_none=True, include={"language", "seeds", "model"})
        if self.train is not None:
            # Which checkpoints are kept changes none of them.
            spec["train"] = self.train.model_dump(mode="json", exclude_none=True, exclude={"checkpoints"})
        if self.start is not None:
            parent = self.start.parent
            spec["start"] = {"parent": parent.identity(), "weights": self.start.weights, "step": self.start.at}
            if self.start.rescale is not None:
                spec["start"]["rescale"] = self.start.rescale
        return {**spec, "recipe": {"languages": languages.RECIPE, "learners": learners.RECIPE}}

    def key(self) -> str:
        """Hash of all that decides the measured numbers."""
        measure = self.measure.model_dump(mode="json", exclude_none=True)
        recipe = {"measures": measures.RECIPE, "runs": runs.RECIPE}
        return digest({"run": self.identity(), "measure": measure, "steps": self.steps, "recipe": recipe})

    @property
    def id(self) -> str:
        """The run's folder."""
        return digest(self.identity())

    @property
    def label(self) -> str:
        """The run for a person: its condition and the beginning of its id."""
        return f"{self.name} {self.id[:6]}"
