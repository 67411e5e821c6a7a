"""From a model and its example arguments to an ExportedProgram."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from onnx_fx_export.capture.autocast import cast_inside_calls
from onnx_fx_export.capture.comparison import agrees_on_example, holds_for_example
from onnx_fx_export.capture.conditions.assertions import warn_of_raising
from onnx_fx_export.capture.equations import specializations
from onnx_fx_export.capture.request import CapturedProgram, CaptureRequest
from onnx_fx_export.capture.strategies import MEASURED_KERNELS, TRIAL_RUNS, captured_by_strategies
from onnx_fx_export.errors import CaptureError, DynamicShapeError, OnnxExporterError
from onnx_fx_export.inputs.examples import broadcastable, enlarged, has_special_sizes, of_size_one
from onnx_fx_export.sizes.facts import SizeFacts
from onnx_fx_export.sizes.fixed import dimensions_that_became_static
from onnx_fx_export.sizes.size_one import excludes_one, same_operations
from onnx_fx_export.sizes.small import as_hints, takes_declared_sizes
from onnx_fx_export.sizes.trial_runs import TrialRuns
from onnxops_decomp.exporting import Example, restore_calls

__all__ = ["capture", "capture_example"]

_ENLARGED = (
    "The example was captured at larger sizes, because torch.export treats dynamic dimensions of size 0 or 1 as "
    "constants. If the model fails at those sizes, declare dimensions that are always 0 or 1 as static, and give an "
    "example whose other dynamic dimensions are 2 or more and fit each other."
)


def capture(request: CaptureRequest) -> CapturedProgram:
    """Capture a model with torch.export, by the first strategy that serves.

    torch.export takes sizes 0 and 1 for constants, computed ones included; where a dynamic dimension has such a
    size, or the model seems to fix one, it is captured with an example of other sizes.

    Raises:
        DynamicShapeError: If a declared dimension turned out to be fixed by the model.
        CaptureError: If the model cannot be captured for another reason.
    """
    enlarge = has_special_sizes(request.example, request.specs)
    examples = list(enlarged(request.example, request.specs)) if enlarge else [request.example]
    errors: list[CaptureError | DynamicShapeError] = []
    others: list[CapturedProgram] = []
    for example in examples:
        try:
            captured = _captured(request, example)
            if request.trial_runs and captured.sizes.conditions is None and excludes_one(captured.program):
                captured = _tried_at_one(request, captured)
            if not enlarge or holds_for_example(captured.program, request.example, request.specs):
                return captured
            others.append(captured)
        except (CaptureError, DynamicShapeError) as error:
            errors.append(error)
    broadcast = _of_broadcast_example(request) if enlarge else None
    if broadcast is not None:
        return broadcast
    if others:
        return others[0]
    first = errors[0]
    located = first
    if isinstance(first, DynamicShapeError):
        with specializations() as fixed, contextlib.suppress(OnnxExporterError):
            _captured(request, examples[0])
        located = first.at(fixed)
    if not enlarge and (isinstance(first, DynamicShapeError) or first.fixed_a_size):
        larger = _of_larger_example(request, agrees=isinstance(first, CaptureError))
        if larger is not None:
            return larger
    if enlarge and isinstance(first, CaptureError):
        raise CaptureError(f"{first}\n{_ENLARGED}") from first.__cause__
    raise located from first.__cause__


def capture_example(request: CaptureRequest, strategy: str) -> CapturedProgram:
    """Capture a model with the sizes of its example and no others, by one strategy.

    Args:
        request: What is to be captured.
        strategy: The name of the strategy.

    Raises:
        DynamicShapeError: If a declared dimension turned out to be fixed by the model.
        CaptureError: If the model cannot be captured for another reason.
    """
    return _captured(dataclasses.replace(request, strategy=strategy), request.example)


def _of_broadcast_example(request: CaptureRequest) -> CapturedProgram | None:
    """Capture with sizes of 1 as large as what they are broadcast to, and leave those open; None if that fails."""
    if request.strategy in (None, MEASURED_KERNELS):
        measured = dataclasses.replace(request, strategy=MEASURED_KERNELS)
        for example in broadcastable(request.example, request.specs):
            with contextlib.suppress(OnnxExporterError):
                captured = _captured(measured, example)
                if holds_for_example(captured.program, request.example, request.specs):
                    return captured
    return None


def _of_larger_example(request: CaptureRequest, *, agrees: bool) -> CapturedProgram | None:
    """Capture with all dynamic sizes doubled; None if that fails too, or is not right for the example.

    What the code does at the sizes of the example alone may be what it does at others.

    Args:
        request: What is to be captured.
        agrees: Whether it has to give the model's values on the example, even where its guards hold there.
    """
    *_, doubled = enlarged(request.example, request.specs)
    with contextlib.suppress(OnnxExporterError):
        captured = _captured(request, doubled)
        holds = not agrees and holds_for_example(captured.program, request.example, request.specs)
        if holds or agrees_on_example(captured.program, request):
            return captured
    return None


def _tried_at_one(request: CaptureRequest, captured: CapturedProgram) -> CapturedProgram:
    """Find out whether the model does the same where its dynamic sizes are one, by another capture."""
    right = False
    with request.stage(TRIAL_RUNS), contextlib.suppress(OnnxExporterError):
        at_one = _captured(request, of_size_one(request.example, request.specs))
        right = same_operations(captured.program, at_one.program)
    return dataclasses.replace(captured, sizes=dataclasses.replace(captured.sizes, right_for_one=right))


def _captured(request: CaptureRequest, example: Example) -> CapturedProgram:
    """Capture with one example."""
    declared = request.for_torch()
    try:
        return _tried(request, example, declared)
    except DynamicShapeError as error:
        hints = as_hints(declared)
        if hints is None:
            raise
        # torch wants to prove that the model takes each size of a Dim; what it takes for granted can be tried as well.
        with contextlib.suppress(CaptureError, DynamicShapeError):
            captured = _tried(request, example, hints)
            if takes_declared_sizes(captured.program, request.specs, captured.sizes.least, captured.sizes.tried):
                return captured
        raise error from error.__cause__


def _tried(request: CaptureRequest, example: Example, declared: Any) -> CapturedProgram:
    """Capture by the first strategy that serves, and find out what sizes its program is right for.

    Raises:
        DynamicShapeError: If a declared dimension became static.
    """
    recorded, strategy = captured_by_strategies(request, example, declared)
    warn_of_raising(recorded.raising)
    program, facts = recorded.program, SizeFacts()
    if any(request.specs) and not request.has_dynamic_numbers:
        trials = TrialRuns(program, request.model, example, request.trial_runs)
        with request.stage(TRIAL_RUNS) if trials.possible else contextlib.nullcontext():
            facts = SizeFacts.found(trials, request.specs, recorded.questions)
        if static := dimensions_that_became_static(program, request.specs):
            raise DynamicShapeError.fixed(static)
    restore_calls(program.graph_module)
    cast_inside_calls(program.graph_module)
    return CapturedProgram(program, facts, recorded.state, strategy, recorded.questions)
