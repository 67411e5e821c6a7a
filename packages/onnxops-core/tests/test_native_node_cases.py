"""Every test case of the ONNX standard for the operators that are native here, in eager and in fake mode."""

import numpy as np
import onnx
import pytest
import torch
from core_node_cases import assert_close, node_cases
from onnx.reference import ReferenceEvaluator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from onnxops_core import native


def _scalars(function, *places):
    """Passes some inputs as numbers: that is what they are to torch, and a fake tensor has no elements to
    read."""

    def call(case, inputs, attributes):
        numbers = [case.numbers[i] if i in places else value for i, value in enumerate(inputs)]
        return function(*numbers, **attributes)

    return call


def _affine_grid(case, inputs, attributes):
    return native.affine_grid(inputs[0], case.numbers[1], **attributes)


def _quantize(case, inputs, attributes):
    # The tensors are carriers here; the ONNX dtype that they had names what is quantized to.
    attributes = {"output_dtype": case.output_dtypes[0]} | attributes
    return native.quantize_linear(*inputs, **attributes)


def _dequantize(case, inputs, attributes):
    small = case.input_dtypes[0] if case.input_dtypes[0] in (21, 22, 23, 25, 26, 27, 28) else 0
    return native.dequantize_linear(*inputs, **attributes, input_dtype=small)


def _flex_attention(case, inputs, attributes):
    """Runs the modifier graphs in ONNX's reference evaluator."""

    def modifier(graph):
        def run(tensor):
            if isinstance(tensor, FakeTensor):
                return tensor.clone()
            (output,) = ReferenceEvaluator(graph, opsets={"": 28}).run(None, {graph.input[0].name: tensor.numpy()})
            return torch.from_numpy(np.array(output))

        return run

    given = {k: modifier(v) if k.endswith("_mod") else v for k, v in attributes.items()}
    return native.flex_attention(*inputs, **given)


def _dft(case, inputs, attributes):
    # Below opset 20 the axis is an attribute, 1 by default.
    if case.opset < 20:
        return native.dft(*inputs, **{"axis": 1} | attributes)
    return _scalars(native.dft, 1, 2)(case, inputs, attributes)


ADAPTED = {
    "AffineGrid": _affine_grid,
    "CumProd": _scalars(native.cum_prod, 1),
    "DFT": _dft,
    "DequantizeLinear": _dequantize,
    "FlexAttention": _flex_attention,
    "NonMaxSuppression": _scalars(native.non_max_suppression, 2, 3, 4),
    "QuantizeLinear": _quantize,
    "STFT": _scalars(native.stft, 1, 3),
}
FUNCTIONS = {
    "Attention": native.attention,
    "BitCast": native.bit_cast,
    "CausalConvWithState": native.causal_conv_with_state,
    "DeformConv": native.deform_conv,
    "GridSample": native.grid_sample,
    "LinearAttention": native.linear_attention,
    "RoiAlign": native.roi_align,
    "TensorScatter": native.tensor_scatter,
    "Gelu": native.gelu,
    "GroupNormalization": native.group_normalization,
    "HardSwish": native.hard_swish,
    "InstanceNormalization": native.instance_normalization,
    "LayerNormalization": native.layer_normalization,
    "Mish": native.mish,
    "RMSNormalization": native.rms_normalization,
    "RotaryEmbedding": native.rotary_embedding,
    "SwiGLU": native.swiglu,
    "Swish": native.swish,
}
# How many cases onnx 1.23 has. A case that disappears from the list must be noticed; new ones are welcome.
AT_LEAST = {
    "AffineGrid": 4,
    "BitCast": 10,
    "CausalConvWithState": 13,
    "CumProd": 9,
    "DFT": 10,
    "DeformConv": 4,
    "DequantizeLinear": 14,
    "FlexAttention": 11,
    "GridSample": 18,
    "LinearAttention": 14,
    "NonMaxSuppression": 10,
    "QuantizeLinear": 13,
    "RoiAlign": 3,
    "STFT": 2,
    "TensorScatter": 3,
    "Attention": 93,
    "Gelu": 4,
    "GroupNormalization": 2,
    "HardSwish": 1,
    "InstanceNormalization": 2,
    "LayerNormalization": 19,
    "Mish": 1,
    "RMSNormalization": 19,
    "RotaryEmbedding": 8,
    "SwiGLU": 3,
    "Swish": 1,
}

# Older releases lack cases, and expect what their own evaluator gave wrongly.
OF_ONNX_1_23 = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 28, reason=f"the cases are those of onnx 1.23, not {onnx.__version__}"
)
pytestmark = OF_ONNX_1_23

_CASES = node_cases(set(FUNCTIONS) | set(ADAPTED))
_each_case = pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)


def _call(case, inputs):
    if case.op_type in ADAPTED:
        return ADAPTED[case.op_type](case, inputs, case.attributes)
    return FUNCTIONS[case.op_type](*inputs, **case.attributes)


@pytest.mark.parametrize("op_type", AT_LEAST)
def test_no_case_is_missing(op_type):
    assert sum(case.op_type == op_type for case in _CASES) >= AT_LEAST[op_type]


# numpy computed these expected values in float32, so what cancels to zero is noise of this size (a unit in
# the last # place of the largest value) in them, above the cases' tolerance of 1e-7.
NOISE = {"dft_inverse": 5e-7, "dft_inverse_opset19": 5e-7}


@_each_case
def test_result_is_the_expected_one(case):
    assert_close(_call(case, case.inputs), case, noise=NOISE.get(case.name, 0.0))


@_each_case
def test_fake_result_has_the_same_metadata(case):
    real = _call(case, case.inputs)

    # The number of boxes that are kept is not known without their values; it is a symbol of the shape
    # environment.
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        inputs = [mode.from_tensor(i, static_shapes=True) if isinstance(i, torch.Tensor) else i for i in case.inputs]
        fake = _call(case, inputs)

    single = isinstance(real, torch.Tensor)
    for one, other in zip([fake] if single else fake, [real] if single else real, strict=True):
        known = [size if isinstance(size, int) else actual for size, actual in zip(one.shape, other.shape, strict=True)]
        assert (known, one.dtype, one.dim()) == (list(other.shape), other.dtype, other.dim())
        assert one.stride() == other.stride()


def test_only_the_number_of_boxes_is_unknown_to_fake_mode():
    with FakeTensorMode(shape_env=ShapeEnv()):
        boxes = native.non_max_suppression(torch.empty(1, 5, 4), torch.empty(1, 2, 5), 3)

    assert [isinstance(size, int) for size in boxes.shape] == [False, True]
