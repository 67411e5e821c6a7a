"""Dtypes and sizes of simple calls, found without running them on symbolic sizes, which is slow.

Of a pointwise call the sizes are those of the operands, broadcast, and the dtype is that of the same call on tensors of
one element. A few other operators have a rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from onnx_ts_legacy.errors import ScriptValueError
from onnx_ts_legacy.shapes.tensor_forms import TensorForm, is_tensor
from onnxops_decomp.exporting import grouped_mm_form

__all__ = ["is_pointwise", "known_form", "known_view", "same_sizes", "with_ones"]

aten = torch.ops.aten

Sizes = tuple[int | torch.SymInt, ...]
Form = tuple[torch.dtype, Sizes]
# Result dtypes of pointwise calls. They follow from the operator, the kinds of its arguments (dtype and rank of
# tensors, types of numbers, all else by value) and the default dtype, which is why all of these are in the key;
# devices, opsets and sizes decide none, and the process has one version of torch.
_dtypes: dict[Any, torch.dtype] = {}


def known_form(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_contiguous: Callable[[Any], bool],
    is_one: Callable[[torch.SymInt], bool] = lambda size: False,
) -> Form | None:
    """Return dtype and sizes of the result of a call, which is contiguous; None if it is not so simple.

    Args:
        function: The operator.
        args: Its arguments, tensors as their forms.
        kwargs: Its keyword arguments.
        is_contiguous: Tells whether a tensor of a form is contiguous.
        is_one: Tells whether a size is 1 in the example.
    """
    if function is aten._grouped_mm.default:
        return grouped_mm_form(*args, **kwargs)
    if function is aten.matmul.default:
        return _product(args[0], args[1], is_one)
    rule = _RULES.get(function)
    if rule is not None:
        return rule(*args, **kwargs) if is_contiguous(args[0]) else None
    return _pointwise_form(function, args, kwargs, is_contiguous, is_one)


def _pointwise_form(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_contiguous: Callable[[Any], bool],
    is_one: Callable[[torch.SymInt], bool],
) -> Form | None:
    if not isinstance(function, torch._ops.OpOverload) or not is_pointwise(function):
        return None
    leaves = [*args, *kwargs.values()]
    if any(isinstance(leaf, list | tuple) for leaf in leaves):
        return None
    tensors = [leaf for leaf in leaves if is_tensor(leaf)]
    sizes = _broadcast([tuple(tensor.shape) for tensor in tensors], is_one)
    if sizes is None or not all(map(is_contiguous, tensors)):
        return None
    if not any(same_sizes(tensor.shape, sizes) for tensor in tensors):
        return None
    key = (torch.get_default_dtype(), function, tuple(kwargs), tuple(map(_kind, leaves)))
    if key not in _dtypes:
        dtype = _dtype(function, args, kwargs)
        if dtype is None:
            return None
        _dtypes[key] = dtype
    return _dtypes[key], sizes


def with_ones(
    function: Any,
    args: Sequence[Any],
    is_one: Callable[[torch.SymInt], bool],
    strided: Callable[[torch.dtype, Sequence[Any], Sequence[Any]], TensorForm],
) -> list[Any]:
    """Return the arguments of a pointwise call with 1 for sizes that are 1 in the example and meet others.

    Torch does not know which size is that of the result.

    Args:
        function: The operator.
        args: Its arguments, tensors as their forms.
        is_one: Tells whether a size is 1 in the example.
        strided: Returns the form of a tensor of a dtype, of sizes and of strides.
    """
    tensors = [arg for arg in args if is_tensor(arg)]
    is_known = isinstance(function, torch._ops.OpOverload) and is_pointwise(function)
    sizes = _broadcast([tuple(tensor.shape) for tensor in tensors], is_one) if is_known else None
    if sizes is None:
        return list(args)

    def narrowed(form: TensorForm) -> TensorForm:
        pairs = list(zip(form.shape, sizes[len(sizes) - form.dim() :], strict=True))
        met = [1 if not _equal(size, of_result) and is_one(size) else size for size, of_result in pairs]
        return form if same_sizes(met, form.shape) else strided(form.dtype, met, form.stride())

    return [narrowed(arg) if is_tensor(arg) else arg for arg in args]


@functools.cache
def is_pointwise(function: torch._ops.OpOverload) -> bool:
    """Tell whether an operator is pointwise and gives one new tensor."""
    returns = function._schema.returns
    if function._schema.is_mutable or len(returns) != 1 or returns[0].alias_info is not None:
        return False
    return torch.Tag.pointwise in function.tags or function in (aten.floor_divide.default, aten.floor_divide.Scalar)


def _broadcast(
    shapes: list[tuple[Any, ...]], is_one: Callable[[torch.SymInt], bool] | None = None
) -> tuple[Any, ...] | None:
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Any] = []
    for axis in range(-rank, 0):
        found = [shape[axis] for shape in shapes if len(shape) >= -axis]
        wide = [size for size in found if not (isinstance(size, int) and size == 1)]
        size = _met(wide, is_one)
        if size is None:
            return None
        result.append(size)
    return tuple(result) if shapes else None


def _met(sizes: list[Any], is_one: Callable[[torch.SymInt], bool] | None) -> Any:
    """Return the size of what sizes other than 1 are broadcast to, of which some may be 1 nevertheless.

    None where torch is to say it, which reports a declared size that has to be a number, or without ``is_one``.
    """
    if all(_equal(size, sizes[0]) for size in sizes):
        return sizes[0] if sizes else 1
    if any(isinstance(size, int) for size in sizes):
        fixed, others = [x for x in sizes if isinstance(x, int)], [x for x in sizes if not isinstance(x, int)]
        return fixed[0] if len(set(fixed)) == 1 and not any(x.node.expr.is_Symbol for x in others) else None
    # Torch would take them for equal from now on. Here that is a condition, or the size is read from the result.
    return None if is_one is None else next((size for size in sizes if not is_one(size)), None)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(a.node.expr == b.node.expr)


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Tell whether sizes are known to be the same."""
    return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))


def _kind(leaf: Any) -> Any:
    if is_tensor(leaf):
        return (leaf.dtype, leaf.dim())
    # The value of a number does not decide the dtype, but texts (rounding modes) and dtypes do.
    return type(leaf) if isinstance(leaf, int | float | torch.SymInt | torch.SymFloat) else leaf


def _small(leaf: Any) -> Any:
    """Return an argument of the same kind that is a number or a tensor of one element."""
    if is_tensor(leaf):
        return torch.empty([1] * leaf.dim(), dtype=leaf.dtype, device="meta")
    return 2 if isinstance(leaf, torch.SymInt) else 2.0 if isinstance(leaf, torch.SymFloat) else leaf


def _dtype(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    try:
        result = function(*map(_small, args), **{name: _small(value) for name, value in kwargs.items()})
    except Exception:
        return None
    return result.dtype if isinstance(result, torch.Tensor) else None


# ---- rules of operators that are not pointwise; their first operand is contiguous


def _like(x: TensorForm, *_: Any) -> Form | None:
    return x.dtype, tuple(x.shape)


def _normalized(x: TensorForm, dim: int, dtype: torch.dtype | None = None) -> Form | None:
    return (x.dtype, tuple(x.shape)) if dtype is None and x.dtype.is_floating_point else None


def _new_like(x: TensorForm, *_: Any, dtype: torch.dtype | None = None, **options: Any) -> Form | None:
    if options.get("layout") not in (None, torch.strided) or options.get("memory_format") not in _ROW_MAJOR:
        return None
    return x.dtype if dtype is None else dtype, tuple(x.shape)


_ROW_MAJOR = (None, torch.preserve_format, torch.contiguous_format)


def _linear(x: TensorForm, weight: TensorForm, bias: TensorForm | None = None) -> Form | None:
    fits = weight.dim() == 2 and x.dim() >= 1 and x.dtype == weight.dtype and _equal(x.shape[-1], weight.shape[1])
    return (x.dtype, (*x.shape[:-1], weight.shape[0])) if fits else None


def _product(x: TensorForm, y: TensorForm, is_one: Callable[[torch.SymInt], bool]) -> Form | None:
    """Return the form of products of matrices whose numbers are sizes of different names; of others torch tells it."""
    batches = [tuple(x.shape[:-2]), tuple(y.shape[:-2])]
    fits = min(map(len, batches)) > 0 and x.dtype == y.dtype and _equal(x.shape[-1], y.shape[-2])
    if not fits or _broadcast(batches) is not None:
        return None
    batch = _broadcast(batches, is_one)
    return None if batch is None else (x.dtype, (*batch, x.shape[-2], y.shape[-1]))


def _written(x: TensorForm, indices: Sequence[TensorForm | None], values: TensorForm, *_: Any) -> Form | None:
    used = [index for index in indices if index is not None]
    if any(index.dtype == torch.bool for index in used):
        return x.dtype, tuple(x.shape)
    rank = max((index.dim() for index in used), default=0) + x.dim() - len(used)
    if values.dim() > rank:
        raise ScriptValueError(f"Values of rank {values.dim()} are written to places of rank {rank}.")
    for given, place in zip(reversed(values.shape), reversed(_places(x, indices)), strict=False):
        if isinstance(given, int) and isinstance(place, int) and given not in (1, place):
            raise ScriptValueError(f"Values of size {given} are written to places of size {place}.")
    return x.dtype, tuple(x.shape)


def _places(x: TensorForm, indices: Sequence[TensorForm | None]) -> list[Any]:
    """Return the sizes of what integer indices choose, None for one that is not known."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    tensors = [tuple(index.shape) for index in indices if index is not None]
    chosen = _broadcast(tensors) or (None,) * max(map(len, tensors), default=0)
    kept = [size for axis, size in enumerate(x.shape) if axis not in axes]
    # Indices with other dimensions between them put what they choose in front.
    place = axes[0] if axes and axes == list(range(axes[0], axes[-1] + 1)) else 0
    return [*kept[:place], *chosen, *kept[place:]]


def _summed(x: TensorForm, *, dtype: torch.dtype | None = None) -> Form | None:
    floating = x.dtype.is_floating_point or x.dtype.is_complex
    return (x.dtype if floating else torch.int64) if dtype is None else dtype, ()


_RULES: dict[Any, Callable[..., Form | None]] = {
    aten.batch_norm.default: _like,
    aten.layer_norm.default: _like,
    aten.group_norm.default: _like,
    aten.dropout.default: _like,
    aten.softmax.int: _normalized,
    aten.log_softmax.int: _normalized,
    aten.zeros_like.default: _new_like,
    aten.ones_like.default: _new_like,
    aten.linear.default: _linear,
    aten.select_scatter.default: _like,
    aten.slice_scatter.default: _like,
    aten.diagonal_scatter.default: _like,
    aten.index_put.default: _written,
    aten.sum.default: _summed,
}


# ---- views of the first operand


def known_view(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sizes, Sizes] | None:
    """Return sizes and strides of the view that a call makes of its first operand; None if it is not so simple.

    Args:
        function: The operator.
        args: Its arguments, tensors as their forms.
        kwargs: Its keyword arguments.
    """
    rule = _VIEWS.get(function)
    return None if rule is None or kwargs else rule(*args)


def _selected(x: TensorForm, dim: int, index: Any) -> tuple[Sizes, Sizes] | None:
    if not isinstance(dim, int) or not -x.dim() <= dim < x.dim():
        return None
    size = x.shape[dim]
    if isinstance(size, int) and isinstance(index, int) and not -size <= index < size:
        return None
    sizes, strides = list(x.shape), list(x.stride())
    del sizes[dim], strides[dim]
    return tuple(sizes), tuple(strides)


def _sliced(
    x: TensorForm, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> tuple[Sizes, Sizes] | None:
    if not isinstance(dim, int) or not isinstance(step, int) or not -x.dim() <= dim < x.dim():
        return None
    sizes, strides = list(x.shape), list(x.stride())
    if any(isinstance(part, torch.SymInt) for part in (start, end)):
        return None
    if not start and step == 1 and end in (None, _TO_THE_END):
        return tuple(sizes), tuple(strides)
    if not isinstance(sizes[dim], int):
        return None
    sizes[dim] = len(range(*slice(start, end, step).indices(sizes[dim])))
    strides[dim] *= step
    return tuple(sizes), tuple(strides)


def _transposed(x: TensorForm, dim0: int, dim1: int) -> tuple[Sizes, Sizes] | None:
    axes = list(range(x.dim()))
    if not all(isinstance(dim, int) and -x.dim() <= dim < x.dim() for dim in (dim0, dim1)):
        return None
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return _permuted(x, axes)


def _permuted(x: TensorForm, dims: Sequence[int]) -> tuple[Sizes, Sizes] | None:
    if not all(isinstance(dim, int) and -x.dim() <= dim < x.dim() for dim in dims):
        return None
    if sorted(dim % x.dim() for dim in dims) != list(range(x.dim())):
        return None
    sizes, strides = x.shape, x.stride()
    return tuple(sizes[dim] for dim in dims), tuple(strides[dim] for dim in dims)


_TO_THE_END = 2**63 - 1
_VIEWS: dict[Any, Callable[..., tuple[Sizes, Sizes] | None]] = {
    aten.select.int: _selected,
    aten.slice.Tensor: _sliced,
    aten.transpose.int: _transposed,
    aten.permute.default: _permuted,
}
