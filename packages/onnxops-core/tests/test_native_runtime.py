"""Native operators give what ONNX Runtime gives for the node that they stand for."""

import random

import core_samples_more  # noqa: F401 - adds its samples
import onnxruntime
import pytest
import torch
from core_runtime import run_in_runtime
from core_samples import SAMPLES

from onnxops_core import native
from onnxops_core.native import find_native_op

# Calls that ONNX Runtime refuses on the CPU, and why. A test fails when one of them starts to work.
REFUSED = {
    "Attention-23-float mask, soft cap, scores": "no masks shorter than the keys",
    "SwiGLU-28-default": "no opset 28",
    "SwiGLU-28-alpha": "no opset 28",
    "FlexAttention-1-grouped": "no operators of the preview domain",
    "BitCast-26-to four bits": "the input is a carrier, in ONNX it would have the dtype itself",
    "QuantizeLinear-21-int4 blocks": "its Python interface returns no 4-bit tensors",
    "QuantizeLinear-21-float4": "no kernel for float4",
    "GridSample-22-one dimension": "images and volumes alone",
    "DeformConv-22-one dimension": "images alone",
    "MultiHeadAttention-1-packed": "packed inputs on GPUs alone",
    "GroupQueryAttention-1-normalized heads": "heads are normalized on GPUs alone",
}
RUNTIME = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
if RUNTIME < (1, 32):
    REFUSED |= {
        "Attention-25-windows": "no Attention of opset 25",
        "Attention-25-left window over a past": "no Attention of opset 25",
    }
# Operators of opset 27 that ONNX Runtime has under its own domain.
OWN_DOMAIN = {"LinearAttention", "CausalConvWithState"}
if RUNTIME < (1, 26):
    REFUSED |= {str(s): "the domain has no such operators yet" for s in SAMPLES if s.op_type in OWN_DOMAIN}
    REFUSED |= {str(s): "no kernel of DeformConv" for s in SAMPLES if s.op_type == "DeformConv"}
if RUNTIME < (1, 28):
    REFUSED |= {"MatMulNBits-1-two bits, float zero points": "no zero points that are floats"}
if RUNTIME < (1, 30):
    REFUSED |= {"GroupQueryAttention-1-smooth softmax, not causal": "no attention of later keys"}
if RUNTIME < (1, 23):
    REFUSED |= {
        "GroupQueryAttention-1-positions, bias, sinks": "no sinks",
        "MatMulNBits-1-eight bits": "four bits alone",
        "LayerNormalization-17-two dimensions, broadcast, no bias": "no scale that is broadcast",
        "QuantizeLinear-21-float8": "its Python interface returns no 8-bit floats",
    }
# Calls that older releases compute wrongly; the exporters write them otherwise for these, or refuse them.
WRONG = {"STFT-17-complex", "DFT-20-one-sided inverse"} if RUNTIME < (1, 28) else set()
if RUNTIME < (1, 24):
    WRONG |= {"GroupQueryAttention-1-ragged step, window, soft cap"}
_COMPARED = [s for s in SAMPLES if str(s) not in {*REFUSED, *WRONG} and torch.float8_e4m3fn not in s.dtypes]


def _run(sample, args, kwargs, wanted):
    domain = "com.microsoft" if sample.op_type in OWN_DOMAIN else None
    # The runtime wants the present of an Attention with a past, whether it is used or not.
    least = 3 if sample.op_type == "Attention" and len(args) > 4 and args[4] is not None else 1
    if sample.op_type == "GroupQueryAttention":
        least = 3  # no output could be left out before 1.27
    return run_in_runtime(sample.op, args, kwargs, max(wanted, least), domain)[:wanted]


@pytest.mark.parametrize("sample", _COMPARED, ids=str)
def test_result_is_the_runtimes(sample):
    args, kwargs = sample.make(sample.usual_dtype)
    outputs = sample.op(*args, **kwargs)
    ours = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)[: kwargs.get("num_outputs", len(outputs))]

    theirs = _run(sample, args, kwargs, len(ours))

    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        if sample.op_type == "GroupQueryAttention":
            one, other = _specified(one, args), _specified(other, args)
        exact = one.dtype.itemsize == 1
        torch.testing.assert_close(one, other, rtol=0 if exact else 1e-4, atol=0 if exact else 2e-5)


def _specified(tensor, args):
    """Leaves out what GroupQueryAttention does not specify: caches, and a prompt's outputs, behind the last
    key."""
    places = torch.arange(tensor.shape[-2])
    prompt = tensor.shape[-2] == args[6]
    if tensor.dim() == 3 and not prompt:
        return tensor
    valid = (places <= args[5].unsqueeze(1)).unsqueeze(-1)
    return tensor * (valid.unsqueeze(1) if tensor.dim() == 4 else valid)


@pytest.mark.parametrize("label", REFUSED)
def test_refused_call_is_still_refused(label):
    (sample,) = [s for s in SAMPLES if str(s) == label]
    args, kwargs = sample.make(sample.usual_dtype)

    with pytest.raises(Exception, match=r"ONNXRuntimeError|No corresponding Numpy type|not supported"):
        _run(sample, args, kwargs, 1)


def _random_attention(case):
    generator = torch.Generator().manual_seed(case)

    def number(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    kv_heads, group, size = number(1, 3), number(1, 3), 8 * number(1, 2)
    batch, length, keys, past = number(1, 3), number(1, 40), number(1, 40), number(0, 1) * number(1, 20)
    heads, total = kv_heads * group, keys + past

    def rand(*shape):
        return torch.randn(shape, generator=generator)

    inputs = [rand(batch, heads, length, size), rand(batch, kv_heads, keys, size), rand(batch, kv_heads, keys, size)]
    kind = number(0, 3)
    if kind:
        shape = ((length, total), (batch, 1, length, total), (heads, length, total))[kind - 1]
        inputs.append(rand(*shape) if number(0, 1) else rand(*shape) > -0.5)
    else:
        inputs.append(None)
    if past:
        inputs += [rand(batch, kv_heads, past, size), rand(batch, kv_heads, past, size)]
    return inputs, {"is_causal": bool(number(0, 1)), "softcap": float(number(0, 1) * 2)}


@pytest.mark.parametrize("case", range(40))
def test_attention_of_random_shapes_is_the_runtimes(case):
    inputs, kwargs = _random_attention(case)

    y, key, value = native.attention(*inputs, **kwargs, num_outputs=3)

    op = find_native_op(torch.ops.onnxops.Attention.opset23)
    theirs = run_in_runtime(op, tuple(inputs), kwargs, 3)
    for one, other in zip((y, key, value), theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", range(30))
def test_multi_head_attention_of_random_shapes_is_the_runtimes(case):
    rng = random.Random(case)
    torch.manual_seed(case)
    heads, batch, length, keys, width = (rng.choice(x) for x in ((1, 2, 4), (1, 2), (1, 3), (1, 4), (4, 8)))
    mask = rng.choice(
        [None, torch.randint(1, keys + 1, (batch,)).int(), torch.randint(0, 2, (batch, keys)).int()],
    )
    shape = rng.choice([None, (batch, heads, length, keys), (1, heads, length, keys), (1, 1, length, keys)])
    inputs = [torch.randn(batch, *rest) for rest in ((length, 4 * heads), (keys, 4 * heads), (keys, width * heads))]
    inputs += [
        rng.choice([None, torch.randn((8 + width) * heads)]),
        mask,
        None if shape is None else torch.randn(shape),
    ]
    kwargs = {"num_heads": heads, "unidirectional": keys <= length and rng.random() < 0.5, "num_outputs": 1}

    y = native.multi_head_attention(*inputs, **kwargs)

    op = find_native_op(torch.ops.onnxops.MultiHeadAttention.opset1)
    (theirs,) = run_in_runtime(op, tuple(inputs), kwargs, 1)
    torch.testing.assert_close(y, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", range(40))
def test_group_query_attention_of_random_shapes_is_the_runtimes(case):
    rng = random.Random(case)
    torch.manual_seed(case)
    kv_heads, group, size, batch, past = (rng.choice(x) for x in ((1, 2), (1, 2), (8, 16), (1, 3), (0, 2, 6)))
    heads, rotary = kv_heads * group, size == 16 and rng.random() < 0.6
    length = 1 if past else rng.choice((1, 3, 5))
    lengths = torch.randint(1, past + 1, (batch,)) if past else torch.randint(0, length, (batch,))
    if not past:
        lengths[0] = length - 1
    total = int(lengths.max()) + 1
    widths = [heads * size, kv_heads * size, kv_heads * size]
    inputs = [torch.randn(batch, length, width) for width in widths]
    if rng.random() < 0.5:
        inputs = [torch.cat(inputs, -1), None, None]
    inputs += [torch.randn(batch, kv_heads, past, size) if past else None for _ in range(2)]
    inputs += [lengths.int(), total, *(torch.randn(12, size // 2) if rotary else None for _ in range(2)), None]
    inputs += [rng.choice([None, torch.randn(1, heads, length, total)])]
    inputs += [rng.choice([None, torch.randn(heads)]) if RUNTIME >= (1, 23) else None]
    kwargs = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": rotary, "softcap": rng.choice([0.0, 2.0])}
    # The windows of older releases have one key more.
    kwargs |= {
        "local_window_size": rng.choice([-1, 1, 2, 4] if RUNTIME >= (1, 24) else [-1]),
        "rotary_interleaved": rotary and rng.random() < 0.5,
    }

    ours = native.group_query_attention(*inputs, **kwargs, num_outputs=3)

    op = find_native_op(torch.ops.onnxops.GroupQueryAttention.opset1)
    theirs = run_in_runtime(op, tuple(inputs), kwargs, 3)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(_specified(one, inputs), _specified(other, inputs), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("op_type", "dtype"),
    [
        ("Attention", torch.float16),
        ("RotaryEmbedding", torch.float16),
        ("RMSNormalization", torch.float16),
        ("RMSNormalization", torch.float64),
        ("LayerNormalization", torch.float16),
        ("GroupQueryAttention", torch.float16),
        ("MatMulNBits", torch.float16),
    ],
    ids=str,
)
def test_other_dtypes_agree_with_the_runtime(op_type, dtype):
    sample = next(s for s in SAMPLES if s.op_type == op_type)
    args, kwargs = sample.make(dtype)
    outputs = sample.op(*args, **kwargs)
    ours = outputs if isinstance(outputs, torch.Tensor) else outputs[0]

    (theirs,) = _run(sample, args, kwargs, 1)

    if op_type == "GroupQueryAttention":
        ours, theirs = _specified(ours, args), _specified(theirs, args)
    tolerance = {torch.float16: 4e-3, torch.float64: 1e-6}[dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_aligned_grid_of_one_point_starts_at_minus_one_as_in_onnx():
    # torch puts the point at 0, ONNX Runtime at 1; ONNX's reference implementation is the yardstick.
    import onnx
    from onnx.reference import ReferenceEvaluator

    theta = torch.eye(2, 3).unsqueeze(0)
    node = onnx.helper.make_node("AffineGrid", ["theta", "size"], ["grid"], align_corners=1)
    infos = [
        onnx.helper.make_tensor_value_info("theta", 1, [1, 2, 3]),
        onnx.helper.make_tensor_value_info("size", 7, [4]),
    ]
    graph = onnx.helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="grid")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    feeds = {"theta": theta.numpy(), "size": torch.tensor([1, 1, 1, 3]).numpy()}

    (expected,) = ReferenceEvaluator(model).run(None, feeds)

    torch.testing.assert_close(native.affine_grid(theta, [1, 1, 1, 3], align_corners=True), torch.from_numpy(expected))
