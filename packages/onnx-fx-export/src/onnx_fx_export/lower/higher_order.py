"""Higher-order operators: control flow and regions that torch keeps as nested graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import sympy
import torch

from onnx_fx_export.capture import autograd_function
from onnx_fx_export.torch_private import is_decided_by_data
from onnxops_decomp import LoweringError, OpBuilder
from onnxops_decomp.exporting import (
    UNKNOWN_DIM,
    Dims,
    GraphLowering,
    NodeHandler,
    dims_of,
    is_complex,
    mark_complex,
    mark_number,
)

__all__ = ["HANDLERS"]

_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL


def _set_grad_enabled(lowering: GraphLowering, node: torch.fx.Node) -> Any:
    """Lower the nested graph: a model computes no gradients."""
    _, graph_module, *operands = lowering.resolve(node.args)
    return lowering.nested().run(graph_module, operands)


def _value(op: OpBuilder, result: Any) -> ir.Value:
    return result if isinstance(result, ir.Value) else op.constant(result)


def _scalar(op: OpBuilder, value: ir.Value) -> ir.Value:
    """Return a one-element value as 0-d, as If and Loop want their conditions."""
    return value if op.rank(value) == 0 else op.Reshape(value, op.vector([]))


def _like(op: OpBuilder, value: ir.Value, name: str, dims: Dims | None) -> ir.Value:
    """Add an input to a nested graph that stands for ``value``."""
    result = op.input(name, op.dtype(value), dims)
    result.meta.update(value.meta)
    return result


def _results(outputs: Sequence[ir.Value], like: Sequence[ir.Value], shapes: Sequence[Dims | None]) -> list[ir.Value]:
    """Give the outputs of a control flow node the types of the values that they take in the nested graph."""
    for output, inner, dims in zip(outputs, like, shapes, strict=True):
        output.type = inner.type
        output.shape = None if dims is None else ir.Shape(dims)
        if is_complex(inner):
            mark_complex(output)
    return list(outputs)


def _check_dtypes(what: str, first: Sequence[ir.Value], second: Sequence[ir.Value]) -> None:
    for index, (a, b) in enumerate(zip(first, second, strict=True)):
        if a.dtype != b.dtype:
            raise LoweringError(f"{what} {index} has dtype {a.dtype} on one side and {b.dtype} on the other.")


def _cond(lowering: GraphLowering, node: torch.fx.Node) -> Any:
    predicate, true_graph, false_graph, operands = lowering.resolve(node.args)
    if not isinstance(predicate, ir.Value):
        return lowering.nested().run(true_graph if predicate else false_graph, operands)
    names = lowering.op.context.names
    branches = []
    for graph_module, name in ((true_graph, "then"), (false_graph, "else")):
        op = lowering.op.subgraph()
        results = lowering.nested(op).run(graph_module, operands)
        branches.append(op.graph([_value(op, result) for result in results], name=names.new(name)))
    then_branch, else_branch = branches
    _check_dtypes("Result of torch.cond", then_branch.outputs, else_branch.outputs)
    outputs = lowering.op.emit_many(
        "If",
        len(then_branch.outputs),
        _scalar(lowering.op, predicate),
        then_branch=then_branch,
        else_branch=else_branch,
    )
    return _results(outputs, then_branch.outputs, [_common_dims(*pair) for pair in _pairs(then_branch, else_branch)])


def _pairs(first: ir.Graph, second: ir.Graph) -> list[tuple[ir.Value, ir.Value]]:
    return list(zip(first.outputs, second.outputs, strict=True))


def _common_dims(first: ir.Value, second: ir.Value) -> Dims | None:
    a, b = dims_of(first), dims_of(second)
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y and x != UNKNOWN_DIM else UNKNOWN_DIM for x, y in zip(a, b, strict=True))


def _while_loop(lowering: GraphLowering, node: torch.fx.Node) -> Any:
    condition_graph, body_graph, carried, extra = lowering.resolve(node.args)
    start = _condition(lowering, lowering.op, condition_graph, [*carried, *extra])

    def run(body: OpBuilder, number: ir.Value, inner: Sequence[ir.Value]) -> list[ir.Value]:
        for before, value in zip(carried, inner, strict=True):
            if not isinstance(before, ir.Value):
                mark_number(value)
        following = [_value(body, v) for v in lowering.nested(body).run(body_graph, [*inner, *extra])]
        return [_condition(lowering, body, condition_graph, [*following, *extra]), *following]

    return _loop(lowering, "while", carried, run, start=start)


def _loop(
    lowering: GraphLowering,
    name: str,
    carried: Sequence[Any],
    run: Callable[[OpBuilder, ir.Value, Sequence[ir.Value]], list[ir.Value]],
    *,
    count: ir.Value | None = None,
    start: ir.Value | None = None,
) -> list[ir.Value]:
    """Write a Loop.

    Args:
        lowering: The lowering of the graph around it.
        name: What loops.
        carried: Values before the first iteration.
        run: Given a builder, the number of an iteration and the values before it, returns whether there is another one,
            the values after it, and what it adds to results that are stacked.
        count: How many iterations there are at most.
        start: Whether there is any.

    Returns:
        The values after the last iteration, and the stacked results.
    """
    op = lowering.op
    initial = [_value(op, value) for value in carried]
    body = op.subgraph()
    number = body.input("iteration", _INT64, ())
    body.input("condition", _BOOL, ())
    inner = [_like(body, value, "carried", dims_of(value)) for value in initial]
    again, *results = run(body, number, inner)
    _check_dtypes(f"Carried value of {name}", initial, results[: len(initial)])
    graph = body.graph([again, *results], name=op.context.names.new(f"{name}_body"))
    outputs = op.emit_many("Loop", len(results), count, start, *initial, body=graph)
    stacked = [None if (dims := dims_of(value)) is None else (UNKNOWN_DIM, *dims) for value in results[len(initial) :]]
    return _results(outputs, results, [*(dims_of(value) for value in inner), *stacked])


def _condition(lowering: GraphLowering, op: OpBuilder, graph_module: torch.fx.GraphModule, inputs: Any) -> ir.Value:
    """Lower the condition of a loop; its nodes are kept apart from those of the body, which may have the same names."""
    loop = op.context.origin.get("onnxops.fx_node", "")
    with op.origin(fx_node=f"{loop}/condition"):
        return _scalar(op, _value(op, lowering.nested(op).run(graph_module, inputs)))


def _scan(lowering: GraphLowering, node: torch.fx.Node) -> Any:
    combine_graph, carried, scanned, *rest = lowering.resolve(node.args)
    extra = rest[-1] if rest else ()
    length = node.args[2][0].meta["val"].shape[0]  # type: ignore[index, union-attr]
    if carried and isinstance(length, torch.SymInt) and _may_be_none(length.node.expr):
        return _looped(lowering, combine_graph, carried, scanned, extra)
    return _scanned(lowering, combine_graph, carried, scanned, extra)


def _may_be_none(length: sympy.Expr) -> bool:
    """Tell whether there may be no rows: as the data decide, or where sizes are 1, as there are none of ``n - 1``."""
    if is_decided_by_data(length):
        return True
    return bool(length.xreplace(dict.fromkeys(length.free_symbols, sympy.Integer(1))) <= 0)


def _looped(
    lowering: GraphLowering,
    graph_module: torch.fx.GraphModule,
    carried: Sequence[Any],
    scanned: Sequence[ir.Value],
    extra: Sequence[Any],
) -> list[ir.Value]:
    """Run a graph over rows that may be none, for which ONNX Runtime has no Scan."""

    def run(body: OpBuilder, number: ir.Value, inner: Sequence[ir.Value]) -> list[ir.Value]:
        rows = [body.Gather(value, number, axis=0) for value in scanned]
        results = lowering.nested(body).run(graph_module, [*inner, *rows, *extra])
        return [body.constant(True), *(_value(body, value) for value in results)]

    return _loop(lowering, "rows", carried, run, count=lowering.op.Gather(lowering.op.Shape(scanned[0]), 0, axis=0))


def _map(lowering: GraphLowering, node: torch.fx.Node) -> Any:
    body_graph, scanned, extra = lowering.resolve(node.args)
    return _scanned(lowering, body_graph, [], scanned, extra)


def _scanned(
    lowering: GraphLowering,
    graph_module: torch.fx.GraphModule,
    carried: Sequence[Any],
    scanned: Sequence[ir.Value],
    extra: Sequence[Any],
) -> list[ir.Value]:
    """Run a graph over the first dimension of ``scanned``: ONNX's Scan."""
    op = lowering.op
    initial = [_value(op, value) for value in carried]
    body = op.subgraph()
    inner = [_like(body, value, "carried", dims_of(value)) for value in initial]
    slices = [_like(body, value, "slice", (dims_of(value) or ())[1:]) for value in scanned]
    results = [_value(body, v) for v in lowering.nested(body).run(graph_module, [*inner, *slices, *extra])]
    _check_dtypes("Carried value of scan", initial, results[: len(initial)])
    graph = body.graph(results, name=op.context.names.new("scan_body"))
    outputs = op.emit_many("Scan", len(results), *initial, *scanned, body=graph, num_scan_inputs=len(scanned))
    length = (dims_of(scanned[0]) or (UNKNOWN_DIM,))[0]
    shapes: list[Dims | None] = [dims_of(value) for value in inner]
    for value in results[len(initial) :]:
        dims = dims_of(value)
        shapes.append(None if dims is None else (length, *dims))
    return _results(outputs, results, shapes)


def _associative_scan(lowering: GraphLowering, node: torch.fx.Node) -> Any:
    """Combine slice after slice; a flag tells the first, which is a result as it is."""
    combine_graph, scanned, extra = lowering.resolve(node.args)
    op = lowering.op
    initial = [op.constant(False), *(op.Gather(value, 0, axis=0) for value in scanned)]
    body = op.subgraph()
    started, *before = [_like(body, value, "carried", dims_of(value)) for value in initial]
    slices = [_like(body, value, "slice", (dims_of(value) or ())[1:]) for value in scanned]
    combined = [_value(body, v) for v in lowering.nested(body).run(combine_graph, [*before, *slices, *extra])]
    _check_dtypes("Result of associative_scan", before, combined)
    results = [body.Where(started, new, first) for new, first in zip(combined, slices, strict=True)]
    graph = body.graph([body.constant(True), *results, *results], name=op.context.names.new("scan_body"))
    count = 1 + 2 * len(scanned)
    outputs = op.emit_many("Scan", count, *initial, *scanned, body=graph, num_scan_inputs=len(scanned))
    return _results(outputs[-len(scanned) :], results, [dims_of(value) for value in scanned])


HANDLERS: Mapping[Any, NodeHandler] = {
    autograd_function.operator(): autograd_function.lower_call,
    torch.ops.higher_order.wrap_with_set_grad_enabled: _set_grad_enabled,
    torch.ops.higher_order.cond: _cond,
    torch.ops.higher_order.while_loop: _while_loop,
    torch.ops.higher_order.scan: _scan,
    torch.ops.higher_order.map_impl: _map,
    torch.ops.higher_order.associative_scan: _associative_scan,
}
