"""Conditions on sizes as nodes of the model, so that every runtime refuses sizes that break one.

ONNX has no operator that fails on demand. A Gather that reads place 0 of one number where the condition holds, and
place 1 where it does not, fails in its node, which is named after the condition. What it reads, 0, is added to the
shape to which the inputs are reshaped first: nothing moves, and no optimizer can drop it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.sizes.constraints import SizeConstraints
from onnxops_decomp.exporting.sizes.expressions import names_in_size, parsed_size

__all__ = ["LOWEST_OPSET", "add_size_checks"]

LOWEST_OPSET = 13
_PREFIX = "size_check"
_OPERATORS: dict[type, str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Mod: "Mod",
    ast.Eq: "Equal",
    ast.Lt: "Less",
    ast.LtE: "LessOrEqual",
    ast.Gt: "Greater",
    ast.GtE: "GreaterOrEqual",
    ast.And: "And",
    ast.Or: "Or",
}
_FUNCTIONS = {"max": "Max", "min": "Min"}


def add_size_checks(model: ir.Model, constraints: SizeConstraints) -> None:
    """Write the conditions of a model into its graph.

    Args:
        model: The model, whose inputs say what dimensions are called.
        constraints: Its conditions.

    Raises:
        InvalidArgumentError: If its opset is below 13.

    Warns:
        UserWarning: If a condition cannot be written as nodes.
    """
    if model.opset_imports[""] < LOWEST_OPSET:
        raise InvalidArgumentError(
            f"size_checks needs opset {LOWEST_OPSET}, and opset {model.opset_imports['']} is asked for."
        )
    conditions = [*constraints.conditions, *_equal_dimensions(model.graph)]
    if not conditions:
        return
    checks = _Checks(model.graph)
    unwritten = [text for text in conditions if not checks.add(text)]
    checks.apply()
    if unwritten:
        listed = "\n".join(f"  {text}" for text in unwritten)
        text = f"The model's graph does not check these conditions, but its program does:\n{listed}"
        warn_user(text)


def _equal_dimensions(graph: ir.Graph) -> Iterator[str]:
    """Yield the conditions that follow from dimensions of one name, and from those that are expressions."""
    for index, axis, name in _dimensions(graph):
        yield f"{_own(index, axis)} == {name}"


def _own(index: int, axis: int) -> str:
    return f"input{index}_axis{axis}"


def _dimensions(graph: ir.Graph) -> Iterator[tuple[int, int, str]]:
    """Yield the dimensions whose size another one gives: input, axis and expression."""
    first = set(_sources(graph))
    seen: set[str] = set()
    for index, value in enumerate(graph.inputs):
        for axis, dim in enumerate(value.shape or ()):
            name = None if isinstance(dim, int) else dim.value
            tree = None if name is None else parsed_size(name)
            if name is None or tree is None or not names_in_size(tree) <= first:
                continue
            if name.isidentifier() and name not in seen:
                seen.add(name)
                continue
            yield index, axis, name


def _sources(graph: ir.Graph) -> dict[str, tuple[ir.Value, int]]:
    """Return for each named dimension the input and axis that gives it first."""
    found: dict[str, tuple[ir.Value, int]] = {}
    for value in graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int) and dim.value is not None and dim.value.isidentifier():
                found.setdefault(dim.value, (value, axis))
    return found


class _Checks:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._inputs = [v for v in graph.inputs if any(not isinstance(dim, int) for dim in v.shape or ())]
        own = {_own(i, axis): (v, axis) for i, v in enumerate(graph.inputs) for axis in range(len(v.shape or ()))}
        self._sources: Mapping[str, tuple[ir.Value, int]] = {**own, **_sources(graph)}
        self._nodes: list[ir.Node] = []
        self._shapes: dict[ir.Value, ir.Value] = {}
        self._zero: ir.Value | None = None
        self._name = ""

    def add(self, text: str) -> bool:
        """Write a condition; False if it cannot be written."""
        tree, count = parsed_size(text), len(self._nodes)
        if tree is None or not names_in_size(tree) <= self._sources.keys():
            return False
        self._name = f"{_PREFIX}: {text}"
        try:
            holds = self._emit(tree)
        except (KeyError, TypeError):
            del self._nodes[count:]
            self._shapes = {value: shape for value, shape in self._shapes.items() if shape.producer() in self._nodes}
            return False
        # Place 0 of one number if the condition holds, else place 1, which there is not.
        place = self._node("Cast", self._node("Not", holds), to=ir.DataType.INT64.value)
        zero = self._node("Gather", self._constant(0), place, name=self._name, axis=0)
        self._zero = zero if self._zero is None else self._node("Add", self._zero, zero)
        return True

    def apply(self) -> None:
        """Let the inputs be read through the checks."""
        if self._zero is None:
            return
        uses = {value: list(value.uses()) for value in self._inputs}
        own = {id(node) for node in self._nodes}
        for value in self._inputs:
            self._name = f"{_PREFIX}: {value.name}"
            shape = self._node("Add", self._shape(value), self._zero)
            checked = self._node("Reshape", value, shape)
            if self._graph.opset_imports[""] > LOWEST_OPSET:
                node = checked.producer()
                assert node is not None
                node.attributes.add(ir.AttrInt64("allowzero", 1))
            checked.type, checked.shape = value.type, value.shape
            for user, position in uses[value]:
                if id(user) not in own:
                    user.replace_input_with(position, checked)
        first = next(iter(self._graph), None)
        if first is None:
            self._graph.extend(self._nodes)
        else:
            self._graph.insert_before(first, self._nodes)

    def _emit(self, node: ast.expr) -> ir.Value:
        """Write an expression as an INT64 vector of one number, a condition as a BOOL one.

        Raises:
            KeyError: If there is no operator for a part of it.
            TypeError: If a number is not whole.
        """
        match node:
            case ast.Constant(value=int(number)):
                return self._constant(number)
            case ast.Name(id=name):
                value, axis = self._sources[name]
                return self._node("Gather", self._shape(value), self._constant(axis), axis=0)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._node("Neg", self._emit(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._node("Not", self._emit(operand))
            case ast.BinOp(op=ast.FloorDiv(), left=left, right=right):
                # Less its remainder it is a multiple, so that it does not matter how Div rounds.
                dividend, divisor = self._emit(left), self._emit(right)
                return self._node("Div", self._node("Sub", dividend, self._node("Mod", dividend, divisor)), divisor)
            case ast.BinOp(op=operator, left=left, right=right):
                return self._node(_OPERATORS[type(operator)], self._emit(left), self._emit(right))
            case ast.BoolOp(op=operator, values=values):
                return self._joined(_OPERATORS[type(operator)], values)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._joined(_FUNCTIONS[name], arguments)
            case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
                return self._node("Not", self._node("Equal", self._emit(left), self._emit(right)))
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                return self._node(_OPERATORS[type(sign)], self._emit(left), self._emit(right))
        raise KeyError(ast.dump(node))

    def _joined(self, op_type: str, parts: list[ast.expr]) -> ir.Value:
        first, *others = map(self._emit, parts)
        for other in others:
            first = self._node(op_type, first, other)
        return first

    def _shape(self, value: ir.Value) -> ir.Value:
        if value not in self._shapes:
            self._shapes[value] = self._node("Shape", value)
        return self._shapes[value]

    def _constant(self, number: int) -> ir.Value:
        return self._node("Constant", value=ir.tensor(np.array([number], np.int64)))

    def _node(self, op_type: str, *inputs: ir.Value, name: str = "", **attributes: int | ir.TensorProtocol) -> ir.Value:
        index = len(self._nodes)
        node = ir.node(op_type, inputs, attributes, name=name or f"{self._name} ({index})")
        node.outputs[0].name = f"{_PREFIX}_{index}"
        self._nodes.append(node)
        return node.outputs[0]
