"""Higher-order operators: control flow and regions that torch keeps as nested graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
import torch

from onnxops_decomp import LoweringError, OpBuilder
from onnxops_decomp.graph_lowering import GraphLowering, NodeHandler

__all__ = ["HANDLERS"]


def _inlined(skip: int) -> NodeHandler:
    """Handler of an operator that runs a nested graph in some mode that ONNX has no notion of.

    Args:
        skip: Number of mode arguments before the graph.
    """

    def handler(lowering: GraphLowering, node: torch.fx.Node) -> Any:
        args = lowering.resolve(node.args)
        inner = lowering.nested()
        return inner.run(args[skip], args[skip + 1 :])

    return handler


def _branch(lowering: GraphLowering, graph_module: torch.fx.GraphModule, operands: Any, name: str) -> ir.Graph:
    op = lowering.op.subgraph()
    results = lowering.nested(op).run(graph_module, operands)
    return op.graph([_value(op, result) for result in results], name=name)


def _value(op: OpBuilder, result: Any) -> ir.Value:
    return result if isinstance(result, ir.Value) else op.constant(result)


def _cond(lowering: GraphLowering, node: torch.fx.Node) -> Any:
    predicate, true_graph, false_graph, operands = lowering.resolve(node.args)
    if not isinstance(predicate, ir.Value):
        return lowering.nested().run(true_graph if predicate else false_graph, operands)
    names = lowering.op.context.names
    then_branch = _branch(lowering, true_graph, operands, names.new("then"))
    else_branch = _branch(lowering, false_graph, operands, names.new("else"))
    condition = lowering.op.Reshape(predicate, lowering.op.vector([])) if lowering.op.rank(predicate) else predicate
    outputs = lowering.op.emit_many(
        "If", len(then_branch.outputs), condition, then_branch=then_branch, else_branch=else_branch
    )
    for output, branch in zip(outputs, then_branch.outputs, strict=True):
        output.type = branch.type
    if any(x.dtype != y.dtype for x, y in zip(then_branch.outputs, else_branch.outputs, strict=True)):
        raise LoweringError("The branches of torch.cond return different dtypes.")
    return list(outputs)


HANDLERS: Mapping[Any, NodeHandler] = {
    torch.ops.higher_order.wrap_with_set_grad_enabled: _inlined(1),
    torch.ops.higher_order.wrap_with_autocast: _inlined(4),
    torch.ops.higher_order.cond: _cond,
}
