"""The face of this package for exporters: what an export does to torch while it runs, dtypes, and symbolic calls."""

from onnxops_core.dtypes import onnx_dtype, torch_dtype
from onnxops_core.export_state import (
    as_torch_onnx,
    is_torch_onnx_call,
    unfused_layers,
)
from onnxops_core.isolation import (
    active_autocasts,
    conversion_settings,
    exclusive_export,
    without_autocast,
    without_collection,
)
from onnxops_core.patching import Replacements, original, replaced, without_replacement
from onnxops_core.symbolic import is_symbolic_overload, symbolic, symbolic_multi_out
from onnxops_core.user_warnings import warn_user

__all__ = [
    "Replacements",
    "active_autocasts",
    "as_torch_onnx",
    "conversion_settings",
    "exclusive_export",
    "is_symbolic_overload",
    "is_torch_onnx_call",
    "onnx_dtype",
    "original",
    "replaced",
    "symbolic",
    "symbolic_multi_out",
    "torch_dtype",
    "unfused_layers",
    "warn_user",
    "without_autocast",
    "without_collection",
    "without_replacement",
]
