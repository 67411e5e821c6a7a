"""Binds the arguments of a call to the ONNX schema of its operator: dtypes of constants, kinds of attributes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.constants import is_number, is_value, natural_dtype, to_array
from onnxops_decomp.builder.sizes import SizeOperations
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.spec.schemas import OpSpec

__all__ = [
    "bind_attributes",
    "bind_inputs",
    "free_attribute",
    "merge_key",
    "natural_dtype",
    "to_array",
    "without_absent_end",
]


def bind_inputs(op: SizeOperations, spec: OpSpec, inputs: Sequence[Any]) -> list[ir.Value | None]:
    """Turn operands into values; scalars, lists and arrays become constants of the dtype that the schema asks for.

    Numbers known only at run time are cast to it.

    Raises:
        LoweringError: If there are too many or too few operands.
    """
    operands = without_absent_end(inputs)
    # What may be left out before a variadic input is written as an empty name where no such input follows.
    while len(operands) < spec.min_inputs and spec.formal_input(len(operands)).optional:
        operands.append(None)
    if not spec.min_inputs <= len(operands) <= spec.max_inputs:
        raise LoweringError(
            f"ONNX {spec.op_type} takes {spec.min_inputs} to {spec.max_inputs} inputs, got {len(operands)}."
        )
    for operand in operands:
        if operand is not None and (operand.__class__ is not ir.Value or is_number(operand)):
            return _with_constants(op, spec, operands)
    return operands


def without_absent_end(inputs: Sequence[Any]) -> list[Any]:
    """Return inputs without those at the end that are absent."""
    present = list(inputs)
    while present and present[-1] is None:
        present.pop()
    return present


def _with_constants(op: SizeOperations, spec: OpSpec, operands: list[Any]) -> list[ir.Value | None]:
    bound: dict[str, ir.DataType] = {}
    for index, operand in enumerate(operands):
        if is_value(operand) and operand.dtype is not None and not is_number(operand):
            bound.setdefault(spec.formal_input(index).type_key, operand.dtype)
    values = [_number(op, spec, index, operand, bound) for index, operand in enumerate(operands)]
    return [
        value if value is None or is_value(value) else _constant(op, spec, index, value, bound)
        for index, value in enumerate(values)
    ]


def _number(op: SizeOperations, spec: OpSpec, index: int, operand: Any, bound: dict[str, ir.DataType]) -> Any:
    """Return a number known only at run time in the dtype of the tensors beside it, and all else as it is."""
    if not is_number(operand):
        return operand
    formal = spec.formal_input(index)
    dtype = bound.get(formal.type_key) if formal.homogeneous else None
    if dtype is None:
        bound.setdefault(formal.type_key, operand.dtype)
        return operand
    loses = operand.dtype.is_floating_point() and not dtype.is_floating_point()
    return operand if loses else op.cast(operand, dtype)


def _constant(op: SizeOperations, spec: OpSpec, index: int, operand: Any, bound: dict[str, ir.DataType]) -> ir.Value:
    """Return an operand in Python form as a value; ``bound`` holds the dtypes of type variables known so far."""
    if isinstance(operand, list | tuple) and any(map(is_value, operand)):
        return op.vector(operand)
    formal = spec.formal_input(index)
    if len(formal.dtypes) == 1:
        dtype = next(iter(formal.dtypes))
    elif formal.type_key in bound and formal.homogeneous:
        dtype = bound[formal.type_key]
    else:
        dtype = natural_dtype(operand)
        if formal.homogeneous:
            bound[formal.type_key] = dtype
    return op.constant(operand, dtype)


def _attribute_value(name: str, kind: ir.AttributeType, value: Any) -> Any:
    match kind:
        case ir.AttributeType.INT:
            return int(value)
        case ir.AttributeType.FLOAT:
            return float(value)
        case ir.AttributeType.STRING:
            return str(value)
        case ir.AttributeType.INTS:
            return [int(element) for element in value]
        case ir.AttributeType.FLOATS:
            return [float(element) for element in value]
        case ir.AttributeType.STRINGS:
            return [str(element) for element in value]
        case ir.AttributeType.TENSOR:
            return value if isinstance(value, ir.TensorProtocol) else ir.tensor(value, name=name)
        case _:
            return value


def _is_default(default: object, value: object) -> bool:
    if isinstance(default, bytes):
        return default.decode() == value
    if isinstance(default, float) and isinstance(value, float):
        return bool(np.float32(default) == np.float32(value))
    return default == value


# Attributes that are written although they have the default: onnx infers the shape of a two-sided STFT without its own.
_WRITTEN = frozenset({("STFT", "onesided")})


def bind_attributes(spec: OpSpec, attributes: dict[str, Any]) -> dict[str, Any]:
    """Convert attributes to the kinds of the schema and leave out those that equal the default.

    Raises:
        LoweringError: If the operator has no such attribute, or a required one is missing.
    """
    bound: dict[str, Any] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        kind = spec.attributes.get(name)
        if kind is None:
            raise LoweringError(f"ONNX {spec.op_type}-{spec.since_version} has no attribute {name!r}.")
        value = _attribute_value(name, kind, value)
        default = spec.defaults[name]
        kept = name in spec.required or (spec.op_type, name) in _WRITTEN
        if kept or default is None or not _is_default(default, value):
            bound[name] = value
    missing = spec.required - bound.keys()
    if missing:
        raise LoweringError(f"ONNX {spec.op_type} needs attribute {min(missing)!r}.")
    return bound


def free_attribute(name: str, value: Any) -> ir.Attr:
    """Return the attribute of a node without a schema; the kind follows from the Python type, unless it is one already.

    Raises:
        LoweringError: If ``value`` is of a type that no ONNX attribute has.
    """
    if isinstance(value, ir.Attr):
        return value
    first = value[0] if isinstance(value, list | tuple) and value else value
    kinds = {bool: "INT", int: "INT", float: "FLOAT", str: "STRING"}
    kind = next((text for python, text in kinds.items() if isinstance(first, python)), None)
    if isinstance(value, list | tuple):
        if kind == "INT" and any(isinstance(element, float) for element in value):
            kind = "FLOAT"
        if not value:
            return ir.Attr(name, ir.AttributeType.INTS, ())
        if kind is not None:
            attribute = ir.AttributeType[f"{kind}S"]
            return ir.Attr(name, attribute, tuple(_attribute_value(name, attribute, list(value))))
    elif kind is not None:
        return ir.Attr(name, ir.AttributeType[kind], int(value) if kind == "INT" else value)
    elif isinstance(value, ir.TensorProtocol | np.ndarray):
        return ir.Attr(name, ir.AttributeType.TENSOR, ir.tensor(value, name=name))
    elif isinstance(value, ir.Graph):
        return ir.Attr(name, ir.AttributeType.GRAPH, value)
    elif isinstance(value, ir.TypeAndShape):
        return ir.Attr(name, ir.AttributeType.TYPE_PROTO, value)
    raise LoweringError(f"Attribute {name!r} has type {type(value).__name__}, which ONNX attributes cannot have.")


def merge_key(
    spec: OpSpec, values: Sequence[ir.Value | None], attributes: dict[str, Any], count: int
) -> Hashable | None:
    """Return a key that two nodes share exactly if they compute the same, or None for nodes with subgraphs or types."""
    items: list[Hashable] = []
    for name in sorted(attributes) if len(attributes) > 1 else attributes:
        value = attributes[name]
        match spec.attributes[name]:
            case ir.AttributeType.GRAPH | ir.AttributeType.GRAPHS | ir.AttributeType.TYPE_PROTO:
                return None
            case ir.AttributeType.TENSOR:
                value = (value.dtype, tuple(value.shape.numpy()), value.tobytes())
            case ir.AttributeType.INTS | ir.AttributeType.FLOATS | ir.AttributeType.STRINGS:
                value = tuple(value)
            case ir.AttributeType.FLOAT if value == 0:
                # 0.0 equals -0.0, but they are not the same attribute.
                value = str(value)
        items.append((name, value))
    return (spec.op_type, count, *map(id, values), *items)
