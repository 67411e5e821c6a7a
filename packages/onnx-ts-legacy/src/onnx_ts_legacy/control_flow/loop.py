"""``prim::Loop``: repeated here where the number of iterations is known and small, an ONNX Loop otherwise.

What an ONNX Loop carries from one iteration to the next is found by running the body until nothing more turns out to
change: first everything is taken to stay as it is, but for what its nodes tell; what the body leaves different is
carried, with the dimensions that stay the same; a list that grows becomes a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from onnx_ts_legacy.control_flow.if_ import abandon
from onnx_ts_legacy.control_flow.junctions import LoopJunction, SharedContents
from onnx_ts_legacy.control_flow.loop_guesses import first_objects, first_plans
from onnx_ts_legacy.control_flow.plans import Plan
from onnx_ts_legacy.errors import ControlFlowError, ProgramRaisesError
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.numbers import number_value, truth_of
from onnx_ts_legacy.state.values import Mutable, Tensor
from onnxops_decomp import OpBuilder

__all__ = ["convert_loop"]

_UNROLLED = 64
_ATTEMPTS = 12
_ENDLESS = 2**63 - 1


def convert_loop(context: ConversionContext, node: Any, args: Sequence[Any]) -> Any:
    """Convert a ``prim::Loop`` and return what it returns."""
    trips, condition, *carried = args
    condition = truth_of(context, condition)
    block = next(iter(node.blocks()))
    if condition is False or (isinstance(trips, int) and trips <= 0):
        return _results(carried)
    if condition is True and isinstance(trips, int):
        result = _unrolled(context, block, trips, carried)
        if result is not None:
            return _results(result)
    return _results(_Loop(context, block, trips, condition, carried).convert())


def _results(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def _unrolled(context: ConversionContext, block: Any, trips: int, carried: list[Any]) -> list[Any] | None:
    """Repeat the body as long as its condition is known; None if it is not known from the first iteration on."""
    if _ENDLESS > trips > _UNROLLED or not _stays_known(context, block, carried):
        return None
    for iteration in range(trips):
        if iteration > _UNROLLED:
            raise ControlFlowError(f"A while loop did not end within {_UNROLLED} iterations known at export.")
        again, *carried = context.run_block(block, [iteration, *carried])
        again = truth_of(context, again)
        if again is False:
            return carried
        if again is not True:
            raise ControlFlowError("The condition of a loop is known in its first iterations, but not in later ones.")
    return carried


def _stays_known(context: ConversionContext, block: Any, carried: list[Any]) -> bool:
    """Try one iteration and tell whether it decides its own condition."""
    op = context.op.subgraph()
    failures = len(context.failures)
    with context.heap.branch(), context.writing_to(op):
        try:
            again = truth_of(context, context.run_block(block, [0, *carried])[0])
        except ProgramRaisesError:
            again = False
    del context.failures[failures:]
    abandon(op)
    return isinstance(again, bool)


class _Loop:
    """One ONNX Loop under construction."""

    def __init__(self, context: ConversionContext, block: Any, trips: Any, condition: Any, carried: list[Any]) -> None:
        self._context = context
        self._block = block
        self._trips, self._condition = trips, condition
        self._initial = carried
        self._junction = LoopJunction(context)
        self._plans = first_plans(self._junction, block, carried)
        self._objects = first_objects(context, self._junction, block)
        self._shared = SharedContents()
        self._shared.note(carried)

    def convert(self) -> list[Any]:
        failures = len(self._context.failures)
        for _ in range(_ATTEMPTS):
            op, again, outputs = self._attempt()
            if outputs is not None:
                return self._emit(op, again, outputs)
            abandon(op)
            del self._context.failures[failures:]
        raise ControlFlowError(
            "The types of the variables of a loop do not settle; keep their rank and dtype the same in all iterations."
        )

    def _attempt(self) -> tuple[OpBuilder, ir.Value | None, list[ir.Value] | None]:
        """Run the body once as the plans say; no outputs if what it leaves does not fit them."""
        context = self._context
        op = context.op.subgraph()
        op.input("iteration", ir.DataType.INT64, ())
        op.input("condition", ir.DataType.BOOL, ())
        plans: list[Plan] = []
        fits = True
        with context.heap.body() as changes, context.writing_to(op):
            results = self._run_body(op)
            for plan, value in zip(self._plans, results[1:], strict=True):
                new = self._junction.join(plan, self._junction.of_variable(value))
                fits &= new is plan
                plans.append(new)
            fits &= self._join_objects(context.heap.pending())
            fits &= self._shared.note(results[1:])
            self._plans = plans
            outputs = self._outputs(results[1:]) if fits else None
            again = number_value(context, truth_of(context, results[0])) if fits else None
        changes.clear()
        return op, again, outputs

    def _run_body(self, op: OpBuilder) -> list[Any]:
        context = self._context
        iteration = context.metadata.runtime_int(op.scope.inputs[0])
        for target, plan in self._objects.items():
            context.heap.merge(target, plan.enter(context))
        inputs = [plan.enter(context) for plan in self._plans]
        self._shared.link(inputs)
        try:
            return context.run_block(self._block, [iteration, *inputs])
        except ProgramRaisesError as error:
            raise ControlFlowError(f"Every iteration of a loop raises an exception: {error}") from error

    def _join_objects(self, changed: dict[Mutable, Any]) -> bool:
        junction, fits = self._junction, True
        for target, before in changed.items():
            if not junction.is_outer(target):
                # It was made in an attempt that was given up.
                continue
            if isinstance(target, Tensor):
                if target.state[0] is before[0]:
                    continue
                raise ControlFlowError("A loop changes, in place, the shape of a tensor that was made before the loop.")
            plan = self._objects.get(target)
            fits &= plan is not None
            plan = plan or junction.of_object(target, before)
            new = junction.join(plan, junction.of_object(target, target.state))
            fits &= new is plan
            self._objects[target] = new
        return fits

    def _outputs(self, results: Sequence[Any]) -> list[ir.Value]:
        context = self._context
        left = [(plan, target.state) for target, plan in self._objects.items()]
        left += zip(self._plans, results, strict=True)
        return [value for plan, result in left for value in plan.leave(context, result)]

    def _emit(self, op: OpBuilder, again: ir.Value | None, outputs: list[ir.Value]) -> list[Any]:
        context = self._context
        assert again is not None
        initial = self._outputs(self._initial)
        graph = op.graph([again, *outputs], name=op.context.names.new("body"))
        endless = isinstance(self._trips, int) and self._trips >= _ENDLESS
        trips = None if endless else number_value(context, self._trips, ir.DataType.INT64)
        always = self._condition is True and trips is not None
        condition = None if always else number_value(context, self._condition)
        values = context.op.emit_custom(
            "",
            "Loop",
            [trips, condition, *initial],
            {"body": graph},
            [value.dtype for value in initial],
        )
        return self._take(iter(values))

    def _take(self, values: Iterator[ir.Value]) -> list[Any]:
        context = self._context
        for target, plan in self._objects.items():
            context.heap.merge(target, plan.take(context, values))
        variables = [plan.take(context, values) for plan in self._plans]
        self._shared.link(variables)
        return variables
