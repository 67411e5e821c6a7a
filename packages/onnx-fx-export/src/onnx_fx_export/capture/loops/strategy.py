"""The capture of models with loops over rows whose number the data decides."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from onnx_fx_export.capture.comparison import compare_at_other_sizes
from onnx_fx_export.capture.conditions.answers import answer_mark
from onnx_fx_export.capture.loops.expansion import expand_loops
from onnx_fx_export.capture.loops.joining import join_pieces, questions_of_pieces
from onnx_fx_export.capture.loops.pieces import PieceLoops
from onnx_fx_export.capture.loops.questions import matter_not
from onnx_fx_export.capture.loops.recording import RowLoops, place_of
from onnx_fx_export.capture.torch_export import Recorded, Run, record
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.origin import source_line
from onnx_fx_export.sizes.numbers.conversions import WrittenSizes, open_conversions
from onnx_fx_export.sizes.trial_runs import TrialRuns
from onnxops_core.exporting import original, replaced

__all__ = ["Looped", "compare_loops", "record_with_loops"]

_DIFFERS = "The captured loops over rows do not give the model's values."


@dataclasses.dataclass(frozen=True)
class Looped:
    """What a capture with sizes kept open and the bodies of loops recorded gave.

    Attributes:
        recorded: What was recorded.
        how: The run that did so.
        count: How many loops were recorded.
    """

    recorded: Recorded
    how: Run
    count: int


def compare_loops(looped: Looped) -> Recorded:
    """Compare captured loops with the model.

    Raises:
        CaptureError: If there is no loop over rows, the code asks besides what data decides, or the results differ.
    """
    recorded, how, request = looped.recorded, looped.how, looped.how.request
    if not looped.count:
        raise CaptureError("The model has no loop over a data-dependent number of rows.")
    if recorded.program.graph.find_nodes(op="call_function", target=answer_mark()):
        raise CaptureError("Beside its loops over rows the model asks how many there are.")
    if any(request.specs):
        compare_at_other_sizes(recorded, how)
    elif TrialRuns(recorded.program, request.model, how.example, request.trial_runs).agree_on_example() is False:
        raise CaptureError(_DIFFERS)
    return recorded


def record_with_loops(run: Callable[..., Run], loops_of: Callable[[bool], RowLoops]) -> Looped:
    """Capture with sizes kept open and the bodies of loops recorded.

    Args:
        run: Makes a run of torch.export.
        loops_of: Makes what records them; given whether questions are answered as for few rows, not for many.

    Raises:
        Exception: What torch.export raises, if it is for another reason.
        CaptureError: If a loop does more than a loop of tensors can hold.
    """
    looped, has_pieces = _recorded(run, loops_of(False))
    program = looped.recorded.program
    if has_pieces:
        _check_questions(looped.recorded, lambda: _recorded(run, loops_of(True))[0].recorded)
        join_pieces(program)
    if looped.count:
        expand_loops(program)
    return looped


def _recorded(run: Callable[..., Run], loops: RowLoops) -> tuple[Looped, bool]:
    """Return what was recorded, with marks of its loops, and whether there are loops over pieces of tensors."""
    pieces = PieceLoops(lambda: loops.is_within, loops.listed)
    how = run(around=_recording(loops, pieces))
    # Code may take the number of a row by int(), which stays open.
    with open_conversions(how.homes, loops.counted):
        recorded = record(how)
    if loops.broken is not None:
        raise CaptureError(f"A loop of data-dependent length is left by break or return{place_of(loops.broken)}")
    return Looped(recorded, how, loops.count + pieces.count), bool(pieces.count)


def _check_questions(recorded: Recorded, with_other_answers: Callable[[], Recorded]) -> None:
    """Check that what is asked about the lengths of pieces chooses nothing.

    Which way was taken for all pieces is another one for some, and no run would show it.
    """
    asked = questions_of_pieces(recorded.program)
    if not asked:
        return
    refusal = CaptureError(
        f"The length of a piece, which the data decides, chooses a branch at {source_line(asked[0])}. Compute the same "
        "for every piece, as by torch.where."
    )
    try:
        other = with_other_answers()
    except Exception as error:
        raise refusal from error
    if not matter_not(recorded, other):
        raise refusal


@contextlib.contextmanager
def _recording(loops: RowLoops, pieces: PieceLoops) -> Iterator[None]:
    name = "scaled_dot_product_attention"

    def attention(*args: Any, **kwargs: Any) -> Any:
        """Compute attention where Python's ``and`` gave a condition for a flag, the first operand not to hold."""
        given = [
            loops.answered(value) if isinstance(value, torch.SymBool) else value for value in (*args, *kwargs.values())
        ]
        return original(functional, name)(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))

    replacements = [*loops.replacements, *pieces.replacements, (functional, name, attention)]
    with WrittenSizes(), replaced(replacements), loops, pieces:
        yield
