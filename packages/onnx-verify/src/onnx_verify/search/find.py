"""find_mismatch: which node is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnx_verify.comparing.comparison import compare, resolve_inputs
from onnx_verify.comparing.verdict import CaseReport, Verdict
from onnx_verify.errors import InputError, ModelRunError
from onnx_verify.inputs.reading import InputsLike
from onnx_verify.inputs.sets import InputSet, bind_feeds
from onnx_verify.models.model import LoadedModel, is_model_like, load_model
from onnx_verify.models.slicing import Graph
from onnx_verify.running.runtimes import Backend, Runtime, as_runtime
from onnx_verify.running.stateful import ProgramState, StatefulRuntime, state_of
from onnx_verify.running.streaming import bind_samples, bounded_runtime
from onnx_verify.search.confirm import pairs_are_certain
from onnx_verify.search.descent import enter_bodies
from onnx_verify.search.findings import MismatchReport
from onnx_verify.search.fxside import FxSide
from onnx_verify.search.fxstream import FxStream
from onnx_verify.search.localize import LocalResult
from onnx_verify.search.sides import OnnxSide, Side
from onnx_verify.search.steps import Search, SearchOptions
from onnx_verify.values.torch_tensors import is_exported_program, is_module

_UNSURE = (
    "few values of the two models have the same name and origin, so a range that disagrees may only be paired wrongly; "
    "strategy 'auto' tests each finding"
)
_NO_STATE = ProgramState()


def find_mismatch(
    model: Any,
    inputs: InputsLike,
    *,
    reference: Any = None,
    options: SearchOptions | None = None,
    **changes: Any,
) -> MismatchReport:
    """Find the smallest piece of a model that is wrong.

    Args:
        model: what is in question: an ONNX model in any form, or an ONNXProgram.
        inputs: input sets as for :func:`onnx_verify.compare`; all of them are checked in the same pass.
        reference: what is right. Another ONNX model: its values pair up with the candidate's by name or position.
            An ExportedProgram: by fx node name. None, or the ``exported_program`` of an ONNXProgram: the program that
            it was lowered from (its ``lowered_program``, else its ``exported_program``). None for an ONNX model: the
            model itself, run by ``reference_backend`` (the reference evaluator unless given).
        options: how to search.
        **changes: fields of :class:`SearchOptions` that replace those of ``options``.

    Returns:
        The verdict on the whole, and the wrong pieces in the order of the graph, with the values to
        reproduce each.

    Raises:
        InputError: if the inputs do not fit or the two sides have nothing in common.
        ModelLoadError: if a model is broken or unsafe.
        ModelRunError: if a side cannot be run.
    """
    settings = replace(options or SearchOptions(), **changes)
    candidate = _onnx_part(model)
    captured = getattr(model, "exported_program", None)
    if reference is None or reference is captured:
        # Nodes name those of the program that was lowered, which may be the captured one in another form.
        reference = getattr(model, "lowered_program", None) or captured
    if reference is None:
        return _between_runtimes(candidate, inputs, settings, options, changes, state_of(model))
    if is_exported_program(reference):
        return _against_program(candidate, reference, inputs, settings, model)
    if is_module(reference):
        raise InputError(
            "a torch module has no values inside to compare with; give its ExportedProgram (torch.export.export), "
            "or use onnx_verify.torchscript.find_mismatch"
        )
    return _against_model(candidate, load_model(_onnx_part(reference)), inputs, settings)


def _onnx_part(model: Any) -> LoadedModel:
    """Return the ONNX model in what the caller gave."""
    if is_model_like(model):
        return load_model(model)
    inner = getattr(model, "model", None)
    if is_model_like(inner):
        return load_model(inner)
    raise InputError(f"cannot look into a {type(model).__name__}; give an ONNX model, its path or an ONNXProgram")


def _whole(
    right: Runtime,
    candidate: LoadedModel,
    sets: list[InputSet],
    settings: SearchOptions,
    state: ProgramState = _NO_STATE,
) -> Verdict:
    """Compare the whole models; a candidate that cannot be run is a disagreement, for its nodes can be searched."""
    try:
        left = bounded_runtime(candidate, settings.backend, settings.memory_limit)
        if state:
            left = StatefulRuntime(left, state)
        return compare(right, left, list(sets), settings.tolerance)
    except ModelRunError as error:
        for each in sets:
            right.run(each)
        cases = [CaseReport(each.label, [], [f"the candidate cannot be run: {error}"]) for each in sets]
        return Verdict(right.name, candidate.source, cases)


def _start(
    candidate: LoadedModel,
    sets: Sequence[InputSet],
    verdict: Verdict,
    settings: SearchOptions,
    state: ProgramState = _NO_STATE,
) -> Search:
    report = MismatchReport(verdict, runs=2)
    samples = [state.bind(each, candidate.inputs) for each in sets]
    search = Search(Graph(candidate), sets, samples, settings, report)
    search.labels = [each.label for each in sets]
    return search


def _against_program(
    candidate: LoadedModel, program: Any, inputs: InputsLike, settings: SearchOptions, model: Any
) -> MismatchReport:
    right = as_runtime(program)
    state = state_of(model, right)
    sets = resolve_inputs(inputs, candidate)
    verdict = _whole(right, candidate, sets, settings, state)
    search = _start(candidate, sets, verdict, settings, state)
    if verdict.ok and not settings.exhaustive:
        return search.report
    side = FxSide(FxStream(program, sets))
    pairs = side.pairs(search.candidate, settings.match)
    if not pairs:
        raise InputError("no value of the model is named like an fx node of the program; they do not belong together")
    _locate(search, side, pairs)
    return search.report


def _against_model(
    candidate: LoadedModel, reference: LoadedModel, inputs: InputsLike, settings: SearchOptions
) -> MismatchReport:
    right = bounded_runtime(reference, settings.reference_backend, settings.memory_limit)
    sets = resolve_inputs(inputs, reference)
    if sorted(x.name for x in reference.inputs) == sorted(x.name for x in candidate.inputs):
        # The order of the inputs is no part of what they mean.
        sets = [InputSet(feeds=bind_feeds(each, reference.inputs), label=each.label) for each in sets]
    verdict = _whole(right, candidate, sets, settings)
    search = _start(candidate, sets, verdict, settings)
    if verdict.ok and not settings.exhaustive:
        return search.report
    graph = Graph(reference)
    side = OnnxSide(graph, bind_samples(reference, sets), settings.reference_backend, settings.memory_limit)
    pairs = side.pairs(search.candidate, settings.match)
    if pairs_are_certain(graph, search.candidate, pairs):
        _locate(search, side, pairs)
    else:
        _locate_unsure(search, side, pairs, right)
    _check_wiring(search, graph, pairs)
    return search.report


def _locate(search: Search, side: Side, pairs: Mapping[str, str]) -> None:
    """Search in the ways that the settings ask for; models that agree as a whole have nothing to halve."""
    result, strategy = LocalResult(), search.settings.strategy
    if strategy != "bisect":
        result = search.localize(side, pairs)
        enter_bodies(search, result, side, pairs)
    unexplained = not search.report.verdict.ok and not result.mismatches
    if strategy == "bisect" or (strategy == "auto" and unexplained):
        search.bisect(side, pairs)
    _finish(search, result)


def _locate_unsure(search: Search, side: Side, pairs: Mapping[str, str], right: Runtime) -> None:
    """Search where two values may have the same name by chance: each finding is put to the test.

    A range has no such test, so a model is halved only if that is asked for.
    """
    if search.settings.strategy == "bisect":
        search.report.notes.append(_UNSURE)
        _locate(search, side, pairs)
        return
    test = search.confirmation(right)
    result = test.search(
        lambda chosen, count: search.localize(side, chosen, count), pairs, search.settings.max_mismatches
    )
    search.report.runs += test.runs
    enter_bodies(search, result, side, pairs)
    _finish(search, result)


def _check_wiring(search: Search, reference: Graph, pairs: Mapping[str, str]) -> None:
    """Note graph outputs that return another value than their counterpart: of the same name, or in the same place."""
    outputs = search.candidate.outputs
    others = outputs if sorted(outputs) == sorted(reference.outputs) else reference.outputs
    for position, (own, other) in enumerate(zip(outputs, others, strict=False)):
        made = pairs.get(own, own)
        if made != other and (own in pairs or own in search.candidate.inputs):
            search.report.notes.append(
                f"graph output {position} ({own!r}) returns the value {made!r}; the reference returns {other!r}"
            )


def _finish(search: Search, result: LocalResult) -> None:
    """Report what was found; the largest error if nothing exceeds its tolerance although the outputs disagree."""
    report = search.report
    report.mismatches += result.mismatches
    if not report.verdict.ok and not report.mismatches and result.suspect is not None:
        report.mismatches.append(result.suspect)


def _between_runtimes(
    candidate: LoadedModel,
    inputs: InputsLike,
    settings: SearchOptions,
    options: SearchOptions | None,
    changes: Mapping[str, Any],
    state: ProgramState = _NO_STATE,
) -> MismatchReport:
    """Compare one model with itself, run in two ways, from the state that a program starts with."""
    if options is None and "reference_backend" not in changes:
        settings = replace(settings, reference_backend=Backend.parse("reference"))
    right = bounded_runtime(candidate, settings.reference_backend, settings.memory_limit)
    sets = resolve_inputs(inputs, candidate)
    if state.outputs:
        sets = [InputSet(feeds=state.bind(each, candidate.inputs), label=each.label) for each in sets]
    verdict = _whole(right, candidate, sets, settings)
    search = _start(candidate, sets, verdict, settings)
    if verdict.ok and not settings.exhaustive:
        return search.report
    side = OnnxSide(search.candidate, search.samples, settings.reference_backend, settings.memory_limit)
    _locate(search, side, {name: name for name in search.candidate.producer})
    return search.report
