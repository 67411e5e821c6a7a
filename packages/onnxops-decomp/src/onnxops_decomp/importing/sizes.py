"""What ONNX operators do with Python numbers: sizes of tensors and what is computed of them.

A value of these functions is a number or a list of numbers, for a tensor of rank 0 or 1. The numbers may be symbolic,
so that ``torch.export`` sees arithmetic of sizes and no tensors whose elements it would have to know.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from onnxops_decomp.importing.recording import is_recorded

__all__ = ["NUMBER_FUNCTIONS", "numbers_rank"]

Numbers = Any
"""A number, or a list of them."""

F = TypeVar("F", bound=Callable[..., Any])

NUMBER_FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""What operators of ONNX's own domain do with Python numbers, by operator."""


def on_numbers(op_type: str) -> Callable[[F], F]:
    """Return a decorator that enters a function as what an ONNX operator does with Python numbers."""

    def enter(function: F) -> F:
        NUMBER_FUNCTIONS[op_type] = function
        return function

    return enter


def numbers_rank(op_type: str, ranks: list[int], args: Sequence[Any], attributes: Mapping[str, Any]) -> int:
    """Return the rank of what an operator makes of Python numbers; more than 1 if that is, or may be, no list of them.

    Args:
        op_type: The operator.
        ranks: Ranks of its inputs, which are 0 or 1.
        args: Its inputs: numbers that the file fixes, or what yields them.
        attributes: Its attributes.
    """
    match op_type:
        case "Size":
            return 0
        case "Shape" | "Concat" | "Slice":
            return 1
        case "Unsqueeze":
            axes = attributes.get("axes", args[1] if len(args) > 1 else None)
            return ranks[0] + (len(axes) if isinstance(axes, list) else 1)
        case "Squeeze":
            return 0
        case "Gather":
            return ranks[1]
        case "ConstantOfShape":
            # As many numbers as another list has; of a size there may be millions.
            return 1 if isinstance(args[0], fx.Node) and args[0].target is shape else 2
        case "Reshape":
            return len(args[1]) if isinstance(args[1], list) else 2
        case "ReduceProd" | "ReduceSum":
            return ranks[0] if attributes.get("keepdims", 1) else 0
    return max(ranks)


def _each(function: Callable[..., Any], *values: Numbers) -> Numbers:
    """Apply a function to numbers as ONNX broadcasts them."""
    lengths = [len(value) for value in values if isinstance(value, list)]
    longer = [length for length in lengths if length != 1]
    size = longer[0] if longer else 1
    if any(length != size for length in longer):
        raise ValueError(f"lists of {' and '.join(map(str, sorted(set(longer))))} numbers do not broadcast")
    if not lengths:
        return function(*values)
    columns = [value * size if isinstance(value, list) and len(value) == 1 else value for value in values]
    rows = [[value[place] if isinstance(value, list) else value for value in columns] for place in range(size)]
    return [function(*row) for row in rows]


def _quotient(a: Any, b: Any) -> Any:
    """Return a quotient, that of integers rounded toward zero."""
    if isinstance(a, float | torch.SymFloat):
        return a / b
    if isinstance(b, int) and not isinstance(b, torch.SymInt):
        return _to_zero(a, b) if b > 0 else _to_zero(-a, -b)
    sign = torch.sym_max(torch.sym_min(b, 1), -1)  # of a size that is 1
    return _to_zero(a, torch.sym_max(b, -b)) * sign


def _to_zero(a: Any, b: Any) -> Any:
    return torch.sym_max(a, 0) // b - torch.sym_max(-a, 0) // b


def _remainder(a: Any, b: Any) -> Any:
    """Return what ``fmod`` gives, of numbers that may be symbolic."""
    if isinstance(a, float | torch.SymFloat):
        return a - math.trunc(a / b) * b if isinstance(a, torch.SymFloat) else math.fmod(a, b)
    return a - _quotient(a, b) * b


def _chosen(condition: Any, one: Any, other: Any) -> Any:
    """Return one of two numbers, by arithmetic where a condition on sizes decides it that torch exports."""
    if not isinstance(condition, torch.SymBool) or not is_recorded(condition):
        return one if condition else other
    return other + torch.sym_ite(condition, 1, 0) * (one - other)


@on_numbers("Add")
def add(A: Numbers, B: Numbers) -> Numbers:
    return _each(operator.add, A, B)


@on_numbers("Sub")
def sub(A: Numbers, B: Numbers) -> Numbers:
    return _each(operator.sub, A, B)


@on_numbers("Mul")
def mul(A: Numbers, B: Numbers) -> Numbers:
    return _each(operator.mul, A, B)


@on_numbers("Div")
def div(A: Numbers, B: Numbers) -> Numbers:
    return _each(_quotient, A, B)


@on_numbers("Mod")
def mod(A: Numbers, B: Numbers, fmod: int = 0) -> Numbers:
    return _each(_remainder if fmod else operator.mod, A, B)


@on_numbers("Neg")
def neg(X: Numbers) -> Numbers:
    return _each(operator.neg, X)


@on_numbers("Abs")
def absolute(X: Numbers) -> Numbers:
    return _each(abs, X)


@on_numbers("Sqrt")
def sqrt(X: Numbers) -> Numbers:
    return _each(torch.sym_sqrt if hasattr(torch, "sym_sqrt") else math.sqrt, X)


@on_numbers("Floor")
def floor(X: Numbers) -> Numbers:
    return _each(lambda x: torch.sym_float(math.floor(x)), X)


@on_numbers("Ceil")
def ceil(X: Numbers) -> Numbers:
    return _each(lambda x: torch.sym_float(math.ceil(x)), X)


@on_numbers("Equal")
def equal(A: Numbers, B: Numbers) -> Numbers:
    return _each(operator.eq, A, B)


@on_numbers("Less")
def less(A: Numbers, B: Numbers) -> Numbers:
    return _each(operator.lt, A, B)


@on_numbers("LessOrEqual")
def less_or_equal(A: Numbers, B: Numbers) -> Numbers:
    return _each(operator.le, A, B)


@on_numbers("Greater")
def greater(A: Numbers, B: Numbers) -> Numbers:
    return _each(operator.gt, A, B)


@on_numbers("GreaterOrEqual")
def greater_or_equal(A: Numbers, B: Numbers) -> Numbers:
    return _each(operator.ge, A, B)


@on_numbers("Not")
def negated(X: Numbers) -> Numbers:
    return _each(lambda x: torch.sym_not(x) if isinstance(x, torch.SymBool) else not x, X)


@on_numbers("And")
def both(A: Numbers, B: Numbers) -> Numbers:
    return _each(operator.and_, A, B)


@on_numbers("Or")
def either(A: Numbers, B: Numbers) -> Numbers:
    return _each(operator.or_, A, B)


@on_numbers("Max")
def maximum(*data_0: Numbers) -> Numbers:
    return _each(lambda *values: _fold(torch.sym_max, values), *data_0)


@on_numbers("Min")
def minimum(*data_0: Numbers) -> Numbers:
    return _each(lambda *values: _fold(torch.sym_min, values), *data_0)


def _fold(function: Callable[[Any, Any], Any], values: tuple[Any, ...]) -> Any:
    first, *rest = values
    for value in rest:
        first = function(first, value)
    return first


@on_numbers("Where")
def where(condition: Numbers, X: Numbers, Y: Numbers) -> Numbers:
    return _each(_chosen, condition, X, Y)


@on_numbers("Cast")
def cast(input: Numbers, to: int, saturate: int = 1, round_mode: str = "up") -> Numbers:
    if to != 9:  # torch makes no number of a condition that is symbolic
        input = _each(lambda x: torch.sym_ite(x, 1, 0) if isinstance(x, torch.SymBool) else x, input)
    if to in (1, 10, 11, 16):
        return _each(torch.sym_float, input)
    if to == 9:
        return _each(lambda x: x != 0, input)
    return _each(torch.sym_int, input)


@on_numbers("Identity")
def identity(input: Numbers) -> Numbers:
    return input


@on_numbers("Gather")
def gather(data: Numbers, indices: Numbers, axis: int = 0) -> Numbers:
    return [data[each] for each in indices] if isinstance(indices, list) else data[indices]


@on_numbers("Slice")
def slice_(data: Numbers, starts: Numbers, ends: Numbers, axes: Any = None, steps: Numbers = 1) -> Numbers:
    start, end, step = (value[0] if isinstance(value, list) else value for value in (starts, ends, steps))
    if step > 0:
        return data[start:end:step]
    # Before the first number counts as the first, for the end as the place before it.
    return data[max(start, -len(data)) : None if end < -len(data) else end : step]


@on_numbers("Concat")
def concat(*inputs: Numbers, axis: int = 0) -> Numbers:
    return [each for value in inputs for each in value]


@on_numbers("Squeeze")
def squeeze(data: Numbers, axes: Any = None) -> Numbers:
    if isinstance(data, list) and len(data) == 1:
        return data[0]
    if axes:
        raise ValueError(f"a dimension of size {len(data)} is squeezed")
    return data


@on_numbers("Unsqueeze")
def unsqueeze(data: Numbers, axes: Any = None) -> Numbers:
    return [data]


@on_numbers("Reshape")
def reshape(data: Numbers, shape: list[int], allowzero: int = 0) -> Numbers:
    if not shape:
        return data[0] if isinstance(data, list) else data
    return data if isinstance(data, list) else [data]


@on_numbers("ReduceProd")
def reduce_prod(data: Numbers, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Numbers:
    product = _fold(operator.mul, (1, *data))
    return [product] if keepdims else product


@on_numbers("ReduceSum")
def reduce_sum(data: Numbers, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Numbers:
    total = _fold(operator.add, (0, *data))
    return [total] if keepdims else total


@on_numbers("Shape")
def shape(data: Numbers, start: int = 0, end: int | None = None) -> list[int]:
    return [len(data)][start:end] if isinstance(data, list) else []


@on_numbers("ConstantOfShape")
def constant_of_shape(input: Numbers, value: Any = 0.0) -> Numbers:
    return [value] * input[0] if input else value


@on_numbers("Size")
def size(data: Numbers) -> int:
    return len(data) if isinstance(data, list) else 1
