"""Where the code of a model finds Python's functions of numbers, so that an exporter may put others in their place."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

__all__ = ["helpers_of", "homes_of", "modules_entered", "modules_named"]


def homes_of(model: Callable[..., Any]) -> list[ModuleType]:
    """Return the modules of Python that define what a model is made of, but for those of torch.

    Args:
        model: A module, or a function; the files that define its modules, the classes that these extend, and functions
            that take the place of a ``forward`` are its code.
    """
    names: dict[str, None] = {}
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    for kind in dict.fromkeys(map(type, modules)):
        names |= {each.__module__: None for each in kind.__mro__}
    functions: list[Any] = [] if isinstance(model, torch.nn.Module) else [model]
    for module in modules:
        forward = module.forward
        functions += [getattr(forward, "__func__", forward), getattr(module, "function", None)]
    for function in {id(function): function for function in functions}.values():
        while isinstance(function, functools.partial):
            function = function.func
        names[getattr(inspect.unwrap(function), "__module__", None) or "builtins"] = None
    return _loaded(names)


def helpers_of(homes: Sequence[ModuleType]) -> list[ModuleType]:
    """Return the modules of Python whose functions some others have imported by name, but for those and torch's.

    Code that computes sizes is often shared by models, and stands in a file that defines none of their classes.
    """
    functions = [value for home in homes for value in vars(home).values() if type(value) is FunctionType]
    names = dict.fromkeys(
        [(inspect.unwrap(each) if "__wrapped__" in each.__dict__ else each).__module__ for each in functions]
    )
    return [home for home in modules_named(names) if home not in homes]


@contextlib.contextmanager
def modules_entered() -> Iterator[list[ModuleType]]:
    """Give the modules of Python, but for libraries and torch, whose functions the body calls, once it has ended.

    Functions that others call, in whatever file they stand, are known only when they run. Where a profiler runs, none
    are given.
    """
    names: dict[str, None] = {}
    found: list[ModuleType] = []

    def note(frame: FrameType, event: str, value: Any) -> None:
        if event == "call":
            names[str(frame.f_globals.get("__name__"))] = None

    if sys.getprofile() is not None:
        yield found
        return
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        found += modules_named(names)


def modules_named(names: Iterable[str]) -> list[ModuleType]:
    """Return the modules of Python of some names that are loaded, but for libraries and torch."""
    return [each for each in _loaded(names) if each.__name__.partition(".")[0] not in _LIBRARIES]


_LIBRARIES = (*sys.stdlib_module_names, "numpy", "onnx_fx_export", "onnx_ts_legacy", "onnxops_core", "onnxops_decomp")


def _loaded(names: Iterable[str]) -> list[ModuleType]:
    """Return the modules of some names that are loaded, without torch's."""
    found = (sys.modules.get(name) for name in names if name.partition(".")[0] not in ("torch", "builtins"))
    return [home for home in found if home is not None]
