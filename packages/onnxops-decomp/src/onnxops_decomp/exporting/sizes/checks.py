"""Conditions on sizes as nodes of the model, so that every runtime refuses sizes that break one.

ONNX has no operator that fails on demand. A Gather that reads place 0 of one number where the condition holds, and
place 1 where it does not, fails in its node, which is named after the condition. What it reads, 0, is added to the
shape to which the inputs are reshaped first: nothing moves, and no optimizer can drop it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from onnxops_core.exporting import warn_user
from onnxops_decomp.builder.expressions import emit_expression
from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.builder.scope import axis_size, remove_unused
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.exporting.sizes.constraints import SizeConstraints
from onnxops_decomp.exporting.sizes.expressions import names_in_size, parsed_size, unevaluated

__all__ = ["add_size_checks"]

_PREFIX = "size_check"


def add_size_checks(model: ir.Model, constraints: SizeConstraints) -> None:
    """Write the conditions of a model into its graph.

    Args:
        model: The model, whose inputs say what dimensions are called.
        constraints: Its conditions.

    Warns:
        UserWarning: If a condition cannot be written as nodes.
    """
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
        self._op = OpBuilder(graph.opset_imports[""])
        self._zeros: list[ir.Value] = []
        own = {_own(i, axis): (v, axis) for i, v in enumerate(graph.inputs) for axis in range(len(v.shape or ()))}
        for name, (value, axis) in {**own, **_sources(graph)}.items():
            self._op.context.symbols[name] = partial(axis_size, value, axis)

    def add(self, text: str) -> bool:
        """Write a condition; False if it cannot be written."""
        op, tree = self._op, parsed_size(text)
        if tree is None or not names_in_size(tree) <= op.context.symbols.keys():
            return False
        try:
            holds = emit_expression(op, unevaluated(tree))
        except LoweringError:
            return False
        # Place 0 of one number if the condition holds, else place 1, which there is not.
        zero: ir.Value = op.Gather([0], op.cast(op.Not(holds), ir.DataType.INT64), axis=0)
        node = zero.producer()
        assert node is not None
        node.name = f"{_PREFIX}: {text}"
        self._zeros.append(zero)
        return True

    def apply(self) -> None:
        """Let the inputs be read through the checks."""
        if not self._zeros:
            return
        op = self._op
        total, *others = self._zeros
        for zero in others:
            total = op.Add(total, zero)
        checked: dict[ir.Value, ir.Value] = {}
        for value in self._graph.inputs:
            if any(not isinstance(dim, int) for dim in value.shape or ()):
                checked[value] = result = op.Reshape(value, op.Add(op.Shape(value), total), allowzero=1)
                result.shape = value.shape
        nodes = list(remove_unused(op.scope.nodes, set(checked.values())))
        constants = list(op.context.constants.used())
        _rename(nodes, constants)
        for constant in constants:
            self._graph.register_initializer(constant)
        own = {id(node) for node in nodes}
        for value, result in checked.items():
            for user, position in list(value.uses()):
                if id(user) not in own:
                    user.replace_input_with(position, result)
        first = next(iter(self._graph), None)
        if first is None:
            self._graph.extend(nodes)
        else:
            self._graph.insert_before(first, nodes)


def _rename(nodes: list[ir.Node], constants: list[ir.Value]) -> None:
    """Give names of their own to nodes and values, which the builder numbers as if they were the whole model."""
    for index, value in enumerate([*constants, *(output for node in nodes for output in node.outputs)]):
        value.name = f"{_PREFIX}_{index}"
    for index, node in enumerate(nodes):
        if not (node.name or "").startswith(_PREFIX):
            node.name = f"{_PREFIX}: {node.op_type} {index}"
