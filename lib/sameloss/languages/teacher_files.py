"""The teachers on disk: half-precision safetensors, a JSON record of how they were made, checksums over both."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from sameloss.errors import UserError
from sameloss.languages.teacher import OPTShape, Weights, shapes

FOLDER = Path(__file__).parent / "teacher"
_CHECKSUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Shipped:
    """A teacher as read: float16 weights, its shape, and the record that was written beside them."""

    weights: Weights
    shape: OPTShape
    words: list[str]
    topics: list[str]
    record: dict[str, Any]


def write(folder: Path, name: str, weights: Weights, record: dict[str, Any]) -> None:
    """Write NAME.safetensors (float16) and NAME.json and bring the folder's checksums up to date."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {key: value.to(torch.float16).contiguous() for key, value in weights.items()}
    _replace(folder / f"{name}.safetensors", save(half, {"format": "pt"}))
    text = json.dumps(record | {"words": " ".join(record["words"])})
    _replace(folder / f"{name}.json", text.encode())
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    _replace(folder / _CHECKSUMS, sums.encode())


def read(name: str, folder: Path = FOLDER) -> Shipped:
    """The teacher `name`; UserError for an unknown name, a missing file or one that its checksum does not match."""
    known = sorted(path.stem for path in folder.glob("*.safetensors"))
    if name not in known:
        raise UserError(f"{folder}: no teacher {name!r}; allowed are {', '.join(known) or '(none found)'}")
    sums = _checksums(folder / _CHECKSUMS)
    record = json.loads(_verified(folder / f"{name}.json", sums))
    try:
        weights = load(_verified(folder / f"{name}.safetensors", sums))
    except SafetensorError as error:
        raise UserError(f"{folder / name}.safetensors: not a safetensors file ({error})") from error
    recipe = record["recipe"]
    words = record["words"].split()
    vocab = len(words) + 1 + len(record["topics"])
    shape = OPTShape(vocab, recipe["width"], recipe["layers"], recipe["heads"], 1 + recipe["window"])
    if {key: tuple(value.shape) for key, value in weights.items()} != shapes(shape):
        raise UserError(f"{folder / name}.safetensors: the weights are not those of the shape in {name}.json")
    return Shipped(weights, shape, words, record["topics"], record)


def _checksums(path: Path) -> dict[str, str]:
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def _verified(path: Path, sums: dict[str, str]) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sums.get(path.name):
        raise UserError(
            f"{path}: corrupt: its SHA-256 is {found[:12]}…, {_CHECKSUMS} says {sums.get(path.name, 'nothing')[:12]}…; "
            "restore the file or train the teacher again (python -m sameloss.languages.train_teacher)"
        )
    return content


def _replace(path: Path, content: bytes) -> None:
    # Written aside, then renamed: nobody reads half a file.
    aside = path.with_name(path.name + ".part")
    aside.write_bytes(content)
    aside.replace(path)
