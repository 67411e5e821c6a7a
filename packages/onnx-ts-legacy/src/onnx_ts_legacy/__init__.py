"""The TorchScript based ONNX exporter, kept alive."""

import sys

from onnx_ts_legacy import errors, operators, registration, symbolic_helper, utils
from onnx_ts_legacy._version import __version__
from onnx_ts_legacy.api import export, export_to_pretty_string, unconvertible_ops
from onnx_ts_legacy.enumerations import JitScalarType, OperatorExportTypes, TrainingMode
from onnx_ts_legacy.errors import OnnxExporterError
from onnx_ts_legacy.migration import MigrationReport, migration_report
from onnx_ts_legacy.program import TSProgram
from onnx_ts_legacy.registration import register_custom_op_symbolic, unregister_custom_op_symbolic
from onnx_ts_legacy.symbolics.graph_context import GraphContext
from onnx_ts_legacy.symbolics.opset_modules import register_opset_modules
from onnx_ts_legacy.utils import disable_log, enable_log, select_model_mode_for_export
from onnxops_core import is_in_onnx_export

__all__ = [
    "GraphContext",
    "JitScalarType",
    "MigrationReport",
    "OnnxExporterError",
    "OperatorExportTypes",
    "TSProgram",
    "TrainingMode",
    "__version__",
    "disable_log",
    "enable_log",
    "errors",
    "export",
    "export_to_pretty_string",
    "is_in_onnx_export",
    "migration_report",
    "operators",
    "register_custom_op_symbolic",
    "registration",
    "select_model_mode_for_export",
    "symbolic_helper",
    "unconvertible_ops",
    "unregister_custom_op_symbolic",
    "utils",
]

register_opset_modules(sys.modules[__name__])
