"""Native operators in ``torch.onnx.export``.

``torch.onnx.export(model, args, dynamo=True, opset_version=23, custom_translation_table=...)`` takes a table
from operators to functions that write ONNX nodes with onnxscript. :func:`torch_onnx_translation_table` makes
that table for the native operators and the symbolic ones. It needs ``onnx`` and ``onnxscript``, which torch's
exporter needs as well.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from onnxops_core.dtypes import TORCH_TO_ONNX, onnx_dtype, onnx_dtype_name
from onnxops_core.native import NativeOp, OnnxCall, ScalarInput, native_ops
from onnxops_core.symbolic import decode_symbolic_call

__all__ = ["torch_onnx_translation_table"]

_ATTRIBUTE_TYPES = {
    "bool": bool,
    "int": int,
    "SymInt": int,
    "float": float,
    "str": str,
    "List[int]": Sequence[int],
    "List[float]": Sequence[float],
    "List[str]": Sequence[str],
    "List[SymInt]": Sequence[int],
}


@functools.cache
def _tensor_types() -> list[str]:
    """Return the tensor types that the installed onnx knows."""
    import onnx

    names = (onnx_dtype_name(dtype) for dtype in TORCH_TO_ONNX)
    return [f"tensor({name.lower()})" for name in names if name in onnx.TensorProto.DataType.keys()]  # noqa: SIM118


def torch_onnx_translation_table(opset_version: int | None = None) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return what ``torch.onnx.export`` needs as its ``custom_translation_table`` to export native operators.

    Args:
        opset_version: the ``opset_version`` of the export. Operators that ONNX has only in a later one are
            left out, so that the exporter says that they are missing instead of writing a node that does not
            exist. None for all operators.

    Returns:
        For each operator overload a function that writes its node.

    Raises:
        ImportError: onnxscript is not installed.

    Example:
        >>> table = torch_onnx_translation_table(23)
        >>> torch.ops.onnxops.Attention.opset23 in table, torch.ops.onnxops.Swish.opset24 in table
        (True, False)
    """
    table: dict[Callable[..., Any], Callable[..., Any]] = {
        overload: _translation(op)
        for overload, op in native_ops().items()
        if op.domain != "" or opset_version is None or op.since_version <= opset_version
    }
    for overload in (torch.ops.onnxops_symbolic.call.default, torch.ops.onnxops_symbolic.call_multi_out.default):
        table[overload] = _symbolic_translation(overload)
    return table


def _translation(op: NativeOp) -> Callable[..., Any]:
    """Return a function with the operator's signature, as torch's exporter reads it from annotations."""
    beyond = {onnx_dtype(dtype): dtype for dtype in op.extensions}

    def translate(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            dtype = beyond.get(getattr(value, "dtype", 0))
            if dtype is not None:
                raise ValueError(f"{op.op_type}: ONNX's operator has no {dtype}; convert to float32 first")
        return _write_node(op.onnx_call(args, kwargs), op.bind(args, kwargs))

    return _with_signature(translate, op.overload, f"onnxops_{op.op_type}")


def _symbolic_translation(overload: torch._ops.OpOverload) -> Callable[..., Any]:
    def translate(*args: Any, **kwargs: Any) -> Any:
        call = decode_symbolic_call(overload, args, kwargs)
        if any(isinstance(value, torch.Tensor) for value in call.attributes.values()):
            raise ValueError(f"{call.domain}::{call.op_type}: torch's exporter has no way to read a tensor attribute")
        outputs = _emit(call.domain, call.op_type, call.version or 1, call.inputs, call.attributes, len(call.dtypes))
        return outputs if call.multi_out else outputs[0]

    return _with_signature(translate, overload, f"onnxops_{overload._schema.name.rpartition(':')[2]}")


def _with_signature(translate: Callable[..., Any], overload: torch._ops.OpOverload, name: str) -> Callable[..., Any]:
    """Give a function the operator's parameters, with types for what are attributes rather than tensors."""
    parameters = []
    annotations: dict[str, Any] = {}
    for argument in overload._schema.arguments:
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        named = str(argument.type)
        optional = named.startswith("Optional[")
        plain = named[len("Optional[") : -1] if optional else named
        if plain in _ATTRIBUTE_TYPES:
            annotation = _ATTRIBUTE_TYPES[plain]
            annotations[argument.name] = annotation | None if optional else annotation
        parameters.append(
            inspect.Parameter(
                argument.name, kind, default=default, annotation=annotations.get(argument.name, inspect.Parameter.empty)
            )
        )
    translate.__name__ = name
    translate.__annotations__ = annotations
    translate.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return translate


def _write_node(call: OnnxCall, bound: dict[str, Any]) -> Any:
    wanted = min(len(call.outputs), int(bound.get("num_outputs", len(call.outputs))))
    inputs = [_constant(value) if isinstance(value, ScalarInput) else value for value in call.inputs]
    last = call.outputs[wanted - 1] + 1
    outputs = _emit(call.domain, call.op_type, call.min_opset, inputs, call.attributes, last)
    results = [outputs[position] for position in call.outputs[:wanted]]
    if len(call.outputs) == 1:
        return results[0]
    # The operator returns empty tensors for what was not asked for.
    return (*results, *(_empty() for _ in range(len(call.outputs) - wanted)))


def _emit(
    domain: str, op_type: str, version: int, inputs: Sequence[Any], attributes: Mapping[str, Any], outputs: int
) -> list[Any]:
    """Write a node with onnxscript and return its outputs."""
    import onnx
    from onnxscript import values

    defs = onnx.defs.OpSchema
    optional = defs.FormalParameterOption.Optional
    types = (*(f"I{i}" for i in range(len(inputs))), *(f"O{i}" for i in range(outputs)))
    # A schema of exactly this call: every value has a type of its own, so that none is cast to another's.
    schema = defs(
        op_type,
        domain,
        version,
        inputs=[defs.FormalParameter(f"in{i}", f"I{i}", param_option=optional) for i in range(len(inputs))],
        outputs=[defs.FormalParameter(f"out{i}", f"O{i}") for i in range(outputs)],
        type_constraints=[(name, _tensor_types(), "") for name in types],
        attributes=[defs.Attribute(name, _attribute_type(value), required=False) for name, value in attributes.items()],
    )
    written = values.Op(values.Opset(domain, version), op_type, schema)(*inputs, **attributes)
    return list(written) if isinstance(written, (list, tuple)) else [written]


def _attribute_type(value: object) -> Any:
    import onnx

    kinds = onnx.defs.OpSchema.AttrType
    if isinstance(value, (list, tuple)):
        lists = {float: kinds.FLOATS, str: kinds.STRINGS}
        return lists.get(type(value[0]), kinds.INTS) if value else kinds.INTS
    return {int: kinds.INT, float: kinds.FLOAT, str: kinds.STRING}[type(value)]


def _constant(scalar: ScalarInput) -> Any:
    import numpy as np
    import onnx
    from onnxscript import opset18

    if not isinstance(scalar.value, (int, float, list, tuple)):
        return scalar.value
    numbers = np.asarray(scalar.value)
    return opset18.Constant(value=onnx.helper.make_tensor("", scalar.dtype, numbers.shape, numbers.ravel().tolist()))


def _empty() -> Any:
    import numpy as np
    import onnx
    from onnxscript import opset18

    return opset18.Constant(value=onnx.numpy_helper.from_array(np.zeros(0, np.float32)))
