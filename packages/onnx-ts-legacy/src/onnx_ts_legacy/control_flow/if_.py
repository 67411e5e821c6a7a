"""``prim::If``: taken here where the condition is known, an ONNX If where it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import sympy
import torch

from onnx_ts_legacy.control_flow.junctions import BranchJunction, SharedContents
from onnx_ts_legacy.control_flow.plans import Plan
from onnx_ts_legacy.errors import ProgramRaisesError
from onnx_ts_legacy.graph.parts import node_branches
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value, truth_of
from onnx_ts_legacy.state.slots import unranked
from onnx_ts_legacy.state.values import Changes, Mutable, RuntimeBool
from onnxops_decomp import OpBuilder
from onnxops_decomp.exporting import remove_unused

__all__ = ["Branch", "abandon", "convert_if"]


@dataclasses.dataclass
class Branch:
    """A converted branch.

    Attributes:
        op: Builder of its graph.
        results: What it returns.
        changes: What it leaves in objects that are older than it.
        raises: The exception that it always ends with, or None.
    """

    op: OpBuilder
    results: list[Any] = dataclasses.field(default_factory=list)
    changes: Changes = dataclasses.field(default_factory=dict)
    raises: ProgramRaisesError | None = None


def convert_if(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Convert a ``prim::If`` and return what it returns."""
    condition = truth_of(context, args[0])
    blocks = node_branches(node)
    if isinstance(condition, bool):
        return _only(context.run_block(blocks[0 if condition else 1], []))
    junction = BranchJunction(context)
    branches = [_run_branch(context, blocks[1 - truth], condition, bool(truth)) for truth in (1, 0)]
    if branches[0].raises and branches[1].raises:
        raise branches[0].raises
    for side, branch in enumerate(branches):
        if branch.raises:
            # What raises is taken as a check: the model goes on as if it had passed.
            abandon(branch.op)
            abandon(branches[1 - side].op)
            _narrow(context, condition, side == 1)
            return _only(context.run_block(blocks[1 - side], []))
    return _only(_merge(context, condition, branches, junction))


def _only(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else results


def _run_branch(context: ConversionContext, block: Any, condition: RuntimeBool, truth: bool) -> Branch:
    branch = Branch(context.op.subgraph())
    assuming = context.metadata.assuming(condition.relation, truth)
    with context.heap.branch() as changes, context.writing_to(branch.op), assuming:
        _narrow(context, condition, truth)
        try:
            branch.results = context.run_block(block, [])
        except ProgramRaisesError as error:
            branch.raises = error
    branch.changes = changes
    return branch


def abandon(op: OpBuilder) -> None:
    """Take the nodes of a branch away again, so that what they use is not kept for them."""
    list(remove_unused(op.scope.nodes, set()))


def _narrow(context: ConversionContext, condition: RuntimeBool, truth: bool) -> None:
    """Drop the forms of tensors that contradict the condition of the branch that is entered."""
    relation = condition.relation
    if relation is None:
        return
    for symbol in relation.free_symbols:
        case = context.cases.get(str(symbol))
        if case is None:
            continue
        tensor, numbers = case
        if len(numbers) != len(tensor.forms):
            continue
        kept = [
            form
            for form, number in zip(tensor.forms, numbers, strict=True)
            if _decided(relation, symbol, number) is not (not truth)
        ]
        if kept and len(kept) < len(tensor.forms):
            context.heap.write(tensor, (tensor.node, tuple(kept)))


def _decided(relation: sympy.Basic, symbol: sympy.Basic, number: Any) -> bool | None:
    """Return what a relation becomes with ``number`` for ``symbol``, or None if other sizes decide it."""
    if number is None:
        return None
    if isinstance(number, torch.SymInt):
        # A size that is not known to be 0 is taken to tell a tensor from an empty one.
        number = sympy.Symbol(f"size_{number.node.expr}", integer=True, positive=True)
    decided = relation.xreplace({symbol: sympy.sympify(number)})
    if decided in (sympy.true, sympy.false):
        return bool(decided)
    return None


def _merge(
    context: ConversionContext, condition: RuntimeBool, branches: list[Branch], junction: BranchJunction
) -> list[Any]:
    targets = list(dict.fromkeys((*branches[0].changes, *branches[1].changes)))
    shared = SharedContents()
    sides: list[list[Plan]] = []
    for branch in branches:
        with _reentered(context, branch):
            states = [target.state for target in targets]
            left = [junction.of_object(target, state) for target, state in zip(targets, states, strict=True)]
            sides.append([*map(junction.of_variable, branch.results), *left])
            shared.note([*branch.results, *states])
    plans = [junction.join(a, b) for a, b in zip(*sides, strict=True)]
    values = iter(_emit_if(context, condition, branches, [_outputs(context, b, plans, targets) for b in branches]))
    taken = [plan.take(context, values) for plan in plans]
    count = len(branches[0].results)
    for target, state in zip(targets, taken[count:], strict=True):
        context.heap.merge(target, state)
    shared.link(taken)
    return taken[:count]


def _outputs(
    context: ConversionContext, branch: Branch, plans: list[Plan], targets: Sequence[Mutable]
) -> list[ir.Value]:
    """Return the values that a branch has to give for what the plans are of."""
    with _reentered(context, branch):
        left = [*branch.results, *(target.state for target in targets)]
        return [value for plan, result in zip(plans, left, strict=True) for value in plan.leave(context, result)]


@contextmanager
def _reentered(context: ConversionContext, branch: Branch) -> Iterator[None]:
    with context.heap.assuming(branch.changes), context.writing_to(branch.op):
        yield


def _emit_if(
    context: ConversionContext, condition: RuntimeBool, branches: list[Branch], outputs: list[list[ir.Value]]
) -> list[ir.Value]:
    """Write the node, and return its outputs, or the value itself where both branches give the same."""
    differing = [index for index, (a, b) in enumerate(zip(*outputs, strict=True)) if a is not b]
    values = list(outputs[0])
    if not differing:
        for branch in branches:
            abandon(branch.op)
        return values
    names = context.op.context.names
    hidden = [index for index in differing if _needs_hiding(context, outputs[0][index], outputs[1][index])]
    graphs = []
    for branch, given, name in zip(branches, outputs, ("then", "else"), strict=True):
        with context.writing_to(branch.op):
            for index in hidden:
                given[index] = unranked(context.op, given[index], number_value(context, condition))
        graphs.append(branch.op.graph([given[index] for index in differing], name=names.new(name)))
    attributes = {"then_branch": graphs[0], "else_branch": graphs[1]}
    dtypes = [values[index].dtype for index in differing]
    results = context.op.emit_custom("", "If", [number_value(context, condition)], attributes, dtypes)
    for index, result in zip(differing, results, strict=True):
        values[index] = result
    return values


def _needs_hiding(context: ConversionContext, first: ir.Value, second: ir.Value) -> bool:
    """Tell whether inference must not see the shapes of branches: up to opset 10 it took that of the first for both."""
    return context.op.opset < 11 and (first.shape is None or first.shape != second.shape)
