"""What a search for the wrong node found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from onnx_verify.comparing.verdict import OutputReport, Verdict, plain_values
from onnx_verify.errors import OnnxVerifyError
from onnx_verify.models.model import LoadedModel
from onnx_verify.models.slicing import FUNCTION
from onnx_verify.search.repro import Reproduction, write_repro

_FX_NODE = ("onnxops.fx_node", "pkg.torch.onnx.fx_node")
_SOURCE = ("onnxops.source", "pkg.torch.onnx.stack_trace")
_MODULE = ("onnxops.module", "pkg.torch.onnx.name_scopes")
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


@dataclass(frozen=True)
class NodeLabel:
    """What names a node: its own name, its operator, and where it came from if its metadata says so."""

    name: str
    op_type: str
    domain: str
    outputs: tuple[str, ...]
    fx_node: str | None = None
    source: str | None = None
    module: str | None = None
    function: str | None = None

    @classmethod
    def of(cls, node: onnx.NodeProto) -> NodeLabel:
        """Read the label of a node."""
        props = {entry.key: entry.value for entry in node.metadata_props}

        def first(keys: tuple[str, ...]) -> str | None:
            return next((props[key] for key in keys if key in props), None)

        outputs = tuple(node.output)
        origin = (first(_FX_NODE), first(_SOURCE), first(_MODULE), props.get(FUNCTION))
        return cls(node.name, node.op_type, node.domain, outputs, *origin)

    def __str__(self) -> str:
        """Return operator, name and origin in one line."""
        kind = f"{self.domain}::{self.op_type}" if self.domain else self.op_type
        text = f"{kind} {self.name or '(unnamed)'} -> {', '.join(self.outputs)}"
        if self.function:
            text += f" in function {self.function}"
        if self.fx_node:
            text += f" (fx node {self.fx_node.splitlines()[0]})"
        if self.source:
            text += f" at {self.source.strip().splitlines()[-1].strip()}"
        return text


@dataclass
class NodeMismatch:
    """A smallest piece of the candidate that gives wrong values when it is given right ones.

    Attributes:
        nodes: the piece, in order; the last node makes the wrong value.
        reports: how its outputs compare, one per output that disagrees.
        sample: the input set on which they do.
        path: the control-flow bodies that lead to it, outermost first, such as ``"loop0 iteration 2"``.
        confirmed: whether an output exceeds its tolerance; otherwise it is only the largest error there is.
        piece: the piece as a model.
        feeds: right values for the piece's inputs.
        reference: the right outputs by name.
        candidate: the outputs that the piece gives.
        notes: hints for the reader.
        runtime: what the piece was run in, as :meth:`Backend.parse` reads it.
    """

    nodes: list[NodeLabel]
    reports: list[OutputReport]
    sample: str
    path: list[str] = field(default_factory=list)
    confirmed: bool = True
    piece: LoadedModel | None = field(default=None, repr=False)
    feeds: dict[str, Any] = field(default_factory=dict, repr=False)
    reference: dict[str, Any] = field(default_factory=dict, repr=False)
    candidate: dict[str, Any] = field(default_factory=dict, repr=False)
    notes: list[str] = field(default_factory=list)
    runtime: str = "ort:all"

    @property
    def optimization(self) -> str:
        """The optimization level that the piece was run at."""
        return self.runtime.partition(":")[2] or "all"

    @property
    def node(self) -> NodeLabel:
        """The node that makes the wrong value."""
        return self.nodes[-1]

    @property
    def score(self) -> float:
        """The largest error of the piece in units of its tolerance."""
        return max((error_score(report) for report in self.reports), default=0.0)

    def __str__(self) -> str:
        """Return the node, where it is, and what is wrong with its values."""
        place = f" in {' / '.join(self.path)}" if self.path else ""
        head = "wrong" if self.confirmed else "largest error, within its tolerance"
        lines = [f"{head}: {self.node}{place} ({self.sample})"]
        if len(self.nodes) > 1:
            lines.append(f"  together with {len(self.nodes) - 1} nodes before it whose values have no counterpart:")
            lines += [f"    {node}" for node in self.nodes[:-1]]
        lines += ["  " + str(report).replace("\n", "\n  ") for report in self.reports]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values without the arrays."""
        import dataclasses

        plain: dict[str, Any] = plain_values(
            {
                "nodes": [dataclasses.asdict(node) for node in self.nodes],
                "reports": [dataclasses.asdict(report) for report in self.reports],
                "sample": self.sample,
                "path": self.path,
                "confirmed": self.confirmed,
                "notes": self.notes,
            }
        )
        return plain

    def export_repro(self, folder: str | Path) -> Path:
        """Write a folder that reproduces the mismatch: in ONNX Runtime with onnxruntime and numpy alone.

        Args:
            folder: is created; its files are replaced.

        Returns:
            The path of the script in it.

        Raises:
            OnnxVerifyError: if the mismatch holds no piece to write.
        """
        if self.piece is None:
            raise OnnxVerifyError("this mismatch holds no piece of a model to write")
        tolerances = {report.name: report.tolerance for report in self.reports if report.tolerance}
        content = (self.piece, self.feeds, self.reference, self.candidate, tolerances, self.runtime, str(self))
        return write_repro(Reproduction(*content), Path(folder))


@dataclass
class NodeError:
    """The error of one value along the graph, for reports."""

    name: str
    op_type: str
    ok: bool
    max_abs: float | None
    max_rel: float | None
    score: float


@dataclass
class MismatchReport:
    """The result of :func:`onnx_verify.find_mismatch`.

    Attributes:
        verdict: how the whole models compare.
        mismatches: the pieces that are wrong, in the order of the graph.
        profile: the error of every value that was compared, in order.
        runs: how many times a whole model was run, a pass over all windows counting as one.
        checked: how many values were compared.
    """

    verdict: Verdict
    mismatches: list[NodeMismatch] = field(default_factory=list)
    profile: list[NodeError] = field(default_factory=list)
    runs: int = 0
    checked: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Tell whether the models agree and no piece was found wrong."""
        return self.verdict.ok and not any(each.confirmed for each in self.mismatches)

    @property
    def has_mismatch(self) -> bool:
        """The opposite of :attr:`ok`."""
        return not self.ok

    @property
    def first(self) -> NodeMismatch | None:
        """The first wrong piece in the order of the graph."""
        return self.mismatches[0] if self.mismatches else None

    def __bool__(self) -> bool:
        """Refuse to guess whether true should mean right or wrong."""
        raise TypeError("a MismatchReport has no truth value; use .ok or .has_mismatch")

    def __str__(self) -> str:
        """Return the findings in words."""
        lines = [str(self.verdict), f"{self.checked} values compared in {self.runs} runs"]
        lines += [str(each) for each in self.mismatches]
        if not self.verdict.ok and not self.mismatches:
            lines.append("no single piece explains the disagreement")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings."""
        import dataclasses

        plain: dict[str, Any] = plain_values(
            {
                "ok": self.ok,
                "runs": self.runs,
                "checked": self.checked,
                "notes": self.notes,
                "profile": [dataclasses.asdict(each) for each in self.profile],
            }
        )
        plain["verdict"] = self.verdict.to_dict()
        plain["mismatches"] = [each.to_dict() for each in self.mismatches]
        return plain


def error_score(report: OutputReport) -> float:
    """Return the worst error of an output in units of its tolerance; infinite for a structural fault."""
    metrics, tolerance = report.metrics, report.tolerance
    if metrics is None or tolerance is None or metrics.nan_mismatches or metrics.inf_mismatches:
        return 0.0 if report.ok else float("inf")
    if metrics.max_abs == 0:
        return 0.0 if report.ok else float("inf")
    try:
        allowed = tolerance.atol + tolerance.rtol * abs(metrics.worst_reference)
        error = abs(metrics.worst_candidate - metrics.worst_reference)
    except TypeError:
        return 0.0 if report.ok else float("inf")
    return float(error / allowed) if allowed else float("inf")


def random_note(node: NodeLabel) -> list[str]:
    """Return a hint for operators whose result is random."""
    if node.op_type in _RANDOM:
        return [f"{node.op_type} is random; its values agree between two runs only by chance"]
    return []
