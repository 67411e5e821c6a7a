"""How a call is emitted at the requested opset, which depends on its dtypes alone and so is worked out once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxops_decomp.builder.runtime import Runtime
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError
from onnxops_decomp.spec.schemas import NEWEST_OPSET, OLDEST_OPSET, Formal, OpSpec, first_opset, op_spec
from onnxops_decomp.spec.traits import Trait, has_trait

__all__ = ["NEGATIVE_AXES_OPSET", "Dtypes", "Plan", "dtypes_of", "make_plan", "open_dtype", "with_positive_axes"]

Dtypes = tuple[ir.DataType | None, ...]

# Opset 11 let axes count from the end, everywhere but in the few operators that always did.
NEGATIVE_AXES_OPSET = 11

_T = ir.DataType
_FLOAT8 = (_T.FLOAT8E4M3FN, _T.FLOAT8E4M3FNUZ, _T.FLOAT8E5M2, _T.FLOAT8E5M2FNUZ)
# Where an operator lacks a dtype at an opset, the first of these that it has stands in. Floats gain precision, and
# integers wrap when they are cast back.
_WIDER: dict[ir.DataType, tuple[ir.DataType, ...]] = {
    _T.FLOAT16: (_T.FLOAT, _T.DOUBLE),
    _T.BFLOAT16: (_T.FLOAT, _T.DOUBLE),
    _T.FLOAT: (_T.DOUBLE,),
    _T.BOOL: (_T.UINT8, _T.INT32, _T.INT64),
    _T.UINT8: (_T.INT32, _T.INT64),
    _T.INT8: (_T.INT32, _T.INT64),
    _T.INT16: (_T.INT32, _T.INT64),
    _T.UINT16: (_T.INT32, _T.INT64),
    _T.INT32: (_T.INT64,),
    _T.UINT32: (_T.INT64,),
    **dict.fromkeys(_FLOAT8, (_T.FLOAT16, _T.FLOAT)),
}
# Where values are only moved or compared, an integer may also pass through a float that holds all of its range.
_HELD_BY_FLOAT: dict[ir.DataType, tuple[ir.DataType, ...]] = {
    **dict.fromkeys((_T.BOOL, _T.UINT8, _T.INT8, _T.INT16, _T.UINT16), (_T.FLOAT, _T.DOUBLE)),
    **dict.fromkeys((_T.INT32, _T.UINT32), (_T.DOUBLE,)),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a call before its operands are.

    Attributes:
        target: The operator as of the requested opset.
        casts: For each type variable whose dtype cannot be used as it is, the dtype to compute in.
        narrow: Dtype of each type variable in the call.
        outputs: Dtype of each output; None where attributes or contents decide.
    """

    target: OpSpec
    casts: Mapping[str, ir.DataType]
    narrow: Mapping[str, ir.DataType]
    outputs: tuple[ir.DataType | None, ...]


def dtypes_of(values: Sequence[ir.Value | None]) -> Dtypes:
    """Return the element types of tensors; None for what is absent, of unknown type, or no tensor."""
    types = [None if value is None else value.type for value in values]
    return tuple([type_.dtype if type_.__class__ is ir.TensorType else None for type_ in types])


@functools.cache
def make_plan(
    op_type: str,
    dialect: int,
    opset: int,
    dtypes: Dtypes,
    attributes: tuple[str, ...],
    count: int,
    widen_bfloat16: bool,
    runtime: Runtime | None,
) -> Plan:
    """Fit a call to the schema in force at ``opset``.

    Args:
        op_type: Operator of the default domain.
        dialect: Opset in whose form the call is written.
        opset: Requested opset; no adapter stands between it and ``dialect``.
        dtypes: Dtypes of the operands.
        attributes: Names of the attributes.
        count: How many outputs are wanted.
        widen_bfloat16: Whether the model is meant for the CPU, which computes in BFLOAT16 almost nowhere.
        runtime: The runtime that has to have a kernel for the dtypes; None for all that ONNX specifies.

    Raises:
        UnsupportedOpsetError: If the opset has no room for the call, or no exact way to compute in its dtypes.
        LoweringError: If operands have different dtypes where the schema asks for one.
    """
    target = _target(op_type, dialect, opset, attributes, len(dtypes), count)
    narrow: dict[str, ir.DataType] = {}
    casts: dict[str, ir.DataType] = {}
    for index, dtype in enumerate(dtypes):
        formal = target.formal_input(index)
        if dtype is None or not formal.dtypes:
            continue
        if formal.homogeneous and narrow.setdefault(formal.type_key, dtype) != dtype:
            raise LoweringError(
                f"ONNX {op_type} wants one dtype for its inputs {formal.type_key}, "
                f"got {narrow[formal.type_key].name} and {dtype.name}."
            )
        wanted = _specified(target, formal, index, dtype, opset)
        if runtime is not None:
            stand_in = runtime.compute_dtype(op_type, formal.type_key, wanted, widen_bfloat16=widen_bfloat16)
            wanted = stand_in or wanted
        if wanted != dtype:
            casts[formal.type_key] = wanted
    return Plan(target, casts, narrow, tuple(_output(target, index, narrow) for index in range(count)))


def _target(op_type: str, dialect: int, opset: int, attributes: tuple[str, ...], inputs: int, outputs: int) -> OpSpec:
    spec, target = op_spec(op_type, dialect), op_spec(op_type, opset)
    assert spec is not None
    if target is None:
        raise UnsupportedOpsetError(op_type, opset, lowest=first_opset(op_type))
    if target.since_version == spec.since_version:
        return target
    unknown = [name for name in attributes if name not in target.attributes]
    reason = f"attribute {min(unknown)!r} came later" if unknown else ""
    if not unknown and not target.min_inputs <= inputs <= target.max_inputs:
        reason = f"{inputs} inputs came later"
    if not reason and outputs > target.max_outputs:
        reason = f"{outputs} outputs came later"
    if reason:
        lowest = _first_opset_where(
            op_type,
            lambda s: (
                s.attributes.keys() >= set(attributes)
                and s.min_inputs <= inputs <= s.max_inputs
                and outputs <= s.max_outputs
            ),
        )
        raise UnsupportedOpsetError(op_type, opset, lowest=lowest, reason=reason)
    return target


def _specified(target: OpSpec, formal: Formal, index: int, dtype: ir.DataType, opset: int) -> ir.DataType:
    """Return the dtype to compute in by the specification: ``dtype``, or one that holds its values exactly."""
    op_type = target.op_type
    if dtype not in formal.dtypes:
        # A value that a loop carries has a type of its own, which a cast for all of them would not keep.
        stand_ins = () if op_type == "Cast" or not formal.homogeneous else _WIDER.get(dtype, ())
        if has_trait(op_type, Trait.ORDERS):
            stand_ins += _HELD_BY_FLOAT.get(dtype, ())
        found = next((wide for wide in stand_ins if wide in formal.dtypes), None)
        if found is None:
            lowest = _first_opset_where(
                op_type, lambda s: index < s.max_inputs and dtype in s.formal_input(index).dtypes
            )
            raise UnsupportedOpsetError(op_type, opset, lowest=lowest, reason=f"no {dtype.name} input")
        dtype = found
    return dtype


def _first_opset_where(op_type: str, condition: Any) -> int | None:
    specs = ((opset, op_spec(op_type, opset)) for opset in range(OLDEST_OPSET, NEWEST_OPSET + 1))
    return next((opset for opset, spec in specs if spec is not None and condition(spec)), None)


def _output(target: OpSpec, index: int, narrow: Mapping[str, ir.DataType]) -> ir.DataType | None:
    formal = target.formal_output(index)
    if formal.homogeneous and formal.type_key in narrow:
        return narrow[formal.type_key]
    return next(iter(formal.dtypes)) if len(formal.dtypes) == 1 else None


def open_dtype(target: OpSpec, index: int, opset: int, dtypes: Dtypes, attributes: dict[str, Any]) -> _T | None:
    """Return the dtype of an output that an attribute, or another input's value, decides.

    Raises:
        UnsupportedOpsetError: If the opset does not have the dtype there.
    """
    dtype = _from_attributes(target, dtypes, attributes)
    if index and target.op_type == "LayerNormalization":
        # Mean and inverse deviation come in the precision that they are computed in.
        dtype = ir.DataType(attributes.get("stash_type", _T.FLOAT))
    allowed = target.formal_output(index).dtypes
    if dtype is not None and allowed and dtype not in allowed:
        lowest = _first_opset_where(target.op_type, lambda s: dtype in s.formal_output(index).dtypes)
        raise UnsupportedOpsetError(target.op_type, opset, lowest=lowest, reason=f"no {dtype.name} output")
    return dtype


def _from_attributes(target: OpSpec, dtypes: Dtypes, attributes: dict[str, Any]) -> _T | None:
    for name in ("to", "dtype", "output_dtype", "output_datatype"):
        if attributes.get(name):
            return ir.DataType(attributes[name])
    match target.op_type:
        case "ConstantOfShape":
            return attributes["value"].dtype if "value" in attributes else _T.FLOAT
        case "RandomNormal" | "RandomUniform" | "BlackmanWindow" | "HammingWindow" | "HannWindow" | "MelWeightMatrix":
            return _T.FLOAT
        case "Multinomial":
            return _T.INT32
        case "QuantizeLinear":
            return dtypes[2] if len(dtypes) > 2 and dtypes[2] is not None else _T.UINT8
        case "DequantizeLinear":
            return dtypes[1]
        case "EyeLike" | "RandomNormalLike" | "RandomUniformLike" | "Bernoulli":
            return dtypes[0]
    return None


def with_positive_axes(
    opset: int, op_type: str, values: Sequence[ir.Value | None], attributes: dict[str, Any]
) -> dict[str, Any]:
    """Count axes from the front, as attributes have to below opset 11.

    Raises:
        UnsupportedOpsetError: If an axis counts from the end of a tensor of unknown rank.
    """
    if has_trait(op_type, Trait.NEGATIVE_AXES):
        return attributes
    axis, axes = attributes.get("axis", 0), attributes.get("axes", ())
    if axis >= 0 and all(a >= 0 for a in axes):
        return attributes
    shape = None if values[0] is None else values[0].shape
    if shape is None:
        raise UnsupportedOpsetError(
            op_type, opset, lowest=NEGATIVE_AXES_OPSET, reason="a negative axis of a tensor of unknown rank"
        )
    rank = len(shape) + (len(axes) if op_type == "Unsqueeze" else 0)
    changed = dict(attributes)
    if axis < 0:
        changed["axis"] = axis + rank
    if axes:
        changed["axes"] = [a + rank if a < 0 else a for a in axes]
    return changed
