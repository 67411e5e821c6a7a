"""What published symbolics import as ``_constants``."""

from __future__ import annotations

from onnx_ts_legacy._globals import DEFAULT_OPSET
from onnx_ts_legacy.registration import BASE_OPSET
from onnxops_decomp.exporting import OLDEST_OPSET

ONNX_BASE_OPSET = BASE_OPSET
ONNX_MIN_OPSET = OLDEST_OPSET
ONNX_MAX_OPSET = ONNX_TORCHSCRIPT_EXPORTER_MAX_OPSET = 26
ONNX_DEFAULT_OPSET = DEFAULT_OPSET
INT8_MIN, INT8_MAX = -(2**7), 2**7 - 1
INT16_MIN, INT16_MAX = -(2**15), 2**15 - 1
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UINT8_MIN, UINT8_MAX = 0, 2**8 - 1
