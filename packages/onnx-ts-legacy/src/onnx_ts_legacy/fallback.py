"""What becomes of operators that cannot be converted where the user wants a model nevertheless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from onnx_ts_legacy.enumerations import OperatorExportTypes
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph_context import GraphContext
from onnx_ts_legacy.symbolic_values import SymbolicValue
from onnx_ts_legacy.values import ListRef, Tensor

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["write_as_it_is"]


def write_as_it_is(interpreter: Interpreter, node: Any, args: Sequence[Any], fakes: Any) -> Any:
    """Write a call as a node that names the operator, and return its results; None if the mode or call forbids it.

    Args:
        interpreter: The conversion.
        node: The TorchScript node.
        args: Its inputs.
        fakes: Fake tensors for its results.
    """
    if fakes is None or interpreter.fallback is OperatorExportTypes.ONNX:
        return None
    namespace, _, name = str(node.kind()).partition("::")
    many = isinstance(fakes, list | tuple)
    if any(not isinstance(fake, torch.Tensor) for fake in (fakes if many else [fakes])):
        return None
    count = len(fakes) if many else 1
    g = GraphContext(interpreter, node)
    try:
        inputs = [SymbolicValue(item) for arg in args for item in _unpacked(arg)]
        if interpreter.fallback is OperatorExportTypes.ONNX_FALLTHROUGH:
            result = g.op(f"{_domain(namespace)}::{name}", *inputs, outputs=count)
        elif namespace == "aten":
            overload = torch._C.parse_schema(node.schema()).overload_name
            result = g.aten_op(name, *inputs, overload_name=overload, outputs=count)
        else:
            return None
    except ScriptValueError:
        return None
    values = [part.variable for part in (result if count > 1 else (result,))]
    return values if many else values[0]


def _domain(namespace: str) -> str:
    # GraphContext.op takes "aten::" for the ATen node; here the plain namespace is meant.
    return "org.pytorch.aten" if namespace == "aten" else namespace


def _unpacked(arg: Any) -> Sequence[Any]:
    if isinstance(arg, ListRef) and any(isinstance(item, Tensor) for item in arg.items):
        return arg.items
    return (None,) if isinstance(arg, str | torch.device) else (arg,)
