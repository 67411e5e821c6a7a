"""find_mismatch: which node is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from onnx_verify._torch import is_exported_program, is_module
from onnx_verify.bisect import Bisector
from onnx_verify.bodies import CONTROL_FLOW, BodyNode, body_runs
from onnx_verify.comparison import compare, resolve_inputs
from onnx_verify.confirm import Confirmation, pairs_are_certain
from onnx_verify.errors import InputError, ModelRunError
from onnx_verify.findings import MismatchReport, NodeLabel, NodeMismatch
from onnx_verify.fxstream import FxStream
from onnx_verify.inputs import InputSet, InputsLike
from onnx_verify.localize import Localizer, LocalResult
from onnx_verify.model import LoadedModel, is_model_like, load_model, subgraphs
from onnx_verify.pairing import pair_values
from onnx_verify.runtimes import Backend, Runtime, as_runtime
from onnx_verify.slicing import Graph
from onnx_verify.stateful import ProgramState, StatefulRuntime, state_of
from onnx_verify.streaming import DEFAULT_MEMORY_LIMIT, OnnxStream, ValueStream, bind_samples, bounded_runtime
from onnx_verify.tolerance import Tolerance, ToleranceLike
from onnx_verify.verdict import CaseReport, Verdict

STRATEGIES = ("auto", "instrumented", "bisect")
_PLAIN = Backend(prepack=False)
_NO_STATE = ProgramState()


@dataclass(frozen=True)
class SearchOptions:
    """How :func:`find_mismatch` searches.

    Attributes:
        tolerance: for the outputs, and for single values if it is one :class:`Tolerance`.
        backend: what runs the candidate.
        reference_backend: what runs an ONNX reference.
        strategy: ``"instrumented"`` checks every node on its own in one run; ``"bisect"`` halves the model,
            which
            sees what happens when nodes run together; ``"auto"`` bisects after the first if that found
            nothing.
        match: how the values of two ONNX models pair up: ``"names"``, ``"position"`` or ``"auto"``.
        memory_limit: bytes for intermediate values and the weights in use, beyond the models.
        max_mismatches: how many wrong pieces are reported.
        exhaustive: whether nodes are checked even if the outputs agree.
        progress: called with the checked and the total number of nodes.
    """

    tolerance: ToleranceLike = None
    backend: Backend = _PLAIN
    reference_backend: Backend = _PLAIN
    strategy: str = "auto"
    match: str = "auto"
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    max_mismatches: int = 1
    exhaustive: bool = False
    progress: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        """Refuses an unknown strategy and limits that allow nothing."""
        if self.strategy not in STRATEGIES:
            raise InputError(f"strategy is {self.strategy!r}; it is one of {', '.join(STRATEGIES)}")
        if self.max_mismatches < 1 or self.memory_limit < 1:
            raise InputError("max_mismatches and memory_limit must be at least 1")

    @property
    def local(self) -> Tolerance | None:
        """The tolerance of intermediate values."""
        return self.tolerance if isinstance(self.tolerance, Tolerance) else None


def find_mismatch(
    model: Any,
    inputs: InputsLike,
    *,
    reference: Any = None,
    options: SearchOptions | None = None,
    **changes: Any,
) -> MismatchReport:
    """Finds the smallest piece of a model that is wrong.

    Args:
        model: what is in question: an ONNX model in any form, or an ONNXProgram.
        inputs: input sets as for :func:`onnx_verify.compare`; all of them are checked in the same pass.
        reference: what is right. Another ONNX model: its values pair up with the candidate's by name or
            position.
            An ExportedProgram: by fx node name. None: for an ONNXProgram its own ``exported_program``; for
            an ONNX
            model the model itself, run by ``reference_backend`` (the reference evaluator unless given).
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
    if reference is None:
        reference = getattr(model, "exported_program", None)
    if reference is not None and settings.strategy == "bisect":
        raise InputError("strategy 'bisect' is for one model between two runtimes; leave out the reference")
    if reference is None:
        return _between_runtimes(candidate, inputs, settings, options, changes)
    if is_exported_program(reference):
        return _against_program(candidate, reference, inputs, settings, model)
    if is_module(reference):
        raise InputError(
            "a torch module has no values inside to compare with; give its ExportedProgram (torch.export.export), "
            "or use onnx_verify.torchscript.find_mismatch"
        )
    return _against_model(candidate, load_model(_onnx_part(reference)), inputs, settings)


def _onnx_part(model: Any) -> LoadedModel:
    """Returns the ONNX model in what the caller gave."""
    if is_model_like(model):
        return load_model(model)
    inner = getattr(model, "model", None)
    if is_model_like(inner):
        return load_model(inner)
    raise InputError(f"cannot look into a {type(model).__name__}; give an ONNX model, its path or an ONNXProgram")


@dataclass
class _Search:
    """One search, with what its steps share."""

    candidate: Graph
    sets: Sequence[InputSet]
    samples: Sequence[Mapping[str, Any]]
    settings: SearchOptions
    report: MismatchReport
    labels: list[str] = field(default_factory=list)

    def localize(self, stream: ValueStream, pairs: Mapping[str, str], count: int = 0) -> LocalResult:
        """Checks every node on its own, until ``count`` are wrong (as many as the settings ask for if 0)."""
        result = Localizer(
            self.candidate,
            self.samples,
            self.labels,
            stream,
            pairs,
            self.settings.backend,
            self.settings.local,
            self.settings.memory_limit,
            count or self.settings.max_mismatches,
            self.settings.progress,
        ).run()
        self.report.runs += 2
        self.report.checked = len(result.profile)
        self.report.profile = result.profile
        return result

    def confirmation(self, right: Runtime) -> Confirmation:
        """Returns the test of findings whose values may not correspond."""
        settings = self.settings
        return Confirmation(
            right,
            self.candidate,
            self.sets,
            self.samples,
            self.labels,
            self.report.verdict,
            settings.backend,
            settings.tolerance,
            settings.memory_limit,
        )


def _whole(
    right: Runtime,
    candidate: LoadedModel,
    sets: list[InputSet],
    settings: SearchOptions,
    state: ProgramState = _NO_STATE,
) -> Verdict:
    """Compares the whole models; a candidate that cannot be run is a disagreement, for its nodes can be
    searched."""
    try:
        left = bounded_runtime(candidate, settings.backend, settings.memory_limit)
        if state.outputs:
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
) -> _Search:
    report = MismatchReport(verdict, runs=2)
    samples = [state.bind(each, candidate.inputs) for each in sets]
    search = _Search(Graph(candidate), sets, samples, settings, report)
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
    stream = FxStream(program, sets)
    graph = search.candidate
    pairs = {name: name for name in graph.producer if name in stream.names}
    pairs |= _paired_outputs(graph, _program_outputs(program), stream.names, pairs)
    pairs |= _renamed_results(graph, stream.names)
    if not pairs:
        raise InputError("no value of the model is named like an fx node of the program; they do not belong together")
    _finish(search, search.localize(stream, pairs))
    return search.report


def _program_outputs(program: Any) -> list[str]:
    return [spec.arg.name for spec in program.graph_signature.output_specs if hasattr(spec.arg, "name")]


def _renamed_results(candidate: Graph, known: set[str]) -> dict[str, str]:
    """Pairs a graph output that was given a name of its own with the fx node that its metadata names."""
    pairs: dict[str, str] = {}
    for name in candidate.outputs:
        if name in candidate.producer and name not in known:
            node = NodeLabel.of(candidate.nodes[candidate.producer[name]]).fx_node
            if node in known and node not in candidate.producer:
                pairs[name] = node
    return pairs


def _paired_outputs(
    candidate: Graph, outputs: Sequence[str], known: set[str], pairs: Mapping[str, str]
) -> dict[str, str]:
    """Pairs the graph outputs that have no pair yet by position; they are the same whatever they are called."""
    if len(outputs) != len(candidate.outputs):
        return {}
    return {
        own: other
        for own, other in zip(candidate.outputs, outputs, strict=True)
        if own in candidate.producer and other in known and own not in pairs
    }


def _against_model(
    candidate: LoadedModel, reference: LoadedModel, inputs: InputsLike, settings: SearchOptions
) -> MismatchReport:
    right = bounded_runtime(reference, settings.reference_backend, settings.memory_limit)
    sets = resolve_inputs(inputs, reference)
    verdict = _whole(right, candidate, sets, settings)
    search = _start(candidate, sets, verdict, settings)
    if verdict.ok and not settings.exhaustive:
        return search.report
    graph = Graph(reference)
    pairs = pair_values(graph, search.candidate, settings.match)
    pairs |= _paired_outputs(search.candidate, graph.outputs, set(graph.producer), pairs)
    samples = bind_samples(reference, sets)

    def localize(chosen: Mapping[str, str], count: int) -> LocalResult:
        stream = OnnxStream(graph, samples, settings.reference_backend, settings.memory_limit)
        return search.localize(stream, chosen, count)

    if pairs_are_certain(graph, search.candidate, pairs):
        result = localize(pairs, settings.max_mismatches)
    else:
        test = search.confirmation(right)
        result = test.search(localize, pairs, settings.max_mismatches)
        search.report.runs += test.runs
    _enter_bodies(search, result, graph, samples, pairs)
    _finish(search, result)
    _check_wiring(search, graph, pairs)
    return search.report


def _check_wiring(search: _Search, reference: Graph, pairs: Mapping[str, str]) -> None:
    """Notes graph outputs that return another value than their counterpart."""
    for position, (own, other) in enumerate(zip(search.candidate.outputs, reference.outputs, strict=False)):
        made = pairs.get(own, own)
        if made != other and (own in pairs or own in search.candidate.inputs):
            search.report.notes.append(
                f"graph output {position} ({own!r}) returns the value {made!r}; the reference returns {other!r}"
            )


def _finish(search: _Search, result: LocalResult) -> None:
    """Reports what was found; the largest error if nothing exceeds its tolerance although the outputs disagree."""
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
) -> MismatchReport:
    """Compares one model with itself, run in two ways."""
    if options is None and "reference_backend" not in changes:
        settings = replace(settings, reference_backend=Backend.parse("reference"))
    right = bounded_runtime(candidate, settings.reference_backend, settings.memory_limit)
    sets = resolve_inputs(inputs, candidate)
    verdict = _whole(right, candidate, sets, settings)
    search = _start(candidate, sets, verdict, settings)
    if verdict.ok and not settings.exhaustive:
        return search.report
    graph = search.candidate
    result = LocalResult()
    if settings.strategy != "bisect":
        stream = OnnxStream(graph, search.samples, settings.reference_backend, settings.memory_limit)
        pairs = {name: name for name in graph.producer}
        result = search.localize(stream, pairs)
        _enter_bodies(search, result, graph, search.samples, pairs)
    if settings.strategy != "instrumented" and not result.mismatches:
        _bisect(search)
    _finish(search, result)
    return search.report


def _bisect(search: _Search) -> None:
    settings = search.settings
    bisector = Bisector(
        search.candidate,
        search.samples,
        search.labels,
        settings.reference_backend,
        settings.backend,
        settings.local,
        settings.memory_limit,
    )
    found = bisector.run()
    search.report.runs += bisector.tests
    search.report.checked += bisector.tests
    if found is not None:
        search.report.mismatches.append(found)


def _enter_bodies(
    search: _Search,
    result: LocalResult,
    reference: Graph,
    samples: Sequence[Mapping[str, Any]],
    pairs: Mapping[str, str],
) -> None:
    """Replaces a control-flow node that is wrong by the node in its body that is."""
    for position, index in enumerate(result.indices):
        node = search.candidate.nodes[index]
        other = reference.producer.get(pairs.get(node.output[0], ""))
        if node.op_type not in CONTROL_FLOW or other is None:
            continue
        if reference.nodes[other].op_type != node.op_type:
            continue
        finding = result.mismatches[position]
        sample = search.labels.index(finding.sample)
        right = _values_of(reference, other, samples[sample], search.settings)
        own = {n: right[pairs.get(n, n)] for n in search.candidate.uses[index] if pairs.get(n, n) in right}
        own |= {n: v for n, v in search.samples[sample].items() if n in search.candidate.uses[index]}
        inner = _inside(
            BodyNode(reference.nodes[other], reference.model, right),
            BodyNode(node, search.candidate.model, own),
            search.settings,
        )
        if isinstance(inner, str):
            finding.notes.append(inner)
        elif inner is not None:
            inner.sample = finding.sample
            result.mismatches[position] = inner


def _values_of(graph: Graph, index: int, sample: Mapping[str, Any], settings: SearchOptions) -> dict[str, Any]:
    """Returns what a node reads on one sample."""
    reads = graph.uses[index]
    stream = OnnxStream(graph, [sample], settings.reference_backend, settings.memory_limit)
    values = {name: each[0] for name, each in stream.values(reads & graph.producer.keys())}
    return values | {name: value for name, value in sample.items() if name in reads}


def _body_wiring(reference: onnx.NodeProto, candidate: onnx.NodeProto) -> str | None:
    """Tells which output of a body returns another of its values, where both bodies name their values
    alike."""
    for right, body in zip(subgraphs(reference), subgraphs(candidate), strict=False):
        names = {name for node in right.node for name in node.output} | {value.name for value in right.input}
        for position, (wanted, own) in enumerate(zip(right.output, body.output, strict=False)):
            if wanted.name != own.name and own.name in names:
                return f"output {position} of its body returns {own.name!r}; the reference's returns {wanted.name!r}"
    return None


def _inside(reference: BodyNode, candidate: BodyNode, settings: SearchOptions) -> NodeMismatch | str | None:
    """Returns the first wrong piece in the executions of a body.

    Where every node agrees it is None, or a note if the bodies return different values of theirs.
    """
    note = _body_wiring(reference.node, candidate.node)
    if note is not None:
        return note
    for run in body_runs(reference, candidate, settings.reference_backend):
        right, graph = Graph(run.reference), Graph(run.candidate)
        pairs = pair_values(right, graph, settings.match)
        for own, other in zip(graph.outputs, right.outputs, strict=False):
            if own in graph.producer and other in right.producer:
                pairs.setdefault(own, other)
        verdict = Verdict("reference body", "candidate body", [])
        inner = _Search(graph, [], [run.candidate_feeds], settings, MismatchReport(verdict), [run.label])
        samples = [run.reference_feeds]
        stream = OnnxStream(right, samples, settings.reference_backend, settings.memory_limit)
        result = inner.localize(stream, pairs)
        _enter_bodies(inner, result, right, samples, pairs)
        found = next(iter(result.mismatches), None)
        if found is not None and found.confirmed:
            found.path.insert(0, run.label)
            return found
    return None
