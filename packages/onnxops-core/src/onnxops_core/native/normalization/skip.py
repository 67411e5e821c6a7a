"""SkipLayerNormalization and SkipSimplifiedLayerNormalization of the com.microsoft domain."""

from __future__ import annotations

import torch

from onnxops_core.native.declaring.call import public
from onnxops_core.native.declaring.checks import (
    check_float,
    check_not_negative,
    check_same_dtype,
    invalid,
)
from onnxops_core.native.declaring.declare import declare
from onnxops_core.native.normalization.calls import (
    SkipLayerNormalizationCall,
    SkipSimplifiedLayerNormalizationCall,
    Two,
)
from onnxops_core.native.normalization.gpu import SKIP_NORMALIZATION

__all__ = ["skip_layer_normalization", "skip_simplified_layer_normalization"]

_SkipCall = SkipLayerNormalizationCall | SkipSimplifiedLayerNormalizationCall


def _check_skip(op: str, call: _SkipCall, vectors: tuple[tuple[str, torch.Tensor | None], ...]) -> None:
    x, skip = call.input, call.skip
    check_float(op, "input", x)
    check_not_negative(op, "epsilon", call.epsilon)
    if x.dim() not in (2, 3):
        raise invalid(op, "input", x, "(batch, sequence, hidden) or (tokens, hidden)")
    check_same_dtype(op, "skip", skip, "input", x.dtype)
    shapes = [tuple(x.shape)]
    if x.dim() == 3:
        shapes += [(1, *x.shape[1:]), tuple(x.shape[1:])]
    if tuple(skip.shape) not in shapes:
        raise invalid(op, "skip", skip, f"a shape out of {shapes}")
    for name, tensor in vectors:
        check_same_dtype(op, name, tensor, "input", x.dtype)
        if tensor is not None and tuple(tensor.shape) != (x.shape[-1],):
            raise invalid(op, name, tensor, f"shape ({x.shape[-1]},)")


def _wide_sum(call: _SkipCall) -> torch.Tensor:
    total = call.input.to(torch.promote_types(call.input.dtype, torch.float32)) + call.skip
    return total if call.bias is None else total + call.bias


def _skip_layer_check(call: SkipLayerNormalizationCall) -> None:
    vectors = (("gamma", call.gamma), ("beta", call.beta), ("bias", call.bias))
    _check_skip("SkipLayerNormalization", call, vectors)


def _skip_layer_reference(call: SkipLayerNormalizationCall) -> Two:
    total = _wide_sum(call)
    centred = total - total.mean(-1, keepdim=True)
    y = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + call.epsilon) * call.gamma
    return (y if call.beta is None else y + call.beta).to(call.input.dtype), total.to(call.input.dtype)


def _skip_layer_composite(call: SkipLayerNormalizationCall) -> Two:
    total = _wide_sum(call)
    wide_beta = None if call.beta is None else call.beta.to(total.dtype)
    y = torch.nn.functional.layer_norm(
        total, (call.input.shape[-1],), call.gamma.to(total.dtype), wide_beta, call.epsilon
    )
    return y.to(call.input.dtype), total.to(call.input.dtype)


def _skip_fake(call: _SkipCall) -> Two:
    return call.input.new_empty(call.input.shape), call.input.new_empty(call.input.shape)


_SKIP_LAYER = declare(
    "SkipLayerNormalization",
    1,
    SkipLayerNormalizationCall,
    returns=("output", "input_skip_bias_sum"),
    domain="com.microsoft",
    reference=_skip_layer_reference,
    composite=_skip_layer_composite,
    fake=_skip_fake,
    check=_skip_layer_check,
    backends=(SKIP_NORMALIZATION,),
    output_positions=(0, 3),
    extensions=(torch.float64,),
)


skip_layer_normalization = public("skip_layer_normalization", SkipLayerNormalizationCall, _SKIP_LAYER)


def _skip_simplified_check(call: SkipSimplifiedLayerNormalizationCall) -> None:
    _check_skip("SkipSimplifiedLayerNormalization", call, (("gamma", call.gamma), ("bias", call.bias)))


def _skip_simplified_reference(call: SkipSimplifiedLayerNormalizationCall) -> Two:
    total = _wide_sum(call)
    y = total * torch.rsqrt((total * total).mean(-1, keepdim=True) + call.epsilon) * call.gamma
    return y.to(call.input.dtype), total.to(call.input.dtype)


def _skip_simplified_composite(call: SkipSimplifiedLayerNormalizationCall) -> Two:
    total = _wide_sum(call)
    y = torch.nn.functional.rms_norm(total, (call.input.shape[-1],), call.gamma.to(total.dtype), call.epsilon)
    return y.to(call.input.dtype), total.to(call.input.dtype)


_SKIP_SIMPLIFIED = declare(
    "SkipSimplifiedLayerNormalization",
    1,
    SkipSimplifiedLayerNormalizationCall,
    returns=("output", "input_skip_bias_sum"),
    domain="com.microsoft",
    reference=_skip_simplified_reference,
    composite=_skip_simplified_composite,
    fake=_skip_fake,
    check=_skip_simplified_check,
    backends=(SKIP_NORMALIZATION,),
    output_positions=(0, 3),
    extensions=(torch.float64,),
)


skip_simplified_layer_normalization = public(
    "skip_simplified_layer_normalization", SkipSimplifiedLayerNormalizationCall, _SKIP_SIMPLIFIED
)
