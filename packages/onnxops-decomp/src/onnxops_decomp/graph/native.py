"""ONNX operators that a model calls by name: native ones of ``onnxops_core``, symbolic ones, and those of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import torch

from onnxops_core import SymbolicCall, decode_symbolic_call
from onnxops_core.exporting import is_symbolic_overload, onnx_dtype
from onnxops_core.native import NativeOp, OnnxCall, ScalarInput, find_native_op
from onnxops_decomp.builder.forms import other_meanings
from onnxops_decomp.errors import LoweringError, UnsupportedOpsetError
from onnxops_decomp.lowerings.registry import Lowering
from onnxops_decomp.lowerings.scripted import emit_at
from onnxops_decomp.spec.schemas import first_opset, op_spec

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["native_lowering"]


def native_lowering(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], opset: int | None
) -> Lowering | None:
    """Return the lowering of a call that stands for one ONNX node.

    Args:
        overload: Operator that is called.
        args: Its positional arguments, lowered.
        kwargs: Its keyword arguments.
        opset: Requested opset. A call that is newer than it has no lowering here, and is decomposed, unless the
            operator had a form then that means the same.

    Returns:
        The lowering, or None if the operator is neither native nor symbolic, the opset is too low for this call, or the
        ONNX operator lacks a dtype that the native one has.
    """
    if is_symbolic_overload(overload):
        return Lowering(overload.name(), partial(_symbolic, overload))
    native = find_native_op(overload)
    if native is None:
        return None
    if not native.domain and opset is not None and not _is_written(native.onnx_call(tuple(args), kwargs), opset):
        return None
    beyond = {onnx_dtype(dtype) for dtype in native.extensions}
    if any(isinstance(value, ir.Value) and value.dtype in beyond for value in args):
        return None
    return Lowering(overload.name(), partial(_native, native))


def _is_written(call: OnnxCall, opset: int) -> bool:
    """Tell whether an opset has a node for a call: in its own form, or in an older one with all that it needs."""
    if opset >= call.min_opset:
        return True
    older = op_spec(call.op_type, opset)
    if older is None or other_meanings(call.op_type, opset, call.min_opset):
        return False
    fitting = all(
        value.dtype in older.formal_input(index).dtypes
        for index, value in enumerate(call.inputs[: older.max_inputs])
        if isinstance(value, ir.Value)
    )
    return fitting and call.attributes.keys() <= older.attributes.keys()


def _native(native: NativeOp, op: OpBuilder, *args: Any, **kwargs: Any) -> Any:
    call = native.onnx_call(args, kwargs)
    inputs = [_input(op, operand) for operand in call.inputs]
    # An output that is not asked for is empty in torch and absent in ONNX, where asking for it costs the runtime work.
    asked = native.bind(args, kwargs).get("num_outputs", len(call.outputs))
    runtime = op.context.runtime
    least = runtime.least_outputs.get(call.op_type, 0) if runtime and call.domain else 0
    written = call.outputs[: max(asked, least)]
    count = max(written) + 1
    if call.domain:
        outputs = op.emit_custom(
            call.domain, call.op_type, inputs, _attributes(op, call.attributes), [None] * count, version=call.min_opset
        )
        for index in set(range(count)) - set(written):
            outputs[index].name = ""
    else:
        if not _is_written(call, op.opset):
            raise UnsupportedOpsetError(call.op_type, op.opset, lowest=call.min_opset)
        outputs = op.emit_many(call.op_type, count, *inputs, **_attributes(op, call.attributes))
    results = [outputs[index] for index in call.outputs[:asked]]
    # The dtypes of another domain's outputs are not known here; where outputs are left out, they are the first input's.
    known = (inputs[0] if call.domain else None) or results[0]
    empty = [op.constant(np.zeros(0, np.float32), op.dtype(known)) for _ in call.outputs[asked:]]
    return results[0] if len(call.outputs) == 1 else results + empty


def _input(op: OpBuilder, operand: Any) -> ir.Value | None:
    if not isinstance(operand, ScalarInput):
        return operand  # type: ignore[no-any-return]
    if isinstance(operand.value, list | tuple) and any(isinstance(part, ir.Value) for part in operand.value):
        return op.vector(operand.value)
    if isinstance(operand.value, ir.Value):
        return op.cast(operand.value, ir.DataType(operand.dtype))
    return op.constant(operand.value, ir.DataType(operand.dtype))


def _attributes(op: OpBuilder, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with the tensors among them as constants.

    Raises:
        LoweringError: If a tensor attribute is not known while the model is written.
    """
    result: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, ir.Value):
            array = op.static(value)
            tensor = value.const_value if array is None else ir.tensor(array, dtype=value.dtype)
            if tensor is None:
                raise LoweringError(f"Attribute {name!r} is computed by the model; an ONNX attribute is a constant.")
            result[name] = tensor
        else:
            result[name] = value
    return result


def _symbolic(overload: torch._ops.OpOverload, op: OpBuilder, *args: Any, **kwargs: Any) -> Any:
    call = decode_symbolic_call(overload, args, kwargs)
    outputs = _in_form_of_the_model(op, call)
    node = outputs[0].producer()
    if node is not None:
        node.metadata_props.update(call.metadata_props)
    return list(outputs) if call.multi_out else outputs[0]


def _in_form_of_the_model(op: OpBuilder, call: SymbolicCall) -> Sequence[ir.Value]:
    """Write the node of a symbolic call; one of ONNX's own domain in the form that the opset of the model has.

    Raises:
        UnsupportedOpsetError: If the opset lacks the operator, and no version of it is asked for.
        LoweringError: If the version that is asked for means something else at this opset.
    """
    attributes = _attributes(op, call.attributes)
    if call.domain in ("", "ai.onnx"):
        spec = op_spec(call.op_type, op.opset)
        wanted = spec if call.version is None else op_spec(call.op_type, call.version)
        if wanted is None:
            raise UnsupportedOpsetError(call.op_type, call.version or op.opset, lowest=first_opset(call.op_type))
        if spec is None or wanted.since_version != spec.since_version:
            return emit_at(op, call.op_type, int(call.version or 0), call.inputs, attributes, len(call.dtypes))
    domain = "" if call.domain == "ai.onnx" else call.domain
    dtypes = [ir.DataType(dtype) for dtype in call.dtypes]
    return op.emit_custom(domain, call.op_type, call.inputs, attributes, dtypes, version=call.version or 1)
