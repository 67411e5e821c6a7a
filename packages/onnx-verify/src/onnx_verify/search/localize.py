"""One instrumented run that checks every node on its own.

Each piece of the candidate between two values that both models have is given the reference's values, so that
an
error shows where it is made and nowhere else: it neither adds up nor spreads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_verify.comparing.comparison import compare_arrays
from onnx_verify.comparing.verdict import OutputReport
from onnx_verify.errors import InputError, ModelRunError
from onnx_verify.models.slicing import FEED_SUFFIX, Graph, piece
from onnx_verify.running.runtimes import Backend
from onnx_verify.running.streaming import Feeds, Values, ValueStream, run_piece, value_bytes
from onnx_verify.search.findings import NodeError, NodeLabel, NodeMismatch, error_score, random_note
from onnx_verify.values.tolerance import Tolerance, ToleranceLike, coarser, default_tolerance

Array = npt.NDArray[Any]
_MAX_WINDOW = 256


@dataclass
class LocalResult:
    """What the run found."""

    mismatches: list[NodeMismatch] = field(default_factory=list)
    suspect: NodeMismatch | None = None
    profile: list[NodeError] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)


@dataclass
class Localizer:
    """Checks the nodes of a candidate against a stream of reference values.

    Attributes:
        candidate: the graph in question.
        samples: inputs of the candidate by name, one per input set.
        labels: the input sets' names.
        stream: the reference.
        pairs: the reference's name for each candidate value that has one.
        backend: what runs the candidate.
        tolerance: one for all values, or None for the defaults by dtype; see :func:`local_tolerance`.
        memory_limit: bytes for values and weights.
        max_mismatches: after this many the run stops; the arrays of each are kept for a repro.
        progress: called with the checked and the total number of nodes.
    """

    candidate: Graph
    samples: Sequence[Feeds]
    labels: Sequence[str]
    stream: ValueStream
    pairs: Mapping[str, str]
    backend: Backend
    tolerance: ToleranceLike = None
    memory_limit: int = 1 << 30
    max_mismatches: int = 1
    progress: Callable[[int, int], None] | None = None

    def run(self) -> LocalResult:
        """Run once through both models.

        Raises:
            ModelRunError: if a piece of either cannot be run.
        """
        self._result = LocalResult()
        self._store: dict[str, Values] = {}
        self._own: dict[str, Values] = {}
        wanted = set(self.pairs.values())
        self._source = self.stream.values(wanted)
        self._pending = _last_uses(self.candidate, self.pairs)
        start = 0
        while start < len(self.candidate.nodes) and not self._done():
            stop = self._window(start)
            self._check(start, stop)
            self._release(stop)
            if self.progress is not None:
                self.progress(stop, len(self.candidate.nodes))
            start = stop
        return self._result

    def _done(self) -> bool:
        return len(self._result.mismatches) >= self.max_mismatches

    def _window(self, start: int) -> int:
        """Pull the reference values for as many nodes as fit, and return where they end."""
        graph, used = self.candidate, 0
        end = min(len(graph.nodes), start + _MAX_WINDOW)
        for index in range(start, end):
            used += graph.weight_bytes(index)
            for name in (*graph.uses[index], *graph.nodes[index].output):
                if name in self.pairs and self._pull(self.pairs[name]):
                    used += 2 * sum(value_bytes(value) for value in self._store[self.pairs[name]])
            if used > self.memory_limit // 4:
                return index + 1
        return end

    def _pull(self, name: str) -> bool:
        """Advance the reference until it has given a value; tell whether it was new."""
        if name in self._store:
            return False
        for made, values in self._source:
            self._store[made] = values
            if made == name:
                return True
        raise InputError(f"the reference never produced the value {name!r}")

    def _check(self, start: int, stop: int) -> None:
        graph = self.candidate
        nodes = range(start, stop)
        outputs = self._outputs(start, stop)
        if not outputs:
            return
        feeds, given = self._feeds(nodes)
        model = piece(graph, nodes, outputs, feeds[0], given)
        try:
            results = run_piece(model, outputs, feeds, self.backend)
        except ModelRunError as error:
            self._check_parts(start, stop, error)
            return
        for index in nodes:
            reports = [
                self._report(name, results[name], self._store[self.pairs[name]])
                for name in graph.nodes[index].output
                if name in self.pairs
            ]
            if reports and not self._done():
                self._record(index, reports, results)
        self._own.update({name: values for name, values in results.items() if name not in self.pairs})

    def _check_parts(self, start: int, stop: int, error: ModelRunError) -> None:
        """Halve a window that cannot be run, down to the node that cannot."""
        if stop - start == 1:
            self._result.mismatches.append(self._failure(start, error))
            self._result.indices.append(start)
            return
        middle = (start + stop) // 2
        for begin, end in ((start, middle), (middle, stop)):
            if not self._done():
                self._check(begin, end)

    def _failure(self, index: int, error: ModelRunError) -> NodeMismatch:
        graph = self.candidate
        node = graph.nodes[index]
        reports = []
        for name in node.output:
            if name in self.pairs:
                right = self._store[self.pairs[name]][0]
                dtype, shape = (
                    ("sequence", (len(right),)) if isinstance(right, list) else (right.dtype.name, right.shape)
                )
                reports.append(OutputReport(name, False, [f"it cannot be run: {error}"], dtype, "none", shape, ()))
        nodes = self._segment(index)
        feeds, given = self._feeds(nodes)
        names = [report.name for report in reports]
        return NodeMismatch(
            nodes=[NodeLabel.of(graph.nodes[i]) for i in self._segment(index, whole=True)],
            reports=reports,
            sample=self.labels[0],
            piece=piece(graph, nodes, names, feeds[0], given),
            feeds=feeds[0],
            reference={name: self._store[self.pairs[name]][0] for name in names},
            runtime=self.backend.label,
        )

    def _outputs(self, start: int, stop: int) -> list[str]:
        """Return what a window has to give: paired values, and unpaired ones that later windows read."""
        graph = self.candidate
        return [
            name
            for index in range(start, stop)
            for name in graph.nodes[index].output
            if name and (name in self.pairs or any(reader >= stop for reader in graph.readers.get(name, ())))
        ]

    def _feeds(self, nodes: Sequence[int]) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return right values for all that some nodes read, and the names under which they read them."""
        graph = self.candidate
        inside = {name for index in nodes for name in graph.nodes[index].output}
        given: dict[str, str] = {}
        feeds: list[dict[str, Any]] = [{} for _ in self.samples]
        for name in sorted({name for index in nodes for name in graph.uses[index]}):
            if name in self.pairs:
                given[name] = name + FEED_SUFFIX
                values = self._store[self.pairs[name]]
            elif name in self._own and name not in inside:
                values = self._own[name]
            elif name in self.samples[0]:
                values = [sample[name] for sample in self.samples]
            else:
                continue
            for position, value in enumerate(values):
                feeds[position][given.get(name, name)] = value
        return feeds, given

    def _report(self, name: str, actual: Values, expected: Values) -> list[OutputReport]:
        """Compare one value on every sample."""
        return [
            compare_value(name, right, value, self.tolerance) for right, value in zip(expected, actual, strict=True)
        ]

    def _record(self, index: int, reports: list[list[OutputReport]], results: Mapping[str, Values]) -> None:
        scores = [max(error_score(each[s]) for each in reports) for s in range(len(self.samples))]
        worst = int(np.argmax(scores))
        wrong = [each[s] for s in range(len(self.samples)) for each in reports if not each[s].ok]
        shown = [each[worst] for each in reports]
        self._result.profile.append(self._profile_entry(index, shown, not wrong))
        if wrong:
            worst = next(s for s in _by_score(scores) if any(not each[s].ok for each in reports))
            shown = [each[worst] for each in reports if not each[worst].ok]
            self._result.mismatches.append(self._finding(index, shown, worst, results))
            self._result.indices.append(index)
        elif scores[worst] > (self._result.suspect.score if self._result.suspect else 0.0):
            self._result.suspect = self._finding(index, shown, worst, results, confirmed=False)

    def _profile_entry(self, index: int, reports: Sequence[OutputReport], ok: bool) -> NodeError:
        report = max(reports, key=error_score)
        metrics = report.metrics
        return NodeError(
            report.name,
            self.candidate.nodes[index].op_type,
            ok,
            metrics.max_abs if metrics else None,
            metrics.max_rel if metrics else None,
            error_score(report),
        )

    def _finding(
        self,
        index: int,
        reports: list[OutputReport],
        sample: int,
        results: Mapping[str, Values],
        confirmed: bool = True,
    ) -> NodeMismatch:
        graph = self.candidate
        nodes = self._segment(index)
        feeds, given = self._feeds(nodes)
        names = [name for name in graph.nodes[index].output if name in self.pairs]
        label = NodeLabel.of(graph.nodes[index])
        return NodeMismatch(
            nodes=[NodeLabel.of(graph.nodes[i]) for i in self._segment(index, whole=True)],
            reports=reports,
            sample=self.labels[sample],
            confirmed=confirmed,
            piece=piece(graph, nodes, names, feeds[0], given),
            feeds=feeds[sample],
            reference={name: self._store[self.pairs[name]][sample] for name in names},
            candidate={name: results[name][sample] for name in names},
            notes=random_note(label),
            runtime=self.backend.label,
        )

    def _segment(self, index: int, whole: bool = False) -> list[int]:
        """Return a node and the nodes before it that lead to it through unpaired values only.

        What earlier windows made is given to the piece as a value; ``whole`` still goes through it.
        """
        held = self.pairs.keys() if whole else self.pairs.keys() | self._own.keys()
        return self.candidate.behind([index], held)

    def _release(self, stop: int) -> None:
        """Drop what no later node needs."""
        self._store = {name: v for name, v in self._store.items() if self._pending.get(name, -1) >= stop}
        readers = self.candidate.readers
        self._own = {n: v for n, v in self._own.items() if any(r >= stop for r in readers.get(n, ()))}


def _by_score(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda position: -scores[position])


def _last_uses(candidate: Graph, pairs: Mapping[str, str]) -> dict[str, int]:
    """Return the last candidate node that reads or makes the counterpart of each reference value."""
    last: dict[str, int] = {}
    for name, other in pairs.items():
        uses = [candidate.producer[name], *candidate.readers.get(name, ())]
        last[other] = max(last.get(other, -1), *uses)
    return last


def compare_value(name: str, reference: Any, candidate: Any, tolerance: ToleranceLike = None) -> OutputReport:
    """Compare one intermediate value, or the first part of a sequence that differs."""
    if isinstance(reference, list) or isinstance(candidate, list):
        return _compare_sequences(name, reference, candidate, tolerance)
    return compare_arrays(name, reference, candidate, local_tolerance(reference, candidate, tolerance))


def _compare_sequences(name: str, reference: Any, candidate: Any, tolerance: ToleranceLike) -> OutputReport:
    right = reference if isinstance(reference, list) else [reference]
    other = candidate if isinstance(candidate, list) else [candidate]
    reports = [
        compare_value(f"{name}[{i}]", a, b, tolerance) for i, (a, b) in enumerate(zip(right, other, strict=False))
    ]
    length = OutputReport(name, True, [], "sequence", "sequence", (len(right),), (len(other),))
    if len(right) != len(other):
        length.ok = False
        length.reasons.append(f"the sequence has {len(other)} elements, should have {len(right)}")
        return length
    return max(reports, key=lambda report: (not report.ok, error_score(report)), default=length)


def local_tolerance(reference: Array, candidate: Array, tolerance: ToleranceLike) -> Tolerance:
    """Return what one node may err: the tolerance of its dtype, its absolute part scaled by the value's size.

    An operator that adds large numbers up makes an error in proportion to them, also where the sum is small.
    """
    if isinstance(tolerance, Tolerance):
        base = tolerance
    else:
        base = coarser(default_tolerance(reference.dtype), default_tolerance(candidate.dtype))
    if base.atol == 0 or reference.dtype.kind in "OSUTb" or not reference.size:
        return base
    return replace(base, atol=base.atol * max(1.0, _rms(reference)))


def _rms(values: Array) -> float:
    """Return the root mean square of the finite elements."""
    total, count = 0.0, 0
    flat = values.reshape(-1)
    for chunk in _chunks(flat):
        wide = np.abs(chunk.astype(np.complex128 if chunk.dtype.kind == "c" else np.float64))
        finite = wide[np.isfinite(wide)]
        total += float((finite**2).sum())
        count += finite.size
    return float(np.sqrt(total / count)) if count and np.isfinite(total) else 1.0


def _chunks(flat: Array, size: int = 1 << 20) -> Iterator[Array]:
    for start in range(0, flat.size, size):
        yield flat[start : start + size]
