"""``prim::If`` and ``prim::Loop``: taken here where the condition is known, ONNX If and Loop where it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sympy
import torch

from onnx_ts_legacy.calls.prims import ProgramRaisesError
from onnx_ts_legacy.control_flow.joins import Merge
from onnx_ts_legacy.graph.parts import node_branches
from onnx_ts_legacy.state.values import Changes, RuntimeBool
from onnxops_decomp import OpBuilder
from onnxops_decomp.exporting import remove_unused

if TYPE_CHECKING:
    from onnx_ts_legacy.conversion import Interpreter

__all__ = ["CONTROL_FLOW", "Branch", "abandon", "in_branch"]


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


def _if(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    condition = interpreter.scalars.truth(args[0])
    blocks = node_branches(node)
    if isinstance(condition, bool):
        return _only(interpreter.run_block(blocks[0 if condition else 1], []))
    symbols = interpreter.metadata.symbol_count()
    branches = [_run_branch(interpreter, blocks[1 - truth], condition, bool(truth)) for truth in (1, 0)]
    if branches[0].raises and branches[1].raises:
        raise branches[0].raises
    for side, branch in enumerate(branches):
        if branch.raises:
            # What raises is taken as a check: the model goes on as if it had passed.
            abandon(branch.op)
            abandon(branches[1 - side].op)
            _narrow(interpreter, condition, side == 1)
            return _only(interpreter.run_block(blocks[1 - side], []))
    return _only(_merge(interpreter, condition, branches, symbols))


def _only(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else results


def _run_branch(interpreter: Interpreter, block: Any, condition: RuntimeBool, truth: bool) -> Branch:
    branch = Branch(interpreter.op.subgraph())
    with interpreter.heap.branch() as changes, in_branch(interpreter, branch.op):
        _narrow(interpreter, condition, truth)
        try:
            branch.results = interpreter.run_block(block, [])
        except ProgramRaisesError as error:
            branch.raises = error
    branch.changes = changes
    return branch


@contextmanager
def in_branch(interpreter: Interpreter, op: OpBuilder) -> Iterator[None]:
    """Write to the graph of a branch."""
    outer, interpreter.op = interpreter.op, op
    try:
        yield
    finally:
        interpreter.op = outer


def abandon(op: OpBuilder) -> None:
    """Take the nodes of a branch away again, so that what they use is not kept for them."""
    list(remove_unused(op.scope.nodes, set()))


def _narrow(interpreter: Interpreter, condition: RuntimeBool, truth: bool) -> None:
    """Drop the forms of tensors that contradict the condition of the branch that is entered."""
    relation = condition.relation
    if relation is None:
        return
    for symbol in relation.free_symbols:
        case = interpreter.cases.get(str(symbol))
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
            interpreter.heap.write(tensor, (tensor.node, tuple(kept)))


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


def _merge(interpreter: Interpreter, condition: RuntimeBool, branches: list[Branch], symbols: int) -> list[Any]:
    sides: list[Callable[[], Any]] = [lambda b=branch: _reentered(interpreter, b) for branch in branches]  # type: ignore[misc]
    merge = Merge(interpreter, sides, symbols)
    results = [merge.variable(a, b) for a, b in zip(branches[0].results, branches[1].results, strict=True)]
    targets = list(dict.fromkeys((*branches[0].changes, *branches[1].changes)))
    writes = [
        merge.state(target, *(branch.changes.get(target, target.state) for branch in branches)) for target in targets
    ]
    if merge.outputs[0]:
        merge.finish(_emit_if(interpreter, condition, branches, merge))
    else:
        for branch in branches:
            abandon(branch.op)
    for write in writes:
        if write is not None:
            write()
    return results


@contextmanager
def _reentered(interpreter: Interpreter, branch: Branch) -> Iterator[None]:
    with interpreter.heap.assuming(branch.changes), in_branch(interpreter, branch.op):
        yield


def _emit_if(interpreter: Interpreter, condition: RuntimeBool, branches: list[Branch], merge: Merge) -> Sequence[Any]:
    names = interpreter.op.context.names
    graphs = [
        branch.op.graph(outputs, name=names.new(name))
        for branch, outputs, name in zip(branches, merge.outputs, ("then", "else"), strict=True)
    ]
    value = interpreter.scalars.to_value(condition)
    return interpreter.op.emit_custom(
        "",
        "If",
        [value],
        {"then_branch": graphs[0], "else_branch": graphs[1]},
        merge.dtypes(),
        shapes=merge.shapes,
    )


def _loop(interpreter: Interpreter, node: Any, args: Sequence[Any]) -> Any:
    from onnx_ts_legacy.control_flow.loop import convert_loop

    return convert_loop(interpreter, node, args)


CONTROL_FLOW: dict[str, Callable[[Any, Any, Sequence[Any]], Any]] = {"prim::If": _if, "prim::Loop": _loop}
