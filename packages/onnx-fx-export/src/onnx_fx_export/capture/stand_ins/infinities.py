"""``torch.isinf`` where code clamps a tensor if one of its elements is infinite, as models in half precision do.

    if x.dtype == torch.float16 and torch.isinf(x).any():
        most = torch.finfo(x.dtype).max - 1000
        x = torch.clamp(x, min=-most, max=most)

Each of many layers asks so, more often than both answers can be captured. A choice between the tensor and the clamped
one, by the same condition, gives the same.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.sizes.texts import asking_frame
from onnxops_core.exporting import replaced

__all__ = ["clamped_infinities"]

_ISINF, _CLAMP = torch.isinf, torch.clamp


@contextlib.contextmanager
def clamped_infinities() -> Iterator[None]:
    """Choose with an operator in the body, where the code of a model says no more than the lines above."""
    asked: list[torch.Tensor] = []

    def isinf(*args: Any, **given: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or not args or not _is_clamped(args[0], _caller()):
            return _ISINF(*args, **given)
        asked.append(args[0])
        return types.SimpleNamespace(any=lambda: True)

    def clamp(*args: Any, **given: Any) -> torch.Tensor:
        clamped = _CLAMP(*args, **given)
        if torch.compiler.is_dynamo_compiling() or not asked or asked[-1] is not args[0]:
            return clamped
        input = asked.pop()
        return torch.where(_ISINF(input).any(), clamped, input)

    with replaced([(torch, "isinf", isinf), (torch, "clamp", clamp)]):
        yield


def _caller() -> types.FrameType | None:
    """Return the frame that has called what stands for a function of torch."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") == replaced.__module__ and frame.f_back is not None:
        frame = frame.f_back
    return asking_frame(frame)


def _is_clamped(input: Any, frame: types.FrameType | None) -> bool:
    """Tell whether code asks whether elements of a tensor are infinite for nothing else than to clamp it."""
    if frame is None or not isinstance(input, torch.Tensor):
        return False
    name = _clamps(frame.f_code.co_filename).get(frame.f_lineno)
    return name is not None and frame.f_locals.get(name) is input


@functools.cache
def _clamps(file: str) -> dict[int, str]:
    """Return the lines of a file that ask so, each with the name of the tensor."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # what is no file of Python
        return {}
    result: dict[int, str] = {}
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        forms = {node: _form(node) for node in ast.walk(function) if isinstance(node, ast.If)}
        known = {node: form for node, form in forms.items() if form is not None}
        inside = {id(part) for node in known for part in ast.walk(node)}
        read = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inside
        }
        for node, (name, bounds) in known.items():
            if not bounds & read:
                result |= dict.fromkeys(range(node.lineno, (node.test.end_lineno or node.lineno) + 1), name)
    return result


def _form(node: ast.If) -> tuple[str, set[str]] | None:
    """Return the name of the tensor that a branch clamps, and those that it computes for that; None for others."""
    *bounds, last = node.body
    test = (
        node.test.values[-1] if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else node.test
    )
    names = {target.id for each in bounds if (target := _target(each)) is not None}
    match last:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="clamp"), args=[ast.Name(id=clamped)]),
        ) if name == clamped and not node.orelse and len(names) == len(bounds) and name not in names:
            asks = ast.unparse(test) == f"torch.isinf({name}).any()"
            return (name, names) if asks and _asked_once(node.test) else None
    return None


def _target(statement: ast.stmt) -> ast.Name | None:
    """Return the one name to which a number is assigned that is computed of limits alone."""
    match statement:
        case ast.Assign(targets=[ast.Name() as target], value=value):
            calls = [ast.unparse(part.func) for part in ast.walk(value) if isinstance(part, ast.Call)]
            return target if set(calls) <= {"torch.finfo"} else None
    return None


def _asked_once(test: ast.expr) -> bool:
    """Tell whether a condition asks whether elements are infinite in one place."""
    return ast.unparse(test).count("isinf") == 1
