"""Telling a wrong node from two values that only happen to have the same name.

Two exporters may both call something ``val_73``. If the values of two models do correspond, then a candidate that is
given the right value in place of a wrong one comes nearer to the reference; if they do not, it goes astray.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx_verify.comparing.comparison import compare
from onnx_verify.comparing.verdict import CaseReport, OutputReport, Verdict
from onnx_verify.errors import ModelRunError
from onnx_verify.inputs.sets import InputSet
from onnx_verify.models.model import ValueSpec
from onnx_verify.models.slicing import FEED_SUFFIX, Graph, piece
from onnx_verify.running.runtimes import Backend, Outputs, Runtime
from onnx_verify.running.streaming import bounded_runtime
from onnx_verify.search.findings import NodeMismatch
from onnx_verify.search.localize import LocalResult
from onnx_verify.values.tolerance import ToleranceLike

DOUBTFUL = (
    "giving the right value here does not bring the outputs closer: the two models may use this name for "
    "different values"
)

_MOST_DOUBTS = 16
_MOST_ROUNDS = 6


def pairs_are_certain(reference: Graph, candidate: Graph, pairs: Mapping[str, str]) -> bool:
    """Tell whether two models are so alike that equal names cannot be chance.

    Nearly all names are shared then, and made by the same operators.
    """
    if any(own != other for own, other in pairs.items()) or 10 * len(pairs) < 9 * len(candidate.producer):
        return False
    differing = sum(
        candidate.nodes[candidate.producer[name]].op_type != reference.nodes[reference.producer[name]].op_type
        for name in pairs
    )
    return differing <= max(2, len(pairs) // 20)


@dataclass
class _Sorted:
    """Findings by what putting them right does: positions that cure or help, and nodes that are in doubt."""

    cures: list[int] = field(default_factory=list)
    helps: list[int] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)


@dataclass
class Confirmation:
    """Tests findings by what happens to the outputs when their values are put right.

    Attributes:
        right: the reference as a whole.
        candidate: the graph in question.
        sets: the input sets.
        samples: the candidate's inputs by name, one per input set.
        labels: the input sets' names.
        verdict: how the whole models compare.
        backend: what runs the candidate.
        tolerance: of the outputs.
        memory_limit: bytes for weights and values.
        runs: how many whole models were run so far.
    """

    right: Runtime
    candidate: Graph
    sets: Sequence[InputSet]
    samples: Sequence[Mapping[str, Any]]
    labels: Sequence[str]
    verdict: Verdict
    backend: Backend
    tolerance: ToleranceLike
    memory_limit: int
    runs: int = 0

    def search(
        self, localize: Callable[[Mapping[str, str], int], LocalResult], pairs: Mapping[str, str], count: int
    ) -> LocalResult:
        """Localize until what is found holds; pairs that turn out to be chance are given up on the way.

        Args:
            localize: one instrumented run with some pairs, until a number of findings.
            pairs: the reference's name for each candidate value that has one.
            count: how many findings are wanted.

        Returns:
            The findings that hold; if none does although the outputs disagree, the first that was found, with a
            note that it is in doubt.
        """
        left = dict(pairs)
        finals = set(self.candidate.outputs)
        result = localize(left, count)
        first = result
        for _ in range(_MOST_ROUNDS):
            sorted_out = self._sort(result)
            names = {n for index in sorted_out.doubtful for n in self.candidate.nodes[index].output} - finals
            if len(sorted_out.cures) >= count or not names & left.keys():
                break
            left = {name: other for name, other in left.items() if name not in names}
            result = localize(left, _MOST_DOUBTS)
        kept = sorted(sorted_out.cures or sorted_out.helps)[:count]
        if not kept and first.mismatches and not self.verdict.ok:
            first.mismatches[0].notes.append(DOUBTFUL)
            return LocalResult(first.mismatches[:1], first.suspect, first.profile, first.indices[:1])
        found = [result.mismatches[position] for position in kept]
        return LocalResult(found, result.suspect, result.profile, [result.indices[position] for position in kept])

    def _sort(self, result: LocalResult) -> _Sorted:
        sorted_out = _Sorted()
        for position, (finding, index) in enumerate(zip(result.mismatches, result.indices, strict=True)):
            effect = self._effect(finding)
            if effect == "cures":
                sorted_out.cures.append(position)
            elif effect == "helps":
                sorted_out.helps.append(position)
            else:
                sorted_out.doubtful.append(index)
        return sorted_out

    def _effect(self, finding: NodeMismatch) -> str:
        """Tell whether the outputs agree, or come nearer, once the right values stand in for the finding's."""
        if not finding.reference:
            return "none"
        sample = self.labels.index(finding.sample)
        before = self.verdict.cases[sample]
        self.runs += 2
        try:
            fixed = _Fixed(self, finding, self.samples[sample])
            after = compare(self.right, fixed, [self.sets[sample]], self.tolerance).cases[0]
        except ModelRunError:
            return "none"
        if after.ok:
            return "cures"
        return "helps" if not before.ok and _nearer(before, after) else "none"


class _Fixed:
    """The candidate on one sample, with the right values in place of those of a finding."""

    def __init__(self, test: Confirmation, finding: NodeMismatch, sample: Mapping[str, Any]) -> None:
        graph = test.candidate
        given = {name: name + FEED_SUFFIX for name in finding.reference}
        self._feeds = {**sample, **{given[name]: value for name, value in finding.reference.items()}}
        self._right = finding.reference
        self._order = graph.outputs
        self._rest = {name: sample.get(name, graph.model.initializer_values(name)) for name in self._order}
        made = [name for name in dict.fromkeys(self._order) if name in graph.producer]
        model = piece(graph, range(len(graph.nodes)), made, self._feeds, given)
        self._inner = bounded_runtime(model, test.backend, test.memory_limit)
        self.name = "the candidate with the right values"
        self.inputs: tuple[ValueSpec, ...] | None = None

    def run(self, inputs: InputSet) -> Outputs:
        """Run on the sample; the argument is the same sample in the reference's terms."""
        del inputs
        made = self._inner.run(InputSet(feeds=self._feeds))
        outputs: Outputs = []
        for name in self._order:
            if name in self._right and not isinstance(self._right[name], list):
                outputs.append((name, self._right[name]))
                continue
            parts = [(own, value) for own, value in made if own == name or own.startswith(f"{name}[")]
            outputs.extend(parts or [(name, self._rest[name])])
        return outputs


def _nearer(before: CaseReport, after: CaseReport) -> bool:
    """Tell whether a disagreeing output has a smaller mean error, and no output that agreed disagrees now."""
    if len(before.outputs) != len(after.outputs):
        return not before.outputs
    pairs = list(zip(before.outputs, after.outputs, strict=True))
    if any(old.ok and not new.ok for old, new in pairs):
        return False
    return any(not old.ok and (new.ok or _mean_error(new) < 0.99 * _mean_error(old)) for old, new in pairs)


def _mean_error(report: OutputReport) -> float:
    """Return the mean absolute error; infinite where the values cannot be compared."""
    metrics = report.metrics
    if metrics is None or metrics.nan_mismatches or metrics.inf_mismatches:
        return math.inf
    return metrics.mean_abs
