"""Fits a call to the ONNX schema of its operator: dtypes of constants, attributes, older opsets, result dtypes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnxops_decomp.constants import natural_dtype, to_array
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError
from onnxops_decomp.kernel_gaps import compute_dtype
from onnxops_decomp.schemas import OpSpec, op_spec

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder

__all__ = [
    "NEGATIVE_AXES_OPSET",
    "bind_attributes",
    "bind_inputs",
    "free_attribute",
    "merge_key",
    "natural_dtype",
    "output_dtypes",
    "spec_for_opset",
    "to_array",
    "type_bindings",
    "widened_dtypes",
    "with_positive_axes",
]

# Opset 11 let axes count from the end, everywhere but in the few operators that always did.
NEGATIVE_AXES_OPSET = 11
_ALWAYS_NEGATIVE = frozenset(("Gather", "LpNormalization", "OneHot", "TopK"))

_INT64 = frozenset((ir.DataType.INT64,))
# Where an operator lacks a dtype at an opset, the first of these that it has stands in; every step is exact.
_WIDER: dict[ir.DataType, tuple[ir.DataType, ...]] = {
    ir.DataType.FLOAT16: (ir.DataType.FLOAT, ir.DataType.DOUBLE),
    ir.DataType.BFLOAT16: (ir.DataType.FLOAT, ir.DataType.DOUBLE),
    ir.DataType.FLOAT: (ir.DataType.DOUBLE,),
    ir.DataType.BOOL: (ir.DataType.UINT8, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT),
    ir.DataType.UINT8: (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE),
    ir.DataType.INT8: (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE),
    ir.DataType.INT16: (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE),
    ir.DataType.UINT16: (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE),
    ir.DataType.INT32: (ir.DataType.INT64, ir.DataType.DOUBLE),
    ir.DataType.UINT32: (ir.DataType.INT64, ir.DataType.DOUBLE),
}


def bind_inputs(op: OpBuilder, spec: OpSpec, inputs: Sequence[Any]) -> list[ir.Value | None]:
    """Turn operands into values; scalars, lists and arrays become constants of the dtype that the schema asks for.

    Raises:
        LoweringError: If there are too many or too few operands.
    """
    operands = list(inputs)
    while operands and operands[-1] is None:
        operands.pop()
    if not spec.min_inputs <= len(operands) <= spec.max_inputs:
        raise LoweringError(
            f"ONNX {spec.op_type} takes {spec.min_inputs} to {spec.max_inputs} inputs, got {len(operands)}."
        )
    bound: dict[str, ir.DataType] = {}
    for index, operand in enumerate(operands):
        if isinstance(operand, ir.Value) and operand.dtype is not None:
            bound.setdefault(spec.formal_input(index).type_key, operand.dtype)
    values: list[ir.Value | None] = []
    for index, operand in enumerate(operands):
        if operand is None or isinstance(operand, ir.Value):
            values.append(operand)
            continue
        formal = spec.formal_input(index)
        if isinstance(operand, list | tuple) and any(isinstance(element, ir.Value) for element in operand):
            values.append(op.vector(operand))
            continue
        if len(formal.dtypes) == 1:
            dtype = next(iter(formal.dtypes))
        elif formal.type_key in bound and formal.homogeneous:
            dtype = bound[formal.type_key]
        else:
            dtype = natural_dtype(operand)
            if formal.homogeneous:
                bound[formal.type_key] = dtype
        values.append(op.constant(operand, dtype))
    return values


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
        if name in spec.required or default is None or not _is_default(default, value):
            bound[name] = value
    missing = spec.required - bound.keys()
    if missing:
        raise LoweringError(f"ONNX {spec.op_type} needs attribute {min(missing)!r}.")
    return bound


def free_attribute(name: str, value: Any) -> ir.Attr:
    """Return the attribute of a node without a schema; the kind follows from the Python type.

    Raises:
        LoweringError: If ``value`` is of a type that no ONNX attribute has.
    """
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
    raise LoweringError(f"Attribute {name!r} of type {type(value).__name__} is not one that ONNX has.")


def type_bindings(spec: OpSpec, values: Sequence[ir.Value | None]) -> dict[str, ir.DataType]:
    """Return the dtype that each type variable of the operator has in this call."""
    bound: dict[str, ir.DataType] = {}
    for index, value in enumerate(values):
        if value is not None and value.dtype is not None and isinstance(value.type, ir.TensorType):
            bound.setdefault(spec.formal_input(index).type_key, value.dtype)
    return bound


def spec_for_opset(
    op: OpBuilder, spec: OpSpec, values: Sequence[ir.Value | None], attributes: dict[str, Any]
) -> OpSpec:
    """Return the schema in force at the requested opset, after checking that it has room for the call.

    Raises:
        UnsupportedOpsetError: If the operator does not exist yet, or lacks an input or attribute that is used.
        LoweringError: If the operands have different dtypes where the schema asks for one.
    """
    target = op_spec(spec.op_type, op.opset)
    if target is None:
        from onnxops_decomp.schemas import first_opset

        raise UnsupportedOpsetError(spec.op_type, op.opset, lowest=first_opset(spec.op_type))
    if target.since_version != spec.since_version:
        unknown = attributes.keys() - target.attributes.keys()
        if unknown:
            raise UnsupportedOpsetError(
                spec.op_type,
                op.opset,
                lowest=spec.since_version,
                reason=f"attribute {min(unknown)!r} came later",
            )
        if not target.min_inputs <= len(values) <= target.max_inputs:
            raise UnsupportedOpsetError(
                spec.op_type, op.opset, lowest=spec.since_version, reason=f"{len(values)} inputs came later"
            )
    bound: dict[str, ir.DataType] = {}
    for index, value in enumerate(values):
        formal = target.formal_input(index)
        if value is None or value.dtype is None or not formal.homogeneous:
            continue
        if bound.setdefault(formal.type_key, value.dtype) != value.dtype:
            raise LoweringError(
                f"ONNX {spec.op_type} wants one dtype for its inputs {formal.type_key}, "
                f"got {bound[formal.type_key].name} and {value.dtype.name}."
            )
    return target


def with_positive_axes(
    opset: int, spec: OpSpec, values: Sequence[ir.Value | None], attributes: dict[str, Any]
) -> dict[str, Any]:
    """Count axes from the front, as attributes have to below opset 11.

    Raises:
        UnsupportedOpsetError: If an axis counts from the end of a tensor of unknown rank.
    """
    if spec.op_type in _ALWAYS_NEGATIVE:
        return attributes
    axis, axes = attributes.get("axis", 0), attributes.get("axes", ())
    if axis >= 0 and all(a >= 0 for a in axes):
        return attributes
    shape = None if values[0] is None else values[0].shape
    if shape is None:
        raise UnsupportedOpsetError(
            spec.op_type, opset, lowest=NEGATIVE_AXES_OPSET, reason="a negative axis of a tensor of unknown rank"
        )
    rank = len(shape) + (len(axes) if spec.op_type == "Unsqueeze" else 0)
    changed = dict(attributes)
    if axis < 0:
        changed["axis"] = axis + rank
    if axes:
        changed["axes"] = [a + rank if a < 0 else a for a in axes]
    return changed


def widened_dtypes(opset: int, spec: OpSpec, values: Sequence[ir.Value | None]) -> dict[str, ir.DataType]:
    """Return, for each type variable whose dtype cannot be used as it is, the dtype to compute in.

    Raises:
        UnsupportedOpsetError: If no exact stand-in exists.
    """
    casts: dict[str, ir.DataType] = {}
    for index, value in enumerate(values):
        formal = spec.formal_input(index)
        if value is None or value.dtype is None or not isinstance(value.type, ir.TensorType):
            continue
        dtype = value.dtype
        if not formal.dtypes:
            continue
        if dtype in formal.dtypes:
            wanted = compute_dtype(spec.op_type, formal.name, dtype, opset)
            if wanted is not None:
                casts[formal.type_key] = wanted
            continue
        stand_in = next((wide for wide in _WIDER.get(dtype, ()) if wide in formal.dtypes), None)
        if stand_in is None or spec.op_type == "Cast":
            raise UnsupportedOpsetError(
                spec.op_type,
                opset,
                lowest=_first_opset_with(spec.op_type, index, dtype),
                reason=f"no {dtype.name} input",
            )
        casts[formal.type_key] = compute_dtype(spec.op_type, formal.name, stand_in, opset) or stand_in
    return casts


def _first_opset_with(op_type: str, index: int, dtype: ir.DataType) -> int | None:
    from onnxops_decomp.schemas import NEWEST_OPSET, OLDEST_OPSET

    for opset in range(OLDEST_OPSET, NEWEST_OPSET + 1):
        spec = op_spec(op_type, opset)
        if spec is not None and index < spec.max_inputs and dtype in spec.formal_input(index).dtypes:
            return opset
    return None


def output_dtypes(
    spec: OpSpec, values: Sequence[ir.Value | None], attributes: dict[str, Any], count: int
) -> list[ir.DataType | None]:
    """Return the dtype of each output as far as the schema determines it."""
    bound = type_bindings(spec, values)
    result: list[ir.DataType | None] = []
    for index in range(count):
        formal = spec.formal_output(index)
        if formal.type_key in bound and formal.homogeneous:
            result.append(bound[formal.type_key])
        elif len(formal.dtypes) == 1:
            result.append(next(iter(formal.dtypes)))
        else:
            result.append(_dtype_from_attributes(spec, values, attributes))
    return result


def _dtype_from_attributes(
    spec: OpSpec, values: Sequence[ir.Value | None], attributes: dict[str, Any]
) -> ir.DataType | None:
    """Resolve an output type that an attribute, or another input's value, decides."""
    for name in ("to", "dtype", "output_dtype"):
        if attributes.get(name):
            return ir.DataType(attributes[name])
    if spec.op_type == "ConstantOfShape":
        return attributes["value"].dtype if "value" in attributes else ir.DataType.FLOAT
    if spec.op_type in ("RandomNormal", "RandomUniform"):
        return ir.DataType.FLOAT
    if spec.op_type == "QuantizeLinear":
        zero_point = values[2] if len(values) > 2 else None
        return ir.DataType.UINT8 if zero_point is None else zero_point.dtype
    if spec.op_type == "DequantizeLinear":
        scale = values[1]
        return None if scale is None else scale.dtype
    first = values[0] if values else None
    same_kind = ("EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli")
    return first.dtype if first is not None and spec.op_type in same_kind else None


def merge_key(
    op_type: str, values: Sequence[ir.Value | None], attributes: dict[str, Any], count: int
) -> Hashable | None:
    """Return a key that two nodes share exactly if they compute the same, or None for nodes with subgraphs."""
    items: list[Hashable] = []
    for name in sorted(attributes):
        value = attributes[name]
        if isinstance(value, ir.Graph):
            return None
        if isinstance(value, ir.TensorProtocol):
            value = (value.dtype, tuple(value.shape.numpy()), value.tobytes())
        items.append((name, tuple(value) if isinstance(value, list) else value))
    return (op_type, count, tuple(id(value) for value in values), tuple(items))
