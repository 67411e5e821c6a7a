"""Finding the smallest run of nodes that disagrees, for faults that only show when nodes run together.

An optimizer's fusion vanishes when the values inside it are asked for. So here only the values at the two
ends of a
range are looked at: the range is given right values and run as a whole by the runtime in question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx_verify.findings import NodeLabel, NodeMismatch, error_score
from onnx_verify.localize import compare_value
from onnx_verify.runtimes import Backend
from onnx_verify.slicing import Graph, piece
from onnx_verify.streaming import Feeds, OnnxStream, Values, run_piece
from onnx_verify.tolerance import ToleranceLike
from onnx_verify.verdict import OutputReport


@dataclass
class Bisector:
    """Searches one graph for the range that two runtimes disagree on.

    Attributes:
        graph: the model that both run.
        samples: its inputs by name, one per input set.
        labels: the input sets' names.
        reference: the runtime that is right.
        candidate: the runtime in question.
        tolerance: one for all values, or None for the defaults by dtype.
        memory_limit: bytes for the values of the reference.
        tests: how many ranges were run so far.
    """

    graph: Graph
    samples: Sequence[Feeds]
    labels: Sequence[str]
    reference: Backend
    candidate: Backend
    tolerance: ToleranceLike = None
    memory_limit: int = 1 << 30
    tests: int = 0
    _known: dict[int, dict[str, Values]] = field(default_factory=dict)

    def run(self) -> NodeMismatch | None:
        """Returns the smallest range found, None if the whole agrees.

        Two binary searches, of at most log2(nodes) + 1 tests each: for the end where agreement turns into
        disagreement, then for the latest start from which that end still disagrees. Neither assumes that an
        error,
        once made, stays: each keeps one agreeing and one disagreeing bound.
        """
        count = len(self.graph.nodes)
        if not self._differs(0, count):
            return None
        agrees, stop = 0, count
        while stop - agrees > 1:
            middle = (agrees + stop) // 2
            if self._differs(0, middle):
                stop = middle
            else:
                agrees = middle
        start, beyond = 0, stop
        while beyond - start > 1:
            middle = (start + beyond) // 2
            if self._differs(middle, stop):
                start = middle
            else:
                beyond = middle
        return self._finding(start, stop)

    def _differs(self, start: int, stop: int) -> bool:
        return any(not report.ok for each in self._reports(start, stop) for report in each)

    def _reports(self, start: int, stop: int) -> list[list[OutputReport]]:
        """Runs a range on the candidate; returns one list of reports per sample."""
        self.tests += 1
        _, feeds, actual = self._execute(start, stop)
        expected = self._values_at(stop)
        names = [name for name in actual if name in expected]
        return [
            [compare_value(n, expected[n][s], actual[n][s], self.tolerance) for n in names] for s in range(len(feeds))
        ]

    def _execute(self, start: int, stop: int) -> tuple[Any, list[dict[str, Any]], dict[str, Values]]:
        nodes = range(start, stop)
        outputs = [name for name in self.graph.live_after(stop) if self.graph.producer[name] >= start]
        if not outputs:
            return None, [{} for _ in self.samples], {}
        reads = {name for index in nodes for name in self.graph.uses[index]}
        before = self._values_at(start)
        feeds = [
            {name: values[s] for name, values in before.items() if name in reads}
            | {name: sample[name] for name in reads if name in sample}
            for s, sample in enumerate(self.samples)
        ]
        model = piece(self.graph, nodes, outputs, feeds[0])
        return model, feeds, run_piece(model, outputs, feeds, self.candidate)

    def _values_at(self, cut: int) -> dict[str, Values]:
        """Returns the reference's values that cross a cut; only the last few cuts are kept."""
        if cut == 0:
            return {}
        if cut not in self._known:
            wanted = set(self.graph.live_after(cut))
            stream = OnnxStream(self.graph, self.samples, self.reference, self.memory_limit)
            if len(self._known) >= 2:
                self._known.pop(next(iter(self._known)))
            self._known[cut] = dict(stream.values(wanted))
        return self._known[cut]

    def _finding(self, start: int, stop: int) -> NodeMismatch:
        reports = self._reports(start, stop)
        worst = max(range(len(reports)), key=lambda s: max(map(_rank, reports[s]), default=(False, 0.0)))
        wrong = [report for report in reports[worst] if not report.ok]
        model, feeds, actual = self._execute(start, stop)
        expected = self._values_at(stop)
        return NodeMismatch(
            nodes=[NodeLabel.of(node) for node in self.graph.nodes[start:stop]],
            reports=wrong,
            sample=self.labels[worst],
            piece=model,
            feeds=feeds[worst],
            reference={name: expected[name][worst] for name in actual},
            candidate={name: values[worst] for name, values in actual.items()},
            optimization=self.candidate.optimization,
            notes=[f"these {stop - start} nodes disagree only when {self.candidate.label} runs them together"]
            if stop - start > 1
            else [],
        )


def _rank(report: OutputReport) -> tuple[bool, float]:
    return (not report.ok, error_score(report))
