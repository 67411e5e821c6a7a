"""Operators of ONNX Runtime's ``com.microsoft`` domain in the place of ONNX's.

Specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. An operator stands here only
where it computes the same, in the dtypes that it has kernels for on the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxops_decomp.inference import Dims, dims_of, same_dim
from onnxops_decomp.targets.registry import TargetForm

if TYPE_CHECKING:
    from onnxops_decomp.builder import OpBuilder

__all__ = ["DOMAIN", "DTYPES", "FORMS", "VERSION"]

DOMAIN = "com.microsoft"
VERSION = 1
# In float64 and bfloat16 its operators have no kernels, or are composed of operators that have none.
DTYPES = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16))
# From here on ONNX has Attention, whose kernel is as fast and takes grouped heads.
_ATTENTION_OPSET = 23
_HEADS_OUT = (0, 2, 1, 3)


def _emit(
    op: OpBuilder, op_type: str, inputs: list[ir.Value | None], attributes: dict[str, Any], dims: Dims | None
) -> ir.Value:
    assert inputs[0] is not None
    (result,) = op.emit_custom(DOMAIN, op_type, inputs, attributes, [inputs[0].dtype], version=VERSION, shapes=[dims])
    return result


def _gelu(op: OpBuilder, X: ir.Value, *, approximate: str | bytes = "none") -> ir.Value | None:
    """``Gelu`` with the error function, ``FastGelu`` with tanh."""
    if X.dtype not in DTYPES:
        return None
    tanh = approximate in ("tanh", b"tanh")
    return _emit(op, "FastGelu" if tanh else "Gelu", [X], {}, dims_of(X))


def _swish(op: OpBuilder, X: ir.Value, *, alpha: float = 1.0) -> ir.Value | None:
    """``QuickGelu`` is ``x * sigmoid(alpha * x)``."""
    return _emit(op, "QuickGelu", [X], {"alpha": float(alpha)}, dims_of(X)) if X.dtype in DTYPES else None


def _attention(
    op: OpBuilder,
    Q: ir.Value,
    K: ir.Value,
    V: ir.Value,
    attn_mask: ir.Value | None = None,
    *,
    is_causal: int = 0,
    scale: float | None = None,
    **others: Any,
) -> ir.Value | None:
    """``MultiHeadAttention`` of (B, N, S, D) heads, below the opset that has ONNX's own Attention.

    A row of a boolean mask that lets nothing through gives zeros in torch and NaN here, so that the result is chosen
    by row. Masks of numbers are left alone: only the runtime knows whether they have such rows.
    """
    shapes = [dims_of(value) for value in (Q, K, V)]
    if op.opset >= _ATTENTION_OPSET or Q.dtype not in DTYPES or others or not _have_equal_heads(shapes):
        return None
    q, k = shapes[0], shapes[1]
    assert q is not None
    assert k is not None
    bias = seen = None
    if attn_mask is not None:
        mask = dims_of(attn_mask)
        if is_causal or attn_mask.dtype != ir.DataType.BOOL or mask is None or not _is_bias(mask, q, k):
            return None
        lowest = op.constant(ir.DataType(Q.dtype).min, Q.dtype)
        bias = op.Where(attn_mask, op.constant(0.0, Q.dtype), lowest)
        seen = op.Squeeze(op.cast(op.ReduceMax(op.cast(attn_mask, ir.DataType.INT32), [-1]), ir.DataType.BOOL), [1])
    elif is_causal and not same_dim(q[2], k[2]):
        # With fewer queries than keys, the last ones are meant here and the first ones in torch.
        return None
    flat = [op.Reshape(op.Transpose(value, perm=_HEADS_OUT), [0, 0, q[1] * q[3]]) for value in (Q, K, V)]
    attributes = {"num_heads": q[1], "unidirectional": int(is_causal), "scale": scale}
    inputs = [*flat, None, None, bias]
    result = _emit(op, "MultiHeadAttention", inputs, attributes, (q[0], q[2], q[1] * q[3]))
    if seen is not None:
        result = op.Where(seen, result, op.constant(0.0, Q.dtype))
    return op.Transpose(op.Reshape(result, [0, 0, q[1], q[3]]), perm=_HEADS_OUT)


def _have_equal_heads(shapes: list[Dims | None]) -> bool:
    """Tell whether query, key and value have the same batch, and heads of the same static number and width."""
    known = [shape for shape in shapes if shape is not None and len(shape) == 4]
    if len(known) < len(shapes):
        return False
    first = known[0]
    static = isinstance(first[1], int) and isinstance(first[3], int) and first[1] > 0 and first[3] > 0
    return static and all(
        same_dim(shape[0], first[0]) and shape[1] == first[1] and shape[3] == first[3] for shape in known
    )


def _is_bias(mask: Dims, query: Dims, key: Dims) -> bool:
    """Tell whether a mask has the shape (1 or B, 1, S, T)."""
    return (
        len(mask) == 4
        and (mask[0] == 1 or same_dim(mask[0], query[0]))
        and mask[1] == 1
        and same_dim(mask[2], query[2])
        and same_dim(mask[3], key[2])
    )


FORMS: dict[str, TargetForm] = {"Gelu": _gelu, "Swish": _swish, "Attention": _attention}
