"""Exceptions shared by the exporters.

Every exception that the exporters and the ATen tables raise for a user's model or arguments derives from
:class:`OnnxExporterError`, so that one ``except`` clause catches a failed export whatever stage it failed in.
Native operators called with arguments that the ONNX specification forbids raise :class:`ValueError` instead:
there the caller made a mistake in one call, and no export is involved.
"""

__all__ = ["OnnxExporterError"]


class OnnxExporterError(RuntimeError):
    """Root of every error that an export can end with."""
