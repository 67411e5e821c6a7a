"""The helpers that published custom symbolics import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor
from ts_models import agree

import onnx_ts_legacy
from onnx_ts_legacy import JitScalarType, register_custom_op_symbolic
from onnx_ts_legacy import symbolic_helper as helper
from onnx_ts_legacy.errors import OnnxExporterError

NAME = "ts_legacy_helper::probe"
X = torch.randn(2, 3, 4)


@torch.library.custom_op(NAME, mutates_args=())
def probe(x: Tensor, others: list[Tensor], sizes: list[int], flag: bool) -> Tensor:
    return x.clone()


@probe.register_fake
def _(x: Tensor, others: list[Tensor], sizes: list[int], flag: bool) -> Tensor:
    return torch.empty_like(x)


def model(x: Tensor) -> Tensor:
    return probe(x, [x + 1, x.to(torch.int64)], [4, 5], True)


def converted(symbolic: Callable[..., Any], opset: int = 17) -> onnx_ts_legacy.TSProgram:
    register_custom_op_symbolic(NAME, symbolic, 9)
    return onnx_ts_legacy.export(model, (X,), opset_version=opset)


@pytest.mark.parametrize("opset", [9, 10, 11, 12, 13, 17, 20])
def test_shape_helpers_write_the_form_of_the_opset(opset: int) -> None:
    def symbolic(g, x, others, sizes, flag):
        y = helper._squeeze_helper(g, helper._unsqueeze_helper(g, x, [0]), [0])
        first = helper._slice_helper(g, y, axes=[1], starts=[0], ends=[2])
        top = helper._topk_helper(g, y, 3, dim=1, sorted=True)[0]
        total = helper._reducesum_helper(g, first, axes_i=[1], keepdims_i=1)
        batch = helper._maybe_cast_to_type(g, helper._size_helper(g, y, 0), JitScalarType.FLOAT)
        flat = helper._reshape_helper(g, helper._reshape_helper(g, top, [-1]), [2, 3, 4])
        return g.op("Mul", g.op("Add", flat, total), batch)

    program = converted(symbolic, opset)

    agree(program, lambda x: (x.topk(3, dim=1)[0] + x[:, :2].sum(1, keepdim=True)) * x.size(0), (X,))


def test_kinds_of_inputs_are_told() -> None:
    seen: dict[str, Any] = {}

    def symbolic(g, x, others, sizes, flag):
        one, integers = helper._unpack_list(others)
        constant = g.op("Constant", value_t=torch.tensor(2.0))
        seen.update(
            packed=(helper._is_packed_list(others), helper._is_packed_list(x)),
            tensor_list=(helper._is_tensor_list(others), helper._is_tensor_list(sizes)),
            scalar_list=(helper._is_scalar_list(sizes), helper._is_scalar_list(others)),
            constant=(helper._is_constant(constant), helper._is_constant(flag), helper._is_constant(x)),
            tensor=(helper._is_tensor(x), helper._is_tensor(flag)),
            floating=(helper._is_fp(one), helper._is_fp(integers)),
            boolean=(helper._is_bool(flag), helper._is_bool(x)),
            group=helper._is_in_type_group(integers, [JitScalarType.INT64, JitScalarType.INT]),
            tuple=helper._is_tuple_construct(x),
        )
        return x

    converted(symbolic)

    assert seen == {
        "packed": (True, False),
        "tensor_list": (True, False),
        "scalar_list": (True, False),
        "constant": (True, True, False),
        "tensor": (True, False),
        "floating": (True, False),
        "boolean": (True, False),
        "group": True,
        "tuple": False,
    }


def test_sizes_and_dtypes_of_inputs_are_told() -> None:
    seen: dict[str, Any] = {}

    def symbolic(g, x, others, sizes, flag):
        one, integers = helper._unpack_list(others)
        constant = g.op("Constant", value_t=torch.tensor(2.0))
        seen.update(
            promoted=helper._type_promote_from_values(one, integers),
            dim=(helper._get_tensor_dim_size(x, 1), helper._get_dim_for_cross(x, -1), helper._get_dim_for_cross(x, 2)),
            scalar=helper._maybe_get_scalar(constant).item(),
            not_scalar=helper._maybe_get_scalar(x) is x,
            number=helper._if_scalar_type_as(3, integers).dtype,
            inputs=(sizes.node().inputsSize(), x.isCompleteTensor()),
            name=JitScalarType.from_value(x).torch_name(),
        )
        return x

    converted(symbolic)

    assert seen == {
        "promoted": JitScalarType.FLOAT,
        "dim": (3, 1, 2),
        "scalar": 2.0,
        "not_scalar": True,
        "number": torch.int64,
        "inputs": (2, True),
        "name": "float",
    }


@pytest.mark.parametrize(
    ("refuse", "text"),
    [
        (lambda: helper._unimplemented("probe", "no way"), "probe cannot be converted: no way"),
        (lambda: helper._onnx_unsupported("probe"), "probe has no ONNX form"),
        (lambda: helper._onnx_opset_unsupported("probe", 9, 11), "lowest opset that works is 11"),
        (lambda: helper._onnx_opset_unsupported_detailed("probe", 9, 11, "sorted"), "sorted"),
        (lambda: helper._block_list_in_opset("probe")(1, 2), "probe cannot be converted at this opset"),
        (lambda: helper._black_list_in_opset("probe")(1, 2), "probe cannot be converted at this opset"),
    ],
)
def test_refusals_are_errors_of_the_exporter(refuse: Callable[[], None], text: str) -> None:
    def symbolic(g, x, others, sizes, flag):
        refuse()

    with pytest.raises(OnnxExporterError, match=text):
        converted(symbolic)


def test_kinds_sizes_and_dtypes_of_inputs_are_told() -> None:
    seen = []

    def symbolic(g, x, others, sizes, flag):
        one, integers = helper._unpack_list(others)
        constant = g.op("Constant", value_t=torch.tensor(2.0))
        seen.append([helper._is_value(x), helper._is_value(3)])
        seen.append([helper._is_list(others), helper._is_list(sizes), helper._is_list(x)])
        seen.append([helper._get_tensor_sizes(x), helper._get_tensor_sizes(sizes)])
        seen.append([helper._try_get_scalar_type(helper.SymbolicValue(None), integers, one)])
        seen.append(
            [helper._try_get_scalar_type(helper.SymbolicValue(None)), helper._scalar(constant.node().t("value"))]
        )
        return x

    converted(symbolic)

    assert seen == [[True, False], [True, True, False], [[2, 3, 4], None], [JitScalarType.INT64], [None, 2.0]]


def test_sizes_that_are_dynamic_are_not_known() -> None:
    seen = []

    def symbolic(g, x, others, sizes, flag):
        seen.extend((helper._get_tensor_sizes(x), helper._get_tensor_sizes(x, allow_nonstatic=False)))
        return x

    register_custom_op_symbolic(NAME, symbolic, 9)
    onnx_ts_legacy.export(model, (X,), dynamic_axes={"x": {1: "n"}})

    assert seen == [[2, None, 4], None]


def test_a_symbolic_is_registered_for_all_opsets_that_the_helpers_list() -> None:
    for opset in [*helper._onnx_stable_opsets, helper._onnx_main_opset]:
        register_custom_op_symbolic(NAME, lambda g, *args, opset=opset: g.op("Identity", args[0], at_i=opset), opset)

    for opset in range(7, 27):
        with pytest.raises(OnnxExporterError, match="has no attribute 'at'"):
            onnx_ts_legacy.export(model, (X,), opset_version=opset)


def test_steps_of_a_slice_need_opset_10() -> None:
    def symbolic(g, x, others, sizes, flag):
        return helper._slice_helper(g, x, axes=[1], starts=[0], ends=[3], steps=[2])

    with pytest.raises(OnnxExporterError, match="lowest opset that works is 10"):
        converted(symbolic, 9)


@pytest.mark.parametrize(("descriptor", "expected"), [("b", True), ("i", 1), ("f", 1.0), ("s", "True")])
def test_descriptors_convert_constants(descriptor: str, expected: object) -> None:
    seen = []

    @helper.parse_args("v", "v", "is", descriptor)
    def symbolic(g, x, others, sizes, flag):
        seen.append((sizes, flag))
        return x

    converted(symbolic)

    assert seen == [([4, 5], expected)]


def test_an_input_that_is_no_constant_is_refused_by_its_name() -> None:
    @helper.parse_args("f", "v", "is", "b")
    def symbolic(g, x, others, sizes, flag):
        return x

    with pytest.raises(OnnxExporterError, match="'x' of a symbolic has to be a constant"):
        converted(symbolic)


def test_tables_of_dtypes_agree_with_each_other() -> None:
    assert helper.cast_pytorch_to_onnx["Float"] == onnx.TensorProto.FLOAT
    assert helper.pytorch_name_to_type["Long"] is torch.int64
    assert helper.scalar_type_to_pytorch_type[11] is torch.bool
    assert helper.scalar_type_to_onnx[7] == onnx.TensorProto.DOUBLE
    assert helper._unpack_tuple(helper.SymbolicValue((1, 2)))[1].variable == 2


def test_questions_of_symbolics_that_split_and_pick_are_answered() -> None:
    seen: list[Any] = []

    def symbolic(g: Any, x: Any, others: Any, sizes: Any, flag: Any) -> Any:
        constant = g.op("Constant", value_t=torch.tensor([2, 1]))
        seen.extend((helper._is_onnx_constant(constant), helper._is_onnx_constant(x)))
        seen.extend((helper._is_split_static(sizes, 2), helper._is_split_static(sizes, None)))
        seen.extend((helper._is_split_static(x, 2), helper._node_get(constant.node(), "value").tolist()))
        seen.extend((helper.is_complex_value(x), helper.args_have_same_dtype([x, *helper._unpack_list(others)])))
        seen.extend((constant.toIValue().tolist(), x.toIValue()))
        helper.check_training_mode(0, "probe")
        picked = helper._select_helper(g, x, 2, 0)
        wide = g.op("Cast", helper._numel_helper(g, x), to_i=1)
        return g.op("Mul", g.op("Concat", *[picked] * 4, axis_i=2), wide)

    program = converted(symbolic)

    assert seen == [True, False, True, False, False, [2, 1], False, False, [2, 1], None]
    agree(program, lambda x: x[:, :, :1].expand(2, 3, 4) * 24, (X,))


@torch.library.custom_op("ts_legacy_helper::rescale", mutates_args=())
def rescale(x: Tensor, scale: float, zero_point: int) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, 0, 255)


@rescale.register_fake
def _(x: Tensor, scale: float, zero_point: int) -> Tensor:
    return torch.empty_like(x)


def test_floats_are_quantized_and_back() -> None:
    def symbolic(g: Any, x: Any, scale: Any, zero_point: Any) -> Any:
        quantized = helper.quantize_helper(g, x, scale, zero_point)
        floats, given_scale, given_zero_point, axis = helper.dequantize_helper(g, quantized)
        assert (given_scale, given_zero_point, axis) == (0.02, 128, None)
        return floats

    register_custom_op_symbolic("ts_legacy_helper::rescale", symbolic, 10)

    program = onnx_ts_legacy.export(lambda x: rescale(x, 0.02, 128), (X,), opset_version=13)

    agree(program, lambda x: torch.fake_quantize_per_tensor_affine(x, 0.02, 128, 0, 255), (X,))
    assert [node.op_type for node in program.model.graph] == ["QuantizeLinear", "DequantizeLinear"]
