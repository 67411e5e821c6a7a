"""Whether the installed transformers has exporters with back-ends."""

from __future__ import annotations

import importlib
import importlib.metadata

from onnx_fx_export.errors import OnnxExporterError

__all__ = ["require_transformers"]

_NAMES = ("ExportMetadata", "HfExporter", "ModelRunner", "register_backend")


def require_transformers() -> None:
    """Make sure that transformers has what a back-end is made of.

    Raises:
        OnnxExporterError: If it is missing, or older than its exporters.
    """
    advice = 'Install it with: pip install "onnx-fx-export[transformers]".'
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError as error:
        raise OnnxExporterError(f"onnx_fx_export.transformers needs transformers. {advice}") from error
    try:
        exporters = importlib.import_module("transformers.exporters")
        missing = [name for name in _NAMES if not hasattr(exporters, name)]
    except ImportError as error:
        raise OnnxExporterError(_too_old(version, advice)) from error
    if missing:
        raise OnnxExporterError(_too_old(version, advice))


def _too_old(version: str, advice: str) -> str:
    return (
        "onnx_fx_export.transformers needs a transformers whose exporters have back-ends (5.23 or newer), and "
        f"{version} is installed. {advice}"
    )
