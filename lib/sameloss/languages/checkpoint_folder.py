"""Folders with somebody else's language model, read safely: safetensors only, no code of the model, no network.

The package transformers (the extra "lm") is imported when a model is loaded, not before.
"""

import importlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

from sameloss.errors import UserError

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
_TOKENIZERS = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# What a folder may hold -> the class of transformers that reads it.
KINDS = {"causal language model": "AutoModelForCausalLM", "masked language model": "AutoModelForMaskedLM"}
ENCODER = "encoder"  # no output layer over the vocabulary
_OF_A_LAYER = re.compile(r"\b(?:layers?|h|blocks?)\.\d+\.")
SPARE = "pooler."  # weights that an encoder may lack: its token vectors do not need them


def resolve(folder: str | Path) -> Path:
    """A folder as it is, or where the local cache holds the model of this name; UserError for anything else."""
    path = Path(folder).expanduser()
    try:
        if path.is_dir():
            return path
        taken = path.exists()
    except OSError as error:  # too long for a path, or in a folder that may not be read
        raise UserError(f"{folder!s:.80}: cannot be read ({error.strerror})") from error
    if taken or str(folder).count("/") != 1 or str(folder).startswith((".", "/", "~")):
        raise UserError(f"{folder}: not a folder; allowed is a folder with config, safetensors and tokenizer")
    hub = import_package("huggingface_hub")
    try:
        return Path(hub.snapshot_download(str(folder), local_files_only=True))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}: neither a folder nor in the local cache; `hf download {folder}` puts it there"
        ) from error


def check_files(folder: Path, kind: str = "language model") -> dict[str, Any]:
    """The folder's config, once everything needed lies beside it; UserError names what is missing or not allowed."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{folder}: no config.json found; allowed is the folder of a {kind}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'}: not a JSON file ({error})") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError(f"{folder / 'config.json'}: names no model_type; allowed is that of a {kind}")
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            shards = {Path(shard) for shard in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{index}: not an index of safetensors files") from error
        if missing := sorted(shard for shard in shards if not (folder / shard).is_file()):
            raise UserError(f"{folder}: {missing[0]} is missing, which {index.name} names")
    elif not (folder / "model.safetensors").is_file():
        pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
        found = f"pickled weights only ({pickled[0]})" if pickled else "no weights"
        raise UserError(f"{folder}: {found} found; allowed is model.safetensors (save_pretrained writes it)")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise UserError(f"{folder}: no tokenizer found; allowed is one of {', '.join(_TOKENIZERS)}")
    return config


def kind_of(config: dict[str, Any]) -> str:
    """What the first architecture that the config names is: a causal or masked language model, or an encoder."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal language model"
    if name.endswith(("ForMaskedLM", "ForPreTraining", "WithLMHeadModel")):
        return "masked language model"
    return ENCODER


def read(folder: Path, kind: str) -> tuple[Any, Any]:
    """Model and tokenizer; UserError in one line for whatever transformers cannot load, and for missing weights."""
    transformers = import_package("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # its reports of weights that no part asks for
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    loader = getattr(transformers, KINDS.get(kind, "AutoModel"))
    try:
        model, report = loader.from_pretrained(folder, use_safetensors=True, output_loading_info=True, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    except Exception as error:  # whatever is wrong with foreign files: transformers raises two dozen kinds for it
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        a = "an" if kind == ENCODER else "a"
        raise UserError(f"{folder}: transformers cannot load it as {a} {kind} ({reason})") from error
    missing = sorted(name for name in report["missing_keys"] if kind != ENCODER or not name.startswith(SPARE))
    if missing:
        raise UserError(f"{folder}: the safetensors lack {len(missing)} weights of the model, {missing[0]} among them")
    # A head or a pooler that no part asks for is common; a whole layer without a place is a config of another model.
    if spare := sorted(name for name in report["unexpected_keys"] if _OF_A_LAYER.search(name)):
        raise UserError(f"{folder}: its config has no place for {len(spare)} weights, {spare[0]} among them")
    return model, tokenizer


def import_package(package: str) -> Any:
    """A package of Hugging Face, imported when first needed: they take seconds.

    Inside a notebook tqdm asks for widgets that nobody needs here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(package)
