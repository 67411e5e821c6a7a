"""What the ONNX specification forbids raises ValueError, in eager mode, through the dispatcher and in fake
mode."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from onnxops_core import native
from onnxops_core.native import find_native_op

Q, K, V = (2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3)


def t(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def attention(q=Q, k=K, v=V, *rest, dtype=torch.float32, **attributes):
    return native.attention(t(*q, dtype=dtype), t(*k, dtype=dtype), t(*v, dtype=dtype), *rest, **attributes)


def rotary(x=(2, 3, 5, 8), cos=(9, 4), sin=(9, 4), positions=(2, 5), dtype=torch.float32, cache=None, **attributes):
    ids = None if positions is None else torch.zeros(positions, dtype=torch.int64)
    caches = t(*cos, dtype=cache or dtype), t(*sin, dtype=cache or dtype)
    return native.rotary_embedding(t(*x, dtype=dtype), *caches, ids, **attributes)


def mha_with(past_sequence_length=None, cache_indirection=None):
    shared = [
        None if size is None else t(size, dtype=torch.int32) for size in (past_sequence_length, cache_indirection)
    ]
    return native.multi_head_attention(*[t(2, 5, 8)] * 3, *[None] * 5, *shared, num_heads=2)


def gqa(lengths=(3, 6), total=7, past=(2, 2, 6, 16), k_scale=None, norms=(None, None), **attributes):
    caches = t(*past), t(*past)
    new = t(2, 1, 64), t(2, 1, 32), t(2, 1, 32)
    seqlens = torch.tensor(lengths, dtype=torch.int32)
    late = [None if size is None else t(*size) for size in (k_scale, None)]
    late += [None if size is None else t(size) for size in norms]
    return native.group_query_attention(
        *new, *caches, seqlens, total, *[None] * 5, *late, **{"num_heads": 4, "kv_num_heads": 2} | attributes
    )


def linear(rule="gated_delta", decay=(2, 5, 2), beta=(2, 5, 2), state=None, **attributes):
    gates = None if decay is None else t(*decay), None if beta is None else t(*beta)
    past = None if state is None else t(*state)
    heads = {"q_num_heads": 4, "kv_num_heads": 2} | attributes
    return native.linear_attention(t(2, 5, 12), t(2, 5, 6), t(2, 5, 4), past, *gates, update_rule=rule, **heads)


def nbits(a=(3, 32), b=(5, 2, 8), scales=(5, 2), **attributes):
    return native.matmul_nbits(
        t(*a), t(*b, dtype=torch.uint8), t(*scales), **{"K": 32, "N": 5, "block_size": 16} | attributes
    )


def past(key=(2, 2, 4, 8), value=(2, 2, 4, 3)):
    return None, None if key is None else t(*key), None if value is None else t(*value)


def lengths(*values, dtype=torch.int64):
    return None, None, None, torch.tensor(values, dtype=dtype)


# Each: the call, and what the message names.
SHAPES = {
    "attention: K longer than V": (lambda: attention(v=(2, 2, 5, 3)), "V"),
    "attention: batch is not broadcast": (lambda: attention(k=(1, 2, 6, 8), v=(1, 2, 6, 3)), "K"),
    "attention: past_key alone": (lambda: attention(Q, K, V, *past(value=None)), "past_value"),
    "attention: past_value alone": (lambda: attention(Q, K, V, *past(key=None)), "past_key"),
    "attention: past of other heads": (lambda: attention(Q, K, V, *past(key=(2, 1, 4, 8))), "past_key"),
    "attention: past of other sizes": (lambda: attention(Q, K, V, *past(value=(2, 2, 4, 8))), "past_value"),
    "attention: past lengths differ": (lambda: attention(Q, K, V, *past(value=(2, 2, 3, 3))), "past_value"),
    "attention: q_num_heads contradicts": (lambda: attention(q_num_heads=2), "q_num_heads"),
    "attention: kv_num_heads contradicts": (lambda: attention(kv_num_heads=4), "kv_num_heads"),
    "attention: heads with windows and 4-D": (lambda: attention(q_num_heads=4, left_window_size=1), "q_num_heads"),
    "attention: mode 7": (lambda: attention(qk_matmul_output_mode=7), "qk_matmul_output_mode"),
    "attention: mode -1": (lambda: attention(qk_matmul_output_mode=-1), "qk_matmul_output_mode"),
    "attention: negative softcap": (lambda: attention(softcap=-1.0), "softcap"),
    "attention: softcap not a number": (lambda: attention(softcap=float("nan")), "softcap"),
    "attention: negative scale": (lambda: attention(scale=-0.5), "scale"),
    "attention: softmax precision": (lambda: attention(softmax_precision=7), "softmax_precision"),
    "attention: heads not divisible": (lambda: attention(k=(2, 3, 6, 8), v=(2, 3, 6, 3)), "Q"),
    "attention: heads of V": (lambda: attention(v=(2, 1, 6, 3)), "V"),
    "attention: head sizes": (lambda: attention(k=(2, 2, 6, 4)), "K"),
    "attention: rank 2": (lambda: attention((5, 8), (6, 8), (6, 8)), "Q"),
    "attention: ranks differ": (lambda: attention(k=(2, 6, 16)), "K"),
    "attention: 3-D without heads": (lambda: attention((2, 5, 16), (2, 6, 8), (2, 6, 8)), "q_num_heads"),
    "attention: 3-D not divisible": (
        lambda: attention((2, 5, 16), (2, 6, 9), (2, 6, 8), q_num_heads=4, kv_num_heads=2),
        "K",
    ),
    "attention: integer inputs": (lambda: attention(dtype=torch.int32), "Q"),
    "attention: K of another dtype": (lambda: native.attention(t(*Q), t(*K).half(), t(*V)), "K"),
    "attention: mask of integers": (lambda: attention(Q, K, V, t(5, 6, dtype=torch.int64)), "attn_mask"),
    "attention: mask of another float": (lambda: attention(Q, K, V, t(5, 6, dtype=torch.float64)), "attn_mask"),
    "attention: mask too long": (lambda: attention(Q, K, V, t(5, 7)), "attn_mask"),
    "attention: mask of other rows": (lambda: attention(Q, K, V, t(4, 6)), "attn_mask"),
    "attention: mask of other heads": (lambda: attention(Q, K, V, t(2, 3, 5, 6)), "attn_mask"),
    "attention: window -2": (lambda: attention(left_window_size=-2), "left_window_size"),
    "attention: lengths and past": (
        lambda: attention(Q, K, V, *past(), torch.tensor([3, 4])),
        "nonpad_kv_seqlen",
    ),
    "attention: lengths of int32": (lambda: attention(Q, K, V, *lengths(3, 4, dtype=torch.int32)), "nonpad_kv_seqlen"),
    "attention: too few lengths": (lambda: attention(Q, K, V, *lengths(3)), "nonpad_kv_seqlen"),
    "attention: five outputs": (lambda: attention(num_outputs=5), "num_outputs"),
    "rotary: caches of another dtype": (lambda: rotary(dtype=torch.float16, cache=torch.float32), "cos_cache"),
    "rotary: odd head size": (lambda: rotary((2, 3, 5, 7)), "X"),
    "rotary: odd rotary dimension": (lambda: rotary(rotary_embedding_dim=3), "rotary_embedding_dim"),
    "rotary: rotary dimension too large": (lambda: rotary(rotary_embedding_dim=10), "rotary_embedding_dim"),
    "rotary: cache width": (lambda: rotary(cos=(9, 3), sin=(9, 3)), "cos_cache"),
    "rotary: caches differ": (lambda: rotary(sin=(8, 4)), "sin_cache"),
    "rotary: 2-D caches without positions": (lambda: rotary(positions=None), "cos_cache"),
    "rotary: 3-D caches with positions": (lambda: rotary(cos=(2, 5, 4), sin=(2, 5, 4)), "cos_cache"),
    "rotary: positions of another shape": (lambda: rotary(positions=(2, 4)), "position_ids"),
    "rotary: 3-D without heads": (lambda: rotary((2, 5, 24)), "num_heads"),
    "rotary: heads contradict": (lambda: rotary(num_heads=5), "num_heads"),
    "rotary: rank 2": (lambda: rotary((5, 8)), "X"),
    "rms: axis": (lambda: native.rms_normalization(t(2, 3), t(3), axis=2), "axis"),
    "rms: scale": (lambda: native.rms_normalization(t(2, 3), t(4)), "scale"),
    "rms: scale of more dimensions": (lambda: native.rms_normalization(t(2, 3), t(1, 2, 3)), "scale"),
    "rms: stash type": (lambda: native.rms_normalization(t(2, 3), t(3), stash_type=7), "stash_type"),
    "layer: bias": (lambda: native.layer_normalization(t(2, 3), t(3), t(2)), "B"),
    "layer: scale of another dtype": (lambda: native.layer_normalization(t(2, 3), t(3).half()), "Scale"),
    "group: groups": (lambda: native.group_normalization(t(2, 6, 2), t(6), t(6), num_groups=4), "num_groups"),
    "group: scale": (lambda: native.group_normalization(t(2, 6, 2), t(3), t(6), num_groups=3), "scale"),
    "instance: rank": (lambda: native.instance_normalization(t(2, 3), t(3), t(3)), "input"),
    "gelu: approximation": (lambda: native.gelu(t(2), approximate="erf"), "approximate"),
    "gelu: integers": (lambda: native.gelu(t(2, dtype=torch.int32)), "X"),
    "swish: integers": (lambda: native.swish(t(2, dtype=torch.int32)), "X"),
    "mish: integers": (lambda: native.mish(t(2, dtype=torch.int32)), "X"),
    "hard_swish: integers": (lambda: native.hard_swish(t(2, dtype=torch.int32)), "X"),
    "swiglu: broadcast": (lambda: native.swiglu(t(2, 3), t(3)), "B"),
    "scatter: axis 0": (lambda: native.tensor_scatter(t(2, 5, 3), t(2, 1, 3), axis=0), "axis"),
    "scatter: update too long": (lambda: native.tensor_scatter(t(2, 5, 3), t(2, 6, 3)), "update"),
    "scatter: update of another shape": (lambda: native.tensor_scatter(t(2, 5, 3), t(2, 1, 2)), "update"),
    "scatter: mode": (lambda: native.tensor_scatter(t(2, 5, 3), t(2, 1, 3), mode="ring"), "mode"),
    "scatter: indices": (
        lambda: native.tensor_scatter(t(2, 5, 3), t(2, 1, 3), torch.zeros(2, dtype=torch.int32)),
        "write_indices",
    ),
    "linear: rule": (lambda: linear("quadratic"), "update_rule"),
    "linear: decay missing": (lambda: linear(decay=None), "decay"),
    "linear: decay superfluous": (lambda: linear("delta"), "decay"),
    "linear: beta missing": (lambda: linear(beta=None), "beta"),
    "linear: beta of another shape": (lambda: linear(beta=(2, 5, 3)), "beta"),
    "linear: heads": (lambda: linear(q_num_heads=3), "q_num_heads"),
    "linear: state": (lambda: linear(state=(2, 2, 3, 3)), "past_state"),
    "conv: weight": (lambda: native.causal_conv_with_state(t(2, 3, 5), t(3, 2, 4)), "weight"),
    "conv: state": (lambda: native.causal_conv_with_state(t(2, 3, 5), t(3, 1, 4), None, t(2, 3, 4)), "past_state"),
    "conv: activation": (
        lambda: native.causal_conv_with_state(t(2, 3, 5), t(3, 1, 4), activation="relu"),
        "activation",
    ),
    "flex: rank": (lambda: native.flex_attention(t(2, 3, 8), t(2, 3, 8), t(2, 3, 8)), "Q"),
    "flex: modifier": (
        lambda: native.flex_attention(t(*Q), t(*K), t(*V), score_mod=lambda scores: scores.sum(-1)),
        "score_mod",
    ),
    "cum_prod: axis": (lambda: native.cum_prod(t(2, 3), 2), "axis"),
    "cum_prod: dtype": (lambda: native.cum_prod(t(2, dtype=torch.int8), 0), "x"),
    "bit_cast: width": (lambda: native.bit_cast(t(2), to=torch.float16), "to"),
    "bit_cast: string": (lambda: native.bit_cast(t(2), to=8), "STRING"),
    "dft: last axis": (lambda: native.dft(t(2, 3, 1), None, -1), "axis"),
    "dft: one-sided complex": (lambda: native.dft(t(2, 3, 2), onesided=True), "input"),
    "dft: length": (lambda: native.dft(t(2, 3, 1), 0), "dft_length"),
    "stft: step": (lambda: native.stft(t(2, 9, 1), 0, t(4)), "frame_step"),
    "stft: window": (lambda: native.stft(t(2, 9, 1), 2, t(4), 5), "window"),
    "stft: frame too long": (lambda: native.stft(t(2, 9, 1), 2, None, 10), "frame_length"),
    "stft: one-sided complex": (lambda: native.stft(t(2, 9, 2), 2), "onesided"),
    "quantize: scale": (lambda: native.quantize_linear(t(2, 3), t(2)), "y_scale"),
    "quantize: blocks": (lambda: native.quantize_linear(t(2, 5), t(2, 2), block_size=2), "y_scale"),
    "quantize: zero point dtype": (
        lambda: native.quantize_linear(t(2, 3), t(), t(dtype=torch.int8), output_dtype=2),
        "y_zero_point",
    ),
    "quantize: output dtype": (lambda: native.quantize_linear(t(2, 3), t(), output_dtype=1), "output_dtype"),
    "quantize: zero point shape": (
        lambda: native.quantize_linear(t(2, 3), t(3), t(2, dtype=torch.uint8)),
        "y_zero_point",
    ),
    "dequantize: floats": (lambda: native.dequantize_linear(t(2, 3), t()), "x"),
    "dequantize: output dtype": (
        lambda: native.dequantize_linear(t(2, dtype=torch.int8), t(), output_dtype=11),
        "output_dtype",
    ),
    "grid: grid of other rank": (lambda: native.grid_sample(t(2, 3, 4, 5), t(2, 3, 2)), "grid"),
    "grid: mode": (lambda: native.grid_sample(t(2, 3, 4, 5), t(2, 3, 3, 2), mode="bilinear"), "mode"),
    "affine: theta": (lambda: native.affine_grid(t(2, 2, 3), [1, 1, 4, 4]), "theta"),
    "deform: offset": (lambda: native.deform_conv(t(1, 2, 4, 4), t(3, 2, 2, 2), t(1, 7, 3, 3)), "offset"),
    "deform: group": (lambda: native.deform_conv(t(1, 2, 4, 4), t(3, 2, 2, 2), t(1, 8, 3, 3), group=3), "group"),
    "roi: indices": (
        lambda: native.roi_align(t(1, 2, 4, 4), t(3, 4), torch.zeros(2, dtype=torch.int64)),
        "batch_indices",
    ),
    "roi: mode": (
        lambda: native.roi_align(t(1, 2, 4, 4), t(0, 4), torch.zeros(0, dtype=torch.int64), mode="min"),
        "mode",
    ),
    "nms: scores": (lambda: native.non_max_suppression(t(1, 5, 4), t(1, 2, 4)), "scores"),
    "nms: threshold": (lambda: native.non_max_suppression(t(1, 5, 4), t(1, 2, 5), 1, 1.5), "iou_threshold"),
    "mha: heads": (lambda: native.multi_head_attention(t(2, 5, 8), t(2, 5, 8), t(2, 5, 8), num_heads=3), "query"),
    "mha: value": (lambda: native.multi_head_attention(t(2, 5, 8), t(2, 5, 8), t(2, 4, 8), num_heads=2), "value"),
    "mha: more keys than queries in one direction": (
        lambda: native.multi_head_attention(t(2, 3, 8), t(2, 5, 8), t(2, 5, 8), num_heads=2, unidirectional=True),
        "unidirectional",
    ),
    "mha: mask": (
        lambda: native.multi_head_attention(
            t(2, 5, 8), t(2, 5, 8), t(2, 5, 8), None, t(2, 4, dtype=torch.int32), num_heads=2
        ),
        "key_padding_mask",
    ),
    "gqa: heads": (lambda: gqa(num_heads=3), "num_heads"),
    "gqa: cache": (lambda: gqa(past=(2, 2, 6, 8)), "past_key"),
    "gqa: rotary without caches": (lambda: gqa(do_rotary=True), "cos_cache"),
    "gqa: total too short": (lambda: gqa(total=0), "total_sequence_length"),
    "skip: shape": (lambda: native.skip_layer_normalization(t(2, 3, 4), t(2, 4), t(4)), "skip"),
    "skip simplified: gamma": (
        lambda: native.skip_simplified_layer_normalization(t(2, 3, 4), t(2, 3, 4), t(3)),
        "gamma",
    ),
    "nbits: K": (lambda: nbits(a=(3, 33)), "A"),
    "nbits: bits": (lambda: nbits(bits=3), "bits"),
    "nbits: block size": (lambda: nbits(block_size=8), "block_size"),
    "nbits: scales": (lambda: nbits(scales=(2, 5)), "scales"),
    "nbits: prepacked": (lambda: nbits(weight_prepacked=True), "weight_prepacked"),
    "gqa: window that is not causal": (lambda: gqa(causal=False, local_window_size=2), "local_window_size"),
    "gqa: quantized cache": (lambda: gqa(k_quant_type="PER_TENSOR"), "k_quant_type"),
    "gqa: sliding cache": (lambda: gqa(sliding_window_cache=True), "sliding_window_cache"),
    "gqa: one norm": (lambda: gqa(norms=(16, None)), "q_norm_weight"),
    "gqa: norm of another size": (lambda: gqa(norms=(16, 8)), "k_norm_weight"),
    "gqa: scale of a quantized cache": (lambda: gqa(k_scale=(1,)), "k_scale"),
    "mha: shared cache": (lambda: mha_with(past_sequence_length=3), "past_sequence_length"),
    "mha: cache of beams": (lambda: mha_with(cache_indirection=3), "cache_indirection"),
}
VALUES = {
    "attention: more valid keys than keys": (lambda: attention(Q, K, V, *lengths(3, 7)), "nonpad_kv_seqlen"),
    "attention: negative valid keys": (lambda: attention(Q, K, V, *lengths(-1, 6)), "nonpad_kv_seqlen"),
    "rotary: negative position": (
        lambda: native.rotary_embedding(t(1, 1, 1, 4), t(3, 2), t(3, 2), torch.tensor([[-1]])),
        "position_ids",
    ),
    "rotary: position behind the cache": (
        lambda: native.rotary_embedding(t(1, 1, 1, 4), t(3, 2), t(3, 2), torch.tensor([[3]])),
        "position_ids",
    ),
    "scatter: behind the cache": (
        lambda: native.tensor_scatter(t(2, 5, 3), t(2, 2, 3), torch.tensor([0, 4])),
        "write_indices",
    ),
    "scatter in place: behind the cache": (
        lambda: native.tensor_scatter_(t(2, 5, 3), t(2, 2, 3), torch.tensor([0, 4])),
        "write_indices",
    ),
    "roi: image": (lambda: native.roi_align(t(1, 2, 4, 4), t(1, 4), torch.tensor([1])), "batch_indices"),
    "dequantize: zero point of int32": (
        lambda: native.dequantize_linear(t(2, dtype=torch.int32), t(), torch.tensor(1, dtype=torch.int32)),
        "x_zero_point",
    ),
    "gqa: length": (lambda: gqa(lengths=(3, 7)), "seqlens_k"),
}
_calls = pytest.mark.parametrize("name", SHAPES | VALUES)
_shape_calls = pytest.mark.parametrize("name", SHAPES)


@_calls
def test_forbidden_call_names_the_argument(name):
    call, argument = (SHAPES | VALUES)[name]

    with pytest.raises(ValueError, match=argument) as caught:
        call()

    assert "expected" in str(caught.value)


@_shape_calls
def test_forbidden_call_is_refused_in_fake_mode(name):
    call, argument = SHAPES[name]
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ValueError, match=argument):
        call()


@_calls
def test_forbidden_call_is_refused_when_differentiated(name, monkeypatch):
    call, argument = (SHAPES | VALUES)[name]

    def differentiable(*shape, dtype=torch.float32):
        tensor = torch.ones(shape, dtype=dtype)
        return tensor.requires_grad_() if dtype.is_floating_point else tensor

    monkeypatch.setitem(globals(), "t", differentiable)

    with pytest.raises(ValueError, match=argument):
        call()


_IN_COMPILED_CODE = ("attention: K of another dtype", "rotary: cache width", "rms: axis", "gqa: heads")


@pytest.mark.parametrize(
    "name",
    [name if name in _IN_COMPILED_CODE else pytest.param(name, marks=pytest.mark.wide) for name in SHAPES | VALUES],
)
def test_forbidden_call_is_refused_when_compiled(name):
    call, argument = (SHAPES | VALUES)[name]
    torch.compiler.reset()

    # Dynamo wraps what is raised while it traces.
    with pytest.raises((ValueError, torch._dynamo.exc.TorchDynamoException), match=argument) as caught:
        torch.compile(call, backend="eager", fullgraph=True)()

    assert "expected" in str(caught.value)


@pytest.mark.parametrize(
    ("accepted", "refused", "argument"),
    [
        (
            lambda x: native.rms_normalization(x, x[0], axis=1),
            lambda x: native.rms_normalization(x, x[0], axis=True),
            "axis",
        ),
        (
            lambda x: native.rms_normalization(x, x[0], axis=1),
            lambda x: native.rms_normalization(x, x[0], axis=1.0),
            "axis",
        ),
        (lambda x: native.swish(x, alpha=1.0), lambda x: native.swish(x, alpha=True), "alpha"),
        (
            lambda x: native.deform_conv(x[None, None], x[None, None], t(1, 18, 1, 1), strides=(1, 1)),
            lambda x: native.deform_conv(x[None, None], x[None, None], t(1, 18, 1, 1), strides=(1.0, 1.0)),
            "strides",
        ),
        (lambda x: native.rms_normalization(x, x[0]), lambda x: native.rms_normalization(x, x[0, :2]), "scale"),
        (lambda x: native.rms_normalization(x, x[0]), lambda x: native.rms_normalization(x.int(), x[0]), "X"),
    ],
)
def test_a_call_that_equals_an_accepted_one_in_part_is_checked(accepted, refused, argument):
    x = t(3, 3)
    accepted(x)
    accepted(x)

    with pytest.raises(ValueError, match=argument):
        refused(x)


def test_only_so_many_accepted_calls_are_remembered(monkeypatch):
    calls = find_native_op(torch.ops.onnxops.Swish.opset24).calls
    monkeypatch.setattr(type(calls), "_MOST", 3)

    for size in range(10):
        native.swish(t(size))

    assert 0 < len(calls._passed) <= 3
