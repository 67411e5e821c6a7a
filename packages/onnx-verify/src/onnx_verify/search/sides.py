"""The right side of a search: the values of a model or program in order, and what its control flow executes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onnx_verify.models.model import LoadedModel
from onnx_verify.models.slicing import Graph
from onnx_verify.running.runtimes import Backend
from onnx_verify.running.streaming import Feeds, OnnxStream, ValueStream
from onnx_verify.search.bodies import BodyNode, body_runs
from onnx_verify.search.pairing import pair_values

INITIAL = "initial condition"
"""Labels the execution that tells whether a loop begins, which ONNX computes before it."""


@dataclass
class Execution:
    """One execution of a body: the right side, and the candidate's body with the right values for its inputs."""

    label: str
    reference: Side
    candidate: LoadedModel
    feeds: dict[str, Any]


class Side(Protocol):
    """What a candidate is held against: a graph with the inputs that it is run on."""

    @property
    def output_names(self) -> list[str]:
        """The names of the values that the graph returns."""

    def stream(self) -> ValueStream:
        """Return the values in order, from the start."""

    def pairs(self, candidate: Graph, match: str) -> dict[str, str]:
        """Return this side's name for each value of the candidate that has a counterpart here."""

    def only(self, sample: int) -> Side:
        """Return the same graph on one sample."""

    def results(self) -> list[Any]:
        """Return what the graph returns on the first sample."""

    def executions(self, value: str, call: BodyNode) -> Iterator[Execution]:
        """Yield the executions of the bodies of a control-flow node on the first sample.

        Args:
            value: a value of this side that the counterpart of the node makes.
            call: the candidate's node; nothing is yielded if its counterpart is of another kind.

        Raises:
            InputError: if the two nodes are of one kind, and their bodies still cannot be compared.
        """


@dataclass
class OnnxSide:
    """A right ONNX graph."""

    graph: Graph
    samples: Sequence[Feeds]
    backend: Backend
    memory_limit: int

    @property
    def output_names(self) -> list[str]:
        """The graph's outputs."""
        return self.graph.outputs

    def stream(self) -> ValueStream:
        """Run the graph window by window."""
        return OnnxStream(self.graph, self.samples, self.backend, self.memory_limit)

    def pairs(self, candidate: Graph, match: str) -> dict[str, str]:
        """Pair values by name or position, and the outputs by position."""
        pairs = pair_values(self.graph, candidate, match)
        return pairs | paired_outputs(candidate, self.output_names, set(self.graph.producer), pairs)

    def only(self, sample: int) -> OnnxSide:
        """Return the graph on one sample."""
        return OnnxSide(self.graph, [self.samples[sample]], self.backend, self.memory_limit)

    def results(self) -> list[Any]:
        """Run the graph as a whole."""
        return self.backend.load(self.graph.model).run_values(self.samples[0])

    def executions(self, value: str, call: BodyNode) -> Iterator[Execution]:
        """Execute the bodies of the node that makes the value, if it is of the same kind."""
        made = self.graph.producer.get(value)
        if made is None or self.graph.nodes[made].op_type != call.node.op_type:
            return
        right = BodyNode(self.graph.nodes[made], self.graph.model, self._read_by(made))
        for run in body_runs(right, call, self.backend):
            body = OnnxSide(Graph(run.reference), [run.reference_feeds], self.backend, self.memory_limit)
            yield Execution(run.label, body, run.candidate, run.candidate_feeds)

    def _read_by(self, index: int) -> dict[str, Any]:
        """Return what a node reads, on the first sample."""
        reads = self.graph.uses[index]
        made = self.only(0).stream().values(reads & self.graph.producer.keys())
        values = {name: each[0] for name, each in made}
        return values | {name: value for name, value in self.samples[0].items() if name in reads}


def paired_outputs(
    candidate: Graph, outputs: Sequence[str], known: set[str], pairs: Mapping[str, str]
) -> dict[str, str]:
    """Pair the graph outputs that have no pair yet by position; they are the same whatever they are called."""
    if len(outputs) != len(candidate.outputs):
        return {}
    return {
        own: other
        for own, other in zip(candidate.outputs, outputs, strict=True)
        if own in candidate.producer and other in known and own not in pairs
    }
