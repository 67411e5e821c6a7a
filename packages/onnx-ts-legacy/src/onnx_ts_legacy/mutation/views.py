"""Mutation with view aliasing: a write to a view becomes a new value of the memory that it shows.

A view is not stored: it is the call that makes it, repeated on what its parent holds now. To write to one, the new
contents are put back into the parent by the inverse of that call, and so on down to the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.graph.sources import source_line
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import Content, Stale, Tensor, View
from onnx_ts_legacy.state.variables import node_value, value_of
from onnxops_decomp.exporting import AtenTrait, has_aten_trait

__all__ = ["VIEWS_IN_PLACE", "assign", "node_value"]

aten = torch.ops.aten

# Calls that give a variable another view of its own memory.
VIEWS_IN_PLACE: dict[str, torch._ops.OpOverload] = {
    "aten::squeeze_": aten.squeeze.default,
    "aten::squeeze_.dim": aten.squeeze.dim,
    "aten::squeeze_.dims": aten.squeeze.dims,
    "aten::unsqueeze_": aten.unsqueeze.default,
    "aten::t_": aten.t.default,
    "aten::transpose_": aten.transpose.int,
    "aten::swapaxes_": aten.swapaxes.default,
    "aten::swapdims_": aten.swapdims.default,
    "aten::detach_": aten.detach.default,
}

_STALE = (
    "A tensor is read after it was changed through another variable{place} that shares its memory on only some "
    "paths of the program, depending on a condition known only at run time; clone it before it is changed."
)


def assign(context: ConversionContext, target: Tensor, value: ir.Value) -> None:
    """Write ``value``, of the dtype and shape of ``target``, to the memory that ``target`` shows.

    Raises:
        ScriptValueError: If ONNX cannot express the write, or it is not known which memory it reaches.
    """
    node = target.node
    while isinstance(node, View):
        parent = node_value(context, node.parent)
        value = _put_back(context, node, parent, value)
        node = node.parent
    before = node.state
    context.heap.write(node, Content(value))
    context.sometimes_views.written(node, before, context.node)
    known = context.node is not None and (node.aliases or node.origin is not None)
    source = source_line(context.node) if known else ""
    node.line = source or node.line
    stale = Stale(_STALE.format(place=f" at {source}" if source else ""))
    for other in node.aliases:
        context.heap.write(other, stale)


def _put_back(context: ConversionContext, view: View, parent: ir.Value, value: ir.Value) -> ir.Value:
    """Return what the parent of ``view`` holds after ``value`` was written to the view."""
    whole, part = view.parent.fake, view.fake
    operator = view.call.overload
    name = operator._schema.name.removeprefix("aten::")
    # In torch these are views of complex tensors, too.
    if has_aten_trait(operator, AtenTrait.CONJUGATES) and whole.is_complex():
        value = _call(context, aten.conj_physical.default, [(value, part)])
    if _same_elements(whole, part):
        return value
    if has_aten_trait(operator, AtenTrait.RESHAPES):
        return _call(context, aten.reshape.default, [(value, part), list(whole.shape)])
    if name in _COMPLEX_PARTS:
        return _COMPLEX_PARTS[name](context, (parent, whole), (value, part))
    if has_aten_trait(operator, AtenTrait.PERMUTES):
        permutation = _permutation(view)
        inverse = sorted(range(len(permutation)), key=permutation.__getitem__)
        return _call(context, aten.permute.default, [(value, part), inverse])
    inverse_call = _SCATTERS.get(name.split(".")[0])
    if inverse_call is None:
        raise ScriptValueError(
            f"A tensor that {view.call.overload.name()} made is changed in place, and ONNX cannot express what "
            "that does to the tensor whose memory it shares; clone it before it is changed."
        )
    overload, arguments = inverse_call(view)
    return _call(context, overload, [(parent, whole), (value, part), *arguments])


def _call(context: ConversionContext, overload: torch._ops.OpOverload, args: list[Any]) -> ir.Value:
    bound = [context.fresh(*arg) if isinstance(arg, tuple) else arg for arg in args]
    return value_of(context, context.call(overload, bound, {}))


Operand = tuple[ir.Value, torch.Tensor]


def _write_real(context: ConversionContext, whole: Operand, part: Operand) -> ir.Value:
    imaginary = _call(context, aten.imag.default, [whole]), part[1]
    return _call(context, aten.complex.default, [part, imaginary])


def _write_imaginary(context: ConversionContext, whole: Operand, part: Operand) -> ir.Value:
    real = _call(context, aten.real.default, [whole]), part[1]
    return _call(context, aten.complex.default, [real, part])


# Views between complex numbers and their parts: what the whole is once a part was written.
_COMPLEX_PARTS: dict[str, Callable[[ConversionContext, Operand, Operand], ir.Value]] = {
    "real": _write_real,
    "imag": _write_imaginary,
    "view_as_real": lambda context, whole, part: _call(context, aten.view_as_complex.default, [part]),
    "view_as_complex": lambda context, whole, part: _call(context, aten.view_as_real.default, [part]),
}


def _same_elements(whole: torch.Tensor, part: torch.Tensor) -> bool:
    if whole.dim() != part.dim() or whole.dtype != part.dtype:
        return False
    same = [*zip(whole.shape, part.shape, strict=True), *zip(whole.stride(), part.stride(), strict=True)]
    return all(_equal(a, b) for a, b in (*same, (whole.storage_offset(), part.storage_offset())))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return str(getattr(a, "node", a)) == str(getattr(b, "node", b))


def _permutation(view: View) -> list[int]:
    """Return the order of the parent's dimensions in the view, found on a tensor whose sizes are all different."""
    rank = view.parent.fake.dim()
    probe = torch.empty([2 + axis for axis in range(rank)], device="meta")
    args = list(view.call.args)
    args[view.call.position] = probe
    return [size - 2 for size in view.call.overload(*args, **view.call.kwargs).shape]


def _argument(view: View, name: str) -> Any:
    """Return an argument of the call that made a view, or its default."""
    for index, argument in enumerate(view.call.overload._schema.arguments):
        if argument.name == name:
            if index < len(view.call.args):
                return view.call.args[index]
            return view.call.kwargs.get(name, argument.default_value)
    return None


Inverse = tuple[torch._ops.OpOverload, list[Any]]


def _select(view: View) -> Inverse:
    return aten.select_scatter.default, [_argument(view, "dim"), _argument(view, "index")]


def _slice(view: View) -> Inverse:
    return aten.slice_scatter.default, [_argument(view, name) for name in ("dim", "start", "end", "step")]


def _narrow(view: View) -> Inverse:
    start = _argument(view, "start")
    return aten.slice_scatter.default, [_argument(view, "dim"), start, start + _argument(view, "length"), 1]


def _diagonal(view: View) -> Inverse:
    return aten.diagonal_scatter.default, [_argument(view, name) for name in ("offset", "dim1", "dim2")]


def _unbind(view: View) -> Inverse:
    return aten.select_scatter.default, [_argument(view, "dim"), view.call.output]


def _chunk(view: View) -> Inverse:
    """Return a piece of ``split`` or ``chunk``: its place follows from the offset of its memory."""
    dim = _argument(view, "dim")
    parent = view.parent.fake
    dim = range(parent.dim())[dim]
    distance = view.fake.storage_offset() - parent.storage_offset()
    if view.call.output and isinstance(distance, int) and distance == 0:
        raise ScriptValueError(
            f"A piece that {view.call.overload.name()} cut out of a dynamic dimension is changed in place, and where "
            "it starts is not known; clone it before it is changed, or take a slice."
        )
    start = distance // parent.stride(dim)
    return aten.slice_scatter.default, [dim, start, start + view.fake.shape[dim], 1]


_SCATTERS: dict[str, Callable[[View], Inverse]] = {
    "select": _select,
    "slice": _slice,
    "narrow": _narrow,
    "diagonal": _diagonal,
    "unbind": _unbind,
    "split": _chunk,
    "split_with_sizes": _chunk,
    "chunk": _chunk,
    "tensor_split": _chunk,
}
