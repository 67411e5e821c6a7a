"""Going into control flow: which node of which iteration of which body is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from onnx_verify.models.model import LoadedModel, used_names
from onnx_verify.models.slicing import standalone
from onnx_verify.running.runtimes import Backend

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


@dataclass
class BodyRun:
    """One execution of a body: both sides as models, and the right values for their inputs.

    ``candidate_feeds`` name the same values as ``reference_feeds``, under the candidate's names.
    """

    label: str
    reference: LoadedModel
    candidate: LoadedModel
    reference_feeds: dict[str, Any]
    candidate_feeds: dict[str, Any]


@dataclass
class BodyNode:
    """A control-flow node with the values that it reads.

    Attributes:
        node: an If, Loop or Scan.
        model: the model that it is in.
        values: what it and its bodies read, by name, initializers excepted.
        before: the nodes before it that make what has no counterpart on the other side, if there are any.
        before_feeds: right values for them.
    """

    node: onnx.NodeProto
    model: LoadedModel
    values: Mapping[str, Any]
    before: LoadedModel | None = None
    before_feeds: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How labels call the node."""
        return self.node.name or f"{self.node.op_type} {self.node.output[0]}"

    def body(self, name: str) -> onnx.GraphProto:
        """Return the body in an attribute."""
        found: onnx.GraphProto = next(a.g for a in self.node.attribute if a.name == name)
        return found

    def captured(self, graph: onnx.GraphProto) -> dict[str, Any]:
        """Return the values that a body reads from around it, initializers excepted."""
        names = {name for node in graph.node for name in used_names(node)}
        names |= {value.name for value in graph.output}
        names -= {value.name for value in graph.input}
        return {name: self.values[name] for name in names if name in self.values}

    def read(self, position: int) -> Any:
        """Return the value of an input, None where it is absent."""
        name = self.node.input[position] if position < len(self.node.input) else ""
        if not name:
            return None
        return self.values[name] if name in self.values else self.model.initializer_values(name)


def body_runs(reference: BodyNode, candidate: BodyNode, backend: Backend) -> Iterator[BodyRun]:
    """Yield the executions of the bodies of two corresponding control-flow nodes, in order.

    The reference's body is run to get the state that the next iteration begins with.

    Raises:
        ModelRunError: if a body cannot be run alone.
    """
    kind = reference.node.op_type
    if kind == "If":
        yield _branch(reference, candidate)
    elif kind == "Loop":
        yield from _iterations(reference, candidate, backend)
    elif kind == "Scan":
        yield from _scans(reference, candidate, backend)


def _branch(reference: BodyNode, candidate: BodyNode) -> BodyRun:
    name = "then_branch" if bool(np.asarray(reference.read(0)).reshape(-1)[0]) else "else_branch"
    return _pair(reference, candidate, name, f"{candidate.name} {name}", [])


def _pair(reference: BodyNode, candidate: BodyNode, body: str, label: str, state: list[Any]) -> BodyRun:
    """Make the two models of one execution, with the state as the bodies' inputs."""
    sides = []
    for side in (reference, candidate):
        graph = side.body(body)
        feeds = side.captured(graph)
        feeds.update({value.name: given for value, given in zip(graph.input, state, strict=True)})
        sides.append((standalone(graph, side.model, feeds), feeds))
    return BodyRun(label, sides[0][0], sides[1][0], sides[0][1], sides[1][1])


def _iterations(reference: BodyNode, candidate: BodyNode, backend: Backend) -> Iterator[BodyRun]:
    limit, condition = reference.read(0), reference.read(1)
    going = True if condition is None else bool(np.asarray(condition).reshape(-1)[0])
    count = None if limit is None else int(np.asarray(limit).reshape(-1)[0])
    carried = [reference.read(position) for position in range(2, len(reference.node.input))]
    iteration = 0
    while going and (count is None or iteration < count):
        state = [np.asarray(iteration, np.int64), np.asarray(True), *carried]
        label = f"{candidate.name} iteration {iteration}"
        run = _pair(reference, candidate, "body", label, state)
        yield run
        results = backend.load(run.reference).run_values(run.reference_feeds)
        going, carried = bool(np.asarray(results[0]).reshape(-1)[0]), results[1 : 1 + len(carried)]
        iteration += 1


def _scans(reference: BodyNode, candidate: BodyNode, backend: Backend) -> Iterator[BodyRun]:
    attributes = {attribute.name: attribute for attribute in reference.node.attribute}
    scanned = int(attributes["num_scan_inputs"].i)
    states = len(reference.node.input) - scanned
    carried = [reference.read(position) for position in range(states)]
    sequences = [np.asarray(reference.read(position)) for position in range(states, states + scanned)]
    axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0] * scanned
    backward = (
        list(attributes["scan_input_directions"].ints) if "scan_input_directions" in attributes else [0] * scanned
    )
    for iteration in range(sequences[0].shape[axes[0]]):
        parts = [
            np.take(values, -1 - iteration if flip else iteration, axis)
            for values, axis, flip in zip(sequences, axes, backward, strict=True)
        ]
        label = f"{candidate.name} iteration {iteration}"
        run = _pair(reference, candidate, "body", label, [*carried, *parts])
        yield run
        carried = backend.load(run.reference).run_values(run.reference_feeds)[:states]
