"""Samples of the operators beyond attention, normalization and activations."""

import torch
from core_samples import randn, sample

HALVES = (torch.float16, torch.bfloat16)
REAL = (torch.float16, torch.bfloat16, torch.float32)
ALL = (*REAL, torch.float64)


@sample("TensorScatter", 24, "linear", unbatched=(2,))
def _(dtype):
    return (randn(2, 3, 7, 4, dtype=dtype), randn(2, 3, 2, 4, dtype=dtype), torch.tensor([5, 1])), {}


@sample("TensorScatter", 24, "circular, another axis", unbatched=(2,))
def _(dtype):
    return (randn(2, 5, 4, dtype=dtype), randn(2, 3, 4, dtype=dtype), torch.tensor([4, 12])), {
        "axis": 1,
        "mode": "circular",
    }


# opcheck multiplies tensors, which torch does not do in float8.
@sample(
    "TensorScatter",
    24,
    "float8 prefill",
    differentiable=False,
    dtypes=(torch.float8_e4m3fn,),
    opcheck=False,
)
def _(dtype):
    return (randn(2, 3, 4, dtype=dtype), randn(2, 2, 4, dtype=dtype)), {}


def _linear(dtype, gate=None, beta=None, past=True):
    inputs = [randn(2, 5, 12, dtype=dtype), randn(2, 5, 6, dtype=dtype) * 0.3, randn(2, 5, 4, dtype=dtype)]
    inputs.append(randn(2, 2, 3, 2, dtype=dtype) if past else None)
    inputs.append(None if gate is None else -randn(2, 5, gate, dtype=dtype).abs())
    inputs.append(None if beta is None else randn(2, 5, beta, dtype=dtype).sigmoid())
    while inputs[-1] is None:
        inputs.pop()
    return tuple(inputs), {"q_num_heads": 4, "kv_num_heads": 2}


@sample("LinearAttention", 27, "gated delta")
def _(dtype):
    return _linear(dtype, gate=6, beta=2)


@sample("LinearAttention", 27, "linear, without a past")
def _(dtype):
    args, kwargs = _linear(dtype, past=False)
    return args, kwargs | {"update_rule": "linear", "scale": 0.7}


@sample("LinearAttention", 27, "gated")
def _(dtype):
    args, kwargs = _linear(dtype, gate=2)
    return args, kwargs | {"update_rule": "gated"}


@sample("LinearAttention", 27, "delta, one rate")
def _(dtype):
    args, kwargs = _linear(dtype, beta=1)
    return args, kwargs | {"update_rule": "delta"}


@sample("CausalConvWithState", 27, "bias, past, silu")
def _(dtype):
    shapes = ((2, 3, 5), (3, 1, 4), (3,), (2, 3, 3))
    return tuple(randn(*shape, dtype=dtype) for shape in shapes), {"activation": "silu"}


@sample("CausalConvWithState", 27, "shorter than its kernel")
def _(dtype):
    return (randn(2, 3, 1, dtype=dtype), randn(3, 1, 4, dtype=dtype)), {}


@sample("FlexAttention", 1, "grouped")
def _(dtype):
    shapes = ((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3))
    return tuple(randn(*shape, dtype=dtype) for shape in shapes), {"scale": 0.2}


@sample("CumProd", 26, "plain")
def _(dtype):
    return (1 + 0.3 * randn(2, 5, dtype=dtype), 1), {}


@sample("CumProd", 26, "reverse, exclusive")
def _(dtype):
    return (1 + 0.3 * randn(2, 5, dtype=dtype), -1), {"reverse": True, "exclusive": True}


@sample("CumProd", 26, "integers that wrap", differentiable=False, dtypes=(torch.uint32, torch.uint64, torch.int32))
def _(dtype):
    return (torch.full((2, 20), 123, dtype=torch.int64).to(dtype), -1), {}


@sample("BitCast", 26, "float to integer", differentiable=False, dtypes=(torch.float32,))
def _(dtype):
    return (randn(2, 3, dtype=dtype),), {"to": 6}


@sample("BitCast", 26, "to four bits", differentiable=False, dtypes=(torch.uint8,))
def _(dtype):
    return (torch.arange(16, dtype=dtype).view(2, 8),), {"to": 22}


@sample("DFT", 20, "padded", dtypes=ALL)
def _(dtype):
    return (randn(2, 5, 3, 2, dtype=dtype), 7, 1), {}


@sample("DFT", 20, "one-sided", dtypes=ALL)
def _(dtype):
    return (randn(2, 6, 1, dtype=dtype),), {"onesided": True}


@sample("DFT", 20, "inverse", dtypes=ALL)
def _(dtype):
    return (randn(2, 5, 2, dtype=dtype), None, -2), {"inverse": True}


@sample("DFT", 20, "one-sided inverse", dtypes=ALL)
def _(dtype):
    return (randn(2, 4, 2, dtype=dtype), 7), {"inverse": True, "onesided": True}


@sample("STFT", 17, "window", dtypes=ALL)
def _(dtype):
    return (randn(2, 20, 1, dtype=dtype), 3, randn(8, dtype=dtype)), {}


@sample("STFT", 17, "complex", dtypes=ALL)
def _(dtype):
    return (randn(2, 20, 2, dtype=dtype), 4, None, 6), {"onesided": False}


@sample("QuantizeLinear", 21, "per axis", differentiable=False, dtypes=(torch.float32,))
def _(dtype):
    zero = torch.tensor([0, 5, 250], dtype=torch.uint8)
    return (100 * randn(2, 3, 4, dtype=dtype), randn(3, dtype=dtype).abs(), zero), {}


@sample("QuantizeLinear", 21, "int4 blocks", differentiable=False, dtypes=(torch.float32,))
def _(dtype):
    return (randn(2, 5, dtype=dtype), randn(2, 3, dtype=dtype).abs() / 4), {"block_size": 2, "output_dtype": 22}


@sample("QuantizeLinear", 21, "float8", differentiable=False, dtypes=(torch.float32,))
def _(dtype):
    return (500 * randn(2, 5, dtype=dtype), torch.tensor(0.5, dtype=dtype)), {"output_dtype": 17}


@sample("QuantizeLinear", 21, "float4", differentiable=False, dtypes=(torch.float32,))
def _(dtype):
    return (3 * randn(2, 5, dtype=dtype), torch.tensor(1.0, dtype=dtype)), {"output_dtype": 23}


@sample("DequantizeLinear", 21, "per axis", dtypes=REAL, unbatched=(0, 2), differentiable=False)
def _(dtype):
    x = torch.randint(0, 255, (2, 3, 4), dtype=torch.uint8)
    return (x, randn(3, dtype=dtype), torch.tensor([1, 2, 3], dtype=torch.uint8)), {}


@sample("DequantizeLinear", 21, "blocks", dtypes=REAL, differentiable=False)
def _(dtype):
    x = torch.randint(-8, 8, (2, 5), dtype=torch.int8)
    return (x, randn(2, 3, dtype=dtype)), {"block_size": 2, "axis": 1, "input_dtype": 22}


@sample("GridSample", 22, "linear")
def _(dtype):
    return (randn(2, 3, 4, 5, dtype=dtype), randn(2, 3, 2, 2, dtype=dtype).tanh()), {"align_corners": True}


@sample("GridSample", 22, "cubic, reflection")
def _(dtype):
    return (randn(2, 3, 4, 5, dtype=dtype), 1.7 * randn(2, 3, 2, 2, dtype=dtype)), {
        "mode": "cubic",
        "padding_mode": "reflection",
    }


@sample("GridSample", 22, "one dimension")
def _(dtype):
    return (randn(2, 3, 5, dtype=dtype), 1.3 * randn(2, 4, 1, dtype=dtype)), {"padding_mode": "border"}


@sample("GridSample", 22, "volumes, nearest", differentiable=False)
def _(dtype):
    return (randn(2, 1, 3, 4, 5, dtype=dtype), 1.2 * randn(2, 2, 2, 2, 3, dtype=dtype)), {"mode": "nearest"}


@sample("AffineGrid", 20, "images")
def _(dtype):
    return (randn(2, 2, 3, dtype=dtype), [2, 3, 4, 5]), {}


@sample("AffineGrid", 20, "volumes, aligned")
def _(dtype):
    return (randn(2, 3, 4, dtype=dtype), [2, 1, 2, 3, 4]), {"align_corners": True}


@sample("DeformConv", 22, "groups, mask, bias")
def _(dtype):
    shapes = ((2, 4, 5, 6), (6, 2, 3, 2), (2, 24, 2, 3), (6,), (2, 12, 2, 3))
    return tuple(randn(*shape, dtype=dtype) for shape in shapes), {
        "group": 2,
        "offset_group": 2,
        "strides": [2, 2],
        "pads": [1, 0, 0, 1],
    }


@sample("DeformConv", 22, "one dimension")
def _(dtype):
    shapes = ((2, 2, 7), (3, 2, 3), (2, 3, 3))
    return tuple(randn(*shape, dtype=dtype) for shape in shapes), {"dilations": [2]}


def _regions(dtype):
    corners = torch.tensor([[0.3, 0.2, 4.1, 3.3], [1.03, 1.0, 2.37, 5.7], [-1.5, 0.4, 3.4, 2.9]]).to(dtype)
    return randn(2, 3, 6, 5, dtype=dtype), corners, torch.tensor([1, 0, 1])


@sample("RoiAlign", 22, "averages", unbatched=(1, 2))
def _(dtype):
    return _regions(dtype), {"output_height": 2, "output_width": 3, "sampling_ratio": 2}


@sample("RoiAlign", 22, "adaptive, largest", unbatched=(1, 2), vmap=False)
def _(dtype):
    return _regions(dtype), {
        "output_height": 2,
        "mode": "max",
        "coordinate_transformation_mode": "output_half_pixel",
        "spatial_scale": 0.9,
    }


@sample("NonMaxSuppression", 11, "scores", differentiable=False, dtypes=(torch.float32,), vmap=False)
def _(dtype):
    return (randn(2, 12, 4, dtype=dtype), randn(2, 3, 12, dtype=dtype), 4, 0.2, 0.1), {}


def _projections(dtype, sequence=5, keys=6):
    return randn(2, sequence, 8, dtype=dtype), randn(2, keys, 8, dtype=dtype), randn(2, keys, 12, dtype=dtype)


@sample("MultiHeadAttention", 1, "bias, lengths", unbatched=(4,))
def _(dtype):
    mask = torch.tensor([3, 6], dtype=torch.int32)
    return (*_projections(dtype), randn(28, dtype=dtype), mask), {"num_heads": 2}


@sample("MultiHeadAttention", 1, "past, bias on scores, unidirectional")
def _(dtype):
    query, key, value = _projections(dtype, keys=5)
    past = randn(2, 2, 3, 4, dtype=dtype), randn(2, 2, 3, 4, dtype=dtype)
    scores = randn(1, 2, 5, 8, dtype=dtype)
    return (query, key, value[..., :8].contiguous(), None, None, scores, *past), {
        "num_heads": 2,
        "unidirectional": True,
    }


@sample("MultiHeadAttention", 1, "packed")
def _(dtype):
    return (randn(2, 5, 2, 3, 4, dtype=dtype), None, None, randn(24, dtype=dtype)), {"num_heads": 2, "num_outputs": 1}


@sample("GroupQueryAttention", 1, "prompt, packed, rotary", unbatched=(5,))
def _(dtype):
    lengths = torch.tensor([4, 2], dtype=torch.int32)
    return (
        randn(2, 5, 128, dtype=dtype),
        None,
        None,
        None,
        None,
        lengths,
        5,
        randn(9, 8, dtype=dtype),
        randn(9, 8, dtype=dtype),
    ), {"num_heads": 4, "kv_num_heads": 2, "do_rotary": True}


@sample("GroupQueryAttention", 1, "ragged step, window, soft cap", unbatched=(5,))
def _(dtype):
    shapes = ((2, 1, 32), (2, 1, 16), (2, 1, 16), (2, 2, 6, 8), (2, 2, 6, 8))
    inputs = tuple(randn(*shape, dtype=dtype) for shape in shapes)
    return (*inputs, torch.tensor([3, 6], dtype=torch.int32), 7), {
        "num_heads": 4,
        "kv_num_heads": 2,
        "local_window_size": 3,
        "softcap": 2.0,
    }


@sample("GroupQueryAttention", 1, "positions, bias, sinks", unbatched=(5, 9))
def _(dtype):
    shapes = ((2, 1, 64), (2, 1, 32), (2, 1, 32), (2, 2, 6, 16), (2, 2, 6, 16))
    inputs = tuple(randn(*shape, dtype=dtype) for shape in shapes)
    caches = randn(9, 8, dtype=dtype), randn(9, 8, dtype=dtype)
    scores, sinks = randn(1, 4, 1, 7, dtype=dtype), randn(4, dtype=dtype)
    positions = torch.tensor([[3], [8]])
    return (*inputs, torch.tensor([3, 6], dtype=torch.int32), 7, *caches, positions, scores, sinks), {
        "num_heads": 4,
        "kv_num_heads": 2,
        "do_rotary": True,
        "rotary_interleaved": True,
    }


@sample("GroupQueryAttention", 1, "normalized heads", unbatched=(5,))
def _(dtype):
    shapes = ((2, 3, 64), (2, 3, 32), (2, 3, 32))
    inputs = tuple(randn(*shape, dtype=dtype) for shape in shapes)
    caches = randn(9, 8, dtype=dtype), randn(9, 8, dtype=dtype)
    norms = 1 + randn(16, dtype=dtype) / 4, 1 + randn(16, dtype=dtype) / 4
    lengths = torch.tensor([2, 1], dtype=torch.int32)
    return (*inputs, None, None, lengths, 3, *caches, None, None, None, None, None, *norms), {
        "num_heads": 4,
        "kv_num_heads": 2,
        "do_rotary": True,
    }


@sample("GroupQueryAttention", 1, "smooth softmax, not causal", unbatched=(5,))
def _(dtype):
    shapes = ((2, 3, 32), (2, 3, 16), (2, 3, 16))
    inputs = tuple(randn(*shape, dtype=dtype) for shape in shapes)
    return (*inputs, None, None, torch.tensor([2, 2], dtype=torch.int32), 3), {
        "num_heads": 4,
        "kv_num_heads": 2,
        "smooth_softmax": True,
        "causal": False,
        "num_outputs": 1,
    }


@sample("SkipLayerNormalization", 1, "beta and bias")
def _(dtype):
    shapes = ((2, 3, 8), (3, 8), (8,), (8,), (8,))
    return tuple(randn(*shape, dtype=dtype) for shape in shapes), {"epsilon": 1e-5}


@sample("SkipSimplifiedLayerNormalization", 1, "bias")
def _(dtype):
    shapes = ((2, 3, 8), (2, 3, 8), (8,), (8,))
    return tuple(randn(*shape, dtype=dtype) for shape in shapes), {"epsilon": 1e-5}


def _quantized(dtype, bits, zeros):
    weight = torch.randint(0, 256, (5, 3, 16 * bits // 8), dtype=torch.uint8)
    return (randn(2, 3, 40, dtype=dtype), weight, randn(5, 3, dtype=dtype) / 8, zeros), {
        "K": 40,
        "N": 5,
        "block_size": 16,
        "bits": bits,
    }


@sample("MatMulNBits", 1, "four bits", unbatched=(1,))
def _(dtype):
    args, kwargs = _quantized(dtype, 4, torch.randint(0, 256, (5, 2), dtype=torch.uint8))
    return (*args, None, randn(5, dtype=dtype)), kwargs


@sample("MatMulNBits", 1, "two bits, float zero points", unbatched=(1,))
def _(dtype):
    return _quantized(dtype, 2, randn(5, 3, dtype=dtype))


@sample("MatMulNBits", 1, "eight bits", unbatched=(1,))
def _(dtype):
    args, kwargs = _quantized(dtype, 8, None)
    return args[:3], kwargs
