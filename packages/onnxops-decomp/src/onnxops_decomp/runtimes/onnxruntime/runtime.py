"""ONNX Runtime on the CPU, as the builder knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onnxops_decomp.builder.runtime import Runtime
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import compute_dtype, without_kernels
from onnxops_decomp.runtimes.onnxruntime.operators import FORMS
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["ONNXRUNTIME"]


def _count_axes_from_front(op: OpBuilder, op_type: str, values: list[ir.Value | None]) -> None:
    """Make the constant axes of a reduction non-negative: the runtime errs on negative ones of empty tensors."""
    if not op_type.startswith("Reduce"):
        return
    axes = op.static(values[1]) if len(values) > 1 else None
    dims = dims_of(values[0])
    if axes is not None and dims is not None and (axes < 0).any():
        values[1] = op.constant(np.where(axes < 0, axes + len(dims), axes))


ONNXRUNTIME = Runtime(compute_dtype, without_kernels(), FORMS, _count_axes_from_front)
