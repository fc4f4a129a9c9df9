"""What an experiment's conditions are to each other: sizes on one language, their controls, attacks and their twins."""

from collections.abc import Sequence
from dataclasses import dataclass

from sameloss.runs.spec import RunSpec


@dataclass(frozen=True)
class Attack:
    """A run against which `head` worked on `task`, the run it started from, and its twin (None: not trained)."""

    name: str
    parent: str
    twin: str | None
    task: str
    features: str
    head: str


@dataclass(frozen=True)
class Family:
    """The conditions on one language, by name; `sizes` from small to large, trained on tokens from their beginning.

    controls: size -> the same model trained on the true conditionals. main: the task that the paper reports first.
    dimension: of the common projection. seeds: of its sizes.
    """

    kind: str
    baselines: str | None
    sizes: tuple[str, ...]
    controls: dict[str, str]
    attacks: tuple[Attack, ...]
    main: str
    features: str
    dimension: int
    seeds: tuple[int, ...]

    @property
    def projected(self) -> str:
        """The features in the common projection."""
        return f"{self.features}-{self.dimension}"

    @property
    def studied(self) -> str:
        """The size whose training is followed: the attacked one, else the largest."""
        return self.attacks[0].parent if self.attacks else self.sizes[-1]


MAIN = {
    "tree_grammar": "B",
    "uneven_tree": "B",
    "paper_pcfg": "B",
    "twelve_state_chain": "state-5",
    "paper_hmm": "state-10",
    "lm_text": "continuation",
}
# A probe on LM text sees the vectors of hidden positions: its task asks what would follow.
FEATURES = {"lm_text": "masked"}


def families(specs: Sequence[RunSpec], sizes: Sequence[str] = ()) -> dict[str, Family]:
    """The families of a chapter's runs by their kind of language.

    sizes: those to be compared, where some are trained for another purpose; a family without any of them keeps its own.
    """
    by_kind: dict[str, dict[str, list[RunSpec]]] = {}
    for spec in specs:
        by_kind.setdefault(spec.language.kind, {}).setdefault(spec.name, []).append(spec)
    return {kind: _family(kind, stacks, sizes) for kind, stacks in by_kind.items()}


def _family(kind: str, stacks: dict[str, list[RunSpec]], wanted: Sequence[str]) -> Family:
    first = {name: found[0] for name, found in stacks.items()}
    fresh = {name: spec for name, spec in first.items() if spec.train and spec.start is None}
    tokens = [name for name, spec in fresh.items() if spec.train and spec.train.objective == "tokens"]
    sizes = tuple(name for name in wanted if name in tokens) or tuple(tokens)
    controls = {
        size: name
        for size in sizes
        for name, spec in fresh.items()
        if spec.train and spec.train.objective == "oracle" and spec.model == first[size].model
    }
    features = FEATURES.get(kind, "unmasked")
    measure = next(iter(first.values())).measure
    return Family(
        kind=kind,
        baselines=next((name for name, spec in first.items() if spec.model is None), None),
        sizes=sizes,
        controls=controls,
        attacks=tuple(_attack(spec, first) for spec in first.values() if spec.train and spec.train.adversary),
        main=MAIN[kind],
        features=features,
        dimension=measure.projection,
        seeds=tuple(seed for spec in (stacks[sizes[0]] if sizes else ()) for seed in spec.seeds),
    )


def _attack(spec: RunSpec, first: dict[str, RunSpec]) -> Attack:
    """The attack of a spec with its twin: the same start and the same training, but for the adversary."""
    assert spec.train is not None
    assert spec.train.adversary is not None
    if spec.start is None:
        raise ValueError(f"{spec.name}: an attack continues another run")
    calm = spec.train.model_copy(update={"adversary": None})
    twins = (name for name, other in first.items() if other.start == spec.start and other.train == calm)
    adversary = spec.train.adversary
    return Attack(
        name=spec.name,
        parent=spec.start.parent.name,
        twin=next(twins, None),
        task=adversary.task,
        features=adversary.features,
        head=adversary.head,
    )
