"""ONNX operators as torch operators, by topic."""

from onnxops_core.native.activations.operators import gelu, hard_swish, mish, swiglu, swish
from onnxops_core.native.attentions.attention import attention
from onnxops_core.native.attentions.flex import flex_attention
from onnxops_core.native.attentions.group_query import group_query_attention
from onnxops_core.native.attentions.multi_head import multi_head_attention
from onnxops_core.native.c_kernels.library import build_cpu_kernels
from onnxops_core.native.caches.operator import tensor_scatter, tensor_scatter_
from onnxops_core.native.declaring.declare import NativeOp, OnnxCall, ScalarInput, find_native_op, native_ops
from onnxops_core.native.elementwise import bit_cast, cum_prod
from onnxops_core.native.normalization.operators import (
    group_normalization,
    instance_normalization,
    layer_normalization,
    rms_normalization,
)
from onnxops_core.native.normalization.skip import skip_layer_normalization, skip_simplified_layer_normalization
from onnxops_core.native.quantization.linear import dequantize_linear, quantize_linear
from onnxops_core.native.quantization.matmul_nbits import matmul_nbits
from onnxops_core.native.recurrent.operators import causal_conv_with_state, linear_attention
from onnxops_core.native.rotary.operator import rotary_embedding
from onnxops_core.native.spectral import dft, stft
from onnxops_core.native.vision.detection import non_max_suppression, roi_align
from onnxops_core.native.vision.sampling import affine_grid, deform_conv, grid_sample

__all__ = [
    "NativeOp",
    "OnnxCall",
    "ScalarInput",
    "affine_grid",
    "attention",
    "bit_cast",
    "build_cpu_kernels",
    "causal_conv_with_state",
    "cum_prod",
    "deform_conv",
    "dequantize_linear",
    "dft",
    "find_native_op",
    "flex_attention",
    "gelu",
    "grid_sample",
    "group_normalization",
    "group_query_attention",
    "hard_swish",
    "instance_normalization",
    "layer_normalization",
    "linear_attention",
    "matmul_nbits",
    "mish",
    "multi_head_attention",
    "native_ops",
    "non_max_suppression",
    "quantize_linear",
    "rms_normalization",
    "roi_align",
    "rotary_embedding",
    "skip_layer_normalization",
    "skip_simplified_layer_normalization",
    "stft",
    "swiglu",
    "swish",
    "tensor_scatter",
    "tensor_scatter_",
]
