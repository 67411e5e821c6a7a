"""Calls of quantized modules: their float form between DequantizeLinear and QuantizeLinear.

Where torch computes the scale of a result (scalars, dynamic quantization), source: ``aten/src/ATen/native/quantized``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_ts_legacy.quantization.values import Quantized, dequantize, in_floats, number, quantize
from onnx_ts_legacy.state.attributes import weight_tensor
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import ListRef, ObjectRef, Tensor
from onnx_ts_legacy.state.variables import value_of
from onnxops_decomp import UnsupportedOperatorError

__all__ = ["convert_module_call", "dynamic_linear", "half_linear", "unpack_weights"]

aten = torch.ops.aten
Call = Callable[["ConversionContext", Sequence[Any]], Tensor]


def convert_module_call(context: ConversionContext, kind: str, args: Sequence[Any]) -> Any:
    """Convert a call of an operator of the namespace ``quantized``.

    Raises:
        UnsupportedOperatorError: If it has no float form here.
    """
    name = kind.removeprefix("quantized::")
    args = unpack_weights(context, kind, args)
    base = name.replace("_relu", "") if name not in _FLOAT_FORMS else name
    relu = base != name
    if base in _TO_FLOAT:
        result = _TO_FLOAT[base](context, args)
        return context.call(aten.relu.default, [result], {}) if relu else result
    if base in _WITH_SCALAR:
        result, scale, zero_point = _WITH_SCALAR[base](context, *args[:2])
    elif base in _FLOAT_FORMS:
        result = _FLOAT_FORMS[base](context, args)
        scale, zero_point = _result_parameters(base, args)
    else:
        raise UnsupportedOperatorError("it has no form between QuantizeLinear and DequantizeLinear", operator=kind)
    if relu:
        result = context.call(aten.relu.default, [result], {})
    return quantize(context, result, _first(args).dtype, number(scale), int(number(zero_point)))


def _first(args: Sequence[Any]) -> Quantized:
    first: Quantized = args[0].items[0] if isinstance(args[0], ListRef) else args[0]
    return first


def _result_parameters(name: str, args: Sequence[Any]) -> tuple[Any, Any]:
    """Return scale and zero point of the result: arguments of the call, or those of the first operand."""
    if name in ("relu6", "dropout"):
        return _first(args).scale, _first(args).zero_point
    scale, zero_point = args[1:3] if name in ("elu", "celu") else args[-2:]
    return (_first(args).scale, _first(args).zero_point) if scale is None else (scale, zero_point)


# ---- packed weights


def _packed(packed: Any, name: str) -> tuple[Any, str]:
    """Return an object of packed weights, and the path of its module."""
    source = packed.source if isinstance(packed, ObjectRef) else packed
    path = packed.path if isinstance(packed, ObjectRef) and packed.path else name
    return source, path.removesuffix("._packed_weight").removesuffix("._packed_params")


def unpack_weights(
    context: ConversionContext, kind: str, args: Sequence[Any], *, bias_required: bool = False
) -> Sequence[Any]:
    """Return the arguments of a call with what is packed into its weights in place of them, as symbolics expect it.

    That is weight and bias, and for a convolution stride, padding, dilation and groups, or for a transposed one stride,
    padding, output padding, groups and dilation. Arguments without packed weights stay as they are.

    Args:
        context: The conversion.
        kind: Qualified name of the operator.
        args: Its arguments.
        bias_required: Whether zeros take the place of a bias that is missing.
    """
    name = kind.removeprefix("quantized::").replace("_relu", "")
    if name not in _PACKED or not kind.startswith("quantized::") or isinstance(args[1], Quantized | Tensor):
        return args
    source, weight, bias = _weights(context, args[1], name)
    if bias is None and bias_required:
        shape = (weight.form if isinstance(weight, Quantized) else weight.fake).shape
        zeros = torch.zeros(shape[1] * source.groups() if name.startswith("conv_transpose") else shape[0])
        bias = weight_tensor(context, f"{_packed(args[1], name)[1]}.bias", zeros)
    return [args[0], weight, bias, *_convolution_arguments(context, source, name), *args[2:]]


def _convolution_arguments(context: ConversionContext, source: Any, name: str) -> list[Any]:
    if name == "linear":
        return []
    rank = int(name[-2])

    def sizes(parameter: str) -> ListRef:
        return ListRef(context.heap, tuple(list(getattr(source, parameter)())[-rank:]))

    if source.transpose():
        return [*map(sizes, ("stride", "padding", "output_padding")), source.groups(), sizes("dilation")]
    return [*map(sizes, ("stride", "padding", "dilation")), source.groups()]


def _weights(context: ConversionContext, packed: Any, name: str) -> tuple[Any, Quantized | Tensor, Any]:
    """Return the object of packed weights, the weight, which may be one of floats, and the bias."""
    source, path = _packed(packed, name)
    weight, bias = source.unpack()
    given = None if bias is None else weight_tensor(context, f"{path}.bias", bias)
    if not weight.is_quantized:
        return source, weight_tensor(context, f"{path}.weight", weight), given
    integers = weight.int_repr()
    if name.endswith("1d") and integers.dim() == 4:
        # Weights of one spatial dimension are packed as those of two.
        integers = integers.squeeze(2)
    stored = weight_tensor(context, f"{path}.weight_quantized", integers)
    form = context.metadata.empty(torch.float32, list(integers.shape))
    value = value_of(context, stored)
    if weight.qscheme() == torch.per_tensor_affine:
        quantized = Quantized(value, form, weight.dtype, weight.q_scale(), weight.q_zero_point())
    else:
        scales, zero_points = weight.q_per_channel_scales().numpy(), weight.q_per_channel_zero_points().numpy()
        quantized = Quantized(value, form, weight.dtype, scales, zero_points, weight.q_per_channel_axis())
    return source, quantized, given


def _float_weights(context: ConversionContext, packed: Any) -> tuple[Tensor, Any]:
    _, weight, bias = _weights(context, packed, "linear")
    return in_floats(context, weight), bias


def _call(context: ConversionContext, overload: torch._ops.OpOverload, args: list[Any]) -> Tensor:
    return context.call(overload, args, {})  # type: ignore[no-any-return]


# ---- calls whose result has a given scale and zero point


def _form(overload: torch._ops.OpOverload, arguments: Callable[..., list[Any]]) -> Call:
    """Return the conversion of a call to ``overload``, of which ``arguments`` gives the arguments."""

    def convert(context: ConversionContext, args: Sequence[Any]) -> Tensor:
        return _call(context, overload, arguments(*(in_floats(context, arg) for arg in args)))

    return convert


_BATCH_NORM = _form(
    aten.batch_norm.default,
    lambda x, weight, bias, mean, var, eps, *_: [x, weight, bias, mean, var, False, 0.0, eps, False],
)
_PACKED: dict[str, Call] = {
    "linear": _form(aten.linear.default, lambda x, weight, bias, *_: [x, weight, bias]),
    **{
        name: _form(overload, lambda *args: list(args[:-2]))
        for name, overload in {
            "conv1d": aten.conv1d.default,
            "conv2d": aten.conv2d.default,
            "conv3d": aten.conv3d.default,
            "conv_transpose1d": aten.conv_transpose1d.default,
            "conv_transpose2d": aten.conv_transpose2d.input,
            "conv_transpose3d": aten.conv_transpose3d.input,
        }.items()
    },
}
_FLOAT_FORMS: dict[str, Call] = {
    **_PACKED,
    "add": _form(aten.add.Tensor, lambda a, b, *_: [a, b]),
    "mul": _form(aten.mul.Tensor, lambda a, b, *_: [a, b]),
    "matmul": _form(aten.matmul.default, lambda a, b, *_: [a, b]),
    "cat": _form(aten.cat.default, lambda items, dim, *_: [items, dim]),
    "batch_norm": _BATCH_NORM,
    "batch_norm1d": _BATCH_NORM,
    "batch_norm2d": _BATCH_NORM,
    "batch_norm3d": _BATCH_NORM,
    "layer_norm": _form(aten.layer_norm.default, lambda x, shape, weight, bias, eps, *_: [x, shape, weight, bias, eps]),
    "group_norm": _form(aten.group_norm.default, lambda x, count, weight, bias, eps, *_: [x, count, weight, bias, eps]),
    "instance_norm": _form(
        aten.instance_norm.default,
        lambda x, weight, bias, eps, *_: [x, weight, bias, None, None, True, 0.0, eps, 0],
    ),
    "hardswish": _form(aten.hardswish.default, lambda x, *_: [x]),
    "sigmoid": _form(aten.sigmoid.default, lambda x, *_: [x]),
    "softmax": _form(aten.softmax.int, lambda x, dim, *_: [x, dim]),
    "leaky_relu": _form(aten.leaky_relu.default, lambda x, slope, *_: [x, slope]),
    "prelu": _form(aten.prelu.default, lambda x, weight, *_: [x, weight]),
    "elu": _form(aten.elu.default, lambda x, scale, zero_point, *rest: [x, *rest]),
    "celu": _form(aten.celu.default, lambda x, scale, zero_point, *rest: [x, *rest]),
    "relu6": _form(aten.relu6.default, lambda x, *_: [x]),
    "dropout": _form(aten.dropout.default, lambda x, p, training, *_: [x, p, training]),
}


# ---- a quantized tensor and a number: torch computes scale and zero point of the result


def _bounds(q: Quantized) -> tuple[int, int]:
    return (0, 255) if q.dtype == torch.quint8 else (-128, 127)


def _added(context: ConversionContext, q: Quantized, other: float) -> tuple[Tensor, float, int]:
    """``quantized::add_scalar``: the number is rounded to steps of the scale, and the zero point moves by them."""
    low, high = _bounds(q)
    steps = round(float(number(other)) / q.scale)
    result = _call(context, aten.add.Scalar, [dequantize(context, q), steps * q.scale])
    moved = q.zero_point - steps
    if low > moved:
        return result, (high - moved) / (high - low) * q.scale, low
    if high < moved:
        return result, (moved - low) / (high - low) * q.scale, high
    return result, q.scale, moved


def _multiplied(context: ConversionContext, q: Quantized, other: float) -> tuple[Tensor, float, int]:
    """``quantized::mul_scalar``: the scale is multiplied, and the integers are mirrored for a negative number."""
    low, high = _bounds(q)
    factor = float(number(other))
    result = _call(context, aten.mul.Scalar, [dequantize(context, q), factor])
    if factor == 0:
        return result, 1.0, 0
    return result, q.scale * abs(factor), q.zero_point if factor > 0 else high - (q.zero_point - low)


_WITH_SCALAR: dict[str, Callable[..., tuple[Tensor, Any, Any]]] = {"add_scalar": _added, "mul_scalar": _multiplied}


# ---- calls that give floats


def _dynamic_linear(context: ConversionContext, args: Sequence[Any]) -> Tensor:
    return dynamic_linear(context, args[0], args[1], reduced=len(args) > 2 and bool(args[2]))


def dynamic_linear(context: ConversionContext, x: Tensor, packed: Any, *, reduced: bool) -> Tensor:
    """``quantized::linear_dynamic``: the input is quantized to 8 bits, or 7, by the smallest and largest it holds."""
    weight, bias = _float_weights(context, packed)
    steps = 127 if reduced else 255

    def call(overload: torch._ops.OpOverload, *operands: Any) -> Tensor:
        return _call(context, overload, list(operands))

    low = call(aten.clamp_max.default, call(aten.min.default, x), 0.0)
    high = call(aten.clamp_min.default, call(aten.max.default, x), 0.0)
    scale = call(aten.div.Scalar, call(aten.sub.Tensor, high, low), float(steps))
    scale = call(aten.masked_fill.Scalar, scale, call(aten.eq.Scalar, scale, 0.0), 1.0)
    zero_point = call(aten.round.default, call(aten.neg.default, call(aten.div.Tensor, low, scale)))
    integers = call(aten.add.Tensor, call(aten.round.default, call(aten.div.Tensor, x, scale)), zero_point)
    integers = call(aten.clamp.default, integers, 0.0, float(steps))
    rounded = call(aten.mul.Tensor, call(aten.sub.Tensor, integers, zero_point), scale)
    return call(aten.linear.default, rounded, weight, bias)


def _half_linear(context: ConversionContext, args: Sequence[Any]) -> Tensor:
    return half_linear(context, args[0], args[1])


def half_linear(context: ConversionContext, x: Tensor, packed: Any) -> Tensor:
    """``quantized::linear_dynamic_fp16``: the weights were rounded to half precision."""
    weight, bias = _float_weights(context, packed)
    return _call(context, aten.linear.default, [x, weight, bias])


def _table(context: ConversionContext, packed: Any) -> Tensor:
    """Return the rows of an embedding as floats: each has a scale and a zero point that is a float too."""
    source, path = _packed(packed, "embedding")
    weight = source.unpack()
    if weight.dtype != torch.quint8:
        raise UnsupportedOperatorError(f"its weights are {weight.dtype}; only 8 bits are supported")
    parts = {
        "weight_quantized": weight.int_repr(),
        "weight_scale": weight.q_per_channel_scales().float().unsqueeze(1),
        "weight_zero_point": weight.q_per_channel_zero_points().float().unsqueeze(1),
    }
    rows, scales, zeros = (weight_tensor(context, f"{path}.{name}", part) for name, part in parts.items())
    floats = _call(context, aten.to.dtype, [rows, torch.float32])
    return _call(context, aten.mul.Tensor, [_call(context, aten.sub.Tensor, [floats, zeros]), scales])


def _embedding(context: ConversionContext, args: Sequence[Any]) -> Tensor:
    return _call(context, aten.embedding.default, [_table(context, args[0]), args[1]])


def _embedding_bag(context: ConversionContext, args: Sequence[Any]) -> Tensor:
    """``quantized::embedding_bag_byte``, which sums; pruned weights are not known here."""
    packed, indices, offsets, _, _, pruned, weights, _, with_last = (*args, *(None,) * 9)[:9]
    if pruned:
        raise UnsupportedOperatorError("its weights are pruned")
    table = _table(context, packed)
    if indices.fake.dim() == 2 and weights is None:
        rows = _call(context, aten.embedding.default, [table, indices])
        return _call(context, aten.sum.dim_IntList, [rows, [1]])
    bags = [table, indices, offsets, False, 0, False, weights, bool(with_last)]
    return context.call(aten.embedding_bag.default, bags, {})[0]  # type: ignore[no-any-return]


_TO_FLOAT: dict[str, Call] = {
    "linear_dynamic": _dynamic_linear,
    "linear_dynamic_fp16": _half_linear,
    "embedding_byte": _embedding,
    "embedding_bag_byte": _embedding_bag,
}
