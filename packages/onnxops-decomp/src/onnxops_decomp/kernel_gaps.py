"""Dtypes that the ONNX specification allows but ONNX Runtime's CPU provider has no kernel for.

A model that uses them would pass the checker and fail to load, so the builder computes in the stand-in named here and
casts back. Every stand-in represents the dtype exactly. The table is measured, not guessed: see
``tests/test_kernel_gaps.py``, which fails when a gap has closed.
"""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["KERNEL_GAPS", "compute_dtype"]

KERNEL_GAPS: dict[str, dict[ir.DataType, ir.DataType]] = {}


def compute_dtype(op_type: str, formal: str, dtype: ir.DataType, opset: int) -> ir.DataType | None:
    """Return the dtype to compute ``op_type`` in instead of ``dtype``, or None if ``dtype`` has a kernel."""
    gaps = KERNEL_GAPS.get(op_type)
    return None if gaps is None else gaps.get(dtype)
