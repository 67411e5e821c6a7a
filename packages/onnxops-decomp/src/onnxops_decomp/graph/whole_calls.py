"""Keeps calls whole that torch would take apart, or could not capture, while a model is captured.

torch.export records an operator by running it on fake tensors. Some operators look into their operands there, only to
check them or to find a size; others, the recurrent ones, are unrolled over the length of the example. While a model is
captured, calls of these functions go through operators of the same signature whose result shapes are computed; in the
captured graph they are ATen calls again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MethodWrapperType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onnxops_decomp.graph.definitions import corrcoef, cov, gaussian_nll_loss, masked_index, needs_masked_index
from onnxops_decomp.graph.dynamic_definitions import DYNAMIC_DEFINITIONS
from onnxops_decomp.graph.mutation import is_written_while_used
from onnxops_decomp.graph.packed_sequences import PACKING, packed_batch
from onnxops_decomp.graph.size_definitions import defined_for_sizes

__all__ = ["WholeCalls", "grouped_mm_form", "keep_calls", "kept_whole", "restore_calls", "whole_call"]

_NAMESPACE = "onnxops_whole"
aten = torch.ops.aten

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


# ---- result shapes


def _recurrent(
    input: torch.Tensor,
    hx: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Return the output follows the input, the states keep their shapes."""
    states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
    # With a projection the first state has its size, and so has the output.
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    return (input.new_empty((*input.shape[:-1], width)), *(torch.empty_like(state) for state in states))


def _recurrent_packed(
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    hx: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    return _recurrent(data, hx, params, has_biases, num_layers, dropout, train, bidirectional, False)


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    return log_probs.new_empty(log_probs.shape[1:-1] if reduction == 0 else ())


def _ctc_loss_and_alpha(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    listed = not isinstance(target_lengths, torch.Tensor)
    states = 2 * max(target_lengths, default=0) + 1 if listed else torch.library.get_ctx().new_dynamic_size()
    steps, batch = log_probs.shape[:2]
    return log_probs.new_empty(batch), log_probs.new_empty((batch, steps, states))


def _ctc_arguments(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Args:
    """Return the arguments of ``torch.ctc_loss`` for those of ``torch.nn.functional.ctc_loss``."""
    kind = ("none", "mean", "sum").index(reduction)
    return log_probs, targets, input_lengths, target_lengths, blank, kind, zero_infinity


def _affine_grid_generator(theta: torch.Tensor, size: Sequence[Any], align_corners: bool) -> torch.Tensor:
    rank = len(size) - 2
    if theta.dim() != 3 or tuple(theta.shape[1:]) != (rank, rank + 1):
        raise ValueError(f"affine_grid to size {tuple(size)} needs theta of shape (N, {rank}, {rank + 1})")
    return theta.new_empty((size[0], *size[2:], rank))


def _affine_grid_arguments(theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None) -> Args:
    """Return the arguments of ``torch.affine_grid_generator`` for those of ``torch.nn.functional.affine_grid``."""
    return theta, list(size), bool(align_corners)


def _combinations(self: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    size = self.shape[0]
    if r == 0:
        return self.new_empty(0)
    top: Any = size + r - 1 if with_replacement else size
    count: Any = 1
    for factor in range(r):
        count = count * (top - factor)
    return self.new_empty((count // math.factorial(r), r))


def _narrow(self: torch.Tensor, dim: int, start: torch.Tensor, length: Any) -> torch.Tensor:
    sizes = list(self.shape)
    sizes[dim] = length
    return self.new_empty(sizes)


def _one_hot(self: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    classes: Any = torch.library.get_ctx().new_dynamic_size() if num_classes == -1 else num_classes
    return self.new_empty((*self.shape, classes))


def _istft(
    self: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """Return as many samples as the frames cover, or as are asked for; torch looks whether a window leaves gaps."""
    samples = n_fft + (n_fft // 4 if hop_length is None else hop_length) * (self.shape[-1] - 1)
    usual = samples - 2 * (n_fft // 2) if center else samples
    dtype = self.dtype if return_complex else self.dtype.to_real()
    return self.new_empty((*self.shape[:-2], usual if length is None else length), dtype=dtype)


def _lstsq(
    self: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, ...]:
    """Return no residuals, except for the driver that assumes full rank: the others determine the rank first."""
    m, n = self.shape[-2:]
    if driver in ("gelsd", "gelss") and m > n:
        raise NotImplementedError(
            f"linalg.lstsq with driver={driver!r} gives residuals only if the rank is full, which decides the shape "
            "of a result; use the default driver"
        )
    vector = b.ndim == 1 or (self.ndim - 1 == b.ndim and b.shape == self.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    batch = torch.broadcast_shapes(self.shape[:-2], right.shape[:-2])
    solution = self.new_empty((*batch, n, *([] if vector else right.shape[-1:])))
    real = self.dtype.to_real()
    residuals = self.new_empty((*batch, right.shape[-1]) if driver == "gels" and m > n else (0,), dtype=real)
    rank = self.new_empty(self.shape[:-2] if driver != "gels" else (0,), dtype=torch.int64)
    values = (*self.shape[:-2], min(m, n)) if driver in ("gelsd", "gelss") else (0,)
    return solution, residuals, rank, self.new_empty(values, dtype=real)


def _histogram(
    self: torch.Tensor, bins: Any = 100, *, range: Any = None, weight: Any = None, density: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    edges = bins.shape[0] if isinstance(bins, torch.Tensor) else bins + 1
    return self.new_empty(edges - 1), self.new_empty(edges)


def _histogramdd(
    self: torch.Tensor, bins: Any, range: Any = None, weight: Any = None, density: bool = False
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    given = bins if isinstance(bins, list | tuple) else [bins] * int(self.shape[-1])
    edges = [each.shape[0] if isinstance(each, torch.Tensor) else each + 1 for each in given]
    return self.new_empty([edge - 1 for edge in edges]), [self.new_empty(edge) for edge in edges]


def _fractional_max_pool3d(
    self: torch.Tensor, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (*self.shape[:-3], *(output_size if len(output_size) == 3 else [*output_size] * 3))
    return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)


def _fractional_max_pool3d_arguments(
    input: torch.Tensor,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: torch.Tensor | None = None,
) -> Args:
    """Return the arguments of the operator for those of ``torch.nn.functional.fractional_max_pool3d``."""

    def three(value: Any) -> list[Any]:
        return list(value) if isinstance(value, list | tuple) else [value] * 3

    if output_size is None:
        pairs = zip(input.shape[-3:], three(output_ratio), strict=True)
        output_size = [int(size * ratio) for size, ratio in pairs]
    if _random_samples is None:
        batch = 1 if input.dim() == 4 else input.shape[0]
        _random_samples = torch.rand(batch, input.shape[-4], 3, dtype=input.dtype, device=input.device)
    return input, three(kernel_size), three(output_size), _random_samples


def grouped_mm_form(
    input: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: torch.dtype | None = None
) -> tuple[torch.dtype, tuple[Any, ...]] | None:
    """Return dtype and sizes of a product of groups in FLOAT or FLOAT16: torch's fake kernel takes bfloat16 alone.

    Args:
        input: Of shape (M, K), or (groups, M, K).
        mat2: Of shape (K, N), or (groups, K, N).
        offs: The ends of the groups, where one operand is two-dimensional.
        bias: None, as kernels know none yet.
        out_dtype: That of the operands, or None.

    Returns:
        None for calls that torch's fake kernel judges.
    """
    dtype, left, right = input.dtype, input.shape, mat2.shape
    if dtype not in (torch.float32, torch.float16) or mat2.dtype != dtype or out_dtype not in (None, dtype):
        return None
    two = (len(left) == 2) + (len(right) == 2)
    if bias is not None or (offs is None) != (two == 0):
        return None
    groups = ((left[0],), (), (offs.shape[0],) if two else ())[two]
    return dtype, (*groups, left[-2], right[-1])


def _grouped_mm(self: torch.Tensor, mat2: torch.Tensor, *options: Any) -> torch.Tensor:
    torch._check(
        self.shape[-1] == mat2.shape[-2], lambda: "the inner sizes of the operands of a grouped product differ"
    )
    form = grouped_mm_form(self, mat2, *options)
    assert form is not None, "other calls are not kept whole"
    return self.new_empty(form[1])


# ---- which calls


def _always(args: Args, kwargs: Kwargs) -> bool:
    return True


def _without_keywords(args: Args, kwargs: Kwargs) -> bool:
    return not kwargs and len(args) == 9


def _starts_at_tensor(args: Args, kwargs: Kwargs) -> bool:
    return isinstance(args[2] if len(args) > 2 else kwargs.get("start"), torch.Tensor)


def _counts_classes(args: Args, kwargs: Kwargs) -> bool:
    count = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    return isinstance(count, int) and count == -1


def _has_length_of_sizes(args: Args, kwargs: Kwargs) -> bool:
    return isinstance(args[8] if len(args) > 8 else kwargs.get("length"), torch.SymInt)


def _multiplies_floats(args: Args, kwargs: Kwargs) -> bool:
    return grouped_mm_form(*args, **kwargs) is not None


_Fake = Callable[..., Any]
_Condition = Callable[[Args, Kwargs], bool]

_RECURRENT: Mapping[str, _Fake] = {"input": _recurrent, "data": _recurrent_packed}

# By ATen name: the result shapes of the overloads that stand in, and which calls they are for.
_OPERATORS: dict[str, tuple[Mapping[str, _Fake], _Condition]] = {
    "lstm": (_RECURRENT, _without_keywords),
    "gru": (_RECURRENT, _without_keywords),
    "rnn_tanh": (_RECURRENT, _without_keywords),
    "rnn_relu": (_RECURRENT, _without_keywords),
    "ctc_loss": ({"IntList": _ctc_loss, "Tensor": _ctc_loss}, _always),
    "_ctc_loss": ({"default": _ctc_loss_and_alpha, "Tensor": _ctc_loss_and_alpha}, _always),
    "cov": ({"default": cov}, _always),
    "corrcoef": ({"default": corrcoef}, _always),
    "affine_grid_generator": ({"default": _affine_grid_generator}, _always),
    "combinations": ({"default": _combinations}, _always),
    "narrow": ({"Tensor": _narrow}, _starts_at_tensor),
    "one_hot": ({"default": _one_hot}, _counts_classes),
    "istft": ({"default": _istft}, _has_length_of_sizes),
    "linalg_lstsq": ({"default": _lstsq}, _always),
    "index": ({"Tensor": masked_index}, _always),
    "_grouped_mm": ({"default": _grouped_mm}, _multiplies_floats),
    "histogram": ({"bins_tensor": _histogram, "bin_ct": _histogram}, _always),
    "histogramdd": ({"default": _histogramdd, "int_bins": _histogramdd, "TensorList_bins": _histogramdd}, _always),
    "fractional_max_pool3d": ({"default": _fractional_max_pool3d}, _always),
}


@functools.cache
def _overloads() -> dict[torch._ops.OpOverload, torch._ops.OpOverload]:
    """Define the stand-in operators on first use and return what ATen overload each of them stands for."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    stood_for: dict[torch._ops.OpOverload, torch._ops.OpOverload] = {}
    for name, (overloads, _) in _OPERATORS.items():
        for overload, fake in overloads.items():
            target = getattr(getattr(torch.ops.aten, name), overload)
            full = name if overload == "default" else f"{name}.{overload}"
            library.define(_sized(str(target._schema).removeprefix("aten::")))
            library.impl(full, target, "CompositeExplicitAutograd")
            torch.library.register_fake(f"{_NAMESPACE}::{full}", fake, lib=library)
            stood_for[getattr(getattr(torch.ops, _NAMESPACE), name).__getattr__(overload)] = target
    _LIBRARIES.append(library)
    return stood_for


_LIBRARIES: list[torch.library.Library] = []


def _sized(schema: str) -> str:
    """Return a schema with sizes for the numbers that may follow from sizes."""
    return schema.replace("int? length", "SymInt? length")


@functools.cache
def _functions() -> dict[Any, str]:
    """Return the functions and methods of torch that call the operators, with the name of the operator."""
    found = {getattr(home, name): name for name in _OPERATORS for home in (torch, torch.Tensor) if hasattr(home, name)}
    return found | {
        torch.linalg.lstsq: "linalg_lstsq",
        torch.nn.functional.one_hot: "one_hot",
        torch.ops.aten.fractional_max_pool3d.default: "fractional_max_pool3d",
    }


@functools.cache
def _integer_parameters(name: str) -> frozenset[int | str]:
    """Return names and places of the parameters that are a whole number in all overloads of a stand-in."""
    found = [_integers_of(target) for target in _overloads().values() if target._opname == name]
    return frozenset(set.intersection(*found))


def _integers_of(target: torch._ops.OpOverload) -> set[int | str]:
    places = [place for place, each in enumerate(target._schema.arguments) if str(each.type) in ("int", "SymInt")]
    return {*places, *(target._schema.arguments[place].name for place in places)}


def _operand(value: Any, is_integer: bool) -> Any:
    """Return an argument as a stand-in takes it; functions of torch take tensors of one element for numbers."""
    if is_integer and isinstance(value, torch.Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


_READS_DATA: Any = torch.Tensor.data.__get__  # type: ignore[attr-defined]


class _Around(NamedTuple):
    """A function in Python around one that is kept whole.

    Attributes:
        function: The one inside.
        arguments: Returns its arguments for those of the one around.
        first: Whether the one around returns the first result alone.
    """

    function: Callable[..., Any]
    arguments: Callable[..., Args]
    first: bool = False


_FRACTIONAL = torch.ops.aten.fractional_max_pool3d.default
_AROUND: dict[Any, _Around] = {
    torch.nn.functional.ctc_loss: _Around(torch.ctc_loss, _ctc_arguments),
    torch.nn.functional.affine_grid: _Around(torch.affine_grid_generator, _affine_grid_arguments),
    torch.nn.functional.fractional_max_pool3d: _Around(_FRACTIONAL, _fractional_max_pool3d_arguments, first=True),
    torch.nn.functional.fractional_max_pool3d_with_indices: _Around(_FRACTIONAL, _fractional_max_pool3d_arguments),
}


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _is_symbol(value: Any) -> bool:
    return isinstance(value, torch.SymInt)


def _has_dynamic_sizes(operands: Any) -> bool:
    tensors = (leaf for leaf in pytree.tree_leaves(operands) if isinstance(leaf, torch.Tensor))
    return any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape)


def _tensor_of(data: Any, dtype: torch.dtype | None = None, device: Any = None) -> torch.Tensor:
    """Return a tensor of numbers; ``torch.as_tensor`` itself takes sizes among them for those of the example."""
    if not any(isinstance(leaf, _SYMBOLIC) for leaf in pytree.tree_leaves(data)):
        return torch.as_tensor(data, dtype=dtype, device=device)
    if isinstance(data, list | tuple):
        return torch.stack([_tensor_of(entry, dtype, device) for entry in data])
    kinds = {torch.SymInt: torch.int64, torch.SymBool: torch.bool}
    return torch.scalar_tensor(data, dtype=dtype or kinds.get(type(data), torch.get_default_dtype()), device=device)


def _tensors_of_index(index: Any) -> list[torch.Tensor | None] | None:
    """Return the tensors of ``self[index]``, None for whole axes; None if torch captures that, or there is more."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not needs_masked_index(parts):
        return None
    whole = [isinstance(part, slice) and part == slice(None) for part in parts]
    if not all(found or isinstance(part, torch.Tensor) for part, found in zip(parts, whole, strict=True)):
        return None
    return [None if found else part for part, found in zip(parts, whole, strict=True)]


def _is_written_at(self: torch.Tensor, index: Any, value: Any) -> bool:
    """Write ``self[index] = value`` if tensors of one number choose places; tell whether that was done.

    What such a tensor chooses would be read as a number, of which nothing is known without data.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_place, parts)) or not all(_is_place(part) or _is_basic(part) for part in parts):
        return False
    view = self[tuple(slice(None) if _is_place(part) else part for part in parts)]
    kept = [part for part in parts if not isinstance(part, _NUMBERS)]
    if Ellipsis in (around := [None if _is_place(part) else part for part in kept]):
        middle = around.index(Ellipsis)
        kept[middle : middle + 1] = [None] * (view.dim() - len(kept) + 1)
    places = [part if _is_place(part) else None for part in kept]
    written = value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=self.dtype, device=self.device)
    rank = view.dim() - sum(place is not None for place in places)
    while written.dim() > rank and written.shape[0] == 1:
        written = written[0]
    torch.ops.aten.index_put_.default(view, places, written.to(self.dtype))
    return True


_NUMBERS = (int, torch.SymInt)
_PLACES = (torch.int8, torch.int16, torch.int32, torch.int64)


def _is_place(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype in _PLACES


def _is_basic(part: Any) -> bool:
    return part is None or part is Ellipsis or (isinstance(part, slice | int | torch.SymInt) and type(part) is not bool)


# Functions that take masks of dtype uint8 for booleans, and where; without data torch refuses such masks.
_MASKED = {torch.Tensor.__getitem__: 1, torch.where: 0, torch.Tensor.where: 1}


def _with_boolean_masks(func: Callable[..., Any], args: Args) -> Args:
    """Return positional arguments with masks of dtype uint8 as booleans."""
    place = _MASKED.get(func)
    if place is None or len(args) <= place:
        return args
    given = args[place]
    masks = given if isinstance(given, tuple) else (given,)
    if not any(map(_is_old_mask, masks)):
        return args
    found = tuple(mask.to(torch.bool) if _is_old_mask(mask) else mask for mask in masks)
    return (*args[:place], found if isinstance(given, tuple) else found[0], *args[place + 1 :])


def _is_old_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8


class WholeCalls(TorchFunctionMode):
    """Sends the calls that have to stay whole through the stand-in operators."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        if isinstance(func, MethodWrapperType):
            # What reads an attribute, as most calls do. What `data` gives is not a call for torch.export, which keeps
            # it as a constant without contents.
            return args[0].detach() if func == _READS_DATA else func(*args, **(kwargs or {}))
        kwargs = dict(kwargs or {})
        args = _with_boolean_masks(func, args)
        if func is torch.as_tensor:
            return _tensor_of(*args, **kwargs)
        if func is torch.nn.functional.gaussian_nll_loss:
            return gaussian_nll_loss(*args, **kwargs)
        if func in PACKING:
            return PACKING[func](*args, **kwargs)
        if func in DYNAMIC_DEFINITIONS and _has_dynamic_sizes((args, kwargs)):
            return DYNAMIC_DEFINITIONS[func](*args, **kwargs)
        if (sized := defined_for_sizes(func, args, kwargs, _is_symbol)) is not None:
            return sized
        if func is torch.Tensor.__setitem__ and _is_written_at(*args):
            return None
        if func is torch.Tensor.__getitem__ and (batch := packed_batch(*args)) is not None:
            return batch
        if func is torch.Tensor.__getitem__ and (indices := _tensors_of_index(args[1])) is not None:
            _overloads()
            return getattr(torch.ops, _NAMESPACE).index.Tensor(args[0], indices)
        if (around := _AROUND.get(func)) is not None:
            result = self._kept_whole(around.function, around.arguments(*args, **kwargs), {})
            return result[0] if around.first else result
        return self._kept_whole(func, args, kwargs)

    def _kept_whole(self, func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """Call a function, by its stand-in if it has one."""
        name = _functions().get(func)
        if name is None or not _OPERATORS[name][1](args, kwargs):
            return func(*args, **kwargs)
        _overloads()
        if "input" in kwargs:
            kwargs["self"] = kwargs.pop("input")
        integers = _integer_parameters(name)
        operands = [_operand(arg, place in integers) for place, arg in enumerate(args)]
        kwargs = {key: _operand(value, key in integers) for key, value in kwargs.items()}
        result = getattr(getattr(torch.ops, _NAMESPACE), name)(*operands, **kwargs)
        # An operator of a library returns a plain tuple where this function has names for its results.
        named = getattr(torch.return_types, name, None)
        return result if named is None else named(result)


# What torch runs in their place can be captured, but looks into data.
_CAPTURED_OTHERWISE = frozenset(("istft",))


def kept_whole(overload: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> torch._ops.OpOverload | None:
    """Return the stand-in of an operator, which gives a result without looking at data; None for calls without one."""
    name = overload._opname
    if overload.namespace != "aten" or name not in _OPERATORS:
        return None
    if name not in _CAPTURED_OTHERWISE and not _OPERATORS[name][1](args, kwargs):
        return None
    return next((stand_in for stand_in, target in _overloads().items() if target is overload), None)


def whole_call(name: str, overload: str, *args: Any) -> Any:
    """Call the stand-in of an ATen operator, which :func:`restore_calls` turns back."""
    _overloads()
    return getattr(getattr(getattr(torch.ops, _NAMESPACE), name), overload)(*args)


def restore_calls(graph_module: torch.fx.GraphModule) -> None:
    """Turn the stand-in calls of a captured graph back into ATen calls, in place."""
    stood_for: dict[Any, torch._ops.OpOverload] = {**_overloads(), _copied_part(): aten.narrow.Tensor}
    _replace_targets(graph_module, lambda node: stood_for.get(node.target))


def keep_calls(graph_module: torch.fx.GraphModule) -> None:
    """Turn calls of a captured graph into stand-in calls that functionalization leaves as they are, in place.

    Those are the recurrent ones, which torch would unroll, and parts of tensors that start where data says, which it
    refuses as views, unless something is written to their memory while they are used.
    """
    recurrent = {name for name, (overloads, _) in _OPERATORS.items() if overloads is _RECURRENT}
    targets = {target: stand_in for stand_in, target in _overloads().items() if target._opname in recurrent}

    def stand_in_for(node: torch.fx.Node) -> torch._ops.OpOverload | None:
        target: Any = node.target
        if getattr(target, "_opname", None) == "narrow" and not is_written_while_used(node):
            return _copied_part() if target._overloadname == "Tensor" else None
        return targets.get(target)

    _replace_targets(graph_module, stand_in_for)


@functools.cache
def _copied_part() -> torch._ops.OpOverload:
    """Define the stand-in of ``narrow.Tensor`` that shares no memory with its operand."""
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    library.define("copied_part(Tensor self, int dim, Tensor start, SymInt length) -> Tensor")
    run = aten.narrow.Tensor
    library.impl("copied_part", lambda *args: run(*args).clone(), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_NAMESPACE}::copied_part", _narrow, lib=library)
    _LIBRARIES.append(library)
    return torch.ops.onnxops_whole.copied_part.default


def _replace_targets(
    graph_module: torch.fx.GraphModule, other: Callable[[torch.fx.Node], torch._ops.OpOverload | None]
) -> None:
    for module in graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        changed = False
        for node in module.graph.nodes:
            if node.op == "call_function" and (target := other(node)) is not None:
                node.target = target
                changed = True
        if changed:
            module.recompile()
