"""Conditions on sizes under which a converted graph is right: branches of a trace, dimensions that are squeezed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from onnx_ts_legacy.capture.size_decisions import SizeDecision, evaluated
from onnx_ts_legacy.errors import DynamicDimensionError
from onnx_ts_legacy.graph.parts import block_inputs, block_nodes, node_outputs
from onnx_ts_legacy.graph.sources import source_line
from onnx_ts_legacy.shapes.metadata import Metadata
from onnx_ts_legacy.state.arguments import frozen
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import truth_of_relation
from onnx_ts_legacy.state.values import Tensor
from onnxops_core.exporting import warn_user

__all__ = ["decided_conditions", "squeeze_conditions"]


def squeeze_conditions(metadata: Metadata, node: Any, args: Sequence[Any]) -> list[str]:
    """Return on which sizes it depends that a dimension may be squeezed: the rank of the model's result is fixed.

    Raises:
        DynamicDimensionError: If it is 1 in the example, which would have another rank than the model's result.

    Warns:
        UserWarning: If it is larger there, or not known.
    """
    self, *dims = map(frozen, args)
    if not isinstance(self, Tensor):
        return []
    sizes = self.fake.shape
    asked = dims[0] if dims and isinstance(dims[0], list) else dims or range(len(sizes))
    dynamic = [sizes[dim] for dim in asked if sizes and isinstance(dim, int) and not isinstance(sizes[dim], int)]
    if not dynamic:
        return []
    # A trace knows the rank that the result has in the example.
    rank = node.output().type().dim() if node.output().type().kind() == "TensorType" else None
    asked_axes = {dim % len(sizes) for dim in asked if isinstance(dim, int)}
    left = len(sizes) - sum(isinstance(sizes[axis], int) and sizes[axis] == 1 for axis in asked_axes)
    if any(map(metadata.is_one_in_example, dynamic)) or (rank is not None and rank < left):
        raise DynamicDimensionError(
            "A dimension is squeezed that is 1 in the example and dynamic: the rank of the result would depend on its "
            "size. Declare it static, or squeeze none that can have other sizes."
        )
    source = source_line(node)
    relations = [sympy.Ne(metadata.symbols.expression(size), 1) for size in dynamic]
    checked = all(metadata.is_declared(relation) for relation in relations)
    refused = "The program refuses its size 1" if checked else "The model keeps it, also where its size is 1"
    warn_user(
        f"A dynamic dimension is squeezed{f' at {source}' if source else ''}. {refused}; name the dimensions that are "
        "always 1, or declare this one static."
    )
    return [f"{relation.lhs} != {relation.rhs}" for relation in relations] if checked else []


def decided_conditions(
    context: ConversionContext, graph: Any, decisions: Sequence[SizeDecision]
) -> tuple[dict[str, str], list[str]]:
    """Return the conditions under which what sizes decided in a trace is right.

    Args:
        context: The conversion of the trace.
        graph: The trace.
        decisions: What was decided.

    Returns:
        The conditions, each with its line; and a text for each decision by sizes that follow from no input's.
    """
    conditions: dict[str, str] = {}
    others: dict[str, None] = {}
    shapes = _shapes(context, graph) if decisions else {}
    for decision in decisions:
        relation = _relation(context, decision, shapes)
        if relation == sympy.true:
            continue
        if isinstance(relation, sympy.Rel) and context.metadata.is_declared(relation):
            conditions.setdefault(f"{relation.lhs} {relation.rel_op} {relation.rhs}", decision.place)
        else:
            others[f"A size {decision.use} at {decision.place}, for all inputs as for the example."] = None
    return conditions, list(others)


def _shapes(context: ConversionContext, graph: Any) -> dict[str, Sequence[Any]]:
    """Return the sizes of the tensors of a graph by their names in it."""
    variables = [*block_inputs(graph), *(output for node in block_nodes(graph) for output in node_outputs(node))]
    values = ((each.debugName(), context.env.get(each.unique())) for each in variables)
    return {name: value.fake.shape for name, value in values if isinstance(value, Tensor)}


def _relation(
    context: ConversionContext, decision: SizeDecision, shapes: Mapping[str, Sequence[Any]]
) -> sympy.Basic | None:
    """Return what holds where a branch is taken as in the example; None if that is not known."""
    try:
        number = evaluated(decision.term, shapes.__getitem__)
    except KeyError:
        return None
    answer = number if isinstance(number, torch.SymBool | bool) else number != 0
    truth = truth_of_relation(context, answer)
    if isinstance(truth, bool):
        return sympy.sympify(truth)
    return truth.relation if decision.answer else sympy.Not(truth.relation)
