"""``prim::If``: taken here where the condition is known, an ONNX If where it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sympy
import torch

from onnx_ts_legacy.control_flow.joins import Merge
from onnx_ts_legacy.errors import ProgramRaisesError
from onnx_ts_legacy.graph.parts import node_branches
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value, truth_of
from onnx_ts_legacy.state.values import Changes, RuntimeBool
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
    symbols = context.metadata.symbol_count()
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
    return _only(_merge(context, condition, branches, symbols))


def _only(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else results


def _run_branch(context: ConversionContext, block: Any, condition: RuntimeBool, truth: bool) -> Branch:
    branch = Branch(context.op.subgraph())
    with context.heap.branch() as changes, context.writing_to(branch.op):
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


def _merge(context: ConversionContext, condition: RuntimeBool, branches: list[Branch], symbols: int) -> list[Any]:
    sides: list[Callable[[], Any]] = [lambda b=branch: _reentered(context, b) for branch in branches]  # type: ignore[misc]
    merge = Merge(context, sides, symbols, condition)
    results = [merge.variable(a, b) for a, b in zip(branches[0].results, branches[1].results, strict=True)]
    targets = list(dict.fromkeys((*branches[0].changes, *branches[1].changes)))
    writes = [
        merge.state(target, *(branch.changes.get(target, target.state) for branch in branches)) for target in targets
    ]
    if merge.outputs[0]:
        _emit_if(context, condition, branches, merge)
    else:
        for branch in branches:
            abandon(branch.op)
    for write in writes:
        if write is not None:
            write()
    return results


@contextmanager
def _reentered(context: ConversionContext, branch: Branch) -> Iterator[None]:
    with context.heap.assuming(branch.changes), context.writing_to(branch.op):
        yield


def _emit_if(context: ConversionContext, condition: RuntimeBool, branches: list[Branch], merge: Merge) -> None:
    names = context.op.context.names
    graphs = [
        branch.op.graph(outputs, name=names.new(name))
        for branch, outputs, name in zip(branches, merge.outputs, ("then", "else"), strict=True)
    ]
    value = number_value(context, condition)
    attributes = {"then_branch": graphs[0], "else_branch": graphs[1]}
    context.op.emit_custom("", "If", [value], attributes, [None] * len(merge.merged), outputs=merge.merged)
