"""What published symbolics import as ``_type_utils``."""

from __future__ import annotations

from onnx_ts_legacy.enumerations import JitScalarType, valid_scalar_name, valid_torch_name

__all__ = ["JitScalarType", "valid_scalar_name", "valid_torch_name"]
