"""Profiles: what is run, how large and with which seeds, read from `book/profiles/NAME.yaml` and checked key by key."""

import difflib
import json
import re
import typing
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, create_model, model_validator

from sameloss import paths
from sameloss.errors import UserError
from sameloss.learners.pretrain import TrainConfig
from sameloss.runs import conditions
from sameloss.runs.fields import Count, Name, Positive, Settings
from sameloss.runs.settings import CHAPTERS, fields_of
from sameloss.runs.settings_experiment import ExperimentSettings
from sameloss.runs.spec import LanguageSpec, Measure, ModelSpec, RunSpec

MAX_BYTES = 1_000_000

Chapters = create_model("Chapters", __base__=Settings, **{name: (cls, ...) for name, cls in CHAPTERS.items()})  # type: ignore[call-overload]


class Profile(Settings):
    """One profile: `profile.chapter("02_same_loss")` gives a chapter's settings (classes in `settings.py`).

    languages, models, training, measures: the parts of conditions, by the names under which conditions use them.
    threads: of one run (one for small models: the results do not depend on how many runs work side by side).
    stage_minutes: after this time `sameloss results` stops at the next checkpoint, to be started again.
    """

    name: Name
    about: str
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Count = 1
    stage_minutes: Positive | None = None
    languages: dict[Name, LanguageSpec] = Field(default={})
    models: dict[Name, ModelSpec] = Field(default={})
    training: dict[Name, TrainConfig] = Field(default={})
    measures: dict[Name, Measure] = Field(default={})
    chapters: Chapters  # type: ignore[valid-type]

    def chapter(self, name: str) -> Any:
        """Settings of the chapter whose file is `book/<name>.md`; UserError naming the chapters that have some."""
        if name not in CHAPTERS:
            raise UserError(
                f"chapter {name!r} has no settings in profile {self.name}{_hint(name, list(CHAPTERS))}; "
                f"allowed: {', '.join(CHAPTERS)}"
            )
        return getattr(self.chapters, name)

    def runs(self, chapter: str) -> list[RunSpec]:
        """The runs a chapter's table is made of, a start before what continues it; [] for a chapter without."""
        settings = self.chapter(chapter)
        return conditions.specs(self, settings) if isinstance(settings, ExperimentSettings) else []

    @model_validator(mode="after")
    def _conditions_hold(self) -> "Profile":
        for chapter in CHAPTERS:
            try:
                self.runs(chapter)
            except (UserError, ValidationError) as error:
                text = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)
                raise ValueError(f"chapters.{chapter}.conditions: {text.removeprefix('Value error, ')}") from None
        return self


def names() -> list[str]:
    """The profiles that exist, smallest job first."""
    known = ("smoke", "laptop", "gpu", "paper")
    found = {path.stem for path in folder().glob("*.yaml")}
    return [name for name in known if name in found] + sorted(found.difference(known))


def folder() -> Path:
    """Where the profiles lie."""
    return paths.root() / "book" / "profiles"


def load_profile(name: str) -> Profile:
    """Read and check `book/profiles/<name>.yaml`; UserError (one line: file, key, found, allowed) if it is wrong."""
    if name not in names():
        hint = _hint(name, names())
        raise UserError(f"no profile {name!r} in {folder()}{hint}; allowed: {', '.join(names()) or 'none there'}")
    profile = read_profile(folder() / f"{name}.yaml")
    if profile.name != name:
        raise UserError(f"{folder() / name}.yaml: name: found {profile.name!r}; it must be the file's name, {name!r}")
    return profile


def read_profile(path: Path) -> Profile:
    """Read a profile from any file; the same checks."""
    data = read_yaml(path)
    try:
        # By way of JSON: strict there means that "5" is no number and true no integer, but a list may be a tuple.
        return Profile.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, Profile)}") from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases and duplicate keys, and with 1e-3 as the number it is meant to be."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not allowed", problem_mark=self.peek_event().start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                found = f"{key.value!r:.60}" if isinstance(key, yaml.ScalarNode) else f"a {key.id}"
                raise yaml.MarkedYAMLError(problem=f"keys must be text, found {found}", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value!r:.60}", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping of plain values (text, numbers, booleans, lists, mappings); UserError with line and key if not."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if len(raw) > MAX_BYTES:
        raise UserError(f"{path}: {len(raw)} bytes; a profile has at most {MAX_BYTES}")
    try:
        data = yaml.load(raw.decode("utf-8"), Loader=_Loader)  # _Loader is a SafeLoader: plain values only
        json.dumps(data, allow_nan=False)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UserError(f"{path}: {line}{_one_line(error.problem or error.context or 'not YAML')}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML text ({_one_line(str(error))})") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    except (ValueError, TypeError, OverflowError) as error:  # a date, a set, .nan, a number of 5 000 digits
        raise UserError(f"{path}: only text, finite numbers, true/false and lists ({_one_line(str(error))})") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: found {type(data).__name__}; a profile is a mapping of keys")
    return data


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first fault of a validation as one line: key, what was found, what is allowed."""
    # A misspelt key is a missing one as well: tell of the misspelling.
    fault = min(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    key, found = ".".join(str(part) for part in fault["loc"]), _one_line(repr(fault["input"]), 60)
    allowed = _allowed(model, fault["loc"][:-1]) if fault["type"] in ("extra_forbidden", "missing") else []
    if fault["type"] == "extra_forbidden":
        return f"{_one_line(key)}: unknown key{_hint(str(fault['loc'][-1]), allowed)}; allowed: {', '.join(allowed)}"
    if fault["type"] == "missing":
        return f"{_one_line(key)}: missing"
    message = fault["msg"].removeprefix("Value error, ")
    told = "" if isinstance(fault["input"], dict) else f"; found {found}"  # a whole section says nothing
    return f"{_one_line(key) or 'profile'}: {_one_line(message)}{told}"


def _allowed(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Keys allowed at a place in a file: follow the place through the annotations."""
    candidates = [model]
    for part in loc:
        inner = [cls for c in candidates if part in fields_of(c) for cls in _models_in(fields_of(c)[str(part)])]
        tagged = [c for c in candidates if part in typing.get_args(fields_of(c).get("kind"))]
        candidates = inner or tagged or candidates  # an index or the key of a mapping stays where it is
    return sorted({key for c in candidates for key in fields_of(c)})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [cls for part in typing.get_args(annotation) for cls in _models_in(part)]


def _hint(found: str, allowed: typing.Sequence[str]) -> str:
    near = difflib.get_close_matches(found, allowed, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _one_line(text: str, most: int = 300) -> str:
    """Control characters escaped, cut to a readable length."""
    flat = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split(" ")))
    return flat if len(flat) <= most else flat[: most - 1] + "…"
