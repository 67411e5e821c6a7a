"""The Triton kernels against the references, on the CPU: run by test_native_triton.py in Triton's
interpreter.

This shows that addresses, masks and formulas are right; what a GPU makes of the kernels is for the tests
marked `cuda`.
"""

import pytest
import torch

from onnxops_core import native
from onnxops_core.native import native_ops


@pytest.fixture(scope="module")
def kernels():
    from onnxops_core.native.activations import triton as activations
    from onnxops_core.native.attentions import triton as attentions
    from onnxops_core.native.caches import triton as caches
    from onnxops_core.native.normalization import triton as normalization
    from onnxops_core.native.quantization import triton as quantization
    from onnxops_core.native.rotary import triton as rotary

    modules = (rotary, normalization, activations, caches, quantization, attentions)
    return {module.__name__.split(".")[-2]: module for module in modules}


def _reference(op_type, version, *args, **kwargs):
    (op,) = [o for o in native_ops().values() if (o.op_type, o.since_version) == (op_type, version)]
    return op.reference(*args, **kwargs)


def _close(actual, expected, tolerance=2e-5):
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [12, 8])
def test_rotary_with_positions(kernels, dtype, interleaved, width):
    x = torch.randn(2, 5, 3, 12).to(dtype).transpose(1, 2)
    cos, sin = torch.randn(7, width // 2).to(dtype), torch.randn(7, width // 2).to(dtype)
    positions = torch.randint(0, 7, (2, 5))

    result = kernels["rotary"].rotary(x, cos, sin, positions, interleaved=interleaved, width=width)

    expected = _reference(
        "RotaryEmbedding", 23, x, cos, sin, positions, interleaved=interleaved, rotary_embedding_dim=width
    )
    _close(result, expected, 2e-5 if dtype == torch.float32 else 1e-3)


def test_rotary_without_positions(kernels):
    x, cos, sin = torch.randn(2, 3, 4, 6), torch.randn(2, 4, 3), torch.randn(2, 4, 3)

    result = kernels["rotary"].rotary(x, cos, sin, None, interleaved=False, width=6)

    _close(result, _reference("RotaryEmbedding", 23, x, cos, sin))


@pytest.mark.parametrize(("rows", "columns"), [(3, 100), (37, 8), (1, 1025), (5, 1)])
def test_rms_normalization(kernels, rows, columns):
    x, scale = torch.randn(rows, columns), torch.randn(columns)

    result, *others = kernels["normalization"].normalize(x, scale, columns, 1e-5, centre=False)

    _close(result, _reference("RMSNormalization", 23, x, scale))
    assert others == [None, None, None]


def test_layer_normalization_with_statistics(kernels):
    x, scale, bias = torch.randn(4, 3, 50), torch.randn(50), torch.randn(50)

    y, _, mean, inverse = kernels["normalization"].normalize(
        x, scale, 50, 1e-5, centre=True, shift=bias, statistics=True
    )

    expected = _reference("LayerNormalization", 17, x, scale, bias)
    _close(y, expected[0])
    _close(mean.view(4, 3, 1), expected[1])
    _close(inverse.view(4, 3, 1), expected[2])


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_skip_normalization(kernels, centre, dtype):
    x, skip, scale, shift, bias = (
        torch.randn(*shape).to(dtype) for shape in ((2, 5, 24), (5, 24), (24,), (24,), (24,))
    )

    y, total, _, _ = kernels["normalization"].normalize(
        x, scale, 24, 1e-5, centre=centre, shift=shift if centre else None, skip=skip, bias=bias, total=True
    )

    if centre:
        expected = _reference("SkipLayerNormalization", 1, x, skip, scale, shift, bias, epsilon=1e-5)
    else:
        expected = _reference("SkipSimplifiedLayerNormalization", 1, x, skip, scale, bias, epsilon=1e-5)
    tolerance = 2e-5 if dtype == torch.float32 else 2e-3
    _close(y, expected[0], tolerance)
    _close(total, expected[1], tolerance)


@pytest.mark.parametrize("count", [1, 1024, 3000])
def test_swiglu(kernels, count):
    a, b = 20 * torch.randn(count), torch.randn(count)

    _close(kernels["activations"].swiglu(a, b, 1.5), _reference("SwiGLU", 28, a, b, alpha=1.5))


def test_swiglu_of_large_gates_is_not_nan(kernels):
    a, b = torch.tensor([-1e4, 1e4]), torch.tensor([2.0, 3.0])

    assert kernels["activations"].swiglu(a, b, 1.0).tolist() == [0.0, 3e4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
@pytest.mark.parametrize(("axis", "mode"), [(2, "linear"), (1, "circular")])
def test_cache_write(kernels, dtype, axis, mode):
    cache, update = torch.randn(2, 5, 6, 3).to(dtype), torch.randn(2, 5, 6, 3).narrow(axis, 0, 3).to(dtype).contiguous()
    starts = torch.tensor([0, 3] if mode == "linear" else [4, 13])
    written = cache.clone()

    kernels["caches"].write_update(written, update, starts, axis, mode == "circular")

    expected = _reference("TensorScatter", 24, cache, update, starts, axis=axis, mode=mode)
    assert torch.equal(written.view(torch.uint8), expected.contiguous().view(torch.uint8))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "plain"])
def test_matmul_nbits(kernels, bits, zeros):
    m, n, k, group = 5, 19, 70, 32
    blocks = -(-k // group)
    a, bias = torch.randn(m, k), torch.randn(n)
    weight = torch.randint(0, 256, (n, blocks, group * bits // 8), dtype=torch.uint8)
    scales = torch.randn(n, blocks) / 8
    packed = torch.randint(0, 256, (n, -(-blocks * bits // 8)), dtype=torch.uint8)
    zero_points = {"none": None, "packed": packed, "plain": torch.randn(n, blocks)}[zeros]

    result = kernels["quantization"].matmul_nbits(a, weight, scales, zero_points, bias, group, bits)

    expected = _reference(
        "MatMulNBits", 1, a, weight, scales, zero_points, None, bias, K=k, N=n, block_size=group, bits=bits
    )
    _close(result, expected, 1e-4)


ATTENTION = {
    "causal": {"is_causal": True},
    "soft cap": {"softcap": 2.0},
    "windows": {"left_window_size": 3, "right_window_size": 1},
    "left window, causal": {"left_window_size": 2, "is_causal": True},
    "lengths": {"nonpad_kv_seqlen": torch.tensor([21, 0]), "is_causal": True},
    "lengths and windows": {"nonpad_kv_seqlen": torch.tensor([7, 33]), "left_window_size": 4},
    "boolean mask": {"attn_mask": torch.rand(2, 1, 18, 33) > 0.5, "is_causal": True},
    "float mask": {"attn_mask": torch.randn(18, 33), "softcap": 3.0},
    "dead rows": {"attn_mask": torch.full((18, 33), -torch.inf)},
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(kernels, name):
    options = ATTENTION[name]
    q, k, v = torch.randn(2, 4, 18, 24), torch.randn(2, 2, 33, 24), torch.randn(2, 2, 33, 10)

    result = kernels["attentions"].attend(
        q,
        k,
        v,
        options.get("attn_mask"),
        options.get("nonpad_kv_seqlen"),
        past=0,
        causal=options.get("is_causal", False),
        left=options.get("left_window_size", -1),
        right=options.get("right_window_size", -1),
        scale=24**-0.5,
        softcap=options.get("softcap", 0.0),
    )

    with_lengths = {"nonpad_kv_seqlen": None, "attn_mask": None} | options
    mask, lengths = with_lengths.pop("attn_mask"), with_lengths.pop("nonpad_kv_seqlen")
    expected = _reference("Attention", 25, q, k, v, mask, None, None, lengths, **with_lengths, num_outputs=1)[0]
    _close(result, expected)


def test_attention_over_a_past(kernels):
    q, k = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 20, 16)

    result = kernels["attentions"].attend(
        q, k, k, None, None, past=17, causal=True, left=-1, right=-1, scale=0.25, softcap=0.0
    )

    expected = native.attention(q, k[:, :, 17:], k[:, :, 17:], None, k[:, :, :17], k[:, :, :17], is_causal=True)[0]
    _close(result, expected)


# A stride that 32 bits hold, while its double is beyond them. Pages of memory that nothing touches are not taken, so
# that it costs none.
_FAR = (1 << 30) + 64


def _far_apart(*shape):
    """A tensor of three rows, the last of which starts at an address that 32 bits do not hold."""
    storage = torch.empty(_FAR * (shape[-2] - 1) + shape[-1], dtype=torch.float16)
    return storage.as_strided(shape, (0,) * (len(shape) - 2) + (_FAR, 1))


def test_rotary_of_tokens_that_lie_far_apart(kernels):
    x = _far_apart(1, 1, 3, 8)
    x.copy_(torch.randn(1, 1, 3, 8))
    cos, sin = torch.randn(1, 3, 4).half(), torch.randn(1, 3, 4).half()

    result = kernels["rotary"].rotary(x, cos, sin, None, interleaved=False, width=8)

    _close(result, _reference("RotaryEmbedding", 23, x.contiguous(), cos, sin), 1e-3)


def test_attention_to_keys_that_lie_far_apart(kernels):
    k, v = _far_apart(1, 1, 3, 16), _far_apart(1, 1, 3, 16)
    for x in (k, v):
        x.copy_(torch.randn(1, 1, 3, 16))
    q = torch.randn(1, 1, 2, 16).half()

    result = kernels["attentions"].attend(
        q, k, v, None, None, past=0, causal=False, left=-1, right=-1, scale=0.25, softcap=2.0
    )

    expected = _reference("Attention", 25, q, k.contiguous(), v.contiguous(), softcap=2.0, num_outputs=1)[0]
    _close(result, expected, 2e-3)
