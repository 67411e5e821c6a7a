"""What sizes decide in a trace, in branches and as Python numbers: what it was for the example, and by which sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch

from onnx_ts_legacy.graph.parts import node_inputs

__all__ = ["SizeDecision", "SizeTerm", "decisions_of", "evaluated", "sizes_behind"]

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b, alpha=1: a + alpha * b,
    "sub": lambda a, b, alpha=1: a - alpha * b,
    "rsub": lambda a, b, alpha=1: b - alpha * a,
    "mul": operator.mul,
    "neg": operator.neg,
    "div": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
_NAME = "sized_"
_SIZES = ("aten::size", "aten::numel")
# What ``min`` and ``max`` compare: where both are equal, it does not matter which one is the result.
_OR_EQUAL = {"gt": "ge", "lt": "le"}
# They give their first operand.
_SAME = frozenset(("aten::Int", "aten::detach", "aten::to", "prim::NumToTensor"))


class SizeTerm(NamedTuple):
    """A number that follows from sizes alone.

    Attributes:
        operator: What computes it; ``"size"`` for the size of a tensor, None for a number.
        operands: Terms; else the name of the tensor in the trace, the axis, or None for all, and the size in the
            example; or the number.
    """

    operator: str | None
    operands: tuple[Any, ...]


class SizeDecision(NamedTuple):
    """What sizes decided while the model was traced.

    Attributes:
        term: What they decided it by.
        answer: Whether that is true in the example.
        place: The line.
        use: What it is used for there.
    """

    term: SizeTerm
    answer: bool
    place: str
    use: str


def decisions_of(value: Any, answer: Any, place: str, inputs: Collection[int], compares: bool) -> list[SizeDecision]:
    """Return what has to hold for a value of the trace that is being recorded to be what Python read.

    Args:
        value: The value, which follows from sizes alone.
        answer: What was read.
        place: The line.
        inputs: The model's inputs in the trace.
        compares: Whether ``min`` or ``max`` asks.
    """
    term, is_truth = term_of(value), isinstance(answer, bool)
    use = "chooses a branch" if is_truth else "is used as a Python number"
    if term is not None and is_truth and bool(evaluated(term)) == answer:
        if compares and answer:
            term = SizeTerm(_OR_EQUAL.get(str(term.operator), term.operator), term.operands)
        return [SizeDecision(term, answer, place, use)]
    if term is not None and isinstance(answer, int | float) and evaluated(term) == answer:
        return [SizeDecision(_equal(term, answer), True, place, use)]
    sizes = sizes_behind(value, inputs)
    return [SizeDecision(_equal(size, evaluated(size)), True, place, use) for size in sizes]


def _equal(term: SizeTerm, number: float) -> SizeTerm:
    return SizeTerm("eq", (term, SizeTerm(None, (int(number) if number == int(number) else number,))))


def sizes_behind(value: Any, inputs: Collection[int]) -> list[SizeTerm]:
    """Return the sizes that a value of the trace that is being recorded follows from; none if also from an input."""
    found, seen, left = dict[SizeTerm, None](), set[int](), [value]
    while left:
        value = left.pop()
        if value.unique() in inputs:
            return []
        if value.unique() in seen:
            continue
        seen.add(value.unique())
        node = value.node()
        if str(node.kind()) in _SIZES:
            term = _size_of(node)
            if term is None:
                return []
            found[term] = None
        elif node.kind() != "prim::Param":
            left.extend(node_inputs(node))
    return list(found)


def _size_of(node: Any) -> SizeTerm | None:
    """Return the size that a node of the trace gives; None if it is not known for the example."""
    axes = [operand.toIValue() for operand in node_inputs(node)[1:]] or [None]
    tensor = node.inputsAt(0)
    if not tensor.isCompleteTensor():
        return None
    # Ids change when the trace is finished, names do not.
    if not tensor.debugName().startswith(_NAME):
        tensor.setDebugName(f"{_NAME}{tensor.unique()}")
    shape = tensor.type().sizes()
    (axis,) = axes
    return SizeTerm("size", (tensor.debugName(), axis, math.prod(shape) if axis is None else shape[axis]))


def term_of(value: Any) -> SizeTerm | None:
    """Return what a value of the trace that is being recorded is computed by; None if not by sizes alone."""
    node = value.node()
    kind = str(node.kind())
    if kind == "prim::Constant":
        constant = value.toIValue()
        if isinstance(constant, torch.Tensor) and constant.dim() == 0:
            constant = constant.tolist()
        return SizeTerm(None, (constant,)) if type(constant) in (int, bool, float) else None
    if kind in _SIZES:
        return _size_of(node)
    if kind in _SAME:
        return term_of(node.inputsAt(0))
    name = kind.removeprefix("aten::")
    if name not in _ARITHMETIC:
        return None
    operands = [term_of(operand) for operand in node_inputs(node)]
    found = tuple(operand for operand in operands if operand is not None)
    return SizeTerm(name, found) if len(found) == len(operands) else None


def evaluated(term: SizeTerm, shapes: Callable[[str], Sequence[Any]] | None = None) -> Any:
    """Compute a term.

    Args:
        term: The term.
        shapes: Gives the sizes of a tensor of the trace, numbers or symbols, by its name; those of the example if it
            is left out.

    Raises:
        KeyError: If there is no such tensor.
    """
    if term.operator is None:
        return term.operands[0]
    if term.operator == "size":
        tensor, axis, example = term.operands
        if shapes is None:
            return example
        return math.prod(shapes(tensor)) if axis is None else shapes(tensor)[axis]
    return _ARITHMETIC[term.operator](*(evaluated(operand, shapes) for operand in term.operands))
