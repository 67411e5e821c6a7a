"""Takes the place of ``torch.onnx.export`` for code that calls it by that name."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.export import export
from onnxops_decomp import builtin_table
from onnxops_decomp.exporting.program import ONNXProgram
from onnxops_decomp.lowerings.registry import operator_name

__all__ = ["replace_torch_onnx"]


@contextlib.contextmanager
def replace_torch_onnx() -> Iterator[None]:
    """Route ``torch.onnx.export`` to this package inside the context.

    Tools that call ``torch.onnx.export`` by its full name use this exporter without a change. Calls that ask for the
    TorchScript exporter (``dynamo=False``) go to onnx-ts-legacy if it is installed.

    Example:
        >>> with replace_torch_onnx():
        ...     program = torch.onnx.export(torch.nn.ReLU(), (torch.ones(2),))
        >>> type(program).__name__
        'ONNXProgram'
    """
    module: Any = torch.onnx
    before = module.export
    module.export = _export
    try:
        yield
    finally:
        module.export = before


def _export(model: Any, args: Any = (), f: Any = None, **arguments: Any) -> ONNXProgram | Any:
    if arguments.get("custom_translation_table"):
        arguments["custom_translation_table"] = _usable(arguments["custom_translation_table"])
    return export(model, args, f, **arguments)


def _usable(table: Mapping[Any, Any]) -> dict[Any, Callable[..., Any]]:
    """Return the functions of a table for torch.onnx that this exporter can call.

    A plain Python function in such a table is traced by torch.onnx, mostly to put right what torch.onnx gets wrong of
    an operator. Where there is a lowering of the operator here, that one is used.

    Raises:
        InvalidArgumentError: If there is none.
    """
    usable: dict[Any, Callable[..., Any]] = {}
    for operator, function in table.items():
        functions = function if isinstance(function, list | tuple) else [function]
        if not isinstance(operator, torch._ops.OpOverload | torch._ops.OpOverloadPacket | str):
            continue  # Python's own arithmetic on sizes, which needs no translation
        own = [each for each in functions if _is_callable_here(each)]
        if own:
            usable[operator] = own[-1]
        elif builtin_table().find(operator_name(operator)) is None:
            raise InvalidArgumentError(
                f"The translation of {operator_name(operator)} is one that only torch.onnx can trace: make it an "
                "onnxscript.script function, or one whose first parameter is the builder, op."
            )
    return usable


def _is_callable_here(function: Any) -> bool:
    return hasattr(function, "to_function_proto") or next(iter(inspect.signature(function).parameters), "") == "op"
