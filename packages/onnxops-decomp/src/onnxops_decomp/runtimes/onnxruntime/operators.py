"""What ONNX Runtime runs in place of operators of ONNX, most of it in its ``com.microsoft`` domain.

Specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. An operator stands here only
where it computes the same, in the dtypes that it has kernels for on the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.adapters.normalization import group_normalization
from onnxops_decomp.builder.runtime import OwnForm
from onnxops_decomp.runtimes.onnxruntime.attention import attention
from onnxops_decomp.runtimes.onnxruntime.domain import DTYPES, emit
from onnxops_decomp.spec.inference import dims_of

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["FORMS"]


def _gelu(op: OpBuilder, X: ir.Value, *, approximate: str | bytes = "none") -> ir.Value | None:
    """``Gelu`` with the error function, ``FastGelu`` with tanh."""
    if X.dtype not in DTYPES:
        return None
    tanh = approximate in ("tanh", b"tanh")
    return emit(op, "FastGelu" if tanh else "Gelu", [X], {}, dims_of(X))


def _swish(op: OpBuilder, X: ir.Value, *, alpha: float = 1.0) -> ir.Value | None:
    """``QuickGelu`` is ``x * sigmoid(alpha * x)``."""
    return emit(op, "QuickGelu", [X], {"alpha": float(alpha)}, dims_of(X)) if X.dtype in DTYPES else None


FORMS: dict[str, OwnForm] = {
    "Attention": attention,
    "Gelu": _gelu,
    # Without a kernel for it the runtime composes it of reductions; that of InstanceNormalization is faster.
    "GroupNormalization": group_normalization,
    "Swish": _swish,
}
