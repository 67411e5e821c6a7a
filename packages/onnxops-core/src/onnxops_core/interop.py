"""Native operators in ``torch.onnx.export``.

``torch.onnx.export(model, args, dynamo=True, opset_version=23, custom_translation_table=...)`` takes a table
from operators to functions that write ONNX nodes with onnxscript. :func:`torch_onnx_translation_table` makes
that table for the native operators and the symbolic ones. It needs ``onnx`` and ``onnxscript``, which torch's
exporter needs as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from onnxops_core.dtypes import TORCH_TO_ONNX, onnx_dtype_name
from onnxops_core.native import NativeOp, OnnxCall, ScalarInput, native_ops

__all__ = ["torch_onnx_translation_table"]

_ATTRIBUTE_TYPES = {
    "bool": bool,
    "int": int,
    "SymInt": int,
    "float": float,
    "str": str,
    "List[int]": Sequence[int],
    "List[SymInt]": Sequence[int],
}

_TENSOR_TYPES = [f"tensor({name.lower()})" for name in (onnx_dtype_name(dtype) for dtype in TORCH_TO_ONNX)]


def torch_onnx_translation_table(opset_version: int | None = None) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Returns what ``torch.onnx.export`` needs as its ``custom_translation_table`` to export native
    operators.

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
    return {
        overload: _translation(op)
        for overload, op in native_ops().items()
        if op.domain != "" or opset_version is None or op.since_version <= opset_version
    }


def _translation(op: NativeOp) -> Callable[..., Any]:
    """Returns a function with the operator's signature, as torch's exporter reads it from annotations."""

    def translate(*args: Any, **kwargs: Any) -> Any:
        return _write_node(op, op.onnx_call(args, kwargs), op.bind(args, kwargs))

    parameters = []
    annotations: dict[str, Any] = {}
    for argument in op.overload._schema.arguments:
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        named = str(argument.type)
        optional = named.startswith("Optional[")
        plain = named[len("Optional[") : -1] if optional else named
        if plain != "Tensor":
            annotation = _ATTRIBUTE_TYPES[plain]
            annotations[argument.name] = annotation | None if optional else annotation
        parameters.append(
            inspect.Parameter(
                argument.name, kind, default=default, annotation=annotations.get(argument.name, inspect.Parameter.empty)
            )
        )
    translate.__name__ = f"onnxops_{op.op_type}"
    translate.__annotations__ = annotations
    translate.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return translate


def _write_node(op: NativeOp, call: OnnxCall, bound: dict[str, Any]) -> Any:
    import onnx
    from onnxscript import values

    wanted = len(call.outputs)
    if "num_outputs" in bound:
        wanted = min(wanted, int(bound["num_outputs"]))
    last = call.outputs[wanted - 1] + 1
    inputs = [_constant(value) if isinstance(value, ScalarInput) else value for value in call.inputs]
    defs = onnx.defs.OpSchema
    optional = defs.FormalParameterOption.Optional
    # A schema of exactly this call: every value has a type of its own, so that none is cast to another's.
    schema = defs(
        call.op_type,
        call.domain,
        call.min_opset,
        inputs=[defs.FormalParameter(f"in{i}", f"I{i}", param_option=optional) for i in range(len(inputs))],
        outputs=[defs.FormalParameter(f"out{i}", f"O{i}") for i in range(last)],
        type_constraints=[
            (name, _TENSOR_TYPES, "")
            for name in (*(f"I{i}" for i in range(len(inputs))), *(f"O{i}" for i in range(last)))
        ],
        attributes=[
            defs.Attribute(name, _attribute_type(value), required=False) for name, value in call.attributes.items()
        ],
    )
    opset = values.Opset(call.domain, call.min_opset)
    outputs = values.Op(opset, call.op_type, schema)(*inputs, **call.attributes)
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    results = [outputs[position] for position in call.outputs[:wanted]]
    if len(call.outputs) == 1:
        return results[0]
    # The operator returns empty tensors for what was not asked for.
    return (*results, *(_empty() for _ in range(len(call.outputs) - wanted)))


def _attribute_type(value: object) -> Any:
    import onnx

    kinds = onnx.defs.OpSchema.AttrType
    if isinstance(value, (list, tuple)):
        return kinds.INTS
    return {int: kinds.INT, float: kinds.FLOAT, str: kinds.STRING}[type(value)]


def _constant(scalar: ScalarInput) -> Any:
    import numpy as np
    import onnx
    from onnxscript import opset18

    if not isinstance(scalar.value, (int, float, list, tuple)):
        return scalar.value
    array = np.asarray(scalar.value, dtype=onnx.helper.tensor_dtype_to_np_dtype(scalar.dtype))
    return opset18.Constant(value=onnx.numpy_helper.from_array(array))


def _empty() -> Any:
    import numpy as np
    import onnx
    from onnxscript import opset18

    return opset18.Constant(value=onnx.numpy_helper.from_array(np.zeros(0, np.float32)))
