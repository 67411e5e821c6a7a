"""Going into control flow: which node of which execution of which body is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx_verify.comparing.verdict import Verdict
from onnx_verify.errors import InputError, ModelRunError
from onnx_verify.models.slicing import FEED_SUFFIX, Graph, passed_name, piece
from onnx_verify.running.streaming import run_piece
from onnx_verify.search.bodies import CONTROL_FLOW, BodyNode
from onnx_verify.search.findings import MismatchReport, NodeMismatch
from onnx_verify.search.localize import LocalResult, compare_value
from onnx_verify.search.sides import INITIAL, Execution, Side
from onnx_verify.search.steps import Search, SearchOptions


def enter_bodies(search: Search, result: LocalResult, side: Side, pairs: Mapping[str, str]) -> None:
    """Replace each control-flow node that is wrong by the node in its bodies that is.

    Where no single node of them is, the finding gets a note that tells what else is wrong.
    """
    for position, index in enumerate(result.indices):
        node = search.candidate.nodes[index]
        value = next((pairs[name] for name in node.output if name in pairs), None)
        if node.op_type not in CONTROL_FLOW or value is None:
            continue
        finding = result.mismatches[position]
        sample = search.labels.index(finding.sample)
        right = side.only(sample)
        try:
            inner = _inside(right, value, _call(search, index, right, pairs, sample), search.settings)
        except (InputError, ModelRunError) as error:
            inner = f"its bodies could not be compared: {error}"
        if isinstance(inner, str):
            finding.notes.append(inner)
        elif inner is not None:
            inner.sample = finding.sample
            result.mismatches[position] = inner


def _call(search: Search, index: int, right: Side, pairs: Mapping[str, str], sample: int) -> BodyNode:
    """Return a control-flow node with right values for all that it and its bodies read."""
    graph = search.candidate
    nodes = graph.behind([index], pairs)
    reads = {name for i in nodes for name in graph.uses[i]}
    made = {name: each[0] for name, each in right.stream().values({pairs[name] for name in reads if name in pairs})}
    given = {name: made[pairs[name]] for name in reads if name in pairs}
    given |= {name: value for name, value in search.samples[sample].items() if name in reads}
    needed = [name for name in graph.uses[index] if name in graph.producer and name not in given]
    before = [i for i in nodes if i != index]
    if not needed:
        return BodyNode(graph.nodes[index], graph.model, given)
    renames = {name: name + FEED_SUFFIX for name in given}
    read_before = {name for i in before for name in graph.uses[i]}
    feeds = {renames[name]: value for name, value in given.items() if name in read_before}
    model = piece(graph, before, needed, feeds, renames)
    results = run_piece(model, needed, [feeds], search.settings.backend)
    given |= {name: values[0] for name, values in results.items()}
    return BodyNode(graph.nodes[index], graph.model, given, model, feeds)


def _inside(right: Side, value: str, call: BodyNode, settings: SearchOptions) -> NodeMismatch | str | None:
    """Return the first wrong piece in the executions of the bodies, or a note where every node in them agrees."""
    count = 0
    for run in right.executions(value, call):
        found = _wrong_node(run, settings) or _wrong_result(run, settings)
        if found is not None:
            return found
        count += not run.label.endswith(INITIAL)
    if call.node.op_type == "If":
        return "the branch that the reference takes is right; the condition is not" if count else None
    if count:
        times = "iteration" if count == 1 else f"{count} iterations"
        return f"its body is right in the {times} of the reference: look at its inputs, attributes and trip count"
    return None


def _wrong_node(run: Execution, settings: SearchOptions) -> NodeMismatch | None:
    graph = Graph(run.candidate)
    pairs = run.reference.pairs(graph, settings.match)
    pairs = {own: other for own, other in pairs.items() if passed_name(own) is None}
    report = MismatchReport(Verdict("reference body", "candidate body", []))
    inner = Search(graph, [], [run.feeds], settings, report, [run.label])
    result = inner.localize(run.reference, pairs)
    enter_bodies(inner, result, run.reference, pairs)
    found = next(iter(result.mismatches), None)
    if found is None or not found.confirmed:
        return None
    found.path.insert(0, run.label)
    return found


def _wrong_result(run: Execution, settings: SearchOptions) -> str | None:
    """Tell which output of a body is wrong although its nodes are right: the body returns another of its values."""
    names = [passed_name(info.name) or info.name for info in run.candidate.outputs]
    wanted = [passed_name(name) or name for name in run.reference.output_names]
    own = settings.backend.load(run.candidate).run_values(run.feeds)
    expected = run.reference.results()
    if len(own) != len(expected):
        return f"its body returns {len(own)} values, the reference's {len(expected)}"
    for position, (right, value) in enumerate(zip(expected, own, strict=True)):
        if not _alike(right, value, settings):
            return (
                f"output {position} of its body returns {names[position]!r}; the reference's returns "
                f"{wanted[position]!r} (first different in {run.label})"
            )
    return None


def _alike(right: Any, value: Any, settings: SearchOptions) -> bool:
    if right is None or value is None:
        return right is value
    return compare_value("output", right, value, settings.local).ok
