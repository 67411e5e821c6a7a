"""Tensors by name from files, mapped into memory: what is not read is not loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from onnxops_core import OnnxExporterError
from onnxops_decomp.exporting.errors import InvalidArgumentError

__all__ = ["load_state_dict"]

_INDEX = ".index.json"
_SAFETENSORS = ".safetensors"
_SUFFIXES = (_SAFETENSORS, ".bin", ".pt", ".pth")


def load_state_dict(source: Mapping[str, torch.Tensor] | str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return tensors by name from a mapping, a file, or a folder of files.

    A file is a ``.safetensors`` file or a torch checkpoint, which is loaded with ``weights_only=True``: it may hold
    tensors and nothing that runs. A folder has one of them, or several and their index
    (``model.safetensors.index.json``). The tensors view the mapped files, whose pages are read when they are needed.

    Raises:
        InvalidArgumentError: If there is no such file or folder, or it does not hold what it should.
        OnnxExporterError: If a safetensors file is given and safetensors is not installed.
    """
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    if path.is_dir():
        return _folder(path)
    return _indexed(path) if path.name.endswith(_INDEX) else _file(path)


def _folder(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder; safetensors files take precedence over those of torch."""
    indexes = sorted(folder.glob(f"*{_INDEX}"), key=lambda path: _SAFETENSORS not in path.name)
    if indexes:
        return _indexed(indexes[0])
    for suffix in _SUFFIXES:
        files = sorted(folder.glob(f"*{suffix}"))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise InvalidArgumentError(
                f"The folder {folder} has several checkpoints ({names}) and no index that says which of them "
                "belong together. Pass the path of one of them."
            )
        if files:
            return _file(files[0])
    raise InvalidArgumentError(
        f"The folder {folder} has no checkpoint: no *{_INDEX} and no file that ends in {', '.join(_SUFFIXES)}."
    )


def _indexed(index: Path) -> dict[str, torch.Tensor]:
    """Return the tensors that an index names, each from the file that it is in."""
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {name: index.parent / str(file) for name, file in places.items()}
    except FileNotFoundError as error:
        raise InvalidArgumentError(f"There is no checkpoint at {index}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"{index} is not the index of a checkpoint: it has no weight_map.") from error
    shards = {file: _file(file, _wanted(files, file)) for file in dict.fromkeys(files.values())}
    return {name: shards[file][name] for name, file in files.items()}


def _wanted(files: Mapping[str, Path], file: Path) -> list[str]:
    return [name for name, other in files.items() if other == file]


def _file(path: Path, wanted: Iterable[str] = ()) -> dict[str, torch.Tensor]:
    """Return the tensors of one file.

    Raises:
        InvalidArgumentError: If it does not exist, is broken, or lacks one that is wanted.
    """
    if not path.is_file():
        raise InvalidArgumentError(f"There is no checkpoint at {path}.")
    loaded: Any = _safetensors(path) if path.suffix == _SAFETENSORS else _torch(path)
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise InvalidArgumentError(f"{path} holds no mapping from names to tensors.")
    if missing := [name for name in wanted if name not in loaded]:
        raise InvalidArgumentError(f"{path} lacks {missing[0]}, which the index says is there.")
    return dict(loaded)


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise OnnxExporterError("Reading .safetensors files needs safetensors: pip install safetensors.") from error
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InvalidArgumentError(f"{path} is not a complete safetensors file: {error}.") from error


def _torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # whatever unpickling something else raises
        raise InvalidArgumentError(f"torch cannot load {path}: {error}") from error
