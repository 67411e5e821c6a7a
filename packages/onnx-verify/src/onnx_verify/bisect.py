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
from onnx_verify.model import LoadedModel
from onnx_verify.runtimes import Backend
from onnx_verify.slicing import Graph, piece
from onnx_verify.streaming import Feeds, OnnxStream, Values, run_piece
from onnx_verify.tolerance import ToleranceLike
from onnx_verify.verdict import OutputReport


@dataclass
class _Test:
    """One range as a model, what it was given, what it gave, and how that compares, by sample."""

    model: LoadedModel | None
    feeds: list[dict[str, Any]]
    actual: dict[str, Values]
    reports: list[list[OutputReport]]


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
    _last: dict[tuple[int, int], _Test] = field(default_factory=dict)

    def run(self) -> NodeMismatch | None:
        """Returns the smallest range found, None if the whole agrees.

        A binary search finds the end where agreement turns into disagreement, in log2(nodes) tests; from there,
        ranges of 1, 2, 4, ... nodes back to the first that disagrees, and a binary search among the last of them,
        find the start, in 2 * log2(length of the range) + 1 tests. Nothing assumes that an error, once made, stays:
        each search keeps one agreeing and one disagreeing bound.
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
        return self._finding(self._start_of(stop), stop)

    def _start_of(self, stop: int) -> int:
        """Returns the latest start from which the range to ``stop`` disagrees."""
        width, beyond = 1, stop
        while width < stop and not self._differs(stop - width, stop):
            beyond = stop - width
            width *= 2
        start = max(stop - width, 0)
        while beyond - start > 1:
            middle = (start + beyond) // 2
            if self._differs(middle, stop):
                start = middle
            else:
                beyond = middle
        return start

    def _differs(self, start: int, stop: int) -> bool:
        """Runs a range on the candidate; the last range that disagreed is kept for the finding."""
        self.tests += 1
        test = self._execute(start, stop)
        differs = any(not report.ok for each in test.reports for report in each)
        if differs:
            self._last[start, stop] = test
            for other in [key for key in self._last if key != (start, stop) and key != (0, stop)]:
                del self._last[other]
        return differs

    def _execute(self, start: int, stop: int) -> _Test:
        nodes = range(start, stop)
        outputs = [name for name in self.graph.live_after(stop) if self.graph.producer[name] >= start]
        if not outputs:
            return _Test(None, [], {}, [])
        reads = {name for index in nodes for name in self.graph.uses[index]}
        before = self._values_at(start)
        feeds = [
            {name: values[s] for name, values in before.items() if name in reads}
            | {name: sample[name] for name in reads if name in sample}
            for s, sample in enumerate(self.samples)
        ]
        model = piece(self.graph, nodes, outputs, feeds[0])
        actual = run_piece(model, outputs, feeds, self.candidate)
        expected = self._values_at(stop)
        reports = [
            [compare_value(name, expected[name][s], actual[name][s], self.tolerance) for name in outputs]
            for s in range(len(feeds))
        ]
        return _Test(model, feeds, actual, reports)

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
        test = self._last[start, stop]
        worst = max(range(len(test.reports)), key=lambda s: max(map(_rank, test.reports[s])))
        expected = self._values_at(stop)
        together = f"these {stop - start} nodes disagree only when {self.candidate.label} runs them together"
        return NodeMismatch(
            nodes=[NodeLabel.of(node) for node in self.graph.nodes[start:stop]],
            reports=[report for report in test.reports[worst] if not report.ok],
            sample=self.labels[worst],
            piece=test.model,
            feeds=test.feeds[worst],
            reference={name: expected[name][worst] for name in test.actual},
            candidate={name: values[worst] for name, values in test.actual.items()},
            optimization=self.candidate.optimization,
            notes=[together] if stop - start > 1 else [],
        )


def _rank(report: OutputReport) -> tuple[bool, float]:
    return (not report.ok, error_score(report))
