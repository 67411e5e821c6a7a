"""Helpers for custom symbolics, under the names that published ones import them by.

Values are those of :mod:`onnx_ts_legacy.symbolics.values`; what a helper writes, it writes with ``g.op`` in the form of
the requested opset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx_ts_legacy._globals import GLOBALS
from onnx_ts_legacy.enumerations import JitScalarType
from onnx_ts_legacy.symbolics.arguments import (
    _black_list_in_opset,
    _block_list_in_opset,
    _get_const,
    _get_dim_for_cross,
    _get_tensor_dim_size,
    _get_tensor_rank,
    _get_tensor_sizes,
    _is_bool,
    _is_constant,
    _is_fp,
    _is_in_type_group,
    _is_list,
    _is_none,
    _is_onnx_constant,
    _is_packed_list,
    _is_scalar_list,
    _is_split_static,
    _is_tensor,
    _is_tensor_list,
    _is_tuple_construct,
    _is_value,
    _maybe_get_const,
    _maybe_get_scalar,
    _node_get,
    _onnx_opset_unsupported,
    _onnx_opset_unsupported_detailed,
    _onnx_unsupported,
    _overload_by_arg_count,
    _parse_arg,
    _scalar,
    _try_get_scalar_type,
    _type_promote_from_values,
    _unimplemented,
    _unpack_list,
    _unpack_tuple,
    args_have_same_dtype,
    check_training_mode,
    is_complex_value,
    parse_args,
)
from onnx_ts_legacy.symbolics.interpolation import (
    __interpolate_helper,
    _get_interpolate_attributes,
    _interpolate_get_scales,
    _interpolate_get_scales_and_mode,
    _interpolate_helper,
)
from onnx_ts_legacy.symbolics.interpolation import interpolation_warning as _interpolate_warning
from onnx_ts_legacy.symbolics.interpolation import scales_of_factors as _interpolate_get_scales_if_available
from onnx_ts_legacy.symbolics.interpolation import scales_of_sizes as _interpolate_size_to_scales
from onnx_ts_legacy.symbolics.nodes import (
    _arange_cast_helper,
    _arange_helper,
    _argmin_argmax_helper,
    _avgpool_helper,
    _batchnorm_helper,
    _embedding_bag_helper,
    _flatten_helper,
    _generate_wrapped_number,
    _if_scalar_type_as,
    _index_fill_reshape_helper,
    _lt_helper,
    _maybe_cast_to_type,
    _numel_helper,
    _op_with_optional_float_cast,
    _optional_input_placeholder_tensor,
    _reducesum_helper,
    _repeat_interleave_single_value_repeat_helper,
    _repeat_interleave_split_helper,
    _reshape_helper,
    _scatter_helper,
    _select_helper,
    _size_helper,
    _slice_helper,
    _sort_helper,
    _squeeze_helper,
    _topk_helper,
    _unbind_helper,
    _unsqueeze_helper,
)
from onnx_ts_legacy.symbolics.quantization import (
    _unpack_quantized_tensor,
    dequantize_helper,
    quantize_helper,
    quantized_args,
    requantize_bias_helper,
)
from onnx_ts_legacy.symbolics.reductions import (
    _handle_reduce_dim_none,
    _linalg_vector_norm_helper,
    _max_helper,
    _maybe_cast_reduce_op_input,
    _min_helper,
    _reduce_op_symbolic_helper,
    _reduce_with_dtype_helper,
    _var_mean_helper,
)
from onnx_ts_legacy.symbolics.values import SymbolicValue
from onnxops_decomp.exporting import NEWEST_OPSET, OLDEST_OPSET

__all__ = [
    "SymbolicValue",
    "__interpolate_helper",
    "_apply_params",
    "_arange_cast_helper",
    "_arange_helper",
    "_argmin_argmax_helper",
    "_as_list_type",
    "_avgpool_helper",
    "_batchnorm_helper",
    "_black_list_in_opset",
    "_block_list_in_opset",
    "_embedding_bag_helper",
    "_flatten_helper",
    "_generate_wrapped_number",
    "_get_const",
    "_get_dim_for_cross",
    "_get_interpolate_attributes",
    "_get_tensor_dim_size",
    "_get_tensor_rank",
    "_get_tensor_sizes",
    "_handle_reduce_dim_none",
    "_if_scalar_type_as",
    "_index_fill_reshape_helper",
    "_interpolate_get_scales",
    "_interpolate_get_scales_and_mode",
    "_interpolate_get_scales_if_available",
    "_interpolate_helper",
    "_interpolate_size_to_scales",
    "_interpolate_warning",
    "_is_bool",
    "_is_constant",
    "_is_fp",
    "_is_in_type_group",
    "_is_list",
    "_is_none",
    "_is_onnx_constant",
    "_is_packed_list",
    "_is_scalar_list",
    "_is_split_static",
    "_is_tensor",
    "_is_tensor_list",
    "_is_tuple_construct",
    "_is_value",
    "_linalg_vector_norm_helper",
    "_lt_helper",
    "_max_helper",
    "_maybe_cast_reduce_op_input",
    "_maybe_cast_to_type",
    "_maybe_get_const",
    "_maybe_get_scalar",
    "_min_helper",
    "_node_get",
    "_numel_helper",
    "_onnx_opset_unsupported",
    "_onnx_opset_unsupported_detailed",
    "_onnx_unsupported",
    "_op_with_optional_float_cast",
    "_optional_input_placeholder_tensor",
    "_overload_by_arg_count",
    "_parse_arg",
    "_reduce_op_symbolic_helper",
    "_reduce_with_dtype_helper",
    "_reducesum_helper",
    "_repeat_interleave_single_value_repeat_helper",
    "_repeat_interleave_split_helper",
    "_reshape_helper",
    "_scalar",
    "_scatter_helper",
    "_select_helper",
    "_set_opset_version",
    "_size_helper",
    "_slice_helper",
    "_sort_helper",
    "_squeeze_helper",
    "_topk_helper",
    "_try_get_scalar_type",
    "_type_promote_from_values",
    "_unbind_helper",
    "_unimplemented",
    "_unpack_list",
    "_unpack_quantized_tensor",
    "_unpack_tuple",
    "_unsqueeze_helper",
    "_var_mean_helper",
    "args_have_same_dtype",
    "cast_pytorch_to_onnx",
    "check_training_mode",
    "dequantize_helper",
    "is_complex_value",
    "parse_args",
    "pytorch_name_to_type",
    "quantize_helper",
    "quantized_args",
    "requantize_bias_helper",
    "scalar_name_to_pytorch",
    "scalar_type_to_onnx",
    "scalar_type_to_pytorch_type",
]

cast_pytorch_to_onnx = {
    kind.scalar_name(): kind.onnx_type()
    for kind in JitScalarType
    if kind.onnx_compatible() and kind is not JitScalarType.COMPLEX32
}
pytorch_name_to_type = {
    kind.scalar_name(): kind.dtype() for kind in JitScalarType if kind is not JitScalarType.UNDEFINED
}
scalar_type_to_pytorch_type = [JitScalarType(code).dtype() for code in range(16)]
scalar_type_to_onnx = [
    JitScalarType(code).onnx_type() if JitScalarType(code).onnx_compatible() else None for code in range(16)
]

scalar_name_to_pytorch = {
    kind.torch_name(): kind.scalar_name() for kind in JitScalarType if kind is not JitScalarType.UNDEFINED
}

_onnx_main_opset = NEWEST_OPSET
_onnx_stable_opsets = list(range(OLDEST_OPSET, NEWEST_OPSET))

# Older published symbolics read these here.
_STATE = {
    "_export_onnx_opset_version": "export_onnx_opset_version",
    "_training_mode": "training_mode",
    "_operator_export_type": "operator_export_type",
}


def __getattr__(name: str) -> Any:
    """Answer what the running export was asked for."""
    if name in _STATE:
        return getattr(GLOBALS, _STATE[name])
    raise AttributeError(f"module 'onnx_ts_legacy.symbolic_helper' has no attribute {name!r}")


def _set_opset_version(opset_version: int) -> None:
    GLOBALS.export_onnx_opset_version = opset_version


def _as_list_type(jit_type: Any) -> Any:
    return jit_type if jit_type.kind() == "ListType" else None


def _apply_params(*args: Any, **kwargs: Any) -> Callable[[Callable[..., Any]], Any]:
    return lambda function: function(*args, **kwargs)
