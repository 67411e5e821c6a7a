"""The steps of a search that every pair of models shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx_verify.errors import InputError
from onnx_verify.inputs.sets import InputSet
from onnx_verify.models.slicing import Graph
from onnx_verify.running.runtimes import Backend, Runtime
from onnx_verify.running.streaming import DEFAULT_MEMORY_LIMIT, Feeds
from onnx_verify.search.bisect import Bisector
from onnx_verify.search.confirm import Confirmation
from onnx_verify.search.findings import MismatchReport
from onnx_verify.search.localize import Localizer, LocalResult
from onnx_verify.search.sides import Side
from onnx_verify.values.tolerance import Tolerance, ToleranceLike

STRATEGIES = ("auto", "instrumented", "bisect")
_PLAIN = Backend(prepack=False)


@dataclass(frozen=True)
class SearchOptions:
    """How :func:`find_mismatch` searches.

    Attributes:
        tolerance: for the outputs, and for single values if it is one :class:`Tolerance`.
        backend: what runs the candidate.
        reference_backend: what runs an ONNX reference.
        strategy: ``"instrumented"`` checks every node on its own in one run; ``"bisect"`` halves the model between
            the places where every value that crosses has a counterpart, which sees what happens when nodes run
            together; ``"auto"`` bisects after the first if that found nothing.
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
        """Refuse an unknown strategy and limits that allow nothing."""
        if self.strategy not in STRATEGIES:
            raise InputError(f"strategy is {self.strategy!r}; it must be one of {', '.join(STRATEGIES)}")
        if self.max_mismatches < 1 or self.memory_limit < 1:
            raise InputError("max_mismatches and memory_limit must be at least 1")

    @property
    def local(self) -> Tolerance | None:
        """The tolerance of intermediate values."""
        return self.tolerance if isinstance(self.tolerance, Tolerance) else None


@dataclass
class Search:
    """One search, with what its steps share.

    Attributes:
        candidate: the graph in question.
        sets: the input sets as the caller gave them.
        samples: the candidate's inputs by name, one per input set.
        settings: how to search.
        report: what was found so far.
        labels: the input sets' names.
    """

    candidate: Graph
    sets: Sequence[InputSet]
    samples: Sequence[Feeds]
    settings: SearchOptions
    report: MismatchReport
    labels: list[str] = field(default_factory=list)

    def localize(self, side: Side, pairs: Mapping[str, str], count: int = 0) -> LocalResult:
        """Check every node on its own, until ``count`` are wrong (as many as the settings ask for if 0)."""
        result = Localizer(
            self.candidate,
            self.samples,
            self.labels,
            side.stream(),
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

    def bisect(self, side: Side, pairs: Mapping[str, str]) -> None:
        """Halve the model, and report the smallest range that disagrees."""
        settings = self.settings
        bisector = Bisector(
            self.candidate,
            self.samples,
            self.labels,
            side.stream,
            pairs,
            settings.backend,
            settings.local,
        )
        found = bisector.run()
        self.report.runs += bisector.tests
        self.report.checked += bisector.tests
        if found is not None:
            self.report.mismatches.append(found)

    def confirmation(self, right: Runtime) -> Confirmation:
        """Return the test of findings whose values may not correspond."""
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
