"""Exceptions of the ATen tables."""

from __future__ import annotations

from onnxops_core import OnnxExporterError

__all__ = ["LoweringError", "UnsupportedOperatorError", "UnsupportedOpsetError"]


class LoweringError(OnnxExporterError):
    """An ATen call could not be written in ONNX."""


class UnsupportedOperatorError(LoweringError):
    """No lowering exists for an ATen operator, or not for this form of the call.

    Attributes:
        operator: Qualified ATen name such as ``aten::foo.default``, or an empty string where it is not known yet.
    """

    def __init__(self, message: str, *, operator: str = "") -> None:
        super().__init__(message)
        self.operator = operator


class UnsupportedOpsetError(LoweringError):
    """The requested opset cannot express what the model needs.

    Attributes:
        op_type: ONNX operator that is missing or too old.
        opset: The requested opset.
        lowest: Lowest opset that can express the call, or None where none is known.
        operator: ATen name of the call being lowered, or an empty string.
    """

    def __init__(self, op_type: str, opset: int, *, lowest: int | None, reason: str = "", operator: str = "") -> None:
        self.op_type, self.opset, self.lowest, self.operator = op_type, opset, lowest, operator
        self.reason = reason
        super().__init__(self._message())

    def _message(self) -> str:
        what = f"{self.operator} needs ONNX {self.op_type}" if self.operator else f"ONNX {self.op_type}"
        why = f" ({self.reason})" if self.reason else ""
        hint = f"; the lowest opset that works is {self.lowest}" if self.lowest else ""
        return f"{what}, which opset {self.opset} cannot express{why}{hint}."

    def naming(self, operator: str) -> UnsupportedOpsetError:
        """Return the same error with the ATen operator filled in."""
        return UnsupportedOpsetError(
            self.op_type,
            self.opset,
            lowest=self.lowest,
            reason=self.reason,
            operator=self.operator or operator,
        )
