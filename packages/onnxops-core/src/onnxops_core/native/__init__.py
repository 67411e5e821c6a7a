"""ONNX operators as torch operators, by topic."""

from onnxops_core.native._declare import NativeOp, OnnxCall, ScalarInput, find_native_op, native_ops
from onnxops_core.native.activations import gelu, hard_swish, mish, swiglu, swish
from onnxops_core.native.attention import attention
from onnxops_core.native.normalization import (
    group_normalization,
    instance_normalization,
    layer_normalization,
    rms_normalization,
)
from onnxops_core.native.rotary_embedding import rotary_embedding

__all__ = [
    "NativeOp",
    "OnnxCall",
    "ScalarInput",
    "attention",
    "find_native_op",
    "gelu",
    "group_normalization",
    "hard_swish",
    "instance_normalization",
    "layer_normalization",
    "mish",
    "native_ops",
    "rms_normalization",
    "rotary_embedding",
    "swiglu",
    "swish",
]
