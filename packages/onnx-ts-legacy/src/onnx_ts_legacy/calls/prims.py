"""The ``prim::`` nodes of TorchScript, but for calls of Python, ifs and loops."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.calls.containers import is_unknown_text, known_key, plain
from onnx_ts_legacy.calls.rows import Row, rows
from onnx_ts_legacy.calls.size_conditions import with_known_sizes
from onnx_ts_legacy.errors import ProgramRaisesError, ScriptValueError
from onnx_ts_legacy.graph.dtypes import dtype_of_code, scalar_type_code
from onnx_ts_legacy.graph.sources import asks_for_fused_layer
from onnx_ts_legacy.state.arguments import operand
from onnx_ts_legacy.state.attributes import from_python, read_attribute, tensor_constant, write_attribute
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import negated, truth_of_relation
from onnx_ts_legacy.state.values import (
    DictRef,
    ListRef,
    Maybe,
    ObjectRef,
    Poison,
    RuntimeBool,
    Tensor,
    Uninitialized,
    VectorState,
    is_runtime,
)
from onnx_ts_legacy.state.variables import count_of, number_in, number_tensor, rank_of, size_of, sizes_of, value_of
from onnxops_decomp import UnsupportedOperatorError

__all__ = ["CONSTANT_ROW", "PRIM_ROWS"]


def _constant(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    output = node.output()
    if "value" not in node.attributeNames():
        return None
    kind = node.kindOf("value")
    value = output.toIValue()
    if kind in ("t", "ival") and isinstance(value, torch.Tensor):
        return tensor_constant(context, value)
    return from_python(context, value)


def _list_construct(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return ListRef(context.heap, tuple(args))


def _list_unpack(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    items = args[0].items
    if len(items) != node.outputsSize():
        raise ScriptValueError(f"A list of {len(items)} items is unpacked into {node.outputsSize()} variables.")
    return _unpacked(items)


def _unpacked(items: Sequence[Any]) -> Any:
    """Return items as the outputs of a node, of which a single one stands for itself."""
    return items[0] if len(items) == 1 else tuple(items)


def _tuple_construct(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return tuple(args)


def _tuple_unpack(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    if not isinstance(args[0], tuple):
        raise _not_a(args[0], "tuple")
    return _unpacked(args[0])


def _tuple_index(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    if not isinstance(args[0], tuple):
        raise _not_a(args[0], "tuple")
    return args[0][args[1]]


def _tuple_slice(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return args[0][node.i("beg") : node.i("end")]


def _not_a(value: Any, kind: str) -> ScriptValueError:
    return value.error() if isinstance(value, Poison) else ScriptValueError(f"A {kind} is needed, got {value!r}.")


def _dict_construct(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return DictRef(context.heap, dict(zip(map(known_key, args[::2]), args[1::2], strict=True)))


def _get_attribute(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return read_attribute(context, args[0], node.s("name"))


def _set_attribute(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    write_attribute(context, args[0], node.s("name"), args[1])
    return ()


def _create_object(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return ObjectRef(context.heap, None, None)


def _uninitialized(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return Uninitialized()


def _same(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return args[0]


def _unwrap(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    if args[0] is None:
        raise ProgramRaisesError("The program unwraps an optional value that is None.")
    return args[0].value if isinstance(args[0], Maybe) else args[0]


def _refine(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Return the compiler knows more of a type here; that an optional value is not None, above all."""
    optional = node.output().type().kind() in ("OptionalType", "NoneType", "UnionType")
    return args[0].value if isinstance(args[0], Maybe) and not optional else args[0]


def _data(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return context.call(torch.ops.aten.detach.default, list(args), {})


def _device(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return torch.device("cpu")


def _dtype(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return scalar_type_code(args[0].fake.dtype)


def _layout(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return 0


def _false(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return False


def _is_autocast_enabled(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    """Answer whether autocast is on, which layers of a transformer ask before they take fused operators.

    ONNX has none of these, nor the nested tensors that they may take with them. Under autocast a layer computes with
    others, which give the same but at padded places.
    """
    return asks_for_fused_layer(node) or torch.is_autocast_enabled()


def _nothing(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return ()


def _raise(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    text = args[0] if isinstance(args[0], str) else "an exception"
    raise ProgramRaisesError(f"The program raises: {text}")


def _number_to_tensor(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return number_tensor(context, args[0])


def _is_instance(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    wanted = node.tys("types")
    given = node.inputsAt(0).type()
    if isinstance(args[0], Maybe):
        return _is_instance_of_optional(context, args[0], wanted)
    if args[0] is None:
        return any(t.kind() == "NoneType" or t.kind() == "OptionalType" for t in wanted)
    return any(_is_subtype(args[0], given, t) for t in wanted)


def _is_instance_of_optional(context: ConversionContext, value: Maybe, wanted: Sequence[Any]) -> Any:
    none = any(kind.kind() in ("NoneType", "OptionalType") for kind in wanted)
    fits = any(_is_subtype(value.value, private.NoneType.get(), kind) for kind in wanted)
    if none == fits:
        return none
    return value.present if fits else negated(context, value.present)


def _is_subtype(value: Any, given: Any, wanted: Any) -> bool:
    if given.isSubtypeOf(wanted):
        return True
    kinds: dict[str, Any] = {
        "TensorType": Tensor,
        "IntType": (int, torch.SymInt),
        "FloatType": float,
        "StringType": str,
        "ListType": ListRef,
        "DictType": DictRef,
        "TupleType": tuple,
    }
    kind = wanted.kind()
    if kind == "BoolType":
        return isinstance(value, bool | RuntimeBool)
    if kind == "IntType" and isinstance(value, bool):
        return False
    return kind in kinds and isinstance(value, kinds[kind])


def _size(context: ConversionContext, args: Sequence[Any]) -> Any:
    tensor = with_known_sizes(context, args[0])
    if len(args) == 1:
        return ListRef(context.heap, tuple(sizes_of(context, tensor)))
    return size_of(context, tensor, args[1])


def _count(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return count_of(context, with_known_sizes(context, args[0]))


def _stride(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    strides = list(args[0].fake.stride())
    asked = strides if len(args) == 1 or is_runtime(args[1]) else [strides[args[1]]]
    if not all(isinstance(number, int) for number in (*asked, *args[1:])):
        raise UnsupportedOperatorError(
            "ONNX tensors have no strides, and the strides of this tensor depend on dynamic sizes.",
            operator="aten::stride",
        )
    return ListRef(context.heap, tuple(asked)) if len(args) == 1 else asked[0]


def _is_same_size(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    sizes, others = (sizes_of(context, tensor) for tensor in args)
    if len(sizes) != len(others):
        return False
    return _all(context, [size == other for size, other in zip(sizes, others, strict=True)])


def _is_contiguous(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Compare the strides with those of a new tensor; where the memory has another order, torch tells itself."""
    tensor, *order = args
    if order and order[0] not in (None, 0, torch.contiguous_format):
        return context.call(torch.ops.aten.is_contiguous.memory_format, list(args), {})
    form, expected = tensor.fake, 1
    relations: list[Any] = []
    for size, stride in zip(reversed(form.shape), reversed(form.stride()), strict=True):
        relations.append((size == 1) | (stride == expected))
        expected = expected * size
    return _all(context, [relation | (expected == 0) for relation in relations])


def _all(context: ConversionContext, relations: Sequence[bool | torch.SymBool]) -> Any:
    """Return whether all relations between sizes hold."""
    return truth_of_relation(context, functools.reduce(operator.and_, relations, True))


def _range_list(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    if is_runtime(args[0]):
        return ListRef(context.heap, VectorState(context.call(torch.ops.aten.arange.default, [args[0]], {})))
    return ListRef(context.heap, tuple(range(args[0])))


def _to_list(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    tensor = args[0]
    array = context.op.static(value_of(context, tensor))
    if array is not None:
        return from_python(context, array.tolist())
    sizes = sizes_of(context, tensor)
    if len(sizes) != 1:
        raise ScriptValueError("tolist() of a tensor of rank 0 or above 1 needs contents that are known at export.")
    if not isinstance(sizes[0], int):
        given = tensor.fake.dtype
        kind = given if given == torch.bool else torch.float64 if given.is_floating_point else torch.int64
        vector = context.call(torch.ops.aten.to.dtype, [tensor, kind, False, True], {})
        return ListRef(context.heap, VectorState(vector))
    op = torch.ops.aten.select.int
    numbers = [number_in(context, context.call(op, [tensor, 0, i], {})) for i in range(sizes[0])]
    return ListRef(context.heap, tuple(numbers))


def _string(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    if is_unknown_text(args[0]):
        return Poison("The program uses a string that depends on values computed at run time.")
    return str(plain(args[0]))


def _tensor(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    data, dtype = args[0], None if args[1] is None else dtype_of_code(args[1])
    if str(node.inputsAt(0).type()).startswith("List") and "Tensor" in str(node.inputsAt(0).type()):
        raise ScriptValueError(
            "TorchScript cannot make a tensor from a list of tensors; use torch.stack, or x[tuple(...)]."
        )
    if isinstance(data, Tensor):
        wanted = data.fake.dtype if dtype is None else dtype
        return context.call(torch.ops.aten.to.dtype, [data, wanted, False, node.kind() == "aten::tensor"], {})
    if isinstance(data, ListRef) and isinstance(data.state, VectorState):
        vector = data.state.tensor
        kind = torch.get_default_dtype() if vector.fake.dtype == torch.float64 else vector.fake.dtype
        return context.call(torch.ops.aten.to.dtype, [vector, kind if dtype is None else dtype, False, True], {})
    numbers, sizes = _flattened(data)
    if not any(isinstance(number, Tensor) or is_runtime(number) for number in numbers):
        return tensor_constant(context, torch.tensor(plain(data), dtype=dtype))
    parts = [number_tensor(context, number) for number in numbers]
    stacked = context.call(torch.ops.aten.stack.default, [parts], {}) if sizes else parts[0]
    shaped = context.call(torch.ops.aten.reshape.default, [stacked, sizes], {}) if len(sizes) > 1 else stacked
    return shaped if dtype is None else context.call(torch.ops.aten.to.dtype, [shaped, dtype], {})


def _shape_tensor(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    sizes = sizes_of(context, args[0])
    value = context.op.vector([operand(context, size) for size in sizes])
    return context.fresh(value, context.metadata.empty(torch.int64, [len(sizes)]))


def _flattened(data: Any) -> tuple[list[Any], list[int]]:
    """Return the numbers of nested lists and their shape."""
    if not isinstance(data, ListRef):
        return [data], []
    parts = [_flattened(item) for item in data.items]
    return [number for numbers, _ in parts for number in numbers], [len(parts), *(parts[0][1] if parts else [])]


def _set_data(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    context.heap.write(args[0], args[1].state)
    return ()


# Contexts that change nothing of what is computed; TorchScript inserts the casts of autocast.
_CONTEXTS = ("autocast", "no_grad", "enable_grad", "inference_mode", "record_function", "profile")


def _enter(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    name = node.inputsAt(0).type().qualified_name().rpartition(".")[2]
    if name not in _CONTEXTS:
        raise UnsupportedOperatorError(f"the context {name} is entered", operator="prim::Enter")
    return args[0]


def _string_index(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    return args[0][args[1]]


def _is(context: ConversionContext, a: Any, b: Any) -> Any:
    for value in (a, b):
        if isinstance(value, Poison):
            raise value.error()
    if a is None or b is None:
        other = b if a is None else a
        return negated(context, other.present) if isinstance(other, Maybe) else a is b
    return a is b or (isinstance(a, bool | int | str) and a == b)


# Nodes that read none of their operands, or do nothing with them that a model could show.
_HOLDERS = frozenset(("prim::TupleConstruct", "prim::ListConstruct"))
_TEXT_SINKS = frozenset(("prim::Print", "prim::RaiseException", "aten::warn"))


def _is_readable(context: ConversionContext, node: Any, args: Sequence[Any]) -> bool:
    """Tell whether nothing is read that was not converted; values of ``prim::`` nodes, such as lists, may hold it."""
    kind = node.kind()
    if kind in _HOLDERS or kind in _TEXT_SINKS:
        return True
    return not any(isinstance(arg, Poison) for arg in (args[:1] if kind.startswith("prim::") else args))


# Half of the nodes of a graph, about which no other row has to be asked.
CONSTANT_ROW = Row(("prim::Constant",), _constant, is_noted=False)
_ROWS = rows(
    {
        "prim::ListConstruct": _list_construct,
        "prim::ListUnpack": _list_unpack,
        "prim::TupleConstruct": _tuple_construct,
        "prim::TupleUnpack": _tuple_unpack,
        "prim::TupleIndex": _tuple_index,
        "prim::TupleSlice": _tuple_slice,
        "prim::DictConstruct": _dict_construct,
        "prim::GetAttr": _get_attribute,
        "prim::SetAttr": _set_attribute,
        "prim::CreateObject": _create_object,
        "prim::Enter": _enter,
        # ONNX knows no pinned memory.
        "aten::is_pinned": lambda context, node, args: False,
        "prim::Exit": lambda context, node, args: None,
        "prim::Uninitialized": _uninitialized,
        "prim::unchecked_cast": _refine,
        "prim::unchecked_unwrap_optional": _unwrap,
        "aten::_unwrap_optional": _unwrap,
        "prim::data": _data,
        "prim::device": _device,
        "prim::dtype": _dtype,
        "prim::layout": _layout,
        "prim::is_cuda": _false,
        "prim::is_quantized": _false,
        "prim::requires_grad": _false,
        "aten::is_autocast_enabled": _is_autocast_enabled,
        "aten::requires_grad_": _same,
        "aten::is_scripting": lambda context, node, args: True,
        "aten::device": lambda context, node, args: torch.device(args[0]),
        "prim::Print": _nothing,
        "aten::warn": _nothing,
        "prim::RaiseException": _raise,
        "prim::NumToTensor": _number_to_tensor,
        "prim::isinstance": _is_instance,
        "prim::rangelist": _range_list,
        "prim::tolist": _to_list,
        "prim::StringIndex": _string_index,
        "aten::str": _string,
        "aten::tensor": _tensor,
        "aten::_shape_as_tensor": _shape_tensor,
        "aten::as_tensor": _tensor,
        "aten::size": lambda context, node, args: _size(context, args),
        "aten::sym_size": lambda context, node, args: _size(context, args),
        "aten::stride": _stride,
        "aten::is_same_size": _is_same_size,
        "aten::is_contiguous": _is_contiguous,
        "prim::shape": lambda context, node, args: _size(context, args[:1]),
        "aten::dim": lambda context, node, args: rank_of(context, args[0]),
        "aten::ndimension": lambda context, node, args: rank_of(context, args[0]),
        "prim::ndim": lambda context, node, args: rank_of(context, args[0]),
        "aten::numel": _count,
        "aten::__is__": lambda context, node, args: _is(context, args[0], args[1]),
        "aten::__isnot__": lambda context, node, args: negated(context, _is(context, *args)),
        # Nested tensors are refused as inputs. Layers that would make one of a mask do without where it does not fit.
        "prim::is_nested": _false,
        "aten::_nested_tensor_from_mask_left_aligned": _false,
        "aten::is_floating_point": lambda context, node, args: args[0].fake.dtype.is_floating_point,
        "aten::is_complex": lambda context, node, args: args[0].fake.dtype.is_complex,
        "aten::manual_seed": _nothing,
        "aten::set_data": _set_data,
    },
    _is_readable,
)
# Constants, containers and attributes of the program write no nodes that a user would look for.
PRIM_ROWS = tuple(row._replace(is_noted=not kind.startswith("prim::")) for row in _ROWS for kind in row.kinds or ())
