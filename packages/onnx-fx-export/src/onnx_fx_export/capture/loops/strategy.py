"""The capture of models with loops over rows whose number the data decides."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from onnx_fx_export.capture.answers import answer_mark
from onnx_fx_export.capture.comparison import compare_at_other_sizes
from onnx_fx_export.capture.loops.expansion import expand_loops
from onnx_fx_export.capture.loops.joining import join_pieces
from onnx_fx_export.capture.loops.pieces import PieceLoops
from onnx_fx_export.capture.loops.recording import RowLoops, place_of
from onnx_fx_export.capture.torch_export import Recorded, Run, record
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.sizes.numbers.conversions import WrittenSizes, open_conversions
from onnx_fx_export.sizes.trial_runs import TrialRuns
from onnxops_core.exporting import replaced

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


def record_with_loops(run: Callable[..., Run], loops: RowLoops) -> Looped:
    """Capture with sizes kept open and the bodies of loops recorded.

    Args:
        run: Makes a run of torch.export.
        loops: Records them.

    Raises:
        Exception: What torch.export raises, if it is for another reason.
        CaptureError: If a loop does more than a loop of tensors can hold.
    """
    pieces = PieceLoops(lambda: loops.is_within, loops.listed)
    how = run(around=_recording(loops, pieces))
    # Code may take the number of a row by int(), which stays open.
    with open_conversions(how.request.model, loops.counted):
        recorded = record(how)
    if loops.broken is not None:
        raise CaptureError(f"A loop of data-dependent length is left by break or return{place_of(loops.broken)}")
    if pieces.count:
        join_pieces(recorded.program)
    if loops.count:
        expand_loops(recorded.program)
    return Looped(recorded, how, loops.count + pieces.count)


@contextlib.contextmanager
def _recording(loops: RowLoops, pieces: PieceLoops) -> Iterator[None]:
    with WrittenSizes(), replaced([*loops.replacements, *pieces.replacements]), loops, pieces:
        yield
