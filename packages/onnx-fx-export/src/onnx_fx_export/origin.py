"""Where in the user's code a node of the captured graph comes from."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from onnxops_decomp.exporting import ReportedCall

__all__ = ["captured_calls", "module_path", "named_forward", "origin_of", "source_frames", "source_line"]

_TORCH = str(Path(torch.__file__).parent) + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def named_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same and is called ``forward``: torch notes the lines of such frames only."""
    if isinstance(function, types.MethodType):
        return types.MethodType(named_forward(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__.replace(co_name="forward")
    renamed = types.FunctionType(code, function.__globals__, "forward", function.__defaults__, function.__closure__)
    renamed.__kwdefaults__ = function.__kwdefaults__
    renamed.__dict__.update(function.__dict__)
    return renamed


def source_line(node: torch.fx.Node) -> str:
    """Return ``file:line`` of the innermost user frame of a node, or an empty string."""
    frames = source_frames(node)
    # Modules of torch call functions of torch; the line that the user can change is further out.
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


def source_frames(node: torch.fx.Node) -> list[tuple[str, int]]:
    """Return file and line of the frames that torch noted of a node, outer ones first."""
    trace = node.meta.get("stack_trace") or ""
    # Passes of torch.export note themselves by a path inside of torch.
    return [(file, int(line)) for file, line in _FRAME.findall(trace) if os.path.isabs(file)]


def captured_calls(program: torch.export.ExportedProgram) -> list[ReportedCall]:
    """Return the calls of a captured program, with their lines."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return [ReportedCall(str(node.target), node.name, source_line(node)) for node in nodes]


def module_path(node: torch.fx.Node) -> str:
    """Return the dotted path of the module in whose forward a node was recorded, or an empty string."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    return path.removeprefix("L['self'].").removeprefix("L__self__.").removeprefix("L['self']")


def origin_of(node: torch.fx.Node, outer: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata that the ONNX nodes of an fx node carry.

    A name is unique in its graph only, so that of a node in a nested graph follows the one of its operator:
    ``"cond/relu"``.

    Args:
        node: The fx node.
        outer: The metadata of the operator whose nested graph the node is in; empty in the outermost graph.
    """
    scope = outer.get("onnxops.fx_node")
    metadata = {"onnxops.fx_node": f"{scope}/{node.name}" if scope else node.name}
    if source := source_line(node):
        metadata["onnxops.source"] = source
    # torch notes no modules inside of nested graphs.
    if path := module_path(node) or outer.get("onnxops.module"):
        metadata["onnxops.module"] = path
    return metadata
