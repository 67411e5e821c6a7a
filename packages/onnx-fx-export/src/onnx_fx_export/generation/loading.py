"""A model and its tokenizer from the folder that transformers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.generation.requirements import transformers

__all__ = ["loaded"]

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
# What also makes numbers of sounds or images, and has the tokenizer inside.
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_SETTINGS_FILE = "generation_config.json"
_SHOWN = 3
# Code that comes with weights is not run, and nobody is asked whether it may be.
_HERE = {"local_files_only": True, "trust_remote_code": False}


def loaded(folder: Path, tokenizer: Any, dtype: torch.dtype | Literal["auto"]) -> tuple[Any, Any]:
    """Return the model that a folder holds, and its tokenizer, or its processor if it reads more than text.

    Args:
        folder: A folder that ``save_pretrained`` wrote.
        dtype: Dtype of its weights; with ``"auto"`` it is that of the files, which are mapped then, not read.
        tokenizer: The tokenizer, ``False`` for none, ``None`` for that of the folder.

    Raises:
        InvalidArgumentError: If there is no such folder, transformers cannot load it, it lacks weights of the model, or
            it has no tokenizer and one is wanted.
    """
    if not folder.is_dir():
        raise InvalidArgumentError(
            f"There is no folder {folder}. Models are read from this machine: download one first, for instance by "
            "huggingface_hub.snapshot_download, and pass its folder."
        )
    if not (folder / "config.json").is_file():
        adapter = " It holds adapters: load the model that they belong to with peft, and pass that."
        raise InvalidArgumentError(
            f"{folder} is not a folder of a transformers model: it has no config.json."
            f"{adapter if (folder / 'adapter_config.json').is_file() else ''}"
        )
    if tokenizer is None:
        tokenizer = _tokenizer(folder)
    try:
        model, report = _model_class(folder).from_pretrained(
            folder, **_HERE, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
        )
        if (folder / _SETTINGS_FILE).is_file():  # transformers goes on without settings that it cannot read
            transformers().GenerationConfig.from_pretrained(folder, local_files_only=True)
    except InvalidArgumentError:
        raise
    except Exception as error:  # whatever reading files of another kind raises
        raise InvalidArgumentError(f"transformers cannot load {folder}: {error}") from error
    if other := sorted(report["mismatched_keys"]):
        name, found, wanted = other[0]
        raise InvalidArgumentError(
            f"{len(other)} weights of {folder} have other shapes than config.json gives them, such as {name}: "
            f"{tuple(found)}, not {tuple(wanted)}."
        )
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise InvalidArgumentError(
            f"{folder} lacks weights of {type(model).__name__}, which would be random: {', '.join(missing[:_SHOWN])}"
            f"{more}."
        )
    return model, tokenizer


def _model_class(folder: Path) -> Any:
    """Return what loads a model: the class that its configuration names if it can generate, or that of decoders.

    Raises:
        InvalidArgumentError: If there are no decoders of its kind.
    """
    library = transformers()
    config = library.AutoConfig.from_pretrained(folder, **_HERE)
    named = [getattr(library, name, None) for name in config.architectures or ()]
    generating = [model for model in named if model is not None and model.can_generate()]
    if not generating and type(config) not in library.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InvalidArgumentError(
            f"{folder} holds {', '.join(config.architectures or [config.model_type])}, which cannot generate. Pass a "
            "model with a language model head, such as AutoModelForCausalLM loads."
        )
    return generating[0] if generating else library.AutoModelForCausalLM


def _tokenizer(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise InvalidArgumentError(
            f"{folder} has no tokenizer. Save that of the model there, pass one with tokenizer=, or pass "
            "tokenizer=False (--no-tokenizer on the command line) to write the folder without."
        )
    processes = any((folder / name).is_file() for name in _PROCESSOR_FILES)
    try:
        kind = transformers().AutoProcessor if processes else transformers().AutoTokenizer
        return kind.from_pretrained(folder, **_HERE)
    except Exception as error:  # whatever reading files of another kind raises
        raise InvalidArgumentError(f"transformers cannot load the tokenizer of {folder}: {error}") from error
