"""A back-end for transformers' own exporters (``transformers.exporters``) that exports with this package.

Importing it registers the format ``onnx-fx``: ``AutoHfExporter`` and ``ExportedModel.from_pretrained`` find it then.

Raises:
    OnnxExporterError: If transformers is missing, or older than its exporters.
"""

from onnx_fx_export.transformers.requirements import require_transformers

require_transformers()

from onnx_fx_export.transformers.exporter import OnnxFxConfig as OnnxFxConfig  # noqa: E402
from onnx_fx_export.transformers.exporter import OnnxFxExporter as OnnxFxExporter  # noqa: E402
from onnx_fx_export.transformers.exporter import register  # noqa: E402
from onnx_fx_export.transformers.runner import OnnxFxRunner as OnnxFxRunner  # noqa: E402

__all__ = ["OnnxFxConfig", "OnnxFxExporter", "OnnxFxRunner"]

register()
