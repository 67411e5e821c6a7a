"""Changes of one argument of a valid call, and which of them leave the call valid.

:data:`FREE` is the table behind the audit of refused calls: for each sample the changes of a tensor argument's shape
and dtype that ONNX allows. Whatever is not listed must be refused.
"""

import inspect
import re

import torch

from onnxops_core import native
from onnxops_core.dtypes import TORCH_TO_ONNX

# Types whose name does not spell the function's.
_NAMES = {
    "SwiGLU": "swiglu",
    "RMSNormalization": "rms_normalization",
    "DFT": "dft",
    "STFT": "stft",
    "MatMulNBits": "matmul_nbits",
}
# What the package offers beside operators.
NOT_OPERATORS = {"build_cpu_kernels", "find_native_op", "native_ops", "tensor_scatter_"}


def public_function(op_type):
    """The typed function of an operator."""
    return getattr(native, _NAMES.get(op_type) or re.sub(r"(?<!^)(?=[A-Z])", "_", op_type).lower())


def public_functions():
    """All typed functions of operators by name."""
    return {
        name: getattr(native, name)
        for name in native.__all__
        if inspect.isfunction(getattr(native, name)) and name not in NOT_OPERATORS
    }


def bound(function, args, kwargs):
    """All arguments of a call by name, defaults included."""
    arguments = inspect.signature(function).bind(*args, **kwargs)
    arguments.apply_defaults()
    return dict(arguments.arguments)


def call(function, arguments):
    """Calls a function with arguments by name."""
    parameters = inspect.signature(function).parameters.values()
    args = [arguments[p.name] for p in parameters if p.kind is not p.KEYWORD_ONLY]
    return function(*args, **{p.name: arguments[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY})


def shape_changes(tensor):
    """Yields a name and a tensor of another rank or size, one dimension at a time."""
    if tensor.dim():
        yield "less", tensor[0].contiguous()
    yield "first", tensor.unsqueeze(0)
    yield "last", tensor.unsqueeze(-1)
    for dim in range(tensor.dim()):
        yield f"{dim}+", torch.cat((tensor, tensor.narrow(dim, 0, 1)), dim)
        yield f"{dim}-", tensor.narrow(dim, 0, tensor.shape[dim] - 1).contiguous()


def as_dtype(tensor, dtype):
    """A tensor of the same shape in another dtype; the values do not matter."""
    return torch.zeros(tensor.shape, dtype=dtype)


# torch computes nothing in these.
_UNUSABLE = {torch.uint4, torch.int4, torch.uint2, torch.int2, torch.float4_e2m1fn_x2}
DTYPES = [dtype for dtype in TORCH_TO_ONNX if dtype not in _UNUSABLE]

# What words of FREE stand for.
_WORDS = {
    "any": "less first last 0 1",
    "float": "float16 bfloat16 float32 float64",
    "number": "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float",
    "product": "int32 int64 uint32 uint64 float",
    "scale": "int32 float16 bfloat16 float8_e8m0fnu",
    "quantized": "int8 uint16 int16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz",
}

# Per sample and tensor: changes of rank ("less", "first", "last"), dimensions whose size is free ("0"), or may only
# grow or shrink ("0+", "0-"), and dtypes. A question mark: only the values tell that it is wrong, so not in fake mode.
FREE: dict[str, dict[str, str]] = {
    "Attention-23-grouped": {"Q": "2", "V": "3 float"},
    "Attention-23-causal": {"Q": "2", "V": "3 float"},
    "Attention-23-boolean mask with a dead row": {"V": "3 float", "attn_mask": "less 0- 3- float32"},
    "Attention-23-float mask, soft cap, scores": {"V": "3 float", "attn_mask": "less first 2 bool"},
    "Attention-23-past, flat inputs, probabilities": {"Q": "1"},
    "Attention-23-past, causal, Y alone": {"Q": "2"},
    "Attention-24-valid lengths": {"Q": "2", "V": "3 float"},
    "Attention-25-windows": {"Q": "2", "V": "3 float"},
    "Attention-25-left window over a past": {"Q": "2"},
    "RotaryEmbedding-23-positions": {"X": "1"},
    "RotaryEmbedding-23-flat, partial, interleaved": {},
    "RotaryEmbedding-23-partial halves": {"X": "1"},
    "RMSNormalization-23-last dimension": {"X": "less first 0 1 float", "scale": "less first float"},
    "RMSNormalization-23-two dimensions, broadcast scale": {"X": "less first 0 2 float", "scale": "less first float"},
    "LayerNormalization-17-last dimension": {"X": "less first 0 1", "Scale": "less first", "B": "less first"},
    "LayerNormalization-17-two dimensions, broadcast, no bias": {"X": "less first 0 2", "Scale": "less first"},
    "GroupNormalization-21-three groups": {"X": "last 0 2 3"},
    "InstanceNormalization-22-images": {"input": "last 0 2 3"},
    "Gelu-20-exact": {"X": "any float"},
    "Gelu-20-tanh": {"X": "any float"},
    "Swish-24-alpha": {"X": "any float"},
    "Swish-24-default": {"X": "any float"},
    "SwiGLU-28-default": {},
    "SwiGLU-28-alpha": {},
    "Mish-22-plain": {"X": "any float"},
    "HardSwish-22-plain": {"X": "any float"},
    "TensorScatter-24-linear": {"past_cache": "2+ 2-?", "update": "2+? 2-"},
    "TensorScatter-24-circular, another axis": {"past_cache": "1", "update": "1"},
    "TensorScatter-24-float8 prefill": {"past_cache": "1", "update": "1"},
    "LinearAttention-27-gated delta": {"past_state": "float", "beta": "2-"},
    "LinearAttention-27-linear, without a past": {},
    "LinearAttention-27-gated": {"past_state": "float"},
    "LinearAttention-27-delta, one rate": {"past_state": "float", "beta": "2+"},
    "CausalConvWithState-27-bias, past, silu": {"input": "2"},
    "CausalConvWithState-27-shorter than its kernel": {"input": "0 2", "weight": "2"},
    "FlexAttention-1-grouped": {"Q": "2", "V": "3"},
    "CumProd-26-plain": {"x": "first last 0 1 product"},
    "CumProd-26-reverse, exclusive": {"x": "any product"},
    "CumProd-26-integers that wrap": {"x": "any product"},
    "BitCast-26-float to integer": {"input": "any int32 uint32"},
    "BitCast-26-to four bits": {"input": "any int8"},
    "DFT-20-padded": {"input": "any 2 3- float"},
    "DFT-20-one-sided": {"input": "any float"},
    "DFT-20-inverse": {"input": "any 2- float"},
    "DFT-20-one-sided inverse": {"input": "less first 0 1 float"},
    "STFT-17-window": {"signal": "0 1", "window": "0"},
    "STFT-17-complex": {"signal": "0 1 2- float"},
    "QuantizeLinear-21-per axis": {
        "x": "last 0 2 int32 float16 bfloat16",
        "y_scale": "scale",
        "y_zero_point": "quantized",
    },
    "QuantizeLinear-21-int4 blocks": {
        "x": "1+ int32 float16 bfloat16",
        "y_scale": "scale",
    },
    "QuantizeLinear-21-float8": {
        "x": "any int32 float16 bfloat16",
        "y_scale": "first last scale",
    },
    "QuantizeLinear-21-float4": {
        "x": "any int32 float16 bfloat16",
        "y_scale": "first last scale",
    },
    "DequantizeLinear-21-per axis": {"x": "last 0 2", "x_scale": "float16 bfloat16"},
    "DequantizeLinear-21-blocks": {"x": "1+", "x_scale": "float16 bfloat16"},
    "GridSample-22-linear": {"X": "1 2 3 number", "grid": "1 2 float"},
    "GridSample-22-cubic, reflection": {"X": "1 2 3 number", "grid": "1 2 float"},
    "GridSample-22-one dimension": {"X": "1 2 number", "grid": "1 float"},
    "GridSample-22-volumes, nearest": {"X": "1 2 3 4 number", "grid": "1 2 3 float"},
    "AffineGrid-20-images": {"theta": "float"},
    "AffineGrid-20-volumes, aligned": {"theta": "float"},
    "DeformConv-22-groups, mask, bias": {"X": "2- 3-"},
    "DeformConv-22-one dimension": {"W": "0"},
    "RoiAlign-22-averages": {"X": "0+ 0-? 1 2 3"},
    "RoiAlign-22-adaptive, largest": {"X": "0+ 0-? 1 2 3"},
    "NonMaxSuppression-11-scores": {"scores": "1"},
    "MultiHeadAttention-1-bias, lengths": {"query": "1"},
    "MultiHeadAttention-1-past, bias on scores, unidirectional": {"attention_bias": "0+ 1-"},
    "MultiHeadAttention-1-packed": {"query": "0 1"},
    "GroupQueryAttention-1-prompt, packed, rotary": {"query": "1-?"},
    "GroupQueryAttention-1-ragged step, window, soft cap": {},
    "GroupQueryAttention-1-positions, bias, sinks": {"attention_bias": "0+"},
    "GroupQueryAttention-1-normalized heads": {},
    "GroupQueryAttention-1-smooth softmax, not causal": {},
    "SkipLayerNormalization-1-beta and bias": {"input": "less 0", "skip": "first"},
    "SkipSimplifiedLayerNormalization-1-bias": {"skip": "less 0-"},
    "MatMulNBits-1-four bits": {"A": "less first 0 1"},
    "MatMulNBits-1-two bits, float zero points": {"A": "less first 0 1"},
    "MatMulNBits-1-eight bits": {"A": "less first 0 1"},
}


def _words(text):
    for word in text.split():
        if word in _WORDS:
            yield from _words(_WORDS[word])
        elif word.isdigit():
            yield from (f"{word}+", f"{word}-")
        else:
            yield word


def free(sample, argument):
    """The changes of an argument that leave a call valid."""
    return set(_words(FREE[str(sample)].get(argument, "")))


# Numbers and strings that each attribute refuses, beside values of another kind.
_NAN, _INF = float("nan"), float("inf")
_NOT_FINITE = (_NAN, _INF, -_INF)
_NOT_POSITIVE = (*_NOT_FINITE, -1.0)
OUT_OF_RANGE: dict[str, dict[str, tuple]] = {
    "attention": {
        "kv_num_heads": (-1, 1000003),
        "q_num_heads": (-1, 1000003),
        "qk_matmul_output_mode": (-1, 4),
        "scale": _NOT_POSITIVE,
        "softcap": _NOT_POSITIVE,
        "softmax_precision": (0, 2, 7, 99),
        "left_window_size": (-2,),
        "right_window_size": (-2,),
        "num_outputs": (0, 5),
    },
    "rotary_embedding": {"num_heads": (-1, 1000003), "rotary_embedding_dim": (-2, 3, 1000)},
    "rms_normalization": {"axis": (-4, 3), "epsilon": _NOT_POSITIVE, "stash_type": (0, 7)},
    "layer_normalization": {"axis": (-4, 3), "epsilon": _NOT_POSITIVE, "stash_type": (0, 10)},
    "group_normalization": {"num_groups": (0, -1, 4), "epsilon": _NOT_POSITIVE, "stash_type": (0, 7)},
    "instance_normalization": {"epsilon": _NOT_POSITIVE},
    "gelu": {"approximate": ("erf", "")},
    "swish": {"alpha": _NOT_FINITE},
    "swiglu": {"alpha": _NOT_FINITE},
    "tensor_scatter": {"axis": (0, -5, 5), "mode": ("ring", "")},
    "linear_attention": {
        "q_num_heads": (0, -4, 3),
        "kv_num_heads": (0, -2, 3),
        "update_rule": ("quadratic", ""),
        "scale": _NOT_FINITE,
        "chunk_size": (0, -64),
    },
    "causal_conv_with_state": {"activation": ("relu", "")},
    "flex_attention": {"scale": _NOT_POSITIVE, "softmax_precision": (0, 7)},
    "cum_prod": {"axis": (-3, 2)},
    "bit_cast": {"to": (0, -1, 7, 8, 99, torch.complex32)},
    "dft": {"dft_length": (0, -3), "axis": (-1, -9, 9)},
    "stft": {"frame_step": (0, -1), "frame_length": (0, -1, 1000)},
    "quantize_linear": {
        "axis": (-4, 3),
        "block_size": (-1,),
        "output_dtype": (-1, 1, 7, 99),
        "precision": (-1, 2, 11),
    },
    "dequantize_linear": {
        "axis": (-4, 3),
        "block_size": (-1,),
        "output_dtype": (-1, 2, 11),
        "input_dtype": (-1, 1, 2, 99),
    },
    "grid_sample": {"mode": ("bilinear", ""), "padding_mode": ("mirror", "")},
    "affine_grid": {"size": ([2, 3, 4], [3, 3, 4, 5], [2, 3, 0, 5], [2, 3, 4, -5])},
    "deform_conv": {
        "dilations": ([0, 1], [1], [1, 1, 1]),
        "group": (0, -1, 3),
        "kernel_shape": ([9, 9], [9]),
        "offset_group": (0, -1, 3),
        "pads": ([-1, 0, 0, 0], [0, 0, 0]),
        "strides": ([0, 1], [-1]),
    },
    "roi_align": {
        "coordinate_transformation_mode": ("pixel", ""),
        "mode": ("min", ""),
        "output_height": (0, -1),
        "output_width": (0, -1),
        "sampling_ratio": (-1,),
        "spatial_scale": (*_NOT_FINITE, 0.0, -1.0),
    },
    "non_max_suppression": {
        "max_output_boxes_per_class": (-1,),
        "iou_threshold": (-0.1, 1.1, _NAN),
        "score_threshold": (_NAN,),
    },
    "multi_head_attention": {
        "num_heads": (0, -1, 3),
        "mask_filter_value": (_NAN, _INF),
        "scale": _NOT_POSITIVE,
        "num_outputs": (0, 5),
    },
    "group_query_attention": {
        "total_sequence_length": (-1, 0),
        "num_heads": (0, -1, 3),
        "kv_num_heads": (0, -1, 3),
        "k_quant_type": ("PER_TENSOR", ""),
        "kv_cache_bit_width": (4, 8),
        "local_window_size": (0, -2),
        "qk_norm_epsilon": _NOT_POSITIVE,
        "qk_output": (1, 2),
        "scale": _NOT_POSITIVE,
        "softcap": _NOT_POSITIVE,
        "v_quant_type": ("PER_CHANNEL", ""),
        "num_outputs": (0, 5),
    },
    "skip_layer_normalization": {"epsilon": _NOT_POSITIVE},
    "skip_simplified_layer_normalization": {"epsilon": _NOT_POSITIVE},
    "matmul_nbits": {
        "K": (0, -1, 41),
        "N": (0, -1, 6),
        "block_size": (0, -16, 8, 24, 32),
        "bits": (0, 3, 16),
        "accuracy_level": (-1, 5),
    },
}

# Per-tensor quantization has no use for an axis.
IGNORED = {("QuantizeLinear-21-float8", "axis"), ("QuantizeLinear-21-float4", "axis")}

# Inputs that no sample can give: every value is refused.
REFUSED = {
    "MatMulNBits": {"g_idx"},
    "MultiHeadAttention": {"past_sequence_length", "cache_indirection"},
    "GroupQueryAttention": {"k_scale", "v_scale"},
}
