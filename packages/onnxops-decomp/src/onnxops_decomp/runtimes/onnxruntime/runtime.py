"""ONNX Runtime on the CPU, as the builder knows it."""

from __future__ import annotations

from onnxops_decomp.builder.runtime import Runtime
from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import compute_dtype, without_kernels
from onnxops_decomp.runtimes.onnxruntime.operators import FORMS

__all__ = ["ONNXRUNTIME"]

ONNXRUNTIME = Runtime(compute_dtype, without_kernels(), FORMS)
