"""Branches on sizes in a trace: which way the example went, and by which number of the traced sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from onnx_ts_legacy.graph.parts import node_inputs

__all__ = ["SizeDecision", "SizeTerm", "evaluated", "term_of"]

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
# They give their first operand.
_SAME = frozenset(("aten::Int", "aten::detach", "aten::to", "prim::NumToTensor"))


class SizeTerm(NamedTuple):
    """A number that follows from sizes alone.

    Attributes:
        operator: What computes it; ``"size"`` for the size of a tensor, None for a number.
        operands: Terms; else the name of the tensor in the trace with the axis, or None for all; or the number.
    """

    operator: str | None
    operands: tuple[Any, ...]


class SizeDecision(NamedTuple):
    """A truth value that a size decided while the model was traced."""

    term: SizeTerm
    answer: bool
    place: str


def term_of(value: Any) -> SizeTerm | None:
    """Return what a value of the trace that is being recorded is computed by; None if not by sizes alone."""
    node = value.node()
    kind = str(node.kind())
    if kind == "prim::Constant":
        constant = value.toIValue()
        if isinstance(constant, torch.Tensor) and constant.dim() == 0:
            constant = constant.tolist()
        return SizeTerm(None, (constant,)) if type(constant) in (int, bool, float) else None
    if kind in ("aten::size", "aten::numel"):
        axes = [operand.toIValue() for operand in node_inputs(node)[1:]] or [None]
        tensor = node.inputsAt(0)
        # Ids change when the trace is finished, names do not.
        if not tensor.debugName().startswith(_NAME):
            tensor.setDebugName(f"{_NAME}{tensor.unique()}")
        return SizeTerm("size", (tensor.debugName(), *axes))
    if kind in _SAME:
        return term_of(node.inputsAt(0))
    name = kind.removeprefix("aten::")
    if name not in _ARITHMETIC:
        return None
    operands = [term_of(operand) for operand in node_inputs(node)]
    found = tuple(operand for operand in operands if operand is not None)
    return SizeTerm(name, found) if len(found) == len(operands) else None


def evaluated(term: SizeTerm, shapes: Callable[[str], Sequence[Any]]) -> Any:
    """Compute a term.

    Args:
        term: The term.
        shapes: Gives the sizes of a tensor of the trace, numbers or symbols, by its name.

    Raises:
        KeyError: If there is no such tensor.
    """
    if term.operator is None:
        return term.operands[0]
    if term.operator == "size":
        tensor, axis = term.operands
        return math.prod(shapes(tensor)) if axis is None else shapes(tensor)[axis]
    return _ARITHMETIC[term.operator](*(evaluated(operand, shapes) for operand in term.operands))
