"""Exceptions of the exporter; all of them are :class:`OnnxExporterError`."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence

from onnx_fx_export.origin import source_line
from onnxops_core import OnnxExporterError
from onnxops_decomp import UnsupportedOperatorError, UnsupportedOpsetError
from onnxops_decomp.exporting import Failure, InvalidArgumentError, RuntimeSupportError, SaveError, VerificationError

__all__ = [
    "CaptureError",
    "ConversionError",
    "DynamicShapeError",
    "FallbackError",
    "InvalidArgumentError",
    "MutationError",
    "OnnxExporterError",
    "RuntimeSupportError",
    "SaveError",
    "UnsupportedOperatorError",
    "UnsupportedOpsetError",
    "VerificationError",
]


class CaptureError(OnnxExporterError):
    """torch.export could not capture the model.

    Attributes:
        fixed_a_size: Whether one of the ways to capture it failed as a dynamic dimension was fixed.
    """

    fixed_a_size = False


# A size computed from others is 0 or 1.
_BECOMES_SPECIAL = re.compile(r"\(Eq\(.*[-/].*, [01]\)\)$")


_BY_NAME = "declare the dimension by a name, as in {0: 'batch'}, and the program refuses other sizes when it is called"


class DynamicShapeError(OnnxExporterError):
    """A dimension that was declared dynamic is not dynamic in the model."""

    facts: Sequence[str] = ()
    declarations: Sequence[str] = ()
    is_condition = False

    @classmethod
    def fixed(
        cls, facts: Sequence[str], declarations: Sequence[str] = (), *, is_condition: bool = False
    ) -> DynamicShapeError:
        """Return the error for dimensions of which the model's code takes some sizes or only one.

        Args:
            facts: What it takes, each in one line.
            declarations: Dimensions that it would take, as code.
            is_condition: Whether it takes more sizes than one, so that a declaration that states no bounds will do.
        """
        if declarations or is_condition:
            title = "The model does not accept every size that a dimension is declared to have."
            ways = [f"Declare {'; '.join(declarations)}"] if declarations else []
            if is_condition:
                ways.append(_BY_NAME if ways else _BY_NAME.capitalize())
            advice = f"{', or '.join(ways)}, or change the code that needs these sizes."
        else:
            title = "A dimension declared dynamic is fixed by the model."
            advice = "Declare it static, or change the code that needs the fixed size."
            if any(_BECOMES_SPECIAL.search(fact) for fact in facts):
                advice += (
                    " If other sizes should work, give a larger example: some part of it has size 0 or 1 here, "
                    "which torch.export treats as a constant."
                )
        error = cls("\n  ".join([title, *facts]) + f"\n{advice}")
        error.facts, error.declarations, error.is_condition = facts, declarations, is_condition
        return error

    def at(self, places: Sequence[str]) -> DynamicShapeError:
        """Return the same error with the lines of code that fix the dimensions."""
        reported = [f"fixed by {place}" for place in dict.fromkeys(places)]
        return self.fixed([*self.facts, *reported], self.declarations, is_condition=self.is_condition)


class MutationError(OnnxExporterError):
    """The model changes something in place that the export does not, or cannot, represent."""


class FallbackError(OnnxExporterError):
    """Neither the FX exporter nor, with ``fallback=True``, the TorchScript exporter could export the model.

    Attributes:
        fx: Why the FX exporter failed.
        torchscript: Why the TorchScript exporter failed, or was not asked.
    """

    def __init__(self, fx: OnnxExporterError, torchscript: OnnxExporterError) -> None:
        self.fx, self.torchscript = fx, torchscript
        super().__init__(
            f"Both exporters failed.\nThe FX exporter, {type(fx).__name__}: {fx}\n"
            f"The TorchScript exporter (fallback=True), {type(torchscript).__name__}: {torchscript}"
        )


class ConversionError(OnnxExporterError):
    """Some operators of the model cannot be converted.

    Attributes:
        failures: Every node that failed, with its error.
    """

    def __init__(self, failures: Sequence[Failure], opset: int) -> None:
        self.failures = tuple(failures)
        super().__init__(_table(failures, opset))

    def rows(self) -> list[tuple[str, int, str, list[str]]]:
        """Return for each operator and reason: the operator, the number of calls, the reason, the lines."""
        groups: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for failure in self.failures:
            groups[str(failure.node.target), str(failure.error)].append(source_line(failure.node))
        return [(target, len(places), reason, places) for (target, reason), places in groups.items()]


class UnsupportedOpsetConversionError(ConversionError):
    """The requested opset cannot express some operators of the model."""


def conversion_error(failures: Sequence[Failure], opset: int) -> ConversionError:
    """Return the error for a conversion in which ``failures`` occurred."""
    low = all(isinstance(failure.error, UnsupportedOpsetError) for failure in failures)
    return (UnsupportedOpsetConversionError if low else ConversionError)(failures, opset)


def _table(failures: Sequence[Failure], opset: int) -> str:
    groups: dict[str, list[Failure]] = collections.defaultdict(list)
    for failure in failures:
        groups[str(failure.error)].append(failure)
    lines = [f"{len(failures)} call(s) of {len(groups)} kind(s) cannot be converted to opset {opset}:"]
    for message, group in groups.items():
        places = sorted({line for failure in group if (line := source_line(failure.node))})
        where = f" at {', '.join(places[:3])}{', ...' if len(places) > 3 else ''}" if places else ""
        lines.append(f"  {len(group)}x {message}{where}")
    lowest = [f.error.lowest for f in failures if isinstance(f.error, UnsupportedOpsetError) and f.error.lowest]
    if lowest and len(lowest) == len(failures):
        lines.append(f"Export with opset_version={max(lowest)} or newer.")
    elif lowest:
        lines.append(f"opset_version={max(lowest)} or newer supports {len(lowest)} of these calls.")
    if any(isinstance(f.error, UnsupportedOperatorError) for f in failures):
        lines.append(
            "Give a lowering for such an operator in custom_translation_table={torch.ops.ns.name.default: function}."
        )
    return "\n".join(lines)
