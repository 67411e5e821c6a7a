"""Keeps calls whole that torch would take apart, or could not capture, while a model is captured.

torch.export records an operator by running it on fake tensors. Some operators look into their operands there, only to
check them or to find a size; others, the recurrent ones, are unrolled over the length of the example. While a model is
captured, calls of these functions go through operators of the same signature whose result shapes are computed; in the
captured graph they are ATen calls again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodWrapperType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onnxops_decomp.graph.definitions import gaussian_nll_loss, needs_masked_index
from onnxops_decomp.graph.dynamic_definitions import DYNAMIC_DEFINITIONS
from onnxops_decomp.graph.mutation import is_written_while_used
from onnxops_decomp.graph.packed_sequences import PACKING, packed_batch
from onnxops_decomp.graph.size_definitions import defined_for_sizes
from onnxops_decomp.graph.whole_operators import (
    RECURRENT_SHAPES,
    WHOLE_OPERATORS,
    Args,
    Kwargs,
    affine_grid_arguments,
    ctc_arguments,
    fractional_max_pool3d_arguments,
    narrow_shape,
)

__all__ = ["WholeCalls", "keep_calls", "kept_whole", "restore_calls", "whole_call"]

_NAMESPACE = "onnxops_whole"
aten = torch.ops.aten


@functools.cache
def _overloads() -> dict[torch._ops.OpOverload, torch._ops.OpOverload]:
    """Define the stand-in operators on first use and return what ATen overload each of them stands for."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    stood_for: dict[torch._ops.OpOverload, torch._ops.OpOverload] = {}
    for name, (overloads, _) in WHOLE_OPERATORS.items():
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
    found = {
        getattr(home, name): name for name in WHOLE_OPERATORS for home in (torch, torch.Tensor) if hasattr(home, name)
    }
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
    torch.nn.functional.ctc_loss: _Around(torch.ctc_loss, ctc_arguments),
    torch.nn.functional.affine_grid: _Around(torch.affine_grid_generator, affine_grid_arguments),
    torch.nn.functional.fractional_max_pool3d: _Around(_FRACTIONAL, fractional_max_pool3d_arguments, first=True),
    torch.nn.functional.fractional_max_pool3d_with_indices: _Around(_FRACTIONAL, fractional_max_pool3d_arguments),
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
        if name is None or not WHOLE_OPERATORS[name][1](args, kwargs):
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
    if overload.namespace != "aten" or name not in WHOLE_OPERATORS:
        return None
    if name not in _CAPTURED_OTHERWISE and not WHOLE_OPERATORS[name][1](args, kwargs):
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
    recurrent = {name for name, (overloads, _) in WHOLE_OPERATORS.items() if overloads is RECURRENT_SHAPES}
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
    torch.library.register_fake(f"{_NAMESPACE}::copied_part", narrow_shape, lib=library)
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
