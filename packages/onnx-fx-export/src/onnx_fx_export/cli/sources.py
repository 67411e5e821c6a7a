"""What a command is called with: files, folders and functions of the user."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnxops_decomp.exporting import OPTIONS

__all__ = ["load_model", "load_source"]


def load_source(source: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the model that a source names, and its example arguments.

    Args:
        source: Path of a ``.pt2`` file that torch.export saved, ``package.module:factory``, or
            ``path/to/file.py:factory``. A factory takes no arguments and returns the model and its positional example
            arguments, and, if it wants to, a dictionary of further arguments of :func:`onnx_fx_export.export`.

    Raises:
        InvalidArgumentError: If the source cannot be found or is of neither kind.
    """
    if source.endswith(".pt2"):
        if not Path(source).is_file():
            raise InvalidArgumentError(f"There is no file {source}.")
        try:
            program = torch.export.load(source)
        except Exception as error:  # whatever reading a file of another kind raises
            raise InvalidArgumentError(f"{source} is not a program that torch.export saved: {error}.") from error
        args, kwargs = program.example_inputs or ((), {})
        return program, tuple(args), {"kwargs": kwargs}
    made = _made(source)
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[1], tuple | list):
        raise InvalidArgumentError(
            f"{source} has to return a model and a tuple of its positional example arguments, and may add a dictionary "
            f"of arguments of onnx_fx_export.export; it returned {type(made).__name__}."
        )
    options = dict(made[2]) if len(made) > 2 else {}
    if unknown := options.keys() - OPTIONS.keys():
        raise InvalidArgumentError(
            f"{source} gives {min(unknown)!r}, which is not an argument of onnx_fx_export.export."
        )
    return made[0], tuple(made[1]), options


def load_model(source: str) -> tuple[Any, Any]:
    """Return the language model that a source names, and its tokenizer.

    Args:
        source: Path of a folder that ``save_pretrained`` wrote, ``package.module:factory``, or
            ``path/to/file.py:factory``. A factory takes no arguments and returns the model, or the model and its
            tokenizer.

    Raises:
        InvalidArgumentError: If the source cannot be found or is of neither kind.
    """
    if Path(source).is_dir():
        return source, None
    if ":" not in source:
        raise InvalidArgumentError(f"{source} is neither a folder of a model nor package.module:factory.")
    made = _made(source)
    if not isinstance(made, tuple):
        return made, None
    if len(made) != 2:
        raise InvalidArgumentError(
            f"{source} has to return a model, or a model and its tokenizer; it returned {len(made)} values."
        )
    return made


def _made(source: str) -> Any:
    """Return what the function gives that ``package.module:factory`` or ``path/to/file.py:factory`` names."""
    module_name, separator, attribute = source.rpartition(":")
    if not separator:
        raise InvalidArgumentError(f"{source} is neither a .pt2 file nor package.module:factory.")
    sys.path.insert(0, "")
    try:
        factory = getattr(_module(module_name), attribute)
    except Exception as error:  # whatever the code of a user raises
        raise InvalidArgumentError(f"{source} cannot be loaded: {_reason(error)}.") from error
    if not callable(factory):
        raise InvalidArgumentError(f"{source} is not a function, but {type(factory).__name__}.")
    try:
        return factory()
    except Exception as error:  # whatever the code of a user raises
        raise InvalidArgumentError(f"{source} failed: {_reason(error)}.") from error


def _module(name: str) -> Any:
    """Import a module by its name, or from the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    # The file finds what lies in its folder, as when Python runs it.
    sys.path.insert(0, str(path.parent.resolve()))
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _reason(error: Exception) -> str:
    """Return what an error of the user's code says, and the line that raised it."""
    *_, frame = traceback.extract_tb(error.__traceback__)
    is_own = Path(frame.filename) == Path(__file__) or "importlib" in frame.filename
    return f"{type(error).__name__}: {error}" + ("" if is_own else f" (at {frame.filename}:{frame.lineno})")
