"""What capture found out about the sizes that a model is right for.

A model that branches on a size, or divides one, is captured for one side of the branch only. torch.export notes such
facts; here they become conditions on the dimensions of the model's inputs, are written into the model's metadata, and
are checked whenever the program runs itself.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.naming import renamed_text
from onnx_fx_export.size_one import RIGHT_FOR_ONE, is_about_one
from onnx_fx_export.torch_private import guard_texts
from onnxops_decomp.graph_lowering import SymbolNames
from onnxops_decomp.inference import Dims

__all__ = ["METADATA_KEY", "SizeConstraints", "size"]

METADATA_KEY = "onnxops.size_constraints"

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SIZE = re.compile(r"(L(?:\[(?:'[^']*'|\d+)\]|\.\w+)+?)\.size\(\)\[(\d+)\]")
_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")


class SizeConstraints:
    """Conditions on the sizes of a model's inputs.

    Attributes:
        conditions: Python comparisons over the names of dimensions, such as ``batch >= 2`` or ``3*length % 4 == 0``.
    """

    def __init__(self, conditions: Iterable[str]) -> None:
        self.conditions = tuple(dict.fromkeys(conditions))
        self._parsed = [(text, ast.parse(text, mode="eval").body) for text in self.conditions]

    @classmethod
    def of(
        cls,
        program: torch.export.ExportedProgram,
        symbols: SymbolNames,
        inputs: Mapping[str, Dims],
        assumptions: Iterable[Any],
        numbers: Collection[str] = (),
    ) -> SizeConstraints:
        """Collect the conditions of a captured program.

        Args:
            program: The program.
            symbols: Names of its symbols.
            inputs: For each input by its structural name, what its dimensions are called.
            assumptions: Further facts, as SymPy relations in the model's symbols.
            numbers: Symbols that are numbers themselves and not sizes.
        """
        conditions = []
        for symbol, bounds in program.range_constraints.items():
            name = str(symbols.renamed(symbol))
            if not name.isidentifier():
                continue
            # torch gives a dimension without a declared bound the range from 2, and still takes sizes 0 and 1.
            if bounds.lower.is_Integer and (int(bounds.lower) > 2 or name in numbers):
                conditions.append(f"{name} >= {int(bounds.lower)}")
            if bounds.upper.is_Integer and int(bounds.upper) < 1 << 62:
                conditions.append(f"{name} <= {int(bounds.upper)}")
        right_for_one = program.graph_module.meta.get(RIGHT_FOR_ONE, False)
        for text in guard_texts(program):
            if right_for_one and is_about_one(text):
                continue
            translated = _translated(text, inputs)
            if translated is not None:
                conditions.append(translated)
        conditions.extend(relation for fact in assumptions if (relation := _relation(fact)) is not None)
        return cls(text for text in conditions if _is_checkable(text))

    def renamed(self, names: Mapping[str, str]) -> SizeConstraints:
        """Return the same conditions over dimensions of other names."""
        return SizeConstraints(renamed_text(text, names) for text in self.conditions)

    def record(self, model: ir.Model) -> None:
        """Write the conditions into the model's metadata."""
        if self.conditions:
            model.metadata_props[METADATA_KEY] = json.dumps(list(self.conditions))

    def check(
        self, graph: ir.Graph, shapes: Mapping[str, Sequence[int]], numbers: Mapping[str, int] | None = None
    ) -> None:
        """Hold the shapes of a call against the declared ones and the conditions.

        Args:
            graph: The model's graph, whose inputs say what dimensions are called.
            shapes: Shape of each input by name.
            numbers: Inputs that are numbers, by their symbols.

        Raises:
            InvalidArgumentError: If a size differs from a static one, two dimensions of one name differ, or a
                condition does not hold.
        """
        sizes: dict[str, int] = dict(numbers or {})
        for value in graph.inputs:
            shape = shapes.get(str(value.name))
            if shape is None or value.shape is None:
                continue
            if len(shape) != len(value.shape):
                raise InvalidArgumentError(f"Input {value.name} has rank {len(shape)}, the model takes {value.shape}.")
            for axis, (size, dim) in enumerate(zip(shape, value.shape.dims, strict=True)):
                name = None if isinstance(dim, int) else dim.value
                wanted = dim if isinstance(dim, int) else sizes.setdefault(name, size) if name else size
                if wanted != size:
                    raise InvalidArgumentError(f"Input {value.name} has size {size} along axis {axis}, not {wanted}.")
        for text, parsed in self._parsed:
            if not _holds(parsed, sizes):
                known = ", ".join(f"{name} = {size}" for name, size in sizes.items())
                raise InvalidArgumentError(
                    f"The model was captured for {text}, but is called with {known}. Export it with an example of "
                    "such sizes, or without code that depends on them."
                )


def size(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return the size that a dimension such as ``batch`` or ``2*length + 1`` has, or None if that is not known."""
    if not _is_checkable(text):
        return None
    try:
        value = _evaluated(ast.parse(text, mode="eval").body, sizes)
    except (KeyError, ZeroDivisionError):
        return None
    return int(value) if value == int(value) else None


def _translated(text: str, inputs: Mapping[str, Dims]) -> str | None:
    """Write a guard over sizes of arguments in the names of dimensions; None if an argument is no input."""
    unknown = False

    def replaced(match: re.Match[str]) -> str:
        nonlocal unknown
        keys = [next(part for part in found if part) for found in _KEY.findall(match[1])]
        dims = inputs.get(".".join(keys), ())
        dim = dims[int(match[2])] if int(match[2]) < len(dims) else None
        text = str(dim) if isinstance(dim, int) else dim.value if dim is not None else None
        unknown = unknown or text is None
        return f"({text})"

    translated = _SIZE.sub(replaced, text)
    return None if unknown or "L[" in translated else translated


def _relation(fact: Any) -> str | None:
    signs = {"Ne": "!=", "Unequality": "!=", "Eq": "==", "Equality": "=="}
    sign = getattr(fact, "rel_op", None) or signs.get(type(fact).__name__)
    return None if sign is None else f"{fact.lhs} {sign} {fact.rhs}"


def _is_checkable(text: str) -> bool:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    allowed = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Constant, ast.Load)
    return all(isinstance(node, allowed) or type(node) in _OPERATORS for node in ast.walk(tree))


def _holds(node: ast.expr, sizes: Mapping[str, int]) -> bool:
    """Evaluate a condition; one that needs a size the call does not give holds."""
    try:
        return bool(_evaluated(node, sizes))
    except (KeyError, ZeroDivisionError):
        return True


def _evaluated(node: ast.expr, sizes: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return sizes[node.id]
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_evaluated(node.operand, sizes))
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_evaluated(node.left, sizes), _evaluated(node.right, sizes))
        case ast.Compare():
            values = [_evaluated(part, sizes) for part in (node.left, *node.comparators)]
            pairs = zip(node.ops, values, values[1:], strict=False)
            return all(_OPERATORS[type(sign)](left, right) for sign, left, right in pairs)
        case _:
            raise KeyError(ast.dump(node))
