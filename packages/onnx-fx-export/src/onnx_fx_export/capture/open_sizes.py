"""Sizes that the code of a model turns into numbers, and questions about how much data lets through, left open.

``int(x.shape[0] / 2)`` makes a number of a size in Python, and ``if kept.shape[0] > 0:`` cannot be answered without
data. Most code of either kind is right for every size: the number may stay symbolic, and a branch that is there for no
rows gives what the other one gives. So a question is answered as for many rows, and what is captured is compared with
the model at other sizes, and with other numbers of rows, until each question has had its other answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from onnx_fx_export.capture.comparison import compare_at_other_sizes
from onnx_fx_export.capture.conditions.answers import answer_mark
from onnx_fx_export.capture.loops.recording import RowLoops
from onnx_fx_export.capture.loops.strategy import Looped, record_with_loops
from onnx_fx_export.capture.row_counts import GivenCounts
from onnx_fx_export.capture.torch_export import Recorded, Run
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.sizes.trial_runs import TrialRuns
from onnx_fx_export.torch_private import answer_for_rows

__all__ = ["compare_open", "record_open"]

# Numbers of rows that all operators find at once, and that one finds where the others find _OTHERS.
_ALL, _ONE, _OTHERS = (0, 1, 2, 5), (0, 1), 3
# More operators than this are not tried one by one.
_MOST_OPERATORS = 24


def record_open(run: Callable[..., Run]) -> Looped:
    """Capture with sizes kept open.

    Args:
        run: Makes a run of torch.export.

    Raises:
        Exception: What torch.export raises, if it is for another reason.
        CaptureError: If a loop over rows cannot be recorded.
    """
    return record_with_loops(run, lambda few: RowLoops(functools.partial(_answer, few=few)))


def compare_open(looped: Looped) -> Recorded:
    """Compare what was captured with sizes kept open with the model.

    Raises:
        CaptureError: If the program and the model differ, or a question could not be tried.
    """
    recorded, how = looped.recorded, looped.how
    if any(how.request.specs):
        compare_at_other_sizes(recorded, how)
    _compare_at_other_counts(recorded, how)
    return recorded


def _answer(condition: Any, *, few: bool) -> bool | None:
    """Answer what nothing but data decides as for many rows or few, and mark it; None if that is no answer."""
    answer = answer_for_rows(condition, few=few)
    if answer is not None:
        answer_mark()(torch.scalar_tensor(condition, dtype=torch.bool), answer)
    return answer


# ---- questions


class _Answers(GivenCounts):
    """Notes by position which marked conditions hold otherwise than they are taken for."""

    def __init__(self, usual: int | None, apart: Mapping[int, int], cutting: frozenset[Any]) -> None:
        super().__init__(usual, apart, cutting)
        self.marks = 0
        self.otherwise: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is answer_mark():
            if bool(args[0]) is not args[1]:
                self.otherwise.add(self.marks)
            self.marks += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


def _compare_at_other_counts(recorded: Recorded, run: Run) -> None:
    """Run model and program with other numbers of rows, and take the marks away.

    Raises:
        CaptureError: If they differ, or a condition did not get its other answer.
    """
    graph, request = recorded.program.graph, run.request
    marks = graph.find_nodes(op="call_function", target=answer_mark())
    open_questions = set(range(len(marks)))
    trials = TrialRuns(recorded.program, request.model, run.example, request.trial_runs)
    if marks:
        for mode, right in _tried(trials, _cutting(recorded.program)):
            if not right:
                raise CaptureError("The captured program differs from the model for another number of rows.")
            open_questions -= mode.otherwise
    if open_questions:
        raise CaptureError("A condition that the data decides could not be tried with its other answer.")
    for mark in marks:
        graph.erase_node(mark)
    graph.eliminate_dead_code()


def _tried(trials: TrialRuns, cutting: frozenset[Any]) -> Iterator[tuple[_Answers, bool]]:
    """Yield what each run of the program met, where the model takes the number of rows, and whether it was right."""

    def compared(usual: int | None, apart: Mapping[int, int]) -> tuple[_Answers, bool | None]:
        modes: list[_Answers] = []

        def around() -> _Answers:
            modes.append(_Answers(usual, apart, cutting))
            return modes[-1]

        right = trials.agree_on_example(around)
        return modes[-1], right

    first, right = compared(None, {})
    settings: list[tuple[int, dict[int, int]]] = [(count, {}) for count in _ALL]
    if first.met > _MOST_OPERATORS:
        raise CaptureError("For too many operators the data decides the number of rows.")
    settings += [(_OTHERS, {position: count}) for position in range(first.met) for count in _ONE]
    for found, agreed in ((first, right), *(compared(*setting) for setting in settings)):
        if agreed is not None:
            yield found, agreed


def _cutting(program: torch.export.ExportedProgram) -> frozenset[Any]:
    """Return the operators of other libraries that find rows of which data decides how many there are."""
    return frozenset(
        node.target
        for node in program.graph.nodes
        if node.meta.get("unbacked_bindings")
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace != "aten"
        and isinstance(node.meta.get("val"), torch.Tensor)
    )
