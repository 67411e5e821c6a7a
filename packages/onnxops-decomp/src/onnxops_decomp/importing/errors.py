"""What an import can end with."""

from __future__ import annotations

from onnxops_core import OnnxExporterError

__all__ = ["ModelImportError"]


class ModelImportError(OnnxExporterError):
    """An ONNX model could not be read, or holds something that the importer does not know.

    Attributes:
        op_type: ONNX operator that is to blame, with its domain where that is not ONNX's own; empty if none is.
        node: Name of the node, or of its first output where it has no name; empty if no node is to blame.
    """

    def __init__(self, message: str, *, op_type: str = "", node: str = "") -> None:
        super().__init__(message)
        self.op_type, self.node = op_type, node
