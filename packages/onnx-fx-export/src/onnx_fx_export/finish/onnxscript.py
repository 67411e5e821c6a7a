"""Hands a model to onnxscript, which is loaded only here."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fx_export.errors import OnnxExporterError

__all__ = ["rewrite_with_onnxscript"]


def rewrite_with_onnxscript(model: ir.Model) -> None:
    """Run onnxscript's optimizer and the default rules of its rewriter, in place.

    Raises:
        OnnxExporterError: If onnxscript is not installed.
    """
    try:
        from onnxscript import optimizer, rewriter
    except ImportError as error:
        raise OnnxExporterError('optimize="onnxscript" needs onnxscript: pip install onnxscript.') from error
    optimizer.optimize_ir(model)
    rewriter.rewrite(model)
