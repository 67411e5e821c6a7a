"""ONNX operators as torch operators, by topic."""

from onnxops_core.native._attention import attention
from onnxops_core.native._cpu import build_cpu_kernels
from onnxops_core.native._declare import NativeOp, OnnxCall, ScalarInput, find_native_op, native_ops
from onnxops_core.native._flex_attention import flex_attention
from onnxops_core.native._group_query_attention import group_query_attention
from onnxops_core.native._multi_head_attention import multi_head_attention
from onnxops_core.native._rotary_embedding import rotary_embedding
from onnxops_core.native._tensor_scatter import tensor_scatter, tensor_scatter_
from onnxops_core.native.activations import gelu, hard_swish, mish, swiglu, swish
from onnxops_core.native.contrib import matmul_nbits, skip_layer_normalization, skip_simplified_layer_normalization
from onnxops_core.native.detection import non_max_suppression, roi_align
from onnxops_core.native.elementwise import bit_cast, cum_prod
from onnxops_core.native.normalization import (
    group_normalization,
    instance_normalization,
    layer_normalization,
    rms_normalization,
)
from onnxops_core.native.quantization import dequantize_linear, quantize_linear
from onnxops_core.native.recurrent import causal_conv_with_state, linear_attention
from onnxops_core.native.sampling import affine_grid, deform_conv, grid_sample
from onnxops_core.native.spectral import dft, stft

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
