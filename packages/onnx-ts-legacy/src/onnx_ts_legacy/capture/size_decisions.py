"""What sizes decide in a trace, in branches and as Python numbers: what it was for the example, and by which sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch

from onnx_ts_legacy.graph.parts import node_inputs

__all__ = ["SizeDecision", "SizeTerm", "conditions_of", "evaluated", "sizes_behind"]

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b, alpha=1: a + alpha * b,
    "sub": lambda a, b, alpha=1: a - alpha * b,
    "rsub": lambda a, b, alpha=1: b - alpha * a,
    "mul": operator.mul,
    "neg": operator.neg,
    "div": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "abs": abs,
    **dict.fromkeys(("__and__", "bitwise_and"), operator.and_),
    **dict.fromkeys(("__or__", "bitwise_or"), operator.or_),
    **dict.fromkeys(("__xor__", "bitwise_xor"), operator.xor),
    **dict.fromkeys(("__lshift__", "bitwise_left_shift"), operator.lshift),
    **dict.fromkeys(("__rshift__", "bitwise_right_shift"), operator.rshift),
    "pow": operator.pow,
    "minimum": torch.sym_min,
    "maximum": torch.sym_max,
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
# They take truth values as such.
_LOGICAL = frozenset(("__and__", "bitwise_and", "__or__", "bitwise_or", "__xor__", "bitwise_xor"))
_SIZES = ("aten::size", "aten::numel")
# What ``min`` and ``max`` compare: where both are equal, it does not matter which one is the result.
_OR_EQUAL = {"gt": "ge", "lt": "le"}
# They give their first operand.
_SAME = frozenset(("aten::Int", "aten::clone", "aten::detach", "aten::to", "prim::NumToTensor"))


class SizeTerm(NamedTuple):
    """A number that follows from sizes alone.

    Attributes:
        operator: What computes it; ``"size"`` for the size of a tensor, None for a number.
        operands: Terms; else the id of the tensor in the trace, the axis, or None for all, and the size in the
            example; or the number.
    """

    operator: str | None
    operands: tuple[Any, ...]


class SizeDecision(NamedTuple):
    """What Python read while the model was traced, and sizes alone decide.

    Attributes:
        answer: What it was in the example.
        place: The line.
        home: The name of the module of Python that it stands in.
        compares: Whether ``min`` or ``max`` asked.
        of_strides: Whether it is the strides of a tensor, or whether that is contiguous, and not a number.
        memory_format: In which order a tensor is contiguous.
        matters: Whether the model gives something else for another answer.
    """

    answer: Any
    place: str
    home: str
    compares: bool = False
    of_strides: bool = False
    memory_format: torch.memory_format = torch.contiguous_format
    matters: bool = True

    @property
    def is_of_order(self) -> bool:
        """Whether the question is if a tensor is contiguous."""
        return self.of_strides and isinstance(self.answer, bool)

    @property
    def use(self) -> str:
        """What it is used for there."""
        return "chooses a branch" if isinstance(self.answer, bool) else "is used as a Python number"


def conditions_of(value: Any, decision: SizeDecision) -> list[tuple[SizeTerm, bool]]:
    """Return what has to hold for a value of a trace to be what Python read: terms, and whether each is true.

    Args:
        value: The value, which follows from sizes alone.
        decision: What was read.
    """
    term, answer = term_of(value), decision.answer
    if term is not None and _counts_truths(term):
        # No relation of sizes says it; the sizes themselves do.
        term = None
    if term is not None and isinstance(answer, bool) and bool(evaluated(term)) == answer:
        if decision.compares and answer:
            term = SizeTerm(_OR_EQUAL.get(str(term.operator), term.operator), term.operands)
        return [(term, answer)]
    # A text has fewer digits than a double.
    if (
        term is not None
        and isinstance(answer, int | float)
        and float(answer).is_integer()
        and evaluated(term) == answer
    ):
        return [(_equal(term, answer), True)]
    return [(_equal(size, evaluated(size)), True) for size in sizes_behind(value)]


def _counts_truths(term: SizeTerm) -> bool:
    """Tell whether a truth value is a number in a term, as in ``(n > 2) + 1``."""
    if term.operator in (None, "size"):
        return False
    counted = term.operator not in _LOGICAL and any(type(evaluated(operand)) is bool for operand in term.operands)
    return counted or any(map(_counts_truths, term.operands))


def _equal(term: SizeTerm, number: float) -> SizeTerm:
    return SizeTerm("eq", (term, SizeTerm(None, (int(number) if number == int(number) else number,))))


def sizes_behind(value: Any, inputs: Collection[int] = ()) -> list[SizeTerm]:
    """Return the sizes that a value of a trace follows from; none if also from one of the model's inputs."""
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
    shape = tensor.type().sizes()
    (axis,) = axes
    return SizeTerm("size", (tensor.unique(), axis, math.prod(shape) if axis is None else shape[axis]))


def term_of(value: Any) -> SizeTerm | None:
    """Return what a value of a trace is computed by; None if not by sizes alone."""
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


def evaluated(term: SizeTerm, shapes: Callable[[int], Sequence[Any]] | None = None) -> Any:
    """Compute a term.

    Args:
        term: The term.
        shapes: Gives the sizes of a tensor of the trace, numbers or symbols, by its id; those of the example if it is
            left out.

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
