"""The one way in which these packages warn: at the line of the user's that called them."""

from __future__ import annotations

import inspect
import sys
import warnings

__all__ = ["warn_user"]

_NOT_OF_USERS = sys.stdlib_module_names - {"__main__"} | {
    "torch",
    "onnxops_core",
    "onnxops_decomp",
    "onnx_fx_export",
    "onnx_ts_legacy",
    "onnx_verify",
}


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is neither of these packages nor of torch or Python itself.

    Args:
        message: The text.
        category: The class of the warning.
    """
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _NOT_OF_USERS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)  # noqa: TID251
