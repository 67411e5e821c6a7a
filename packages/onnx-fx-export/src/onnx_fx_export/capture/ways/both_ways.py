"""Conditions that data decides, captured with both answers and kept as conditions of the graph.

``if mask.any():`` cannot be answered without data. The model is captured once for each way that its code can take, and
what the ways do not share becomes the branches of a ``torch.cond``. Python code that is run again takes the same way
again, so that this is exact; what is captured is compared with the model nonetheless.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import sympy
import torch
from torch.overrides import TorchFunctionMode

from onnx_fx_export.capture.comparison import compare_at_other_sizes
from onnx_fx_export.capture.conditions.answers import answer_mark
from onnx_fx_export.capture.conditions.assertions import passing_answer
from onnx_fx_export.capture.conditions.branches import raises
from onnx_fx_export.capture.functionalization import functionalized
from onnx_fx_export.capture.torch_export import Recorded, Run, record
from onnx_fx_export.capture.ways.apart import Way, beside, joined_apart
from onnx_fx_export.capture.ways.each_way import compare_each_way
from onnx_fx_export.capture.ways.merging import merge_ways
from onnx_fx_export.capture.ways.python_state import python_state
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.sizes.numbers.conversions import numbers_of_tensors
from onnx_fx_export.sizes.texts import asking_frame
from onnx_fx_export.sizes.trial_runs import TrialRuns
from onnx_fx_export.torch_private import (
    is_users_code,
    number_symbols_from,
    undecided_condition,
)
from onnxops_core.exporting import original, replaced
from onnxops_decomp.exporting import written_arguments

__all__ = ["record_both_ways"]

# The ways through a model, and the questions on one of them, each of which adds a way at least. A loop that data ends
# asks without end.
_MOST_WAYS = 12
_MOST_QUESTIONS = _MOST_WAYS - 1
# Up to so many questions are captured with all answers together. Of more, each is captured with its other answer alone,
# if it has nothing to do with the others.
_MOST_TOGETHER, _MOST_APART = 3, 64
_MOST_SYMBOLS = 10_000
_Answers = tuple[bool, ...]


def record_both_ways(run: Callable[..., Run]) -> Recorded:
    """Capture each way that data may choose, and compare with the model.

    Args:
        run: Makes a run of torch.export.

    Raises:
        Exception: What torch.export raises, if it is for another reason.
        CaptureError: If there are too many ways, one graph cannot hold them, or the program and the model differ.
    """
    how = run()
    try:
        recorded = _Ways(run).all_joined()
    except _WritesError:
        recorded = _Ways(run, functional=True).all_joined()
    if any(how.request.specs):
        compare_at_other_sizes(recorded, how)
    elif (
        TrialRuns(recorded.program, how.request.model, how.example, how.request.trial_runs).agree_on_example() is False
    ):
        raise CaptureError("The captured program differs from the model on the example.")
    compare_each_way(recorded, how)
    return recorded


class _WritesError(Exception):
    """Something is written behind a question; a branch could not write to what is outside of it."""


class _Ways:
    """The ways through a model.

    Args:
        run: Makes a run of torch.export.
        functional: Whether writes become values.
    """

    def __init__(self, run: Callable[..., Run], *, functional: bool = False) -> None:
        self._run, self._left, self._functional = run, _MOST_WAYS, functional
        self._raised: dict[str, None] = {}

    def all_joined(self) -> Recorded:
        """Capture all ways.

        Raises:
            CaptureError: If it does so on all of them, or if there are too many.
        """
        first = self._recorded(())
        recorded = self._apart() if len(first.taken) > _MOST_TOGETHER else None
        recorded = recorded or self._joined(first)
        if recorded is None:
            raise CaptureError("The model raises an exception on each path that the data may choose.")
        return dataclasses.replace(recorded, raising=self._raised)

    def _apart(self) -> Recorded | None:
        """Capture each question with its other answer alone; None where they have to do with each other."""
        raised, self._left = dict(self._raised), 2 * _MOST_APART
        for usual in (True, False):
            try:
                return joined_apart(functools.partial(self._recorded, usual=usual))
            except _WritesError:
                raise
            except Exception:
                # All combinations of answers may still be few.
                continue
        self._raised, self._left = raised, _MOST_WAYS - 1
        return None

    def _joined(self, way: Way) -> Recorded | None:
        """Capture both answers to all questions of a way but the first ones, which it was given; None if all raise."""
        recorded, taken = way.recorded, way.taken
        if len(taken) > _MOST_QUESTIONS:
            raise CaptureError(f"The data decides more than {_MOST_QUESTIONS} times which path the model takes.")
        for position in reversed(range(way.given, len(taken))):
            other = self._joined(self._recorded((*taken[:position], not taken[position])))
            if recorded is not None and other is not None:
                recorded = _merged(recorded, other)
            elif (only := recorded or other) is not None:
                recorded = _without_last_question(only)
        return recorded

    def _recorded(self, answers: _Answers, *, usual: bool = False) -> Way:
        """Capture the way of these answers to the first questions, and of the usual answer to all others."""
        if not self._left:
            raise CaptureError(f"The data chooses among more than {_MOST_WAYS} paths through the model.")
        self._left -= 1
        asked, how = _Questions(answers, usual), self._run()
        try:
            with numbers_of_tensors(how.homes):
                recorded = record(dataclasses.replace(how, around=asked))
        except Exception as error:
            if not asked.taken or not (place := _raising_line(error)):
                raise
            self._raised[place] = None
            return Way(None, tuple(asked.taken), len(answers), asked.states)
        self._raised |= recorded.raising
        marks = recorded.program.graph.find_nodes(op="call_function", target=answer_mark())
        if [mark.args[1] for mark in marks] != asked.taken:
            raise CaptureError("A condition was evaluated while an operator was being traced, not by the model's code.")
        if self._functional:
            recorded = dataclasses.replace(recorded, program=functionalized(recorded.program, alike=True))
        elif _writes_after(marks):
            raise _WritesError
        return Way(recorded, tuple(asked.taken), len(answers), asked.states)


class _Questions(TorchFunctionMode):
    """Answers what nothing but data decides, and marks it in the graph.

    Args:
        answers: The answers to the first questions.
        usual: The answer to later ones.

    Attributes:
        taken: All answers.
        states: What Python's variables held at each question.
    """

    def __init__(self, answers: Sequence[bool], usual: bool) -> None:
        super().__init__()
        self._answers, self._usual, self._known = answers, usual, dict[sympy.Basic, bool]()
        self.taken: list[bool] = []
        self.states: list[list[dict[str, Any]]] = []
        self._replaced: Any = None

    def __enter__(self) -> Any:
        self._replaced = replaced([(torch.SymBool, "__bool__", self._of_sizes)])
        self._replaced.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._replaced.__exit__(*exception)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer whether a tensor is true; call any other function."""
        if func is torch.Tensor.__bool__ and args[0].numel() == 1:
            number = args[0].item()
            if isinstance(number, torch.SymInt | torch.SymFloat):
                number = number != 0
            return self._answer(number) if isinstance(number, torch.SymBool) else bool(number)
        return func(*args, **(kwargs or {}))

    def _of_sizes(self, condition: Any) -> bool:
        """Answer a condition; one that torch or this package asks, which may be able to do without, is left to them."""
        # The frame in between is that of the replacement.
        return self._answer(condition, asked=asking_frame(sys._getframe(2)) is not None)

    def _answer(self, condition: Any, *, asked: bool = True) -> bool:
        try:
            return bool(original(torch.SymBool, "__bool__")(condition))
        except Exception as error:
            if not asked or undecided_condition(error) is None:
                raise
            if (passing := passing_answer(_asking(sys._getframe()))) is not None:
                return passing
        expression = condition.node.expr
        for known, answer in ((expression, True), (sympy.Not(expression), False)):
            if known in self._known:
                return self._known[known] is answer
        if len(self.taken) == _MOST_APART:
            raise CaptureError(f"The data decides more than {_MOST_APART} times which path the model takes.")
        answer = self._answers[len(self.taken)] if len(self.taken) < len(self._answers) else self._usual
        self.states.append(python_state(sys._getframe()))
        self.taken.append(answer)
        self._known[expression] = answer
        answer_mark()(torch.scalar_tensor(condition, dtype=torch.bool), answer, _place(sys._getframe()))
        # No two ways give one name to what data decides in their branches.
        way = functools.reduce(lambda number, taken: 2 * number + taken, self.taken, 1)
        number_symbols_from(condition, way * _MOST_SYMBOLS)
        return answer


def _asking(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the model's code that another one was called from."""
    while frame is not None and asking_frame(frame) is not frame:
        frame = frame.f_back
    return frame


def _place(frame: FrameType | None) -> str:
    """Return ``file:line`` of the model's code that a frame was called from."""
    frame = _asking(frame)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _raising_line(error: Exception) -> str:
    """Return ``file:line`` of the statement of a model's code that raised an error; empty if it was torch's."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    own = is_users_code(frame.filename, frame.name) and raises(frame.filename, frame.lineno or 0)
    return f"{frame.filename}:{frame.lineno}" if own else ""


def _without_last_question(recorded: Recorded) -> Recorded:
    """Take away the mark of a question whose other answer makes the model raise."""
    graph = recorded.program.graph
    graph.erase_node(graph.find_nodes(op="call_function", target=answer_mark())[-1])
    recorded.program.graph_module.recompile()
    return recorded


def _writes_after(marks: Sequence[torch.fx.Node]) -> bool:
    """Tell whether anything is written behind the first mark."""
    node = marks[0] if marks else None
    while node is not None and node.op != "root":
        if written_arguments(node):
            return True
        node = node.next
    return False


def _merged(first: Recorded, second: Recorded) -> Recorded:
    """Return the program of two ways that part at their last question.

    Raises:
        CaptureError: If one program cannot hold both.
    """
    found = beside(first, second)
    merge_ways(first.program, second.program)
    return found
