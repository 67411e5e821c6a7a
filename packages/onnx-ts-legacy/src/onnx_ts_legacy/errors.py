"""Exceptions of the TorchScript exporter, all below :class:`OnnxExporterError`."""

from __future__ import annotations

import dataclasses

from onnxops_core import OnnxExporterError
from onnxops_decomp.exporting import InvalidArgumentError, MissingRuntimeError, SaveError, VerificationError

__all__ = [
    "ArgumentsError",
    "CaptureError",
    "ControlFlowError",
    "DynamicDimensionError",
    "MissingRuntimeError",
    "OnnxExporterError",
    "OnnxExporterWarning",
    "SaveError",
    "ScriptValueError",
    "StateError",
    "SymbolicValueError",
    "TorchScriptExportError",
    "UnsupportedCall",
    "UnsupportedOperatorError",
    "UnsupportedOperatorsError",
    "VerificationError",
]


# Both exporters refuse arguments by one error.
ArgumentsError = InvalidArgumentError


class TorchScriptExportError(OnnxExporterError):
    """Root of what only this package raises."""


class CaptureError(TorchScriptExportError):
    """The model could not be traced."""


class ScriptValueError(TorchScriptExportError):
    """A value of the program cannot be expressed in ONNX where it is needed."""


class SymbolicValueError(ScriptValueError):
    """For custom symbolics: an input is not what they can convert.

    Args:
        msg: What is wrong.
        value: The input, which need not be given.
    """

    def __init__(self, msg: str, value: object = None) -> None:
        super().__init__(msg)
        self.value = value


class UnsupportedOperatorError(ScriptValueError):
    """For custom symbolics: they do not serve an opset.

    Args:
        name: Qualified name of the operator.
        version: Opset that was asked for.
        supported_version: Lowest opset that they serve, or None.
    """

    def __init__(self, name: str, version: int, supported_version: int | None = None) -> None:
        lowest = "" if supported_version is None else f"; the lowest opset that works is {supported_version}"
        super().__init__(f"{name} cannot be converted for opset {version}{lowest}.")
        self.name, self.version, self.supported_version = name, version, supported_version


class DependentCallError(ScriptValueError):
    """A call takes what another one, which could not be converted, would have given."""


class ControlFlowError(ScriptValueError):
    """An if or a loop cannot be expressed in ONNX."""


class ProgramRaisesError(TorchScriptExportError):
    """The program raises an exception on the path that is being converted."""


class DynamicDimensionError(TorchScriptExportError):
    """A dimension that was declared dynamic is fixed by the program."""


class StateError(TorchScriptExportError):
    """The model changes an attribute or an input, and the export was not asked to keep that."""


class OnnxExporterWarning(UserWarning):
    """Root of warnings that custom symbolics give."""


@dataclasses.dataclass(frozen=True)
class UnsupportedCall:
    """An operator that could not be converted.

    Attributes:
        operator: Qualified name, such as ``aten::foo.default``.
        reason: Why.
        sources: Lines of the user's program that call it.
        count: How many calls there are.
    """

    operator: str
    reason: str
    sources: tuple[str, ...]
    count: int


class UnsupportedOperatorsError(TorchScriptExportError):
    """Some operators of the model could not be converted; all of them are listed.

    Attributes:
        calls: One entry per operator and reason.
    """

    def __init__(self, calls: list[UnsupportedCall]) -> None:
        self.calls = calls
        total = sum(call.count for call in calls)
        lines = [f"{total} call(s) of {len(calls)} operator form(s) cannot be converted:"]
        for call in calls:
            lines.append(f"  {call.operator} ({call.count}x): {call.reason}")
            lines.extend(f"      at {source}" for source in call.sources[:3])
        lines.append(
            "Give a conversion with register_custom_op_symbolic, raise opset_version where the message says so, "
        )
        lines[-1] += "or rewrite the lines above."
        super().__init__("\n".join(lines))

    def rows(self) -> list[tuple[str, int, str, tuple[str, ...]]]:
        """Return for each operator and reason: the operator, the number of calls, the reason, the lines."""
        return [(call.operator, call.count, call.reason, call.sources) for call in self.calls]
