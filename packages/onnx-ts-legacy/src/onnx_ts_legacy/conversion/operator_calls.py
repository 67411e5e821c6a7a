"""Calls of operators on variables: the shared table, views, and operators that change a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy.calls.forms import JOINS, functional_form, recorded_call, without_codes
from onnx_ts_legacy.calls.masks import with_boolean_masks
from onnx_ts_legacy.calls.packed_sequences import PACKING
from onnx_ts_legacy.calls.recurrent import CELLS
from onnx_ts_legacy.calls.results import check_results, wrapped
from onnx_ts_legacy.calls.scalars import binary
from onnx_ts_legacy.calls.silent_views import silent_views
from onnx_ts_legacy.conversion.decomposition import lower_by_pieces, lower_under_autocast
from onnx_ts_legacy.enumerations import OperatorExportTypes
from onnx_ts_legacy.graph.autocast import may_cast_inside
from onnx_ts_legacy.mutation.hidden_writes import update_running_statistics
from onnx_ts_legacy.mutation.views import VIEWS_IN_PLACE
from onnx_ts_legacy.mutation.writes import write_tensor
from onnx_ts_legacy.shapes.simple_calls import same_sizes
from onnx_ts_legacy.shapes.tensor_forms import is_tensor
from onnx_ts_legacy.state.arguments import form_of, frozen, operand
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.pairs import held_as, held_dims
from onnx_ts_legacy.state.sometimes_views import Copy, may_give_views
from onnx_ts_legacy.state.values import (
    Call,
    RuntimeBool,
    SequenceState,
    Tensor,
    View,
)
from onnx_ts_legacy.state.variables import number_in, number_tensor, sizes_of, value_of
from onnx_ts_legacy.symbolics.unconverted import write_aten
from onnxops_decomp import UnsupportedOperatorError
from onnxops_decomp.exporting import (
    AtenTrait,
    apply_lowering,
    choice_arguments,
    chosen_by_data,
    find_lowering,
    has_aten_trait,
    to_ir,
)

__all__ = ["call"]

aten = torch.ops.aten


def call(
    context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Convert one call of an operator; the result is a variable, or a tuple or list of them."""
    args, kwargs = without_codes(overload, args, kwargs)
    if context.table.is_own(str(overload.name())) and not overload._schema.is_mutable:
        return _lowered_call(context, overload, args, kwargs)
    _refuse_choices(overload, args, kwargs)
    overload, args, kwargs = _plain_form(overload, args, kwargs)
    if overload is None:
        return args[0]
    args = with_boolean_masks(context, overload, args)
    if overload is aten.tensor_split.tensor_indices_or_sections:
        overload, args[1] = _split_by_numbers(context, args[1])
    if overload is aten.as_strided.default and isinstance(args[0].node, View) and args[3:] not in ([], [None]):
        args[0] = _whole_memory(context, args[0])
    if overload is aten.narrow.Tensor:
        overload, args[2] = aten.narrow.default, number_in(context, args[2])
    if overload._schema.is_mutable:
        # Autocast has no rules for operators that write.
        autocasts, context.autocasts = context.autocasts, ()
        try:
            return _call_in_place(context, overload, args, kwargs)
        finally:
            context.autocasts = autocasts
    cell = CELLS.get(overload) or PACKING.get(overload)
    if cell is not None:
        return cell(context, args)
    number = _number_result(context, overload, args)
    if number is not None:
        return number
    if has_aten_trait(overload, AtenTrait.DROPOUT) and len(args) == 3 and (args[2] is False or args[1] == 0):
        return args[0]
    views = silent_views(context, overload, args, kwargs)
    return _lowered_call(context, overload, args, kwargs) if views is None else views


def _refuse_choices(overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call in which the data decides what is computed: its form would be that of one of the values.

    Raises:
        UnsupportedOperatorError: If it does.
    """
    for index, name in choice_arguments(overload):
        if isinstance(args[index] if index < len(args) else kwargs.get(name), RuntimeBool | torch.SymInt):
            raise chosen_by_data(overload, name)


def _lowered_call(
    context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Convert a call with the table, or by pieces, and keep track of the memory of its results."""
    args = [frozen(arg) for arg in args]
    kwargs = {name: frozen(arg) for name, arg in kwargs.items()}
    cast = _cast_inside(context, overload, args, kwargs)
    if cast is not None:
        return wrapped(context, *cast, None)
    fake, position = recorded_call(context, overload, args, kwargs)
    if position is not None and _returns_self(overload, fake, args[position].fake):
        if not context.table.is_own(str(overload.name())):
            return args[position]
        position = None
    values = _lower(context, overload, args, kwargs, fake)
    update_running_statistics(context, overload, args)
    if position is None:
        result = wrapped(context, values, fake, None)
        if torch.Tag.dynamic_output_shape in overload.tags:
            # These tensors tell sizes that others have later, also on single paths of the program.
            for tensor in result if isinstance(result, tuple) else [result]:
                if isinstance(tensor, Tensor):
                    sizes_of(context, tensor)
        if isinstance(result, Tensor) and may_give_views(overload):
            forms, named = [form_of(context, arg) for arg in args], {n: form_of(context, a) for n, a in kwargs.items()}
            copy = Copy(overload, forms, named, context.node)
            context.sometimes_views.note(args[0].storage, result.storage, copy)
        return result
    return wrapped(context, values, fake, (position, Call(overload, tuple(args), kwargs, position, None)))


def _cast_inside(
    context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Any] | None:
    """Convert a call of which autocast casts a part; return the values and forms of its results, else None."""
    if not context.autocasts or not may_cast_inside(overload) or context.table.is_own(str(overload.name())):
        return None
    forms = [form_of(context, arg) for arg in args], {name: form_of(context, arg) for name, arg in kwargs.items()}
    if not any(is_tensor(form) and form.dtype.is_floating_point for form in pytree.tree_leaves(forms)):
        return None
    values = [operand(context, arg) for arg in args], {name: operand(context, arg) for name, arg in kwargs.items()}
    return lower_under_autocast(context, overload, forms, values)


def _whole_memory(context: ConversionContext, tensor: Tensor) -> Tensor:
    """Return the tensor whose memory a view is a part of, from the start of which offsets count."""
    whole = Tensor(context.heap, tensor.storage)
    if whole.fake.dtype != tensor.fake.dtype:
        raise UnsupportedOperatorError("it reads, by strides, the memory of a tensor of another dtype")
    return whole


def _split_by_numbers(context: ConversionContext, tensor: Tensor) -> tuple[torch._ops.OpOverload, Any]:
    """Return the form of ``tensor_split`` that takes the contents of a tensor as numbers."""
    array = context.op.static(value_of(context, tensor))
    if array is not None:
        number = array.tolist()
        return (aten.tensor_split.indices if isinstance(number, list) else aten.tensor_split.sections), number
    if tensor.fake.dim() == 0 or not isinstance(tensor.fake.shape[0], int):
        raise UnsupportedOperatorError("the model computes how many parts it splits into")
    places = [call(context, aten.select.int, [tensor, 0, index], {}) for index in range(tensor.fake.shape[0])]
    return aten.tensor_split.indices, [number_in(context, place) for place in places]


def _number_result(context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any]) -> Tensor | None:
    """Compute with the numbers inside tensors that were made of sizes, as traced programs do."""
    name = _NUMBER_FUNCTIONS.get(overload._schema.name)
    if name is None or not args or not isinstance(args[0], Tensor):
        return None
    numbers = []
    for arg in args[:2]:
        number = arg.storage.state.number if isinstance(arg, Tensor) and not isinstance(arg.node, View) else arg
        if number is None or isinstance(number, bool) or not isinstance(number, int | torch.SymInt):
            return None
        numbers.append(number)
    rest = [arg for arg in args[2:] if arg is not None]
    if name == "div":
        if len(args) < 3 or args[2] != "floor":
            return None
        name = "floordiv"
    elif any(arg != 1 for arg in rest):
        return None
    if not any(isinstance(number, torch.SymInt) for number in numbers):
        return None
    if name == "neg":
        return number_tensor(context, -numbers[0])
    return number_tensor(context, binary(context, name, *numbers))


def _lower(context: ConversionContext, overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any], fake: Any) -> Any:
    joined = JOINS.get(overload)
    if joined is not None and isinstance(args[0], SequenceState):
        attributes = {"axis": (args[1] if len(args) > 1 else 0) % fake.dim(), "new_axis": joined}
        dtypes = [to_ir(fake.dtype)]
        value = context.op.emit_custom("", "ConcatFromSequence", [args[0].value], attributes, dtypes)[0]
        value.shape = ir.Shape(held_dims(context.metadata.symbols.dims(fake), fake.dtype))
        return held_as(value, fake.dtype)
    if context.fallback is OperatorExportTypes.ONNX_ATEN and overload.namespace == "aten" and _is_tensors(fake):
        written = write_aten(context, overload, args, kwargs, fake)
        check_results(context, written, fake, str(overload.name()))
        return written
    values = [operand(context, arg) for arg in args]
    keyword = {name: operand(context, arg) for name, arg in kwargs.items()}
    entry = find_lowering(context.table, overload, values, keyword, context.op.opset)
    with context.op.call_of(overload.name()):
        if entry is not None:
            result = apply_lowering(context.op, entry, overload, values, keyword)
        else:
            result = _decomposed(context, overload, args, kwargs, values, keyword)
    check_results(context, result, fake, str(overload.name()))
    return result


def _decomposed(
    context: ConversionContext,
    overload: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    values: list[Any],
    keyword: dict[str, Any],
) -> Any:
    fake_args = [form_of(context, arg) for arg in args]
    fake_kwargs = {name: form_of(context, arg) for name, arg in kwargs.items()}
    return lower_by_pieces(context, overload, (fake_args, fake_kwargs), (values, keyword))


# ---- calls that change a tensor


def _call_in_place(
    context: ConversionContext, overload: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    replaced = VIEWS_IN_PLACE.get(str(overload.name()))
    if replaced is not None:
        view = call(context, replaced, args, kwargs)
        context.heap.write(args[0], view.state)
        return args[0]
    made = _MADE_ANEW.get(str(overload.name()))
    if made is not None:
        out = kwargs["out"]
        context.heap.write(out, call(context, made, args, {"dtype": out.fake.dtype}).state)
        return out
    targets = [_argument(overload, i, args, kwargs) for i, a in enumerate(overload._schema.arguments) if _writes(a)]
    if overload._schema.name == "aten::copy_":
        write_tensor(context, targets[0], args[1])
        return targets[0]
    functional = functional_form(overload)
    if functional is None and context.table.is_own(str(overload.name())):
        value = _lower(context, overload, args, kwargs, targets[0].fake)
        write_tensor(context, targets[0], context.fresh(value, targets[0].fake))
        return targets[0]
    if functional is None:
        raise UnsupportedOperatorError("it changes a tensor and has no functional form", operator=overload.name())
    outs = {argument.name for argument in overload._schema.arguments if argument.is_out}
    kept = {name: value for name, value in kwargs.items() if name not in outs}
    results = call(context, functional, args[: len(functional._schema.arguments)], kept)
    if not any(returned.alias_info for returned in overload._schema.returns):
        # What it returns is new, and what it writes comes after that in the functional form.
        own, results = results[: -len(targets)], results[-len(targets) :]
        _write_all(context, targets, results)
        return own if len(own) > 1 else own[0]
    _write_all(context, targets, results if isinstance(results, tuple) else (results,), resize=bool(outs))
    return targets[0] if len(targets) == 1 else tuple(targets)


def _write_all(
    context: ConversionContext, targets: Sequence[Tensor], results: Sequence[Any], *, resize: bool = False
) -> None:
    for target, result in zip(targets, results, strict=False):
        if not resize or same_sizes(target.fake.shape, result.fake.shape):
            write_tensor(context, target, result)
        elif isinstance(target.node, View):
            raise UnsupportedOperatorError("out= is a part of a tensor, and not known to have the result's size")
        else:
            # A tensor that is given as out= gets the size of the result.
            converted = call(context, aten.to.dtype, [result, target.fake.dtype, False, True], {})
            context.heap.write(target, converted.state)


# What fills a given tensor, which takes the size of the result, by what makes a new one.
_MADE_ANEW = {
    "aten::arange.out": aten.arange.default,
    "aten::arange.start_out": aten.arange.start_step,
    "aten::linspace.out": aten.linspace.default,
    "aten::logspace.out": aten.logspace.default,
    "aten::zeros.out": aten.zeros.default,
    "aten::ones.out": aten.ones.default,
    "aten::full.out": aten.full.default,
}
_NUMBER_FUNCTIONS = {
    "aten::add": "add",
    "aten::sub": "sub",
    "aten::mul": "mul",
    "aten::floor_divide": "floordiv",
    "aten::div": "div",
    "aten::remainder": "remainder",
    "aten::neg": "neg",
}
# What gives out the tensor itself, not another view of its memory, where nothing is to be done.
_RETURNING_SELF = frozenset(
    f"aten::{name}"
    for name in (
        *("to", "type_as", "cpu", "contiguous", "flatten", "atleast_1d", "atleast_2d", "atleast_3d", "sum_to_size"),
        *("real", "conj", "resolve_conj", "resolve_neg", "positive", "lift_fresh"),
    )
)


def _returns_self(overload: torch._ops.OpOverload, fake: Any, own: Any) -> bool:
    """Tell whether a call whose result has the form ``fake`` gives out its operand, of the form ``own``."""
    if overload._schema.name not in _RETURNING_SELF or fake is not own:
        return False
    return not (own.is_complex() and has_aten_trait(overload, AtenTrait.CONJUGATES))


def _is_tensors(fake: Any) -> bool:
    return all(is_tensor(part) for part in (fake if isinstance(fake, list | tuple) else [fake]))


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _argument(overload: torch._ops.OpOverload, index: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[index] if index < len(args) else kwargs[overload._schema.arguments[index].name]


# Operators whose results share memory with their operand although nobody keeps track of it, and those that tell.
_TRACKED: dict[Any, torch._ops.OpOverload] = {
    aten.unsafe_chunk.default: aten.chunk.default,
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}


def _plain_form(
    overload: torch._ops.OpOverload, args: list[Any], kwargs: dict[str, Any]
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return a call in the form that eager programs use, where TorchScript has one of its own."""
    name = str(overload.name())
    if name in ("aten::to.prim_Device", "aten::to.prim_dtype", "aten::to.device"):
        at = {"aten::to.prim_dtype": 1}.get(name, 2)
        dtype = args[at] if len(args) > at else None
        if dtype is None:
            copy = len(args) > at + 2 and args[at + 2]
            return (aten.clone.default if copy else None), args[:1], {}
        from onnx_ts_legacy.graph.dtypes import dtype_of_code

        return aten.to.dtype, [args[0], dtype_of_code(dtype), *args[at + 1 : at + 3]], {}
    if name == "aten::to.prim_other":
        return None, args, {}
    return _TRACKED.get(overload, overload), args, kwargs
