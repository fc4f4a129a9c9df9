"""Types for whatever is read from a file: they refuse nonsense by themselves."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

# Seeds of the exploratory runs that informed the settings: never used for a result.
PILOT_SEEDS = frozenset([*range(11), *range(101, 107), 500, 501, 502, 600])

Count = Annotated[int, Field(ge=1, le=10**12)]
CountOrNone = Annotated[int, Field(ge=0, le=10**12)]  # 0: do without
Positive = Annotated[float, Field(gt=0, le=1e12)]
Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1, max_length=10_000)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Words = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 -]{0,39}$")]
ClaimId = Annotated[str, Field(pattern=r"^[A-Z][0-9]{1,2}[a-z]?$")]


class Settings(BaseModel):
    """Base of everything read from a profile: frozen, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ChapterSettings(Settings):
    """What every chapter has: its seeds, and per claim the prediction written before the first result.

    seeds: one seed draws a language, its data, an initialisation and a probe; conditions share them (pairs).
    predictions: claim id -> sign and rough size in words; it is not part of what identifies a run.
    """

    seeds: Seeds
    predictions: dict[ClaimId, str] = Field(default={})

    @model_validator(mode="after")
    def _fresh_seeds(self) -> "ChapterSettings":
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must differ from each other")
        if used := sorted(PILOT_SEEDS.intersection(self.seeds)):
            raise ValueError(f"seeds {used} belong to the pilot and are never used for a result")
        return self
