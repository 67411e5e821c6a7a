"""ONNX Runtime's own operators on quantized tensors, which its quantization tool writes.

Specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from onnxops_decomp.importing.operators.contrib import DOMAIN, attended, embed_layer_normalization
from onnxops_decomp.importing.operators.indexing import gather
from onnxops_decomp.importing.operators.nn import average_pool
from onnxops_decomp.importing.operators.products import matmul_integer
from onnxops_decomp.importing.operators.quantization import (
    dequantize_linear,
    dynamic_quantize_linear,
    quantize_linear,
    steps_of,
)
from onnxops_decomp.importing.operators.recurrent import lstm_that_sees
from onnxops_decomp.importing.registry import onnx_op

__all__: list[str] = []


def _real(steps: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    """Return what steps stand for, one scale for all of them."""
    offset = 0 if zero_point is None else zero_point.reshape(()).to(torch.int32)
    return (steps.to(torch.int32) - offset).float() * scale.reshape(())


def _steps(value: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the steps of values, one scale for all of them."""
    return steps_of(value / scale.reshape(()), None if zero_point is None else zero_point.reshape(()), dtype)


@onnx_op("QuantizeLinear", domain=DOMAIN, like="y_zero_point")
def quantize_linear_of_axis(
    x: Tensor, y_scale: Tensor, y_zero_point: Tensor | None = None, axis: int = 1, input_types: Any = ()
) -> Tensor:
    return quantize_linear(x, y_scale, y_zero_point, axis, input_types=input_types)


@onnx_op("DequantizeLinear", domain=DOMAIN, like="x_scale")
def dequantize_linear_of_axis(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    axis: int = 1,
    input_types: Any = (),
    quantized_from: Tensor | None = None,
) -> Tensor:
    return dequantize_linear(x, x_scale, x_zero_point, axis, input_types=input_types, quantized_from=quantized_from)


@onnx_op("MatMulIntegerToFloat", domain=DOMAIN, like="a_scale")
def matmul_integer_to_float(
    A: Tensor,
    B: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    product = matmul_integer(A, B, a_zero_point, b_zero_point).to(a_scale.dtype) * (a_scale * b_scale)
    return product if bias is None else product + bias


@onnx_op("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_quantize_matmul(
    A: Tensor, B: Tensor, b_scale: Tensor, b_zero_point: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    steps, scale, zero_point = dynamic_quantize_linear(A)
    return matmul_integer_to_float(steps, B, scale, b_scale, zero_point, b_zero_point, bias)


def _binary(op_type: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    def computed(
        A: Tensor,
        A_scale: Tensor,
        A_zero_point: Tensor | None,
        B: Tensor,
        B_scale: Tensor,
        B_zero_point: Tensor | None,
        C_scale: Tensor,
        C_zero_point: Tensor | None = None,
    ) -> Tensor:
        made = function(_real(A, A_scale, A_zero_point), _real(B, B_scale, B_zero_point))
        return _steps(made, C_scale, C_zero_point, A.dtype)

    onnx_op(op_type, domain=DOMAIN)(computed)


_binary("QLinearAdd", torch.add)
_binary("QLinearMul", torch.mul)


@onnx_op("QLinearSigmoid", domain=DOMAIN)
def q_linear_sigmoid(
    X: Tensor, X_scale: Tensor, X_zero_point: Tensor | None, Y_scale: Tensor, Y_zero_point: Tensor | None = None
) -> Tensor:
    return _steps(torch.sigmoid(_real(X, X_scale, X_zero_point)), Y_scale, Y_zero_point, X.dtype)


@onnx_op("QLinearLeakyRelu", domain=DOMAIN)
def q_linear_leaky_relu(
    X: Tensor,
    X_scale: Tensor,
    X_zero_point: Tensor | None,
    Y_scale: Tensor,
    Y_zero_point: Tensor | None = None,
    alpha: float = 0.01,
) -> Tensor:
    made = functional.leaky_relu(_real(X, X_scale, X_zero_point), alpha)
    return _steps(made, Y_scale, Y_zero_point, X.dtype)


@onnx_op("QLinearSoftmax", domain=DOMAIN)
def q_linear_softmax(
    X: Tensor,
    X_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor,
    axis: int = -1,
    opset: int = 13,
) -> Tensor:
    real = _real(X, X_scale, x_zero_point)
    # Below opset 13 all dimensions from the axis on are one row.
    rows, axis = (real.flatten(axis % X.dim()), -1) if opset < 13 else (real, axis)
    made = torch.softmax(rows, axis).reshape(X.shape)
    return _steps(made, y_scale, y_zero_point, X.dtype)


@onnx_op("QLinearConcat", domain=DOMAIN, like="Y_zero_point")
def q_linear_concat(Y_scale: Tensor, Y_zero_point: Tensor, *inputs: Tensor, axis: int) -> Tensor:
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    made = torch.cat([_real(*each) for each in triples], axis)
    return _steps(made, Y_scale, Y_zero_point, Y_zero_point.dtype)


def _channels_first(X: Tensor, channels_last: int) -> Tensor:
    return X.movedim(-1, 1) if channels_last else X


@onnx_op("QLinearGlobalAveragePool", domain=DOMAIN)
def q_linear_global_average_pool(
    X: Tensor, x_scale: Tensor, x_zero_point: Tensor, y_scale: Tensor, y_zero_point: Tensor, channels_last: int = 0
) -> Tensor:
    real = _channels_first(_real(X, x_scale, x_zero_point), channels_last)
    made = real.mean(list(range(2, X.dim())), keepdim=True)
    made = made.movedim(1, -1) if channels_last else made
    return _steps(made, y_scale, y_zero_point, X.dtype)


@onnx_op("QLinearAveragePool", domain=DOMAIN, rest=average_pool)
def q_linear_average_pool(
    X: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    channels_last: int = 0,
    kernel_shape: list[int] | None = None,
    **window: Any,
) -> Tensor:
    real = _channels_first(_real(X, x_scale, x_zero_point), channels_last)
    made = average_pool(real, kernel_shape or [], **window)
    return _steps(made.movedim(1, -1) if channels_last else made, y_scale, y_zero_point, X.dtype)


@onnx_op("QGemm", domain=DOMAIN, like="y_zero_point")
def q_gemm(
    A: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    B: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    C: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    total = matmul_integer(A.t() if transA else A, B.t() if transB else B, a_zero_point, b_zero_point)
    total = total if C is None else total + C
    made = total.float() * (alpha * a_scale * b_scale)
    if y_scale is None:
        return made
    return _steps(made, y_scale, y_zero_point, torch.uint8 if y_zero_point is None else y_zero_point.dtype)


def _stepped(value: Tensor) -> Tensor:
    """Return what is left of values that are quantized to 8 bits, by a scale that is that of all of them."""
    return _real(*dynamic_quantize_linear(value))


def _weights(steps: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    """Return the weights of each direction as LSTM takes them; scales are those of directions, or of their columns."""
    columns = scale.reshape(steps.shape[0], 1, -1)
    offset = 0 if zero_point is None else zero_point.reshape(columns.shape).to(torch.int32)
    return ((steps.to(torch.int32) - offset) * columns).transpose(1, 2)


@onnx_op("DynamicQuantizeLSTM", domain=DOMAIN, rest=lstm_that_sees)
def dynamic_quantize_lstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    P: Tensor | None,
    W_scale: Tensor,
    W_zero_point: Tensor | None,
    R_scale: Tensor,
    R_zero_point: Tensor | None = None,
    **layer: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    weights = _weights(W, W_scale, W_zero_point), _weights(R, R_scale, R_zero_point)
    return lstm_that_sees(_stepped, _stepped(X), *weights, B, sequence_lens, initial_h, initial_c, P, **layer)


@onnx_op("QLinearWhere", domain=DOMAIN, like="X")
def q_linear_where(
    condition: Tensor,
    X: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    Y: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    z_scale: Tensor,
    z_zero_point: Tensor,
) -> Tensor:
    made = torch.where(condition, _real(X, x_scale, x_zero_point), _real(Y, y_scale, y_zero_point))
    return _steps(made, z_scale, z_zero_point, X.dtype)


@onnx_op("QEmbedLayerNormalization", domain=DOMAIN, like="word_embedding_scale")
def q_embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    word_embedding_scale: Tensor,
    position_embedding_scale: Tensor,
    segment_embedding_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    word_embedding_zero_point: Tensor,
    position_embedding_zero_point: Tensor,
    segment_embedding_zero_point: Tensor | None,
    gamma_zero_point: Tensor,
    beta_zero_point: Tensor,
    epsilon: float = 1e-12,
) -> tuple[Tensor, Tensor]:
    words = _real(word_embedding, word_embedding_scale, word_embedding_zero_point)
    positions = _real(position_embedding, position_embedding_scale, position_embedding_zero_point)
    segments = None
    if segment_embedding is not None and segment_embedding_scale is not None:
        segments = _real(segment_embedding, segment_embedding_scale, segment_embedding_zero_point)
    gain, shift = _real(gamma, gamma_scale, gamma_zero_point), _real(beta, beta_scale, beta_zero_point)
    tables = (words, positions, segments, gain, shift)
    made, counts, _ = embed_layer_normalization(input_ids, segment_ids, *tables, mask, epsilon=epsilon)
    return made, counts


@onnx_op("QAttention", domain=DOMAIN, like="bias", rest=attended)
def q_attention(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    mask_index: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
    past: Tensor | None = None,
    **heads: Any,
) -> tuple[Tensor, Tensor | None]:
    projected = matmul_integer_to_float(
        input, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias
    )
    return attended(projected, mask_index, past, **heads)


@onnx_op("GatherBlockQuantized", domain=DOMAIN, like="scales")
def gather_block_quantized(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
    input_types: Any = (),
) -> Tensor:
    if bits not in (2, 4, 8):
        raise NotImplementedError(f"elements of {bits} bits do not fill a byte")
    rank, packed = data.dim(), input_types[0] == ir.DataType.UINT8
    axis, along = gather_axis % rank, quantize_axis % rank
    picked, scale = (gather(each, indices, axis) for each in (data, scales))
    offset = None if zero_points is None else gather(zero_points, indices, axis)
    along += indices.dim() - 1 if axis < along else 0
    steps = (unpacked(picked, bits) if packed else picked).to(torch.int32)
    if offset is not None:
        offset = unpacked(offset, bits).narrow(-1, 0, scale.shape[-1]) if packed else offset
        offset = offset.to(torch.int32).repeat_interleave(block_size, along).narrow(along, 0, steps.shape[along])
    elif packed:
        offset = torch.full_like(steps, 2 ** (bits - 1))
    wide = scale.repeat_interleave(block_size, along).narrow(along, 0, steps.shape[along])
    made: Tensor = (steps if offset is None else steps - offset).to(scale.dtype) * wide
    return made


def unpacked(data: Tensor, bits: int) -> Tensor:
    """Return the elements of bytes, the lowest bits first, one by one."""
    if bits == 8:
        return data
    places = torch.arange(0, 8, bits, dtype=torch.uint8, device=data.device)
    elements: Tensor = data.unsqueeze(-1) >> places & (2**bits - 1)
    return elements.flatten(-2)
