"""Where a model runs: each engine at each opset."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx

from onnx_verify.comparing.comparison import compare_outputs, resolve_inputs
from onnx_verify.errors import MissingDependencyError, ModelRunError
from onnx_verify.inputs.generate import RandomInputs
from onnx_verify.inputs.reading import InputsLike
from onnx_verify.inputs.sets import InputSet
from onnx_verify.judging.answers import usable_engines
from onnx_verify.judging.gaps import lacks, name_of
from onnx_verify.models.model import LoadedModel, ModelLike, load_model
from onnx_verify.models.slicing import Graph, piece
from onnx_verify.running.runtimes import Backend, Outputs
from onnx_verify.running.streaming import OnnxStream, bind_samples
from onnx_verify.search.find import find_mismatch
from onnx_verify.values.tolerance import ToleranceLike

__all__ = ["Place", "portable"]


@dataclass
class Place:
    """How a model fares in one engine at one opset.

    Attributes:
        engine: name of the engine.
        opset: the opset.
        loads: whether the engine loads it.
        agrees: whether it gives what the model gives as it is; None if it does not run, or nothing else of several
            engines does.
        operator: the operator that stands in the way, or of which the engine makes something else; empty if none does,
            or none can be named.
        reason: what stands in the way, in words.
    """

    engine: str
    opset: int
    loads: bool = False
    agrees: bool | None = None
    operator: str = ""
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the model runs there and agrees."""
        return bool(self.agrees)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "ok": self.ok}


def portable(
    model: ModelLike,
    inputs: InputsLike = "random",
    *,
    opsets: Sequence[int] = (),
    engines: Sequence[str] | None = None,
    tolerance: ToleranceLike = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Place]:
    """Tell for each engine and opset whether a model loads and agrees, and what stands in the way.

    Args:
        model: an ONNX model in any form.
        inputs: input sets as for :func:`onnx_verify.compare`.
        opsets: opsets at which the model is tried too, beside its own; that needs onnxops-decomp.
        engines: their names; all that are installed by default.
        tolerance: one tolerance for all values; chosen by dtype otherwise.
        progress: called with the finished and the total number of places.

    Raises:
        InputError: if the inputs do not fit.
        ModelLoadError: if the model is broken or unsafe.
        ModelRunError: if no engine runs the model as it is.
        MissingDependencyError: if onnxops-decomp is needed and not installed.
    """
    loaded = load_model(model)
    chosen = list(engines) if engines is not None else usable_engines()
    sets = resolve_inputs(RandomInputs(edge_cases=False) if inputs == "random" else inputs, loaded)
    own, expected = _expected(loaded, sets, chosen)
    wanted = [loaded.opset, *(opset for opset in opsets if opset != loaded.opset)]
    places: list[Place] = []
    for opset in wanted:
        variant = _at(loaded, opset)
        for name in chosen:
            place = Place(name, opset)
            if isinstance(variant, str):
                place.reason = variant
            else:
                _try(place, variant, sets, expected, own, tolerance)
            places.append(place)
            if progress is not None:
                progress(len(places), len(wanted) * len(chosen))
    _doubt(places)
    return places


def _doubt(places: Sequence[Place]) -> None:
    """Note that what one engine alone gives, as others fail at every opset, is confirmed by nothing."""
    ran = {place.engine for place in places if place.agrees is not None}
    if len(ran) == 1 < len({place.engine for place in places}):
        for place in places:
            if place.agrees:
                place.agrees, place.reason = None, "no other engine runs the model, so nothing confirms its results"


def _expected(model: LoadedModel, sets: Sequence[InputSet], engines: Sequence[str]) -> tuple[str, list[Outputs]]:
    """Return the first engine that runs the model as it is, and what it gives."""
    errors = []
    for name in engines:
        try:
            runtime = Backend.parse(name).load(model)
            return name, [runtime.run(each) for each in sets]
        except ModelRunError as error:
            errors.append(str(error))
    raise ModelRunError(f"no engine runs the model as it is: {'; '.join(errors)}")


def _at(model: LoadedModel, opset: int) -> LoadedModel | str:
    """Return the model at an opset, or why it cannot be written there."""
    if opset == model.opset:
        return model
    try:
        convert = importlib.import_module("onnxops_decomp").convert_opset
    except ImportError as error:
        raise MissingDependencyError("other opsets need onnxops-decomp: pip install onnxops-decomp") from error
    try:
        return load_model(convert(model.to_proto(), opset))
    except Exception as error:  # the errors of another package
        return str(error)


def _try(
    place: Place,
    model: LoadedModel,
    sets: Sequence[InputSet],
    expected: Sequence[Outputs],
    own: str,
    tolerance: ToleranceLike,
) -> None:
    try:
        runtime = Backend.parse(place.engine).load(model)
        place.loads = True
        outputs = [runtime.run(each) for each in sets]
    except ModelRunError as error:
        place.reason = str(error)
        place.operator = _in_the_way(place.engine, model, sets[0], own)
        return
    cases = [compare_outputs(a, b, each.label, tolerance) for a, b, each in zip(expected, outputs, sets, strict=True)]
    place.agrees = all(case.ok for case in cases)
    if not place.agrees:
        wrong = next(case for case in cases if not case.ok)
        place.reason = "; ".join([*wrong.reasons, *(str(output) for output in wrong.outputs if output.reasons)])
        place.operator = _wrong(place.engine, model, sets, own, tolerance)


def _wrong(engine: str, model: LoadedModel, sets: Sequence[InputSet], own: str, tolerance: ToleranceLike) -> str:
    """Return the first operator of which an engine makes something else than another engine, given the same values."""
    ours, theirs = Backend.parse(engine), Backend.parse(own)
    try:
        first = find_mismatch(model, list(sets), backend=ours, reference_backend=theirs, tolerance=tolerance).first
    except ModelRunError:
        return ""
    return "" if first is None else name_of(first.node)


def _in_the_way(engine: str, model: LoadedModel, inputs: InputSet, own: str) -> str:
    """Return the operator that an engine cannot run: one that fails alone, or one that it is known to lack."""
    graph = Graph(model)
    versions = {each.domain: each.version for each in model.proto.opset_import}

    def lacked(node: onnx.NodeProto) -> bool:
        return lacks(engine, node, versions.get(node.domain, 1))

    firsts: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        firsts.setdefault(name_of(node), index)
    tried = sorted(firsts.items(), key=lambda item: not lacked(graph.nodes[item[1]]))
    failing = _failing(engine, graph, tried, bind_samples(model, [inputs])[0], own)
    # What fails as a whole may do so because of a node in its body.
    where = [node for node in graph.nodes if not failing or name_of(node) == failing]
    return next((name_of(node) for node in _nodes(where) if lacked(node)), failing)


def _failing(engine: str, graph: Graph, tried: Sequence[tuple[str, int]], sample: Mapping[str, Any], own: str) -> str:
    """Return the first operator that does not run alone, as far as another engine has values to try each with."""
    reads = {name for _, index in tried for name in graph.uses[index]}
    try:
        values = dict(OnnxStream(graph, [sample], Backend.parse(own)).values(reads & set(graph.producer)))
    except ModelRunError:
        return ""
    for operator, index in tried:
        feeds = {name: values[name][0] for name in graph.uses[index] if name in values}
        feeds |= {name: sample[name] for name in graph.uses[index] if name in sample}
        try:
            single = piece(graph, [index], [name for name in graph.nodes[index].output if name], feeds)
            Backend.parse(engine).load(single).run(InputSet(feeds=feeds))
        except ModelRunError:
            return operator
    return ""


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes(body.node)
