"""What leaves the guarantees of torch.export, compared with the model."""

from __future__ import annotations

from onnx_fx_export.capture.torch_export import Recorded, Run
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.sizes.questions import Sizes
from onnx_fx_export.sizes.trial_runs import TrialRuns

__all__ = ["compare_at_other_sizes"]

# Model and program are compared where sizes are so many times as large, and larger by so much.
_COMPARED = ((1, 1), (1, 3), (2, 0), (3, 0))


def compare_at_other_sizes(recorded: Recorded, run: Run) -> None:
    """Run model and program at other sizes.

    Raises:
        CaptureError: If they differ, or cannot be compared.
    """
    request = run.request
    trials = TrialRuns(recorded.program, request.model, run.example, request.trial_runs)
    sizes = Sizes.of(recorded.program, request.specs)
    guards, compared = sizes.final_guards(), 0
    for factor, more in _COMPARED:
        point = sizes.near({symbol: factor * hint + more for symbol, hint in sizes.hints.items()}, guards)
        expected, right = trials.run(point) if point is not None else (None, False)
        if expected is not None and not right:
            raise CaptureError(f"What was captured differs from the model at the sizes {point}.")
        compared += right
    if not compared:
        raise CaptureError("What was captured cannot be compared with the model at other sizes.")
