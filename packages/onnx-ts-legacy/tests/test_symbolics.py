"""Custom symbolics as they are published for torch.onnx, with the imports changed to this package."""

from __future__ import annotations

import importlib
from typing import Any

import onnx
import pytest
import torch
from onnxscript import opset17 as op
from onnxscript import script
from onnxscript.values import Opset
from torch import Tensor
from ts_models import agree, exported

import onnx_ts_legacy
from onnx_ts_legacy import OperatorExportTypes, register_custom_op_symbolic, unregister_custom_op_symbolic
from onnx_ts_legacy import symbolic_helper as sym_help
from onnx_ts_legacy.errors import ArgumentsError, OnnxExporterError, UnsupportedOperatorsError
from onnx_ts_legacy.registration import Registry, onnx_symbolic, registry
from onnx_ts_legacy.symbolic_helper import parse_args

X = torch.randn(2, 3)
AXES = {"x": {0: "n"}}
BOTH = {"x": {0: "n"}, "y": {0: "n"}}


@torch.library.custom_op("ts_legacy_symbolic::scaled_sum", mutates_args=())
def scaled_sum(x: Tensor, y: Tensor, scale: float, dims: list[int]) -> Tensor:
    return (x * scale + y).sum(dims)


@scaled_sum.register_fake
def _(x: Tensor, y: Tensor, scale: float, dims: list[int]) -> Tensor:
    return (x + y).sum(dims)


def use_scaled_sum(x: Tensor, y: Tensor) -> Tensor:
    return scaled_sum(x, y, 2.5, [1]) + 1


@parse_args("v", "v", "f", "is")
def scaled_sum_symbolic(g, x, y, scale, dims):
    factor = g.op("Constant", value_t=torch.tensor(scale))
    total = g.op("Add", g.op("Mul", x, factor), y)
    return sym_help._reducesum_helper(g, total, axes_i=dims, keepdims_i=0)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 18, 26])
def test_a_registered_symbolic_serves_its_opset_and_all_above(opset: int) -> None:
    register_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", scaled_sum_symbolic, 7)

    exported(use_scaled_sum, (X, X + 1), (torch.randn(5, 3), torch.randn(5, 3)), opset=opset, dynamic_axes=BOTH)


def test_after_unregistering_the_operator_is_unknown_again() -> None:
    register_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", scaled_sum_symbolic, 9)
    unregister_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", 9)

    with pytest.raises(UnsupportedOperatorsError, match="ts_legacy_symbolic::scaled_sum"):
        onnx_ts_legacy.export(use_scaled_sum, (X, X))


def test_a_symbolic_wins_over_the_built_in_conversion() -> None:
    def negated_relu(g, x):
        return g.op("Neg", g.op("Relu", x))

    register_custom_op_symbolic("aten::relu", negated_relu, 9)

    program = onnx_ts_legacy.export(torch.nn.ReLU(), (X,))

    agree(program, lambda x: -torch.relu(x), (X,))


def test_the_highest_symbolic_not_above_the_opset_is_used() -> None:
    table = Registry()
    for opset in (7, 9, 13):
        table.register("a::b", opset, lambda: None, only_below_base=True)
    found = {version: table.find("a::b", version) for version in range(7, 16)}

    assert len({id(found[v]) for v in (9, 10, 11, 12)}) == 1
    assert found[13] is found[15] is not found[12]
    assert found[7] not in (found[9], found[13])
    assert found[8] is found[9]


def test_the_decorator_registers_for_all_opsets_given() -> None:
    @onnx_symbolic("ts_legacy_symbolic::scaled_sum", opset=range(11, 14))
    @parse_args("v", "v", "f", "is")
    def symbolic(g, x, y, scale, dims):
        return scaled_sum_symbolic(g, x, y, scale, dims)

    assert registry.find("ts_legacy_symbolic::scaled_sum", 10) is None
    exported(use_scaled_sum, (X, X), opset=13)


@pytest.mark.parametrize("name", ["relu", "::", "a::b::c", "a b::c"])
def test_names_that_are_no_operator_are_refused(name: str) -> None:
    with pytest.raises(ArgumentsError, match="operator name"):
        register_custom_op_symbolic(name, scaled_sum_symbolic, 9)


def test_values_tell_their_type_node_and_contents() -> None:
    seen = {}

    def symbolic(g, x, y, scale, dims):
        seen["dtype"] = x.type().dtype()
        seen["scalar"] = x.type().scalarType()
        seen["sizes"] = x.type().sizes()
        seen["rank"] = sym_help._get_tensor_rank(x)
        seen["scale"] = (scale.node().kind(), sym_help._maybe_get_const(scale, "f"))
        seen["dims"] = (dims.node().kind(), sym_help._get_const(dims, "is", "dims"))
        seen["node"] = g.original_node.kind()
        result = g.op("ReduceSum", g.op("Add", x, y), keepdims_i=0, axes_i=[1])
        assert result.node().kind() == "onnx::ReduceSum"
        return result.setType(x.type().with_sizes([2]))

    register_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", symbolic, 9)
    onnx_ts_legacy.export(use_scaled_sum, (X, X), opset_version=11)

    assert seen == {
        "dtype": torch.float32,
        "scalar": "Float",
        "sizes": [2, 3],
        "rank": 2,
        "scale": ("onnx::Constant", 2.5),
        "dims": ("prim::ListConstruct", [1]),
        "node": "ts_legacy_symbolic::scaled_sum",
    }


def test_values_tell_their_names() -> None:
    names = []

    def linear(g, input, weight, bias):
        product = g.op("MatMul", input, g.op("Transpose", weight, perm_i=[1, 0]))
        names.extend(value.debugName() for value in (input, weight, bias, product))
        return g.op("Add", product, bias)

    register_custom_op_symbolic("aten::linear", linear, 9)
    program = onnx_ts_legacy.export(torch.nn.Linear(3, 2), (X,), input_names=["x"])

    matmul = next(node for node in program.model.graph if node.op_type == "MatMul")
    assert names == ["x", "weight", "bias", matmul.outputs[0].name]


def test_types_of_dynamic_values_lists_and_numbers() -> None:
    seen = {}

    def symbolic(g, x, y, scale, dims):
        seen["kinds"] = [value.type().kind() for value in (x, scale, dims)]
        seen["element"] = dims.type().getElementType().kind()
        seen["sizes"] = (x.type().sizes(), x.type().varyingSizes(), x.type().dim())
        seen["complete"] = x.isCompleteTensor()
        seen["static"] = (scale.toIValue(), scale.node().kindOf("value"), scale.node().f("value"))
        constant = g.op("Constant", value_t=torch.tensor([3, 4]))
        seen["attributes"] = (constant.node().attributeNames(), constant.node().t("value").tolist())
        seen["none"] = (x.node().mustBeNone(), x.node().hasAttribute("value"), x.node().kind())
        made = g.op("com.example::Made", x)
        seen["unknown"] = (made.type().dtype(), made.type().dim())
        declared = made.setType(x.type().with_dtype(torch.float64).with_sizes([None, 3]))
        seen["declared"] = (declared.type().dtype(), declared.type().varyingSizes(), declared.type().scalarType())
        return scaled_sum_symbolic(g, x, y, scale, dims)

    register_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", symbolic, 9)
    exported(use_scaled_sum, (X, X), (torch.ones(5, 3), torch.ones(5, 3)), input_names=["x", "y"], dynamic_axes=BOTH)

    assert seen == {
        "kinds": ["TensorType", "FloatType", "ListType"],
        "element": "IntType",
        "sizes": (None, [None, 3], 2),
        "complete": False,
        "static": (2.5, "t", 2.5),
        "attributes": (["value"], [3, 4]),
        "none": (False, False, "prim::Param"),
        "unknown": (None, None),
        "declared": (torch.float64, [None, 3], "Double"),
    }


def test_a_node_of_a_custom_domain_carries_its_version_and_attributes() -> None:
    def symbolic(g, x, y, scale, dims):
        return g.op(
            "com.example::ScaledSum", x, y, scale_f=2.5, dims_i=[1], mode_s="fast", table_t=torch.tensor([1, 2])
        )

    register_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", symbolic, 9)

    program = onnx_ts_legacy.export(use_scaled_sum, (X, X), custom_opsets={"com.example": 3})

    proto = program.model_proto
    assert {entry.domain: entry.version for entry in proto.opset_import}["com.example"] == 3
    node = proto.graph.node[0]
    values = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert (node.domain, node.op_type) == ("com.example", "ScaledSum")
    assert values["scale"] == 2.5
    assert values["dims"] == [1]
    assert values["mode"] == b"fast"
    assert onnx.numpy_helper.to_array(values["table"]).tolist() == [1, 2]


def test_a_symbolic_in_a_form_that_the_opset_does_not_have_is_refused() -> None:
    def symbolic(g, x, y, scale, dims):
        return g.op("ReduceSum", x, axes_i=[1])

    register_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", symbolic, 9)

    with pytest.raises(OnnxExporterError, match="has no attribute 'axes'"):
        onnx_ts_legacy.export(use_scaled_sum, (X, X), opset_version=13)


def test_a_symbolic_whose_result_has_another_dtype_than_the_operator_is_refused() -> None:
    def symbolic(g, x, y, scale, dims):
        return g.op("Cast", sym_help._reducesum_helper(g, x, [1], 0), to_i=int(onnx.TensorProto.DOUBLE))

    register_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", symbolic, 9)

    with pytest.raises(OnnxExporterError, match="returns FLOAT in torch, but its lowering returns DOUBLE"):
        onnx_ts_legacy.export(use_scaled_sum, (X, X))


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 20])
def test_functions_of_the_symbolic_opset_modules_can_be_called(opset: int) -> None:
    module = importlib.import_module(f"onnx_ts_legacy.symbolic_opset{opset}")

    def symbolic(g, x, y, scale, dims):
        scaled = module.mul(g, x, g.op("Constant", value_t=torch.tensor(2.5)))
        return module.relu(g, module.sum(g, module.add(g, scaled, y, 1), [1], False))

    register_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", symbolic, 9)

    program = onnx_ts_legacy.export(use_scaled_sum, (X, X), opset_version=opset)

    agree(program, lambda x, y: scaled_sum(x, y, 2.5, [1]).relu() + 1, (X, X))
    assert "relu" in dir(module)
    with pytest.raises(AttributeError, match="no_such_operator"):
        _ = module.no_such_operator


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        return x.clamp(low, high)

    @staticmethod
    def symbolic(g, x, low, high):
        return g.op(
            "Clip", x, g.op("Constant", value_t=torch.tensor(low)), g.op("Constant", value_t=torch.tensor(high))
        )


class WithContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x + 1

    @staticmethod
    def symbolic(ctx, g, x):
        assert ctx.cur_node.kind() == "prim::PythonOp"
        two = g.op("Constant", value_t=torch.tensor(2.0))
        return g.op("Mul", x, two), g.op("Add", x, g.op("Div", two, two))


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        y[0] = 3
        return y.exp()


def test_the_symbolic_of_an_autograd_function_is_used() -> None:
    program = exported(lambda x: Clip.apply(x, -0.5, 0.5) + 1, (X,), (torch.randn(4, 3),), dynamic_axes=AXES)

    assert [node.op_type for node in program.model.graph] == ["Clip", "Add"]


def test_a_symbolic_may_take_a_context_and_give_several_results() -> None:
    exported(lambda x: sum(WithContext.apply(x)), (X,))


def test_a_symbolic_for_python_operators_gets_their_name() -> None:
    def symbolic(g, x, *, name):
        assert name == "Plain"
        return g.op("Exp", x)

    register_custom_op_symbolic("prim::PythonOp", symbolic, 1)

    program = onnx_ts_legacy.export(lambda x: Plain.apply(x), (X,))

    agree(program, torch.exp, (X,))


def test_an_autograd_function_without_a_symbolic_is_inlined_or_refused() -> None:
    def model(x: Tensor) -> Tensor:
        return Plain.apply(x) + Plain.apply(x + 1)

    exported(model, (X,), (torch.randn(4, 3),), dynamic_axes=AXES)
    with pytest.raises(UnsupportedOperatorsError, match="PythonOp"):
        onnx_ts_legacy.export(model, (X,), autograd_inlining=False)


@script(Opset("com.example.functions", 1), default_opset=op)
def ScaledSum(x, y, scale: float = 2.5):
    scaled = op.Add(op.Mul(x, op.Constant(value_float=scale)), y)
    return op.ReduceSum(scaled, op.Constant(value_ints=[1]), keepdims=0)


def test_an_onnxscript_function_becomes_part_of_the_model() -> None:
    def symbolic(g, x, y, scale, dims):
        return g.onnxscript_op(ScaledSum, x, y, scale_f=2.5).setType(x.type().with_sizes([2]))

    register_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", symbolic, 9)

    program = exported(use_scaled_sum, (X, X + 1))

    assert [function.name for function in program.model.functions.values()] == ["ScaledSum"]


@pytest.mark.parametrize("opset", [9, 13, 20, 26])
def test_an_onnxscript_function_of_another_opset_is_written_at_the_one_asked_for(opset: int) -> None:
    def symbolic(g, x, y, scale, dims):
        return g.onnxscript_op(ScaledSum, x, y, scale_f=2.5)

    register_custom_op_symbolic("ts_legacy_symbolic::scaled_sum", symbolic, 9)

    program = exported(use_scaled_sum, (X, X + 1), opset=opset)

    assert not program.model.functions


def test_unconverted_operators_are_written_as_they_are_where_that_is_asked_for() -> None:
    fallthrough = onnx_ts_legacy.export(
        use_scaled_sum, (X, X), operator_export_type=OperatorExportTypes.ONNX_FALLTHROUGH
    )
    aten = onnx_ts_legacy.export(
        lambda x: torch.ops.aten._cdist_backward(x, x, x, 2.0, x) + 1,
        (X,),
        operator_export_type=OperatorExportTypes.ONNX_ATEN_FALLBACK,
    )

    nodes = [(node.domain, node.op_type) for node in (*fallthrough.model.graph, *aten.model.graph)]
    assert nodes == [
        ("ts_legacy_symbolic", "scaled_sum"),
        ("", "Add"),
        ("org.pytorch.aten", "ATen"),
        ("", "Add"),
    ]


def test_unconvertible_operators_are_listed_with_the_graph() -> None:
    graph, names = onnx_ts_legacy.unconvertible_ops(use_scaled_sum, (X, X), opset_version=17)

    assert names == ["ts_legacy_symbolic::scaled_sum"]
    assert "ts_legacy_symbolic::scaled_sum" in str(graph)


class Mutating(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.linear(x))
        y[:, 0] = 2
        return torch.cat([y, x], 1).to(torch.float64).sum(1) + torch.zeros(x.size(0))


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_every_aten_operator_is_written_as_such_where_that_is_asked_for(scripted: bool) -> None:
    model = torch.jit.script(Mutating()) if scripted else Mutating()

    program = onnx_ts_legacy.export(
        model, (X,), operator_export_type=OperatorExportTypes.ONNX_ATEN, dynamic_axes=AXES, opset_version=13
    )

    onnx.checker.check_model(program.model_proto)
    aten = [node for node in program.model.graph if node.domain == "org.pytorch.aten"]
    assert {node.op_type for node in program.model.graph if node.domain == ""} <= {"Shape", "Slice"}
    called = [(node.attributes["operator"].value, node.attributes["overload_name"].value) for node in aten]
    assert called[:2] == [("linear", ""), ("relu", "")]
    assert {("select_scatter", ""), ("cat", ""), ("to", "dtype"), ("sum", "dim_IntList"), ("add", "Tensor")} <= {
        *called
    }
    cat = next(node for node in aten if node.attributes["operator"].value == "cat")
    assert len(cat.inputs) == 3
    assert cat.inputs[2].const_value.numpy() == 1
    assert program.model.graph.outputs[0].dtype.name == "DOUBLE"


def test_a_symbolic_wins_over_the_aten_form() -> None:
    register_custom_op_symbolic("aten::relu", lambda g, x: g.op("Relu", x), 9)

    program = onnx_ts_legacy.export(
        lambda x: torch.relu(x).exp(), (X,), operator_export_type=OperatorExportTypes.ONNX_ATEN
    )

    assert [node.op_type for node in program.model.graph] == ["Relu", "ATen"]


@pytest.mark.parametrize("kind", [OperatorExportTypes.ONNX_ATEN_FALLBACK, OperatorExportTypes.ONNX_FALLTHROUGH])
def test_operators_that_can_be_converted_are_so_with_a_fallback_too(kind: OperatorExportTypes) -> None:
    model = Mutating()

    program = exported(model, (X,), (torch.randn(5, 3),), operator_export_type=kind, dynamic_axes=AXES)

    assert all(node.domain == "" for node in program.model.graph)


class AddedInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.add_(1)


@pytest.mark.parametrize("part", [slice(None), 0])
def test_a_function_that_changes_its_argument_is_refused(part: Any) -> None:
    def model(x: Tensor) -> Tensor:
        y = x.clone()
        AddedInPlace.apply(y[part])
        return y * 2

    with pytest.raises(OnnxExporterError, match=r"AddedInPlace(.|\n)*changes its argument in place"):
        onnx_ts_legacy.export(model, (X,))
