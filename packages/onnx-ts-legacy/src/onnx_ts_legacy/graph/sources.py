"""Where in the user's program a node comes from: its line, and its module."""

from __future__ import annotations

import functools
import os
import re
import sys
import traceback
import warnings
from types import FrameType
from typing import Any, NamedTuple

import torch

__all__ = [
    "Place",
    "asks_for_fused_layer",
    "is_library",
    "line_of_exception",
    "located",
    "module_path",
    "source_line",
    "user_frame",
]

_TRACED = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$", re.MULTILINE)
_SCRIPTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# Scripted programs may come from another machine, whose torch lies elsewhere.
_LIBRARY = re.compile(
    r"[/\\]site-packages[/\\](torch|numpy)[/\\]|[/\\](onnxops_core|onnxops_decomp|onnx_ts_legacy)[/\\]|"
    + "|".join(map(re.escape, (os.path.dirname(torch.__file__) + os.sep, warnings.__file__)))
)
_FUSED_LAYERS = re.compile(r"torch[/\\]nn[/\\]modules[/\\](transformer|activation)\.py")
_PLACE = re.compile(r" at \S+:\d+")
# Scripted programs name the modules that a node lies in with their classes, and calls that are none.
_CALLED = re.compile(r"([^.()]+)\(([^()]*)\)")
_NO_MODULES = ("SELF", "UNKNOWN_INSTANCE")


class Place(NamedTuple):
    """A line of the user's program, and the globals of its module."""

    file: str
    line: int
    module: dict[str, Any]

    @property
    def home(self) -> str:
        """The name of the module."""
        return str(self.module.get("__name__", ""))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def module_path(node: Any, prefix: str = "") -> str:
    """Return the path of the module that a node lies in; an empty string for the model itself.

    Args:
        node: The node.
        prefix: Start of all paths, which is left out.
    """
    scope = str(node.scopeName())
    if scope:
        path = scope.rpartition("/")[2].removeprefix("__module").removeprefix(".")
    else:
        path = ".".join(name for name, _ in _CALLED.findall(node.getModuleHierarchy()) if name not in _NO_MODULES)
    return "" if path == prefix else path.removeprefix(f"{prefix}.") if prefix else path


def source_line(node: Any) -> str:
    """Return ``file:line`` of a node, the innermost that is the user's own; an empty string if it is not known."""
    return _line_in(str(node.sourceRange()))


def asks_for_fused_layer(node: Any) -> bool:
    """Tell whether a node stands in the code by which layers of a transformer choose between their implementations."""
    return _FUSED_LAYERS.search(str(node.sourceRange())) is not None


@functools.lru_cache(maxsize=1024)
def _line_in(text: str) -> str:
    """Find the user's line in a source range of torch; repeated calls of a module have the same one."""
    found = list(_TRACED.finditer(text)) or list(_SCRIPTED.finditer(text))
    if not found:
        return ""
    own = next((match for match in found if not is_library(match["file"])), found[0])
    return f"{own['file']}:{own['line']}"


def located(text: str, node: Any) -> str:
    """Return a message with the line of a node, unless it names one."""
    source = source_line(node)
    return f"{text} ({node.kind()} at {source})" if source and not _PLACE.search(text) else text


def line_of_exception(error: BaseException) -> str:
    """Return ``file:line`` of the user's innermost line that an exception came through; an empty string without one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_library(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Tell whether a file belongs to PyTorch, NumPy or these packages."""
    return _LIBRARY.search(file) is not None


def user_frame() -> FrameType | None:
    """Return the innermost frame that is the user's own; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
