"""Every test case of the ONNX standard for the operators that are native here, in eager and in fake mode."""

import pytest
import torch
from core_node_cases import assert_close, node_cases
from torch._subclasses.fake_tensor import FakeTensorMode

from onnxops_core import native

FUNCTIONS = {
    "Attention": native.attention,
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

_CASES = node_cases(set(FUNCTIONS))
_each_case = pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_no_case_is_missing(op_type):
    assert sum(case.op_type == op_type for case in _CASES) >= AT_LEAST[op_type]


@_each_case
def test_result_is_the_expected_one(case):
    result = FUNCTIONS[case.op_type](*case.inputs, **case.attributes)

    assert_close(result, case)


@_each_case
def test_fake_result_has_the_same_metadata(case):
    function = FUNCTIONS[case.op_type]
    real = function(*case.inputs, **case.attributes)

    with FakeTensorMode() as mode:
        inputs = [mode.from_tensor(i) if isinstance(i, torch.Tensor) else i for i in case.inputs]
        fake = function(*inputs, **case.attributes)

    single = isinstance(real, torch.Tensor)
    for one, other in zip([fake] if single else fake, [real] if single else real, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
