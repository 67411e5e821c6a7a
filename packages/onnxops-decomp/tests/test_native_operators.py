"""Every native operator at every opset: its node from its opset on, its composed form below, never an invalid node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from decomp_harness import ORT_NEWEST_OPSET, compare, expected_of, lower, run
from onnx.reference import ReferenceEvaluator
from opset_sweep import swept

from onnxops_core import native
from onnxops_core.native import NativeOp, native_ops
from onnxops_decomp.errors import UnsupportedOpsetError


@dataclasses.dataclass
class Call:
    """A call of a native operator.

    Attributes:
        takes: Takes the tensors.
        shapes: Shapes of random tensors, or the tensors themselves.
        since: Lowest opset at which the node appears, also in older forms.
        composed_from: Lowest opset at which the composed form can be written.
        gaps: Opsets above it at which it is composed all the same, because ONNX Runtime has no kernel.
        not_run: Opsets at which neither ONNX Runtime nor ONNX's evaluator runs the node.
    """

    op_type: str
    version: int
    takes: Callable[..., Any]
    shapes: tuple[Any, ...]
    since: int
    composed_from: int = 7
    gaps: tuple[int, ...] = ()
    not_run: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.op_type}-{self.version}"

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
        given = (shape if isinstance(shape, torch.Tensor) else torch.randn(shape) for shape in self.shapes)
        return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in given)

    def function(self, *tensors: torch.Tensor) -> Any:
        return self.takes(*tensors)

    @property
    def op(self) -> NativeOp:
        (found,) = (
            op for op in native_ops().values() if (op.op_type, op.since_version) == (self.op_type, self.version)
        )
        return found


Q, K, V = (2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3)
LENGTHS = torch.tensor([3, 6])
GATES = -torch.linspace(0.1, 2, 60).view(2, 5, 6), torch.linspace(0.1, 0.9, 20).view(2, 5, 2)
NEWEST = onnx.defs.onnx_opset_version()
WITHOUT_EVALUATOR = tuple(range(ORT_NEWEST_OPSET + 1, NEWEST + 1))


def windows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return native.attention(q, k, v, left_window_size=2, right_window_size=1, num_outputs=1)


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor) -> Any:
    return native.linear_attention(q, k, v, None, decay, beta, q_num_heads=4, kv_num_heads=2)


def group_query_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    lengths = torch.tensor([2, 2], dtype=torch.int32)
    return native.group_query_attention(q, k, v, None, None, lengths, 3, num_heads=4, kv_num_heads=2, num_outputs=1)


CALLS = [
    Call("Attention", 23, lambda q, k, v: native.attention(q, k, v, is_causal=True, num_outputs=1), (Q, K, V), 23),
    Call("Attention", 24, lambda q, k, v, n: native.attention(q, k, v, None, None, None, n)[0], (Q, K, V, LENGTHS), 23),
    Call("Attention", 25, windows, (Q, K, V), 25, not_run=(25, 26)),
    Call("RotaryEmbedding", 23, native.rotary_embedding, ((2, 3, 5, 8), (2, 5, 4), (2, 5, 4)), 23),
    Call("RMSNormalization", 23, native.rms_normalization, ((2, 3, 8), (8,)), 23),
    Call("LayerNormalization", 17, native.layer_normalization, ((2, 3, 8), (8,), (8,)), 17),
    Call(
        "GroupNormalization",
        21,
        lambda x, s, b: native.group_normalization(x, s, b, num_groups=3),
        ((2, 6, 4), (6,), (6,)),
        21,
    ),
    Call("InstanceNormalization", 22, native.instance_normalization, ((2, 3, 4), (3,), (3,)), 7),
    Call("Gelu", 20, native.gelu, ((2, 5),), 20),
    Call("Swish", 24, lambda x: native.swish(x, alpha=1.5), ((2, 5),), 24, gaps=(25, 26, 27, 28)),
    Call("SwiGLU", 28, native.swiglu, ((2, 5), (2, 5)), 28, gaps=(28,)),
    Call("Mish", 22, native.mish, ((2, 5),), 18),
    Call("HardSwish", 22, native.hard_swish, ((2, 5),), 14),
    Call("TensorScatter", 24, native.tensor_scatter, ((2, 7, 4), (2, 2, 4), torch.tensor([5, 1])), 24, 9),
    Call("LinearAttention", 27, linear_attention, ((2, 5, 12), (2, 5, 6), (2, 5, 4), *GATES), 27),
    Call("CausalConvWithState", 27, native.causal_conv_with_state, ((2, 3, 5), (3, 1, 4)), 27),
    Call("CumProd", 26, lambda x: native.cum_prod(x, 1), ((2, 5),), 26),
    Call("BitCast", 26, lambda x: native.bit_cast(x, to=torch.int32), ((2, 3),), 26),
    Call("DFT", 20, lambda x: native.dft(x, 7, 1), ((2, 5, 3, 2),), 17),
    Call("STFT", 17, lambda x, w: native.stft(x, 3, w), ((2, 20, 1), (8,)), 17),
    Call("QuantizeLinear", 21, native.quantize_linear, ((2, 3), torch.tensor(0.1)), 10),
    Call(
        "DequantizeLinear",
        21,
        lambda x, s: native.dequantize_linear(x, s, block_size=2, axis=1),
        (torch.arange(12, dtype=torch.int8).view(2, 6), (2, 3)),
        21,
    ),
    Call("GridSample", 22, native.grid_sample, ((2, 3, 4, 5), (2, 3, 2, 2)), 16),
    Call("AffineGrid", 20, lambda theta: native.affine_grid(theta, [2, 3, 4, 5]), ((2, 2, 3),), 20),
    Call("DeformConv", 22, native.deform_conv, ((2, 2, 4, 4), (3, 2, 2, 2), (2, 8, 3, 3)), 19),
    Call(
        "RoiAlign",
        22,
        lambda x, r, b: native.roi_align(x, r, b, output_height=2, output_width=2, sampling_ratio=2),
        ((2, 3, 6, 5), torch.tensor([[0.3, 0.2, 4.1, 3.3], [1.0, 1.0, 2.4, 5.7]]), torch.tensor([1, 0])),
        16,
        gaps=(22, 23, 24, 25, 26, 27, 28),
    ),
    Call(
        "NonMaxSuppression",
        11,
        lambda b, s: native.non_max_suppression(b, s, 4, 0.2, 0.1),
        ((2, 12, 4), (2, 3, 12)),
        10,
        9,
        not_run=WITHOUT_EVALUATOR,
    ),
    Call("FlexAttention", 1, native.flex_attention, (Q, K, V), 7, not_run=tuple(range(7, ORT_NEWEST_OPSET + 1))),
    Call(
        "MultiHeadAttention",
        1,
        lambda q, k, v: native.multi_head_attention(q, k, v, num_heads=2, num_outputs=1),
        ((2, 5, 8), (2, 6, 8), (2, 6, 12)),
        7,
        not_run=WITHOUT_EVALUATOR,
    ),
    Call(
        "GroupQueryAttention",
        1,
        group_query_attention,
        ((2, 3, 32), (2, 3, 16), (2, 3, 16)),
        7,
        not_run=WITHOUT_EVALUATOR,
    ),
    Call(
        "SkipLayerNormalization",
        1,
        native.skip_layer_normalization,
        ((2, 3, 8), (2, 3, 8), (8,)),
        7,
        not_run=WITHOUT_EVALUATOR,
    ),
    Call(
        "SkipSimplifiedLayerNormalization",
        1,
        native.skip_simplified_layer_normalization,
        ((2, 3, 8), (2, 3, 8), (8,)),
        7,
        not_run=WITHOUT_EVALUATOR,
    ),
    Call(
        "MatMulNBits",
        1,
        lambda a, b, s: native.matmul_nbits(a, b, s, K=32, N=5, block_size=16),
        ((3, 32), torch.arange(80, dtype=torch.uint8).view(5, 2, 8), (5, 2)),
        7,
        not_run=WITHOUT_EVALUATOR,
    ),
]


def test_every_native_operator_has_a_call() -> None:
    assert {(call.op_type, call.version) for call in CALLS} == {
        (op.op_type, op.since_version) for op in native_ops().values()
    }


@pytest.mark.parametrize("opset", swept(*range(7, NEWEST + 1)))
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_native_operator_is_its_node_or_composed_or_refused(call: Call, opset: int) -> None:
    tensors = call.tensors()

    if opset < min(call.composed_from, call.since):
        with pytest.raises(UnsupportedOpsetError, match=f"lowest opset that works is {call.composed_from}"):
            lower(call.function, tensors, opset=opset)
        return

    lowered = lower(call.function, tensors, opset=opset)

    assert (call.op_type in lowered.op_types()) is (opset >= call.since and opset not in call.gaps)
    if opset not in call.not_run:
        compare(run(lowered.proto, tensors), expected_of(call.function, tensors))


@pytest.mark.parametrize("opset", swept(*range(7, NEWEST + 1)))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_call_in_any_dtype_is_a_valid_model_or_refused(call: Call, dtype: torch.dtype, opset: int) -> None:
    tensors = call.tensors(dtype)
    try:
        call.function(*tensors)
    except ValueError:
        pytest.skip("no dtype of the operator")

    try:
        lowered = lower(call.function, tensors, opset=opset)
    except UnsupportedOpsetError:
        # Before 13 ONNX has bfloat16 in no operator, and before 9 neither a wide Erf nor a scatter.
        assert opset < {torch.bfloat16: 13, torch.float64: 9}.get(dtype, 0) or opset < call.composed_from
        return

    onnx.checker.check_model(lowered.proto, full_check=True)
    assert not (dtype in call.op.extensions and call.op_type in lowered.op_types())


@pytest.mark.parametrize("opset", [11, 17, 23, NEWEST])
@pytest.mark.parametrize("call", [call for call in CALLS if call.op.extensions], ids=str)
def test_a_dtype_that_the_onnx_operator_lacks_is_composed(call: Call, opset: int) -> None:
    (dtype,) = call.op.extensions
    tensors = call.tensors(dtype)

    lowered = lower(call.function, tensors, opset=opset)

    assert call.op_type not in lowered.op_types()
    # ONNX Runtime has no double kernel for some of the pieces, and scales the products of others in float.
    feeds = {value.name: tensor.numpy() for value, tensor in zip(lowered.proto.graph.input, tensors, strict=True)}
    actual = [torch.from_numpy(array) for array in ReferenceEvaluator(lowered.proto).run(None, feeds)]
    compare(actual, expected_of(call.function, tensors))


MASKS = {
    "one row": torch.randn(1, 6),
    "one column": torch.randn(5, 1),
    "of each batch": torch.randn(2, 1, 1, 6),
    "of fewer keys": torch.randn(5, 4),
    "bool": torch.rand(5, 6) > 0.3,
}


@pytest.mark.parametrize("opset", swept(13, 23, 24, 25))
@pytest.mark.parametrize("lengths", [(), (LENGTHS,)], ids=["all keys", "lengths"])
@pytest.mark.parametrize("name", MASKS)
def test_masks_of_attention_are_widened_as_the_specification_says(
    name: str, lengths: tuple[torch.Tensor, ...], opset: int
) -> None:
    tensors = [*(torch.randn(shape) for shape in (Q, K, V)), MASKS[name], *lengths]

    def attention(*inputs: torch.Tensor) -> Any:
        return native.attention(*inputs[:4], None, None, *inputs[4:], num_outputs=1)

    lowered = lower(attention, tensors, opset=opset)
    compare(run(lowered.proto, tensors), expected_of(attention, tensors))
