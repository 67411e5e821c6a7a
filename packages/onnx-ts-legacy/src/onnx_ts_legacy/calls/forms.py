"""Forms of what calls give: dtypes, sizes, and whose memory it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.errors import DynamicDimensionError, ScriptValueError
from onnx_ts_legacy.graph.dtypes import QUANTIZED_DTYPES, argument_converters
from onnx_ts_legacy.graph.parts import node_outputs
from onnx_ts_legacy.shapes.shape_functions import SHAPES
from onnx_ts_legacy.state.arguments import form_of, frozen, split_arguments
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import Call, Poison, SequenceState
from onnxops_decomp.exporting import functional_overload, kept_whole, torch_definition

__all__ = ["JOINS", "fake_call", "functional_form", "recorded_call", "result_forms", "view_of", "without_codes"]

aten = torch.ops.aten
# What joins the tensors of a list: whether that adds an axis.
JOINS = {aten.cat.default: 0, aten.stack.default: 1}


def fake_call(context: ConversionContext, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the forms of what a call gives."""
    return recorded_call(context, overload, *without_codes(overload, args, kwargs))[0]


def view_of(
    context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any]
) -> tuple[int, Call] | None:
    """Return the position of the operand whose memory a call gives out, with the call, or None."""
    schema = overload._schema
    if schema.is_mutable or not any(returned.alias_info for returned in schema.returns):
        return None
    given, keyword = split_arguments(overload, [frozen(arg) for arg in args])
    given, keyword = without_codes(overload, given, keyword)
    position = recorded_call(context, overload, given, keyword)[1]
    return None if position is None else (position, Call(overload, tuple(given), keyword, position, None))


def recorded_call(
    context: ConversionContext, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, int | None]:
    """Return the forms of what a call gives, and the position of the operand whose memory that shows, or None."""
    if overload in JOINS and isinstance(args[0], SequenceState):
        return _joined_form(context, args[0].element, args[1] if len(args) > 1 else 0, JOINS[overload]), None
    fake_args = [form_of(context, arg) for arg in args]
    fake_kwargs = {name: form_of(context, arg) for name, arg in kwargs.items()}
    function = SHAPES.get(overload) or kept_whole(overload, tuple(fake_args), fake_kwargs) or torch_definition(overload)
    return context.metadata.call(function or overload, fake_args, fake_kwargs)


def _joined_form(context: ConversionContext, element: Any, dim: int, new_axis: int) -> Any:
    """Return the form of the joined elements of a sequence, whose number is not known."""
    sizes = list(element.shape)
    axis = range(len(sizes) + new_axis)[dim]
    sizes[axis : axis + 1 - new_axis] = [context.metadata.unknown_size()]
    return context.metadata.empty(element.dtype, sizes)


def result_forms(context: ConversionContext, node: Any, args: Sequence[Any]) -> list[Any]:
    """Return the forms of what a node gives, None where nothing is known of it."""
    overload = private.overload_of_schema(node.schema())
    if overload is not None:
        try:
            bound, keyword = split_arguments(overload, [frozen(arg) for arg in args])
            result = fake_call(context, functional_form(overload) or overload, bound, keyword)
            return list(result) if isinstance(result, list | tuple) else [result]
        except (ScriptValueError, DynamicDimensionError):
            pass
    kinds = [variable.type() for variable in node_outputs(node)]
    if len(kinds) == 1 and kinds[0].kind() == "TupleType":
        kinds = kinds[0].elements()
    return [_traced_form(context, kind) for kind in kinds]


def _traced_form(context: ConversionContext, kind: Any) -> Any:
    """Return the form for the type that tracing noted; its sizes count only if nothing is dynamic."""
    if kind.kind() != "TensorType" or kind.dtype() in (None, *QUANTIZED_DTYPES) or kind.sizes() is None:
        return None
    if not context.metadata.declared_names:
        return context.metadata.empty(kind.dtype(), kind.sizes())
    return context.metadata.empty(kind.dtype(), [context.metadata.unknown_size() for _ in kind.sizes()])


def without_codes(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call with dtypes, layouts and memory formats in place of TorchScript's integers."""
    for value in (*args, *kwargs.values()):
        if type(value) is Poison:
            raise value.error()
    converters = argument_converters(overload)
    given = [converters[i](a) if i in converters and a is not None else a for i, a in enumerate(args)]
    if not converters or not kwargs:
        return given, dict(kwargs)
    names = {argument.name: index for index, argument in enumerate(overload._schema.arguments)}
    return given, {
        name: converters[names[name]](value) if names[name] in converters and value is not None else value
        for name, value in kwargs.items()
    }


def functional_form(overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the operator that computes what another one writes to its operand; None if there is none."""
    found = functional_overload(overload)
    if found is not overload:
        return found
    namespace, name = overload._schema.name.split("::")
    if name.startswith("__i") and name.endswith("__"):
        packet = getattr(getattr(torch.ops, namespace), f"__{name[3:]}", None)
        return getattr(packet, overload._overloadname, None)
    packet = getattr(getattr(torch.ops, namespace), f"{name.removesuffix('_')}_functional", None)
    return None if packet is None else packet.default
