"""What the specification says that an operator is composed of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

__all__ = ["specified_function"]


def specified_function(
    node: ir.Node, opset: int, operands: Sequence[ir.Value | None], attributes: Mapping[str, ir.Attr]
) -> ir.Function | None:
    """Return the function that specifies a node, or None if none does.

    Args:
        node: A node of ONNX's own domain.
        opset: Opset that it is of.
        operands: Values with the types of its inputs.
        attributes: Its attributes, those that name one of a function around it filled in.
    """
    if not onnx.defs.has(node.op_type, opset):
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, opset)  # onnx's stubs lack what functions are asked by
    if schema.has_function:
        return ir.serde.deserialize_function(schema.function_body)
    if not schema.has_context_dependent_function:
        return None
    types = [b"" if value is None else _type(value).SerializeToString() for value in operands]
    asked = ir.to_proto(node)
    del asked.attribute[:]
    asked.attribute.extend(ir.to_proto(each) for each in attributes.values())
    text = schema.get_context_dependent_function(asked.SerializeToString(), types)
    if not text:
        return None
    proto = onnx.FunctionProto.FromString(text)
    made = {name for each in proto.node for name in each.output} | set(proto.input)
    # What the node leaves out, the function may leave out as well, though it lists it.
    while proto.output and proto.output[-1] not in made:
        proto.output.pop()
    for index, name in enumerate(proto.output):
        if name not in made:
            proto.node.add(op_type="Identity", input=[proto.output[0]], output=[name])
            if index < len(node.outputs) and node.outputs[index].name:
                return None
    return ir.serde.deserialize_function(proto)


def _type(value: ir.Value) -> onnx.TypeProto:
    proto = ir.to_proto(value).type
    assert isinstance(proto, onnx.TypeProto)
    return proto
