"""The ``prim::`` nodes of TorchScript, but for calls of Python, ifs and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.calls.containers import is_unknown_text, plain
from onnx_ts_legacy.errors import ScriptValueError, TorchScriptExportError
from onnx_ts_legacy.graph.dtypes import dtype_of_code, scalar_type_code
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
from onnxops_decomp import UnsupportedOperatorError

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["PRIM_HANDLERS", "TEXT_SINKS", "ProgramRaisesError"]

Handler = Callable[["Interpreter", Any, Sequence[Any]], Any]


class ProgramRaisesError(TorchScriptExportError):
    """The program raises an exception on the path that is being converted."""


def _constant(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    output = node.output()
    if "value" not in node.attributeNames():
        return None
    kind = node.kindOf("value")
    value = output.toIValue()
    if kind in ("t", "ival") and isinstance(value, torch.Tensor):
        return interpreter.tensor_constant(value)
    return interpreter.from_python(value)


def _list_construct(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return ListRef(interpreter.heap, tuple(args))


def _list_unpack(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    items = args[0].items
    if len(items) != node.outputsSize():
        raise ScriptValueError(f"A list of {len(items)} items is unpacked into {node.outputsSize()} variables.")
    return _unpacked(items)


def _unpacked(items: Sequence[Any]) -> Any:
    """Return items as the outputs of a node, of which a single one stands for itself."""
    return items[0] if len(items) == 1 else tuple(items)


def _tuple_construct(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return tuple(args)


def _tuple_unpack(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    if not isinstance(args[0], tuple):
        raise _not_a(args[0], "tuple")
    return _unpacked(args[0])


def _tuple_index(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    if not isinstance(args[0], tuple):
        raise _not_a(args[0], "tuple")
    return args[0][args[1]]


def _tuple_slice(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return args[0][node.i("beg") : node.i("end")]


def _not_a(value: Any, kind: str) -> ScriptValueError:
    return value.error() if isinstance(value, Poison) else ScriptValueError(f"A {kind} is needed, got {value!r}.")


def _dict_construct(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return DictRef(interpreter.heap, dict(zip(args[::2], args[1::2], strict=True)))


def _get_attribute(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return interpreter.attributes.read(args[0], node.s("name"))


def _set_attribute(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    interpreter.attributes.write(args[0], node.s("name"), args[1])
    return ()


def _create_object(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return ObjectRef(interpreter.heap, None, None)


def _uninitialized(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return Uninitialized()


def _same(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return args[0]


def _unwrap(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    if args[0] is None:
        raise ProgramRaisesError("The program unwraps an optional value that is None.")
    return args[0].value if isinstance(args[0], Maybe) else args[0]


def _refine(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    """The compiler knows more of a type here; that an optional value is not None, above all."""
    optional = node.output().type().kind() in ("OptionalType", "NoneType", "UnionType")
    return args[0].value if isinstance(args[0], Maybe) and not optional else args[0]


def _data(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return interpreter.call(torch.ops.aten.detach.default, list(args), {})


def _device(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return torch.device("cpu")


def _dtype(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return scalar_type_code(args[0].fake.dtype)


def _layout(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return 0


def _false(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return False


def _nothing(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return ()


def _raise(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    text = args[0] if isinstance(args[0], str) else "an exception"
    raise ProgramRaisesError(f"The program raises: {text}")


def _number_to_tensor(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return interpreter.number_tensor(args[0])


def _is_instance(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    wanted = node.tys("types")
    given = node.inputsAt(0).type()
    if isinstance(args[0], Maybe):
        return _is_instance_of_optional(interpreter, args[0], wanted)
    if args[0] is None:
        return any(t.kind() == "NoneType" or t.kind() == "OptionalType" for t in wanted)
    return any(_is_subtype(args[0], given, t) for t in wanted)


def _is_instance_of_optional(interpreter: Interpreter, value: Maybe, wanted: Sequence[Any]) -> Any:
    none = any(kind.kind() in ("NoneType", "OptionalType") for kind in wanted)
    fits = any(_is_subtype(value.value, private.NoneType.get(), kind) for kind in wanted)
    if none == fits:
        return none
    return value.present if fits else interpreter.scalars.negated(value.present)


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


def _size(interpreter: Interpreter, args: Sequence[Any]) -> Any:
    sizes = interpreter.sizes(args[0])
    if len(args) == 1:
        return ListRef(interpreter.heap, tuple(sizes))
    return interpreter.size(args[0], args[1])


def _stride(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    strides = list(args[0].fake.stride())
    asked = strides if len(args) == 1 or is_runtime(args[1]) else [strides[args[1]]]
    if not all(isinstance(number, int) for number in (*asked, *args[1:])):
        raise UnsupportedOperatorError(
            "A tensor of ONNX has no strides, and those of this one depend on dynamic sizes.", operator="aten::stride"
        )
    return ListRef(interpreter.heap, tuple(asked)) if len(args) == 1 else asked[0]


def _range_list(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    if is_runtime(args[0]):
        return ListRef(interpreter.heap, VectorState(interpreter.call(torch.ops.aten.arange.default, [args[0]], {})))
    return ListRef(interpreter.heap, tuple(range(args[0])))


def _to_list(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    tensor = args[0]
    array = interpreter.op.static(interpreter.value(tensor))
    if array is not None:
        return interpreter.from_python(array.tolist())
    sizes = interpreter.sizes(tensor)
    if len(sizes) != 1:
        raise ScriptValueError("tolist() of a tensor of rank 0 or above 1 needs contents that are known at export.")
    if not isinstance(sizes[0], int):
        given = tensor.fake.dtype
        kind = given if given == torch.bool else torch.float64 if given.is_floating_point else torch.int64
        vector = interpreter.call(torch.ops.aten.to.dtype, [tensor, kind, False, True], {})
        return ListRef(interpreter.heap, VectorState(vector))
    op = torch.ops.aten.select.int
    numbers = [interpreter.scalars.of_tensor(interpreter.call(op, [tensor, 0, i], {})) for i in range(sizes[0])]
    return ListRef(interpreter.heap, tuple(numbers))


def _string(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    if is_unknown_text(args[0]):
        return Poison("A text that depends on what the runtime computes is used.")
    return str(plain(args[0]))


def _tensor(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    data, dtype = args[0], None if args[1] is None else dtype_of_code(args[1])
    if isinstance(data, Tensor):
        wanted = data.fake.dtype if dtype is None else dtype
        return interpreter.call(torch.ops.aten.to.dtype, [data, wanted, False, node.kind() == "aten::tensor"], {})
    if isinstance(data, ListRef) and isinstance(data.state, VectorState):
        vector = data.state.tensor
        kind = torch.get_default_dtype() if vector.fake.dtype == torch.float64 else vector.fake.dtype
        return interpreter.call(torch.ops.aten.to.dtype, [vector, kind if dtype is None else dtype, False, True], {})
    numbers, sizes = _flattened(data)
    if not any(isinstance(number, Tensor) or is_runtime(number) for number in numbers):
        return interpreter.tensor_constant(torch.tensor(plain(data), dtype=dtype))
    parts = [interpreter.number_tensor(number) for number in numbers]
    stacked = interpreter.call(torch.ops.aten.stack.default, [parts], {}) if sizes else parts[0]
    shaped = interpreter.call(torch.ops.aten.reshape.default, [stacked, sizes], {}) if len(sizes) > 1 else stacked
    return shaped if dtype is None else interpreter.call(torch.ops.aten.to.dtype, [shaped, dtype], {})


def _shape_tensor(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    sizes = interpreter.sizes(args[0])
    value = interpreter.op.vector([interpreter.operand(size) for size in sizes])
    return interpreter.fresh(value, interpreter.metadata.empty(torch.int64, [len(sizes)]))


def _flattened(data: Any) -> tuple[list[Any], list[int]]:
    """Return the numbers of nested lists and their shape."""
    if not isinstance(data, ListRef):
        return [data], []
    parts = [_flattened(item) for item in data.items]
    return [number for numbers, _ in parts for number in numbers], [len(parts), *(parts[0][1] if parts else [])]


def _set_data(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    interpreter.heap.write(args[0], args[1].state)
    return ()


# Contexts that change nothing of what is computed; TorchScript inserts the casts of autocast.
_CONTEXTS = ("autocast", "no_grad", "enable_grad", "inference_mode", "record_function", "profile")


def _enter(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    name = node.inputsAt(0).type().qualified_name().rpartition(".")[2]
    if name not in _CONTEXTS:
        raise UnsupportedOperatorError(f"the context {name} is entered", operator="prim::Enter")
    return args[0]


def _string_index(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    return args[0][args[1]]


PRIM_HANDLERS: dict[str, Handler] = {
    "prim::Constant": _constant,
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
    "prim::Exit": lambda interpreter, node, args: None,
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
    "aten::requires_grad_": _same,
    "aten::is_scripting": lambda interpreter, node, args: True,
    "aten::device": lambda interpreter, node, args: torch.device(args[0]),
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
    "aten::size": lambda interpreter, node, args: _size(interpreter, args),
    "aten::sym_size": lambda interpreter, node, args: _size(interpreter, args),
    "aten::stride": _stride,
    "prim::shape": lambda interpreter, node, args: _size(interpreter, args[:1]),
    "aten::dim": lambda interpreter, node, args: interpreter.rank(args[0]),
    "aten::ndimension": lambda interpreter, node, args: interpreter.rank(args[0]),
    "prim::ndim": lambda interpreter, node, args: interpreter.rank(args[0]),
    "aten::numel": lambda interpreter, node, args: interpreter.count(args[0]),
    "aten::__is__": lambda interpreter, node, args: _is(interpreter, args[0], args[1]),
    "aten::__isnot__": lambda interpreter, node, args: interpreter.scalars.negated(_is(interpreter, *args)),
    "aten::is_floating_point": lambda interpreter, node, args: args[0].fake.dtype.is_floating_point,
    "aten::is_complex": lambda interpreter, node, args: args[0].fake.dtype.is_complex,
    "aten::manual_seed": _nothing,
    "aten::set_data": _set_data,
}

# They take texts and do nothing with them that a model could show.
TEXT_SINKS = frozenset(("prim::Print", "prim::RaiseException", "aten::warn"))


def _is(interpreter: Interpreter, a: Any, b: Any) -> Any:
    for value in (a, b):
        if isinstance(value, Poison):
            raise value.error()
    if a is None or b is None:
        other = b if a is None else a
        return interpreter.scalars.negated(other.present) if isinstance(other, Maybe) else a is b
    return a is b or (isinstance(a, bool | int | str) and a == b)
