"""Comparing two runtimes on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_verify.comparing.verdict import CaseReport, OutputReport, Verdict
from onnx_verify.errors import InputError, ModelRunError
from onnx_verify.inputs.fitting import fitting_inputs
from onnx_verify.inputs.generate import RandomInputs, generate_inputs
from onnx_verify.inputs.reading import InputsLike, input_sets
from onnx_verify.inputs.sets import InputSet, bind_feeds
from onnx_verify.models.model import LoadedModel, ValueSpec
from onnx_verify.running.runtimes import Backend, BackendLike, OnnxRuntime, Outputs, Runtime, as_runtime
from onnx_verify.running.stateful import StatefulRuntime, state_of
from onnx_verify.running.streaming import DEFAULT_MEMORY_LIMIT, bounded_runtime
from onnx_verify.values.dtypes import is_float
from onnx_verify.values.metrics import TensorMetrics, measure
from onnx_verify.values.tolerance import Tolerance, ToleranceLike, resolve_tolerance

Array = npt.NDArray[Any]


def compare(
    reference: Any,
    candidate: Any,
    inputs: InputsLike,
    tolerance: ToleranceLike = None,
    *,
    check_dtype: bool = True,
    check_shape: bool = True,
    check_names: bool = False,
    backend: BackendLike | None = None,
    reference_backend: BackendLike | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verdict:
    """Run both on every input set and compare all outputs.

    Args:
        reference: what is right: a torch module, ExportedProgram or ScriptModule, any callable, a
            :class:`Runtime`, or an ONNX model (ModelProto, ir.Model, path, ONNXProgram).
        candidate: what is to be proved right, in any of these forms; a plain callable takes the flat inputs.
        inputs: one input set or a list of them, see :func:`onnx_verify.input_sets`; ``"random"`` or a
            :class:`RandomInputs` generates them. Nested torch inputs and outputs are flattened with pytree;
            inputs are copied before each run.
        tolerance: one tolerance for all outputs, or one by output name or index; chosen by dtype otherwise.
        check_dtype: whether outputs of another dtype fail.
        check_shape: whether outputs of another shape fail even if they broadcast to the same values.
        check_names: whether two ONNX models must call their outputs the same. Otherwise their inputs and
            outputs pair up by name if the names are the same ones in another order, else by position, which
            the verdict notes.
        backend: how ONNX models are run; a :class:`Backend`, an :class:`OnnxBackend`, or text such as
            ``"ort:disabled"`` or ``"reference"``.
        reference_backend: how the reference is run if it is an ONNX model; like the candidate otherwise.
        progress: called with the finished and the total number of runs.

    Returns:
        A verdict, true only if every output of every run agrees.

    Raises:
        InputError: if the inputs do not fit, or there are none.
        ModelLoadError: if a model is broken or unsafe.
        ModelRunError: if one side cannot be run; nothing can be said about its correctness then.
    """
    right = as_runtime(reference, backend if reference_backend is None else reference_backend)
    both_onnx = isinstance(right, OnnxRuntime)
    if isinstance(right, OnnxRuntime):
        right.by_name_only = True
    left = as_runtime(candidate, backend, flat=True, by_name_only=both_onnx)
    state = state_of(candidate, right)
    if state:
        left = StatefulRuntime(left, state)
    sets = resolve_inputs(inputs, right, left)
    verdict = Verdict(right.name, left.name, [])
    if isinstance(right, OnnxRuntime) and isinstance(left, OnnxRuntime):
        specs = left.model.inputs if isinstance(inputs, str | RandomInputs) else right.model.inputs
        if _paired("inputs", [x.name for x in right.model.inputs], [x.name for x in left.model.inputs], verdict):
            sets = [InputSet(feeds=bind_feeds(each, specs), label=each.label) for each in sets]
        by_name = _paired("outputs", right.output_names, left.output_names, verdict) and not check_names
    else:
        by_name = False
    for each in sets:
        expected, actual = right.run(each), left.run(each)
        case = compare_outputs(
            expected,
            _in_order_of(expected, actual) if by_name else actual,
            each.label,
            tolerance,
            check_dtype=check_dtype,
            check_shape=check_shape,
            check_names=check_names,
        )
        verdict.cases.append(case)
        if progress is not None:
            progress(len(verdict.cases), len(sets))
    return verdict


def _paired(kind: str, reference: Sequence[str], candidate: Sequence[str], verdict: Verdict) -> bool:
    """Tell whether the values of two models pair up by name; notes where they do so by position under other names."""
    if sorted(reference) == sorted(candidate):
        return list(reference) != list(candidate)
    pairs = [f"{a} with {b}" for a, b in zip(reference, candidate, strict=False) if a != b]
    if len(reference) == len(candidate):
        verdict.notes.append(f"{kind} are paired by position, as their names differ: {', '.join(pairs)}")
    return False


def _in_order_of(reference: Outputs, candidate: Outputs) -> Outputs:
    by_name = dict(candidate)
    return [(name, by_name[name]) for name, _ in reference]


def resolve_inputs(inputs: InputsLike, *models: Runtime | LoadedModel) -> list[InputSet]:
    """Read input sets, and generate them for ``"random"`` or a :class:`RandomInputs`.

    They are generated from the signature of the last of the models that is an ONNX model, at sizes that the
    first of all runs.

    Raises:
        InputError: if they must be generated and none is an ONNX model.
    """
    if not isinstance(inputs, RandomInputs) and not (isinstance(inputs, str) and inputs == "random"):
        return input_sets(inputs)
    inner = [each.inner if isinstance(each, StatefulRuntime) else each for each in models]
    loaded = [each.model if isinstance(each, OnnxRuntime) else each for each in inner]
    known = [each for each in loaded if isinstance(each, LoadedModel)]
    if not known:
        raise InputError("inputs can only be generated for an ONNX model; give some, or a model")
    asked = inputs if isinstance(inputs, RandomInputs) else RandomInputs()
    states = {name for each in models if isinstance(each, StatefulRuntime) for name in each.state.outputs}
    if states:
        sets = generate_inputs(known[-1], asked)
    else:
        sets = fitting_inputs(known[-1], _Trial(inner[0], known[-1].inputs), asked)
    kept = [position for position, spec in enumerate(known[-1].inputs) if spec.name not in states]
    return [InputSet(tuple(each.args[position] for position in kept), label=each.label) for each in sets]


class _Trial:
    """Tells whether a model runs on inputs that were made for a signature; it is loaded when that is asked first."""

    def __init__(self, model: Runtime | LoadedModel, signature: Sequence[ValueSpec]) -> None:
        self._model, self._signature = model, signature

    def __call__(self, inputs: InputSet) -> bool:
        """Return whether the model runs on these inputs."""
        try:
            if isinstance(self._model, LoadedModel):
                self._model = bounded_runtime(self._model, Backend(), DEFAULT_MEMORY_LIMIT)
            names = [spec.name for spec in self._model.inputs or ()]
            if sorted(names) == sorted(spec.name for spec in self._signature):
                inputs = InputSet(feeds=bind_feeds(inputs, self._signature))
            self._model.run(inputs)
        except ModelRunError:
            return False
        return True


def compare_outputs(
    reference: Outputs,
    candidate: Outputs,
    label: str,
    tolerance: ToleranceLike = None,
    *,
    check_dtype: bool = True,
    check_shape: bool = True,
    check_names: bool = False,
) -> CaseReport:
    """Compare the outputs of one run, pair by pair; the arguments are those of :func:`compare`.

    Raises:
        InputError: if a tolerance is given for an output that does not exist.
    """
    case = CaseReport(label, [])
    if len(reference) != len(candidate):
        case.reasons.append(f"the reference has {len(reference)} outputs, the candidate {len(candidate)}")
    if not reference:
        case.reasons.append("the reference has no outputs; there is nothing to compare")
    if check_names and [name for name, _ in reference] != [name for name, _ in candidate]:
        case.reasons.append(
            f"output names differ: {[name for name, _ in reference]} and {[name for name, _ in candidate]}"
        )
    unknown = _unknown_keys(tolerance, reference, candidate)
    if unknown:
        raise InputError(f"tolerances are given for {unknown}, which are not outputs")
    for index, ((_, expected), (name, actual)) in enumerate(zip(reference, candidate, strict=False)):
        allowed = resolve_tolerance(tolerance, name, index, expected.dtype, actual.dtype)
        case.outputs.append(
            compare_arrays(name, expected, actual, allowed, check_dtype=check_dtype, check_shape=check_shape)
        )
    return case


def _unknown_keys(tolerance: ToleranceLike, reference: Outputs, candidate: Outputs) -> list[str | int]:
    if tolerance is None or isinstance(tolerance, Tolerance):
        return []
    known = {name for name, _ in candidate} | set(range(max(len(candidate), len(reference))))
    return [key for key in tolerance if key not in known]


def compare_arrays(
    name: str,
    reference: Array,
    candidate: Array,
    tolerance: Tolerance,
    *,
    check_dtype: bool = True,
    check_shape: bool = True,
) -> OutputReport:
    """Compare two arrays: dtype, shape and values.

    A complex reference agrees with a real candidate that has its real and imaginary parts in a last
    dimension of
    two, which is how complex numbers are written in ONNX.
    """
    report = OutputReport(name, True, [], reference.dtype.name, candidate.dtype.name, reference.shape, candidate.shape)
    reference = _as_real(reference, candidate, report)
    if check_dtype and reference.dtype != candidate.dtype and not _both_text(reference, candidate):
        report.reasons.append(f"dtype is {candidate.dtype.name}, should be {reference.dtype.name}")
    if reference.shape != candidate.shape:
        if check_shape or not _broadcasts(reference, candidate):
            report.reasons.append(f"shape is {list(candidate.shape)}, should be {list(reference.shape)}")
            report.ok = False
            return report
        reference, candidate = np.broadcast_arrays(reference, candidate)
    report.tolerance = tolerance
    report.metrics = measure(reference, candidate, tolerance)
    report.notes += _nothing_compared(reference)
    allowed = tolerance.max_mismatch_ratio * report.metrics.elements
    if report.metrics.mismatches > allowed:
        report.reasons.append(_describe(report.metrics, tolerance))
    report.ok = not report.reasons
    return report


def _nothing_compared(reference: Array) -> list[str]:
    """Return a note where agreement proves nothing: the reference holds no finite value."""
    if not reference.size:
        return ["the output is empty; there were no values to compare"]
    if is_float(reference.dtype) and not np.isfinite(reference.astype(np.float64)).any():
        return ["the reference holds no finite value here; other inputs would prove more"]
    return []


def _as_real(reference: Array, candidate: Array, report: OutputReport) -> Array:
    if reference.dtype.kind != "c" or not is_float(candidate.dtype):
        return reference
    if candidate.shape != (*reference.shape, 2):
        return reference
    report.notes.append("complex reference compared as real and imaginary parts")
    return np.stack([reference.real, reference.imag], axis=-1)


def _both_text(reference: Array, candidate: Array) -> bool:
    return reference.dtype.kind in "OSUT" and candidate.dtype.kind in "OSUT"


def _broadcasts(reference: Array, candidate: Array) -> bool:
    try:
        np.broadcast_shapes(reference.shape, candidate.shape)
    except ValueError:
        return False
    return reference.size == candidate.size


def _describe(metrics: TensorMetrics, tolerance: Tolerance) -> str:
    text = (
        f"{metrics.mismatches} of {metrics.elements} elements differ (rtol={tolerance.rtol:g}, "
        f"atol={tolerance.atol:g}); worst at {list(metrics.worst_index or ())}: "
        f"{metrics.worst_candidate!r}, should be {metrics.worst_reference!r}"
    )
    if metrics.nan_mismatches:
        text += f"; {metrics.nan_mismatches} NaN on one side only"
    if metrics.inf_mismatches:
        text += f"; {metrics.inf_mismatches} infinities differ"
    return text
