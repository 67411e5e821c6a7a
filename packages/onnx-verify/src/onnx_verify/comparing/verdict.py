"""What a comparison found."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnx_verify.errors import MismatchError

if TYPE_CHECKING:
    from onnx_verify.values.metrics import TensorMetrics
    from onnx_verify.values.tolerance import Tolerance


@dataclass
class OutputReport:
    """How one output of one run compares.

    Attributes:
        name: the candidate's name of the output.
        ok: whether it agrees.
        reasons: why it does not; empty if it does.
        tolerance: what was allowed; None where no values could be compared.
        metrics: what was measured; None where the shapes differ.
        notes: what a reader should know although it is no fault.
    """

    name: str
    ok: bool
    reasons: list[str]
    reference_dtype: str
    candidate_dtype: str
    reference_shape: tuple[int, ...]
    candidate_shape: tuple[int, ...]
    tolerance: Tolerance | None = None
    metrics: TensorMetrics | None = None
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return one line, and one more for each reason and note."""
        state = "ok  " if self.ok else "FAIL"
        head = f"{state} {self.name} {self.candidate_dtype}{list(self.candidate_shape)}"
        if self.metrics is not None:
            head += f" max_abs={self.metrics.max_abs:.3g} max_rel={self.metrics.max_rel:.3g}"
        notes = (f"       note: {note}" for note in self.notes)
        return "\n".join([head, *(f"       {reason}" for reason in self.reasons), *notes])


@dataclass
class CaseReport:
    """How one input set compares.

    Attributes:
        label: the input set.
        outputs: one report per output that both sides have.
        reasons: what is wrong with the run as a whole, such as a missing output.
    """

    label: str
    outputs: list[OutputReport]
    reasons: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Tell whether every output agrees."""
        return not self.reasons and bool(self.outputs) and all(output.ok for output in self.outputs)


@dataclass
class Verdict:
    """The result of a comparison; it is true if, and only if, everything agrees.

    Attributes:
        reference: name of the reference.
        candidate: name of the candidate.
        cases: one report per input set.
        notes: what to know of the comparison, such as pairs of different names.
    """

    reference: str
    candidate: str
    cases: list[CaseReport]
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Tell whether every case agrees; a verdict without a case is not right."""
        return bool(self.cases) and all(case.ok for case in self.cases)

    def __bool__(self) -> bool:
        """Return :attr:`ok`."""
        return self.ok

    @property
    def failures(self) -> list[tuple[str, OutputReport]]:
        """The outputs that disagree, with the label of their case."""
        return [(case.label, output) for case in self.cases for output in case.outputs if not output.ok]

    def raise_for_mismatch(self) -> Verdict:
        """Return itself if everything agrees.

        Raises:
            MismatchError: with the printed verdict, otherwise.
        """
        if not self.ok:
            raise MismatchError(str(self))
        return self

    def __str__(self) -> str:
        """Return the verdict in words, then the outputs that disagree (all of them if none does)."""
        total = sum(len(case.outputs) for case in self.cases)
        state = "agrees with" if self.ok else "DISAGREES with"
        lines = [f"{self.candidate} {state} {self.reference} ({total} outputs in {len(self.cases)} runs)"]
        lines += [f"  note: {note}" for note in self.notes]
        for case in self.cases:
            shown = [output for output in case.outputs if self.ok or not output.ok]
            if shown or case.reasons:
                lines.append(f"  {case.label}:")
                lines += [f"    {reason}" for reason in case.reasons]
                lines += ["    " + str(output).replace("\n", "\n    ") for output in shown]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings; non-finite numbers become strings."""
        plain: dict[str, Any] = plain_values({"ok": self.ok, **dataclasses.asdict(self)})
        for case, source in zip(plain["cases"], self.cases, strict=True):
            case["ok"] = source.ok
        return plain

    def to_json(self, indent: int | None = 2) -> str:
        """Return :meth:`to_dict` as strict JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


def plain_values(value: Any) -> Any:
    """Replace what JSON does not have: tuples, non-finite and complex numbers, foreign objects."""
    if isinstance(value, dict):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
