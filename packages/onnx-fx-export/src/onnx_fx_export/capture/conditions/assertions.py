"""What code asks of data only to raise an exception, answered so that it does not.

``assert x.min() >= 0`` and ``if not mask.any(): raise ValueError(...)`` cannot be answered without data, and have one
answer with which the model gives anything. A graph raises nothing: it is captured for that answer, and the user told.
Where code may catch the exception, it is no end but a branch, and left to what keeps branches.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Iterator
from types import FrameType

import torch

from onnx_fx_export.capture.conditions.branches import Span, answer_without_raising, may_catch
from onnx_fx_export.sizes.texts import asking_frame
from onnx_fx_export.torch_private import is_users_code, undecided_condition
from onnxops_core.exporting import original, replaced, warn_user

__all__ = ["passing_answer", "warn_of_raising", "without_raising"]

_STAND_INS = ("onnxops_core.", "onnx_fx_export.capture.stand_ins.")
# What runs torch.export; the frames around it are the caller's.
_CAPTURE = "onnx_fx_export.capture.torch_export"
_PLACES: contextvars.ContextVar[dict[str, None] | None] = contextvars.ContextVar("places", default=None)


@contextlib.contextmanager
def without_raising() -> Iterator[dict[str, None]]:
    """Answer such questions in the body, and give the lines that ask them, ``file:line``."""
    places: dict[str, None] = {}
    token = _PLACES.set(places)
    try:
        # Numbers that are read from data are asked in other ways, which look for the frame that asks themselves.
        with replaced([(torch.Tensor, "__bool__", _truth)]):
            yield places
    finally:
        _PLACES.reset(token)


def passing_answer(frame: FrameType | None) -> bool | None:
    """Return the answer to a question about data with which the model raises nothing, and note its line.

    Args:
        frame: The frame that asks, or one that the model's code called to ask.

    Returns:
        The answer; None where the code does more with it than raise, or may catch what it raises, or nothing is
        captured.
    """
    # What takes the place of torch.equal and its like asks for the code that calls it.
    while frame is not None and _module(frame).startswith(_STAND_INS):
        frame = frame.f_back
    places, frame = _PLACES.get(), asking_frame(frame)
    if places is None or frame is None or _is_caught(frame):
        return None
    code = frame.f_code
    answer = answer_without_raising(code.co_filename, _span(frame))
    if answer is not None:
        places[f"{code.co_filename}:{frame.f_lineno}"] = None
    return answer


def warn_of_raising(places: dict[str, None]) -> None:
    """Tell the user at which lines the model raises for some inputs, if there are any."""
    if places:
        lines = "\n".join(f"  {place}" for place in places)
        warn_user(
            f"The model raises an exception for some inputs, at\n{lines}\nThe exported model does not check that: for "
            "them, it computes on."
        )


def _truth(self: torch.Tensor) -> bool:
    try:
        return bool(original(torch.Tensor, "__bool__")(self))
    except Exception as error:
        # The frame in between is that of the replacement.
        answer = None if undecided_condition(error) is None else passing_answer(sys._getframe(2))
        if answer is None:
            raise
        return answer


def _is_caught(frame: FrameType | None) -> bool:
    """Tell whether the code of the model may go on after an exception that a frame raises."""
    while frame is not None and _module(frame) != _CAPTURE:
        code = frame.f_code
        has_handlers = bool(code.co_exceptiontable) and is_users_code(code.co_filename, code.co_name)
        if has_handlers and may_catch(code.co_filename, frame.f_lineno):
            return True
        frame = frame.f_back
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _span(frame: FrameType) -> Span:
    """Return the part of the source that the running instruction of a frame was made of."""
    line, end, column, end_column = [*frame.f_code.co_positions()][frame.f_lasti // 2]
    start = (line or frame.f_lineno, column or 0)
    return start, (end or start[0], sys.maxsize if end_column is None else end_column)
