"""Whether numbers can be negative, by what computes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.spec.inference import ConstantOf, is_nonnegative
from onnxops_decomp.spec.traits import Trait, has_trait

__all__ = ["is_never_negative"]

# Positions along one axis stay below that in practice. Sizes are not counted at all: products of them are numbers of
# elements, which have room in memory.
_POSITION = (1 << 31) - 1
_SIZE = 1
_LARGEST = (1 << 63) - 1
# Real numbers may be larger than any integer, or infinite.
_UNBOUNDED = 1 << 64
_DEPTH = 8

_UNSIGNED = {ir.DataType.BOOL: 1, ir.DataType.UINT8: 0xFF, ir.DataType.UINT16: 0xFFFF, ir.DataType.UINT32: 0xFFFF_FFFF}
_SIGNED: Mapping[ir.DataType | None, int] = {
    ir.DataType.INT8: 0x7F,
    ir.DataType.INT16: 0x7FFF,
    ir.DataType.INT32: 0x7FFF_FFFF,
}

_Bound = int | None


def is_never_negative(value: ir.Value | None, constant: ConstantOf) -> bool:
    """Tell whether numbers are known not to be negative, from how they are computed; real ones may be NaN.

    Args:
        value: The numbers.
        constant: Gives the contents of constants.
    """
    return _upper_bound(value, constant) is not None


def _upper_bound(value: ir.Value | None, constant: ConstantOf, depth: int = _DEPTH) -> int | None:
    """Return how large numbers may be, apart from the sizes among their factors; None if one may be negative.

    Args:
        value: The numbers.
        constant: Gives the contents of constants.
        depth: How many nodes are looked at, one behind the other.
    """
    array = constant(value)
    if array is not None:
        return _largest(array) if array.dtype.kind in "iubf" and bool((array >= 0).all()) else None
    if value is None:
        return None
    if is_nonnegative(value):
        return _LARGEST
    if value.dtype in _UNSIGNED:
        return _UNSIGNED[value.dtype]
    node = value.producer()
    if node is None or node.domain or depth == 0:
        return None
    if node.op_type in ("Shape", "Size"):
        return _SIZE
    if has_trait(node.op_type, Trait.COUNTS) or (node.op_type == "TopK" and value is node.outputs[1]):
        return _POSITION
    is_real = value.dtype is not None and value.dtype.is_floating_point()
    if is_real and has_trait(node.op_type, Trait.NEVER_NEGATIVE):
        return _UNBOUNDED
    moves = node.op_type == "Cast" or has_trait(node.op_type, Trait.MOVES) or (is_real and node.op_type in _LIKE_FIRST)
    rule = _first if moves or "fmod" in node.attributes else _RULES.get(node.op_type)
    if rule is None:
        return None
    bound = rule([_upper_bound(operand, constant, depth - 1) for operand in node.inputs])
    if is_real and bound is not None:
        return bound if bound < _LARGEST and node.op_type not in _GROWING else _UNBOUNDED
    # Beyond the largest integer follows the smallest negative one.
    return bound if bound is not None and bound <= _SIGNED.get(value.dtype, _LARGEST) else None


def _largest(array: npt.NDArray[Any]) -> int:
    largest = array.max(initial=0)
    return math.ceil(largest) if np.isfinite(largest) else _UNBOUNDED


def _of_all(fold: Callable[[list[int]], int]) -> Callable[[list[_Bound]], _Bound]:
    """Return a rule for results that are not negative if no operand is."""

    def rule(bounds: list[_Bound]) -> _Bound:
        known = [bound for bound in bounds if bound is not None]
        return fold(known) if len(known) == len(bounds) else None

    return rule


def _first(bounds: list[_Bound]) -> _Bound:
    return bounds[0]


def _largest_operand(bounds: list[_Bound]) -> _Bound:
    return _LARGEST if any(bound is not None for bound in bounds) else None


# Of real numbers below 1, these make larger ones, or they add up any number of them.
_GROWING = frozenset(("Div", "ReduceSum"))
# What these compute of real numbers is not negative if the first operand is not; integers may overflow in a sum.
_LIKE_FIRST = frozenset(("GatherElements", "ReduceSum", "Split", "Sqrt", "TopK"))
_RULES: Mapping[str, Callable[[list[_Bound]], _Bound]] = {
    "Add": _of_all(sum),
    "Clip": lambda bounds: _LARGEST if len(bounds) > 1 and None not in bounds[1:] else None,
    "Concat": _of_all(max),
    "Div": _of_all(lambda bounds: bounds[0]),
    "Max": _largest_operand,
    "Min": _of_all(min),
    # The result has the sign of the divisor.
    "Mod": lambda bounds: bounds[1],
    "Mul": _of_all(lambda bounds: int(np.prod(bounds, dtype=object))),
    "Range": lambda bounds: _LARGEST if None not in (bounds[0], bounds[2]) else None,
    "Where": lambda bounds: _of_all(max)(bounds[1:]),
}
