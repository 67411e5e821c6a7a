"""Results that may be None, as is known only at run time: values of an ONNX optional type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnx_ts_legacy.calls.scalars import number_output
from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value
from onnx_ts_legacy.state.values import Maybe, Tensor, is_runtime
from onnx_ts_legacy.state.variables import value_of

if TYPE_CHECKING:
    from onnxops_decomp import OpBuilder

__all__ = ["optional_output"]


def optional_output(context: ConversionContext, result: Maybe) -> ir.Value:
    """Return the value of an optional type for a tensor or number.

    Raises:
        ScriptValueError: If it is anything else, such as a tuple.
        UnsupportedOpsetError: Below opset 16, in which no branch gives a value of an optional type.
    """
    context.require_opset(16, "a result that may be None at run time", types="Optional types")
    if not isinstance(result.value, Tensor | bool | int | float) and not is_runtime(result.value):
        raise ScriptValueError(
            "The model returns a tuple, list or dict that may be None, depending on a condition known only at "
            "run time; return tensors in both cases, or an optional tensor."
        )
    op = context.op
    given = result.value
    value = value_of(context, given) if isinstance(given, Tensor) else number_output(context, given)
    kind = ir.TypeAndShape(value.type, value.shape)
    graphs = [_branch(op, "then", value, [value], {}), _branch(op, "else", value, [], {"type": kind})]
    condition = number_value(context, result.present)
    output = op.emit_custom("", "If", [condition], {"then_branch": graphs[0], "else_branch": graphs[1]}, [None])[0]
    _declare(output, value)
    return output


def _branch(
    op: OpBuilder, name: str, like: ir.Value, inputs: list[ir.Value], attributes: dict[str, ir.TypeAndShape]
) -> ir.Graph:
    branch = op.subgraph()
    made = branch.emit_custom("", "Optional", inputs, attributes, [None])[0]
    _declare(made, like)
    return branch.graph([made], name=op.context.names.new(name))


def _declare(optional: ir.Value, content: ir.Value) -> None:
    assert content.type is not None
    optional.type, optional.shape = ir.OptionalType(content.type), content.shape
