"""The result of an export."""

from __future__ import annotations

from onnxops_decomp.exporting import ONNXProgram

__all__ = ["TSProgram"]


class TSProgram(ONNXProgram):
    """A program that TorchScript made; a call answers all outputs in a list."""

    answer = "list"
