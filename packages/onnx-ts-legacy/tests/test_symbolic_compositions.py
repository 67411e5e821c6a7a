"""The helpers that write more than one node, and the functions of the opset modules that are not ATen operators."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.utils import _pair
from ts_models import exported, n

import onnx_ts_legacy
from onnx_ts_legacy import JitScalarType, register_custom_op_symbolic
from onnx_ts_legacy import symbolic_helper as helper
from onnx_ts_legacy.errors import OnnxExporterError
from onnx_ts_legacy.symbolic_helper import SymbolicValue, parse_args

NONE = SymbolicValue(None)
OPSETS = [9, 11, 13, 18]


def ints(*sizes: int) -> Tensor:
    return torch.randint(-9, 9, sizes, generator=torch.Generator().manual_seed(sum(sizes)), dtype=torch.int32)


def replaced(
    name: str, symbolic: Callable[..., Any], model: Callable[..., Any], opset: int, *inputs: tuple[Tensor, ...]
) -> onnx_ts_legacy.TSProgram:
    """Export a model whose calls of an operator are converted by a symbolic, and compare it on each of the inputs."""
    called = []

    @functools.wraps(symbolic)
    def counted(g: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(name)
        return symbolic(g, *args, **kwargs)

    register_custom_op_symbolic(name, counted, 9)
    names = ["x", "y", "z"][: len(inputs[0])]
    axes = {key: {0: "n"} for key, first in zip(names, inputs[0], strict=True) if first.dim() > 1}
    program = exported(model, inputs[0], *inputs[1:], opset=opset, input_names=names, dynamic_axes=axes)
    assert called
    return program


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("x", [(n(2, 3, 4), n(5, 3, 4)), (ints(2, 3, 4), ints(5, 3, 4))], ids=["float", "int32"])
def test_sums_are_reduced_over_all_or_some_dimensions(opset: int, x: tuple[Tensor, Tensor]) -> None:
    symbolic = helper._reduce_with_dtype_helper("ReduceSum", "sum")

    replaced("aten::sum", symbolic, lambda x: (x.sum(), x.sum((0, 2), keepdim=True)), opset, (x[0],), (x[1],))
    replaced("aten::sum", symbolic, lambda x: (x.sum(1, dtype=torch.float64), x.sum(dtype=torch.int64)), opset, (x[0],))


@pytest.mark.parametrize("opset", OPSETS)
def test_integers_are_reduced_in_64_bits(opset: int) -> None:
    def total(g, self, dtype):
        return helper._handle_reduce_dim_none(g, helper._maybe_cast_reduce_op_input(g, self), "ReduceSum")

    large = torch.full((2, 3), 2**30, dtype=torch.int32)
    replaced("aten::sum", total, torch.sum, opset, (large,), (torch.cat([large, large]),))
    replaced("aten::sum", total, torch.sum, opset, (n(2, 3),), (n(4, 3),))


@pytest.mark.parametrize("opset", OPSETS)
def test_one_dimension_is_reduced(opset: int) -> None:
    def prod(g, self, dim, keepdim, dtype):
        return helper._reduce_op_symbolic_helper("ReduceProd", allow_multi_dim_support=False)(g, self, dim, keepdim)

    replaced("aten::prod", prod, lambda x: x.prod(1, keepdim=True), opset, (n(2, 3),), (n(4, 3),))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_one_two_and_along_a_dimension(name: str, opset: int) -> None:
    torch_function = getattr(torch, name)
    symbolic = getattr(helper, f"_{name}_helper")

    def model(x: Tensor, y: Tensor) -> Any:
        return torch_function(x), torch_function(x, y), *torch_function(x, 1, keepdim=True)

    replaced(f"aten::{name}", symbolic, model, opset, (n(2, 3), n(2, 3) + 1), (n(4, 3), n(4, 3) - 1))


@pytest.mark.parametrize("opset", OPSETS)
def test_variances_and_norms(opset: int) -> None:
    def var_mean(g, self, dim, correction, keepdim):
        return helper._var_mean_helper(g, self, dim, correction, keepdim)

    def norm(g, self, ord, dim, keepdim, dtype):
        return helper._linalg_vector_norm_helper(g, self, helper._get_const(ord, "f", "ord"), dim, False, dtype)

    inputs = (n(2, 3, 4),), (n(5, 3, 4),)
    replaced(
        "aten::var_mean", var_mean, lambda x: torch.var_mean(x, (1, 2), correction=0, keepdim=True), opset, *inputs
    )
    replaced("aten::var_mean", var_mean, lambda x: torch.var_mean(x, None, correction=1), opset, *inputs)
    replaced("aten::linalg_vector_norm", norm, lambda x: torch.linalg.vector_norm(x, 3, (0, 2)), opset, *inputs)
    replaced("aten::linalg_vector_norm", norm, lambda x: torch.linalg.vector_norm(x), opset, *inputs)


@pytest.mark.parametrize("opset", OPSETS)
def test_nodes_for_floats_take_integers(opset: int) -> None:
    def maximum(g, self, other):
        return helper._op_with_optional_float_cast(g, "Max", self, other, opset_before=12)

    program = replaced(
        "aten::maximum", maximum, torch.maximum, opset, (ints(2, 3), ints(2, 3) * 2), (ints(4, 3), ints(4, 3) * -2)
    )

    assert ("Cast" in {node.op_type for node in program.model.graph}) == (opset < 12)


def test_nodes_for_floats_need_one_dtype() -> None:
    def maximum(g, self, other):
        return helper._op_with_optional_float_cast(g, "Max", self, g.op("Cast", other, to_i=7))

    register_custom_op_symbolic("aten::maximum", maximum, 9)

    with pytest.raises(OnnxExporterError, match="inputs of Max need one dtype"):
        onnx_ts_legacy.export(torch.maximum, (ints(2), ints(2)), opset_version=11)


@pytest.mark.parametrize("opset", OPSETS)
def test_comparisons_and_ranges(opset: int) -> None:
    def lt(g, self, other):
        return helper._lt_helper(g, self, other)

    replaced(
        "aten::lt", lt, lambda x, y: (x < y, x < 2), opset, (ints(2, 3), ints(2, 3) + 1), (ints(4, 3), -ints(4, 3))
    )
    replaced(
        "aten::arange",
        helper._arange_helper,
        lambda x: x + torch.arange(x.shape[0])[:, None],
        opset,
        (n(2, 3),),
        (n(4, 3),),
    )


def test_the_dtype_of_a_range_is_found() -> None:
    seen = []

    def relu(g, self):
        half, whole = (g.op("Constant", value_t=torch.tensor(number)) for number in (0.5, 3))
        seen.append(helper._arange_cast_helper(g, whole)[0])
        seen.append(helper._arange_cast_helper(g, whole, step=half)[0])
        kind, end, start, step = helper._arange_cast_helper(g, whole, NONE, half, dtype=7)
        seen.extend((kind, end.type().dtype(), start, step.type().dtype()))
        return g.op("Relu", self)

    replaced("aten::relu", relu, torch.relu, 13, (n(2, 3),))

    double = JitScalarType.DOUBLE
    assert seen == [JitScalarType.INT64, JitScalarType.FLOAT, double, torch.float64, None, torch.float64]


@pytest.mark.parametrize("opset", OPSETS)
def test_slices_are_taken_apart(opset: int) -> None:
    def unbind(g, self, dim):
        first, *rest = helper._unbind_helper(g, self, dim, 3)
        return [*rest, first]

    def flip(g, self, dims):
        parts = helper._repeat_interleave_split_helper(g, self, 3, 1)
        return g.op("Concat", *parts[::-1], axis_i=1)

    inputs = (n(2, 3, 4),), (n(5, 3, 4),)
    program = replaced("aten::flip", flip, lambda x: x.flip(1), opset, *inputs)
    assert "Split" in {node.op_type for node in program.model.graph}

    def stacked(x: Tensor) -> Tensor:
        return torch.stack(x.unbind(1))

    # The symbolic turns the parts by one place.
    register_custom_op_symbolic("aten::unbind", unbind, 9)
    program = onnx_ts_legacy.export(stacked, inputs[0], opset_version=opset)
    torch.testing.assert_close(program(*inputs[0])[0], stacked(inputs[0][0].roll(-1, 1)))


@pytest.mark.parametrize("opset", OPSETS)
def test_a_symbolic_is_told_how_many_parts_are_taken(opset: int) -> None:
    counts = []

    @parse_args("v", "i", "i")
    def split(g, self, size, dim, _outputs=None):
        counts.append(_outputs)
        return helper._repeat_interleave_split_helper(g, self, _outputs, dim)

    def model(x: Tensor) -> Tensor:
        first, second, third = x.split(1, 1)
        return first * third - second

    replaced("aten::split", split, model, opset, (n(2, 3, 4),), (n(5, 3, 4),))

    assert counts == [3]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_elements_are_repeated(opset: int, dim: int) -> None:
    def repeat(g, self, repeats, dim, output_size):
        return helper._repeat_interleave_single_value_repeat_helper(
            g, self, repeats, helper._get_const(dim, "i", "dim")
        )

    model = lambda x: x.repeat_interleave(3, dim)  # noqa: E731
    replaced("aten::repeat_interleave", repeat, model, opset, (n(2, 3, 4),), (n(5, 3, 4),))


@pytest.mark.parametrize("opset", OPSETS)
def test_an_index_is_expanded_to_what_it_fills(opset: int) -> None:
    def index_fill(g, self, dim, index, value):
        shape, places = helper._index_fill_reshape_helper(g, self, dim, index)
        return helper._scatter_helper(g, self, helper._get_const(dim, "i", "dim"), places, g.op("Expand", value, shape))

    place = torch.tensor([2, 0])
    model = lambda x, y: x.index_fill(-2, y, 7.0)  # noqa: E731
    replaced("aten::index_fill", index_fill, model, opset, (n(2, 3, 4), place), (n(5, 3, 4), torch.tensor([1, 2])))


@pytest.mark.parametrize("opset", OPSETS)
def test_a_batch_normalization_gets_what_is_missing(opset: int) -> None:
    def batch_norm(g, input, weight, bias, mean, var, training, momentum, eps, cudnn):
        parts = helper._batchnorm_helper(g, input, weight, bias, mean, var)
        return g.op("BatchNormalization", input, *parts, epsilon_f=helper._get_const(eps, "f", "eps"))

    inputs = (n(2, 3, 4),), (n(5, 3, 4),)
    plain = torch.nn.BatchNorm1d(3, affine=False, track_running_stats=False).eval()
    kept = torch.nn.BatchNorm1d(3).eval()
    kept.running_mean = torch.tensor([1.0, 2.0, 3.0])
    replaced("aten::batch_norm", batch_norm, plain, opset, *inputs)
    replaced("aten::batch_norm", batch_norm, kept, opset, *inputs)


@parse_args("v", "is", "is", "is", "i", "i", "none")
def average(g, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None):
    pads = helper._avgpool_helper(_pair, padding, kernel_size, stride, divisor_override, "avg_pool2d")
    kernel = list(kernel_size)
    return g.op("AveragePool", input, kernel_shape_i=kernel, strides_i=kernel, pads_i=pads * 2, count_include_pad_i=1)


@pytest.mark.parametrize("opset", OPSETS)
def test_the_padding_of_an_average(opset: int) -> None:
    replaced(
        "aten::avg_pool2d", average, lambda x: F.avg_pool2d(x, 3, padding=1), opset, (n(2, 3, 6, 9),), (n(1, 3, 6, 9),)
    )


def test_an_average_with_a_divisor_of_its_own_is_refused() -> None:
    def symbolic(g, *args):
        return helper._avgpool_helper(_pair, 1, 3, 3, args[-1], "avg_pool2d")

    register_custom_op_symbolic("aten::avg_pool2d", symbolic, 9)

    with pytest.raises(OnnxExporterError, match="divisor_override has to be None"):
        onnx_ts_legacy.export(lambda x: F.avg_pool2d(x, 3, divisor_override=2), (n(2, 3, 6, 9),))


@pytest.mark.parametrize("opset", [11, 18])
def test_bags_of_embeddings(opset: int) -> None:
    @parse_args("v", "v", "v", "i", "i", "i", "v", "i", "i")
    def bag(g, weight, indices, offsets, scaled, mode, sparse, weights, closed, padding):
        return helper._embedding_bag_helper(g, weight, indices, offsets, scaled, mode, sparse, weights, closed, padding)

    model = torch.nn.EmbeddingBag(9, 4, mode="mean")
    offsets = torch.tensor([0, 2])
    replaced(
        "aten::embedding_bag", bag, model, opset, (torch.arange(6), offsets), (torch.arange(6).flip(0), offsets + 1 - 1)
    )


# ---- resizing


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("options", [{"size": (8, 9)}, {"scale_factor": (2.0, 3.0)}], ids=["size", "factor"])
def test_resizing_by_the_helpers(opset: int, options: dict[str, Any]) -> None:
    def by_nodes(g, input, size, *args):
        factors, corners = helper._get_interpolate_attributes(g, "nearest", args)
        assert corners is None
        scales = factors if factors is not None else helper._interpolate_size_to_scales(g, input, size, 4)
        roi = (
            helper._optional_input_placeholder_tensor(g) if opset >= 13 else g.op("Constant", value_t=torch.tensor([]))
        )
        modes = {"mode_s": "nearest", "nearest_mode_s": "floor", "coordinate_transformation_mode_s": "asymmetric"}
        return g.op("Resize", input, roi, scales, **modes)

    def by_mode(g, input, size, align_corners, scales):
        return getattr(helper, "__interpolate_helper")(g, input, size, scales, "bilinear", align_corners, None)

    inputs = (n(2, 3, 4, 3),), (n(5, 3, 4, 3),)
    nearest, bilinear = (lambda x, m=mode: F.interpolate(x, mode=m, **options) for mode in ("nearest", "bilinear"))
    whole = helper._interpolate_helper("upsample_nearest2d", 4, "nearest")
    replaced("aten::upsample_nearest2d", by_nodes, nearest, opset, *inputs)
    replaced("aten::upsample_nearest2d", whole, nearest, opset, *inputs)
    replaced("aten::upsample_bilinear2d", by_mode, bilinear, opset, *inputs)


FACTORS: dict[str, Callable[[Any], Any]] = {
    "numbers": lambda g: [2.0, 3.0],
    "number": lambda g: [2.0],
    "computed vector": lambda g: g.op("Sqrt", g.op("Constant", value_t=torch.tensor([4.0, 9.0]))),
    "computed number": lambda g: g.op("Sqrt", g.op("Constant", value_t=torch.tensor(4.0))),
}


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("kind", FACTORS)
def test_scales_of_a_resize_for_factors(kind: str, opset: int) -> None:
    def upsample(g, input, size, scales):
        chosen = helper._interpolate_get_scales(g, FACTORS[kind](g), 4)
        roi = g.op("Constant", value_t=torch.tensor([]))
        modes = {"mode_s": "nearest", "nearest_mode_s": "floor", "coordinate_transformation_mode_s": "asymmetric"}
        return g.op("Resize", input, roi, chosen, **modes)

    factors = (2.0, 2.0) if kind.endswith("number") else (2.0, 3.0)
    model = lambda x: F.interpolate(x, scale_factor=factors)  # noqa: E731
    replaced("aten::upsample_nearest2d", upsample, model, opset, (n(2, 3, 4, 3),), (n(5, 3, 4, 3),))


@pytest.mark.filterwarnings("ignore:ONNX's")
@pytest.mark.parametrize("opset", [9, 10])
@pytest.mark.parametrize("options", [{"size": (8, 6)}, {"scale_factor": 2.0}], ids=["size", "factor"])
def test_scales_and_mode_of_a_resize(opset: int, options: dict[str, Any]) -> None:
    def upsample(g, input, size, scales):
        scales, mode = helper._interpolate_get_scales_and_mode(g, input, size, scales, "nearest", NONE)
        return g.op("Upsample" if opset == 9 else "Resize", input, scales, mode_s=mode)

    model = lambda x: F.interpolate(x, **options)  # noqa: E731
    replaced("aten::upsample_nearest2d", upsample, model, opset, (n(2, 3, 4, 3),), (n(5, 3, 4, 3),))


# ---- quantized tensors


def quantized_relu(x: Tensor) -> Tensor:
    return torch.relu(torch.quantize_per_tensor(x, 0.05, 120, torch.quint8)).dequantize()


def test_a_quantized_tensor_is_taken_apart() -> None:
    def relu(g, self):
        integers, scale, zero_point = helper._unpack_quantized_tensor(self)
        floats = g.op("DequantizeLinear", integers, scale, zero_point)
        return helper.quantize_helper(g, g.op("Relu", floats), 0.05, 120)

    replaced("aten::relu", relu, quantized_relu, 13, (n(2, 3),), (n(4, 3),))


def test_what_is_not_quantized_is_not_taken_apart() -> None:
    register_custom_op_symbolic("aten::relu", lambda g, self: helper._unpack_quantized_tensor(self)[0], 9)

    with pytest.raises(OnnxExporterError, match="got a tensor that is not"):
        onnx_ts_legacy.export(torch.relu, (n(2, 3),))


def test_a_bias_is_in_steps_of_both_scales() -> None:
    def add(g, self, other, alpha):
        _, input_scale, _, _ = helper.dequantize_helper(g, helper.quantize_helper(g, self, 0.5, 0))
        bias = helper.requantize_bias_helper(g, other, input_scale, 0.25)
        return g.op("Add", self, helper.dequantize_helper(g, bias)[0])

    register_custom_op_symbolic("aten::add", add, 9)
    x, bias = n(2, 3), torch.tensor([0.3, -0.19, 0.9])
    program = onnx_ts_legacy.export(torch.add, (x, bias), opset_version=13)

    torch.testing.assert_close(program(x, bias)[0], x + torch.tensor([0.25, -0.25, 0.875]))


def test_quantized_operators_are_functions_of_the_opset_modules() -> None:
    from onnx_ts_legacy.symbolic_opset10 import quantized_add, quantized_hardswish

    def relu(g, self):
        return quantized_hardswish(g, quantized_add(g, self, self, 0.1, 100), 0.08, 3)

    def model(x: Tensor) -> Tensor:
        return torch.relu(torch.quantize_per_tensor(x, 0.05, 120, torch.quint8)).dequantize()

    register_custom_op_symbolic("aten::relu", relu, 9)
    program = onnx_ts_legacy.export(model, (n(2, 3),), opset_version=14)
    x = torch.quantize_per_tensor(n(2, 3), 0.05, 120, torch.quint8)
    expected = torch.ops.quantized.hardswish(torch.ops.quantized.add(x, x, 0.1, 100), 0.08, 3).dequantize()

    torch.testing.assert_close(program(n(2, 3))[0], expected)


# ---- functions of the opset modules


def opset_module(opset: int) -> Any:
    return importlib.import_module(f"onnx_ts_legacy.symbolic_opset{opset}")


@pytest.mark.parametrize("opset", OPSETS)
def test_paddings_are_put_in_the_order_of_onnx(opset: int) -> None:
    module = opset_module(opset)

    def pad(g, input, pad, mode, value):
        number = helper._get_const(value, "f", "value")
        if opset < 11:
            pads = module._prepare_onnx_paddings(3, module._convert_padding_node(pad))
            return g.op("Pad", input, pads_i=pads, value_f=number, mode_s="constant")
        pads = module._prepare_onnx_paddings(g, input, pad)
        return g.op("Pad", input, pads, g.op("Constant", value_t=torch.tensor(number)), mode_s="constant")

    inputs = (n(2, 3, 4),), (n(5, 3, 4),)
    replaced("aten::pad", pad, lambda x: F.pad(x, (1, 2, 0, 3), value=2.0), opset, *inputs)
    if opset >= 11:
        replaced("aten::pad", pad, lambda x: F.pad(x, (x.shape[0], 2), value=2.0), opset, *inputs)


@pytest.mark.parametrize("opset", OPSETS)
def test_the_opset_modules_pad_divide_and_shrink(opset: int) -> None:
    module = opset_module(opset)

    def pad(g, input, pad, mode, value):
        reflected = module.reflection_pad(g, input, [1, 2])
        return g.op("Add", reflected, module.replication_pad(g, input, [1, 2]))

    def div(g, self, other, mode):
        if helper._parse_arg(mode, "s") == "floor":
            return module._floor_divide(g, self, other)
        return module._trunc_divide(g, self, other)

    def tanh(g, self):
        return module.tanhshrink(g, self)

    register_custom_op_symbolic("aten::tanh", tanh, 9)
    x = n(2, 3, 4)
    register_custom_op_symbolic("aten::pad", pad, 9)
    program = onnx_ts_legacy.export(lambda x: F.pad(x, (1, 2), "reflect"), (x,), opset_version=opset)
    expected = F.pad(x, (1, 2), "reflect") + F.pad(x, (1, 2), "replicate")
    torch.testing.assert_close(program(x)[0], expected)

    def divided(x: Tensor, y: Tensor) -> Any:
        return torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")

    three = torch.full((3,), -3, dtype=torch.int32)
    replaced("aten::div", div, divided, opset, (ints(2, 3), three), (ints(4, 3), three + 1))


def test_the_opset_modules_have_the_functions_of_torchscript() -> None:
    module = opset_module(13)
    seen = []

    def relu(g, self):
        seen.append(int(module.prim_dtype(g, self).toIValue()))
        first, second = module.prim_constant_chunk(g, self, 2, 1)
        parts = module.prim_constant_split(g, self, 3, 1)
        seen.append(len(parts))
        joined = g.op("Concat", second, first, axis_i=1)
        largest = module.prim_max(g, module.prim_data(g, joined), g.op("Concat", *parts, axis_i=1))
        wide = g.op("Cast", g.op("ReduceProd", module.prim_shape(g, self), keepdims_i=0), to_i=1)
        return g.op("Add", module.prim_unchecked_cast(g, largest), wide)

    register_custom_op_symbolic("aten::relu", relu, 9)
    x = n(2, 4)
    program = onnx_ts_legacy.export(torch.relu, (x,), opset_version=13)

    assert seen == [6, 2]
    torch.testing.assert_close(program(x)[0], torch.maximum(x.roll(2, 1), x) + 8)


@pytest.mark.parametrize("opset", OPSETS)
def test_the_opset_modules_reduce_divide_and_unpack(opset: int) -> None:
    module = opset_module(opset)

    def div(g, self, other, mode):
        return module._div_rounding_mode(g, self, other, mode)

    def var_mean(g, self, dim, correction, keepdim):
        return module._var_mean(g, self, dim, correction, keepdim)

    def divided(x: Tensor, y: Tensor) -> Any:
        return torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")

    three, inputs = torch.full((3,), -3, dtype=torch.int32), ((n(2, 3, 4),), (n(5, 3, 4),))
    replaced("aten::div", div, divided, opset, (ints(2, 3), three), (ints(4, 3), three + 1))
    replaced("aten::var_mean", var_mean, lambda x: torch.var_mean(x, (1, 2), correction=1), opset, *inputs)
    replaced("aten::sum", module._reduce_with_dtype("ReduceSum", "sum"), lambda x: x.sum((0, 2)), opset, *inputs)
    amax = module._reduce_op_symbolic("ReduceMax")
    replaced("aten::amax", amax, lambda x: x.amax((1, 2), keepdim=True), opset, *inputs)


@pytest.mark.parametrize("opset", OPSETS)
def test_the_smaller_of_two_items_of_a_list(opset: int) -> None:
    def stack(g, tensors, dim):
        first, second = opset_module(opset).prim_list_unpack(g, tensors)
        rows = [
            helper._unsqueeze_helper(g, item, [0]) for item in (opset_module(opset).prim_min(g, first, second), second)
        ]
        return g.op("Concat", *rows, axis_i=0)

    register_custom_op_symbolic("aten::stack", stack, 9)
    x = n(2, 3)
    program = onnx_ts_legacy.export(lambda x: torch.stack([x, -x]), (x,), opset_version=opset)

    torch.testing.assert_close(program(x)[0], torch.stack([-x.abs(), -x]))


def test_what_no_opset_module_has_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="prim_loop"):
        opset_module(13).prim_loop
    with pytest.raises(AttributeError, match="quantized_nothing"):
        opset_module(13).quantized_nothing
