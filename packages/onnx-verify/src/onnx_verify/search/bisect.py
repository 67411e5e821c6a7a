"""Finding the smallest range of nodes that disagrees, for faults that only show when nodes run together.

An optimizer's fusion vanishes when the values inside it are asked for. So here only the values at the two ends of a
range are looked at: the range is given right values and run as a whole by the runtime in question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx_verify.comparing.verdict import OutputReport
from onnx_verify.models.model import LoadedModel
from onnx_verify.models.slicing import FEED_SUFFIX, Graph, piece
from onnx_verify.running.runtimes import Backend
from onnx_verify.running.streaming import Feeds, Values, ValueStream, run_piece
from onnx_verify.search.findings import NodeLabel, NodeMismatch, error_score
from onnx_verify.search.localize import compare_value
from onnx_verify.values.tolerance import ToleranceLike


@dataclass
class _Test:
    """One range as a model, what it was given, what it had to give and gave, and how that compares, by sample."""

    nodes: list[int]
    model: LoadedModel
    feeds: list[dict[str, Any]]
    right: dict[str, Values]
    actual: dict[str, Values]
    reports: list[list[OutputReport]]


@dataclass
class Bisector:
    """Searches a candidate for the range of nodes that disagrees with a reference.

    Attributes:
        graph: the model in question.
        samples: its inputs by name, one per input set.
        labels: the input sets' names.
        stream: begins the values of the reference anew.
        pairs: the reference's name for each candidate value that has one.
        candidate: what runs the model in question.
        tolerance: one for all values, or None for the defaults by dtype.
        tests: how many ranges were run so far.
    """

    graph: Graph
    samples: Sequence[Feeds]
    labels: Sequence[str]
    stream: Callable[[], ValueStream]
    pairs: Mapping[str, str]
    candidate: Backend
    tolerance: ToleranceLike = None
    tests: int = 0
    _last: dict[tuple[int, int], _Test] = field(default_factory=dict)

    def run(self) -> NodeMismatch | None:
        """Return the smallest range found, None if the whole agrees.

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
        """Return the latest start from which the range to ``stop`` disagrees."""
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
        """Run a range on the candidate; the last range that disagreed is kept for the finding."""
        self.tests += 1
        test = self._execute(start, stop)
        differs = test is not None and any(not report.ok for each in test.reports for report in each)
        if test is not None and differs:
            self._last[start, stop] = test
            for other in [key for key in self._last if key != (start, stop) and key != (0, stop)]:
                del self._last[other]
        return differs

    def _execute(self, start: int, stop: int) -> _Test | None:
        """Run a range, and the nodes before it that make what it reads and the reference does not have.

        Returns:
            How the values compare that the range makes, that are needed after it and that the reference has; None if
            there are none.
        """
        graph = self.graph
        outputs = [n for n in graph.live_after(stop) if graph.producer[n] >= start and n in self.pairs]
        if not outputs:
            return None
        nodes = graph.behind(range(start, stop), self.pairs)
        reads = {name for index in nodes for name in graph.uses[index]}
        given = {n: n + FEED_SUFFIX for n in reads if n in self.pairs and graph.producer[n] < start}
        right = self._right({*given, *outputs})
        feeds = [
            {given[name]: right[name][s] for name in given} | {name: sample[name] for name in reads if name in sample}
            for s, sample in enumerate(self.samples)
        ]
        model = piece(graph, nodes, outputs, feeds[0], given)
        actual = run_piece(model, outputs, feeds, self.candidate)
        reports = [
            [compare_value(name, right[name][s], actual[name][s], self.tolerance) for name in outputs]
            for s in range(len(feeds))
        ]
        return _Test(nodes, model, feeds, {name: right[name] for name in outputs}, actual, reports)

    def _right(self, names: set[str]) -> dict[str, Values]:
        """Return the reference's values, under the candidate's names."""
        made = dict(self.stream().values({self.pairs[name] for name in names}))
        return {name: made[self.pairs[name]] for name in names}

    def _finding(self, start: int, stop: int) -> NodeMismatch:
        test = self._last[start, stop]
        worst = max(range(len(test.reports)), key=lambda s: max(map(_rank, test.reports[s])))
        together = f"these {len(test.nodes)} nodes disagree only when {self.candidate.label} runs them together"
        return NodeMismatch(
            nodes=[NodeLabel.of(self.graph.nodes[index]) for index in test.nodes],
            reports=[report for report in test.reports[worst] if not report.ok],
            sample=self.labels[worst],
            piece=test.model,
            feeds=test.feeds[worst],
            reference={name: values[worst] for name, values in test.right.items()},
            candidate={name: values[worst] for name, values in test.actual.items()},
            runtime=self.candidate.label,
            notes=[together] if stop - start > 1 else [],
        )


def _rank(report: OutputReport) -> tuple[bool, float]:
    return (not report.ok, error_score(report))
