"""What an exported program is: right numbers, the asked opset, torch's structure, readable names."""

from __future__ import annotations

from typing import NamedTuple

import onnx
import pytest
import torch
from torch.export import Dim

import onnx_fx_export
from onnx_fx_export import export


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 15, 17, 18, 20, 21, 23, 24, 25, 26])
def test_the_requested_opset_is_delivered(opset: int) -> None:
    model = Mlp()
    program = export(model, (torch.randn(2, 6),), opset_version=opset)
    declared = {entry.domain: entry.version for entry in program.model_proto.opset_import}
    assert declared == {"": opset}
    x = torch.randn(2, 6)
    torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("opset", [6, 29])
def test_an_opset_out_of_range_is_refused(opset: int) -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="7 to 28"):
        export(Mlp(), (torch.randn(2, 6),), opset_version=opset)


def test_a_single_tensor_may_stand_for_the_arguments() -> None:
    model = Mlp()
    x = torch.randn(2, 6)
    torch.testing.assert_close(export(model, x)(x), model(x))


def test_a_function_is_a_model() -> None:
    def function(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale

    program = export(function, (torch.ones(3), 2.5))
    assert program.input_names == ["x"]
    torch.testing.assert_close(program(torch.ones(3), 2.5), torch.full((3,), 2.5))


def test_a_captured_program_is_a_model() -> None:
    model = Mlp()
    captured = torch.export.export(model, (torch.randn(2, 6),), dynamic_shapes=({0: Dim("n")},))
    x = torch.randn(5, 6)
    program = export(captured)
    assert program.input_names == ["x"]
    torch.testing.assert_close(program(x), model(x))


def test_a_captured_program_gives_names_by_its_structure() -> None:
    example = ((torch.ones(2), torch.ones(2)), {"scale": torch.tensor(2.0)})
    program = export(torch.export.export(Nested(), example))
    assert program.input_names == ["pair.0", "pair.1", "options.scale"]


class Point(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Nested(torch.nn.Module):
    def forward(self, pair, options, *, flag=None):
        left, right = pair
        total = left + right * options["scale"]
        return {"total": total, "parts": [left, (right, None)], "input": left, "same": total, "number": 3}


def test_nested_inputs_and_outputs_keep_their_structure() -> None:
    example = ((torch.ones(2), torch.ones(2)), {"scale": torch.tensor(2.0)})
    program = export(Nested(), example)
    other = ((torch.arange(2.0), torch.ones(2)), {"scale": torch.tensor(3.0)})
    actual, expected = program(*other), Nested()(*other)
    assert actual.keys() == expected.keys()
    torch.testing.assert_close(actual["total"], expected["total"])
    torch.testing.assert_close(actual["parts"][1][0], expected["parts"][1][0])
    torch.testing.assert_close(actual["input"], expected["input"])
    torch.testing.assert_close(actual["same"], expected["same"])
    assert actual["parts"][1][1] is None
    assert actual["number"] == 3


def test_names_follow_the_structure() -> None:
    example = ((torch.ones(2), torch.ones(2)), {"scale": torch.tensor(2.0)})
    program = export(Nested(), example)
    assert program.input_names == ["pair.0", "pair.1", "options.scale"]
    assert program.output_names == ["total", "parts.0", "parts.1.0", "input", "same", "number"]


def test_named_tuples_give_their_field_names() -> None:
    def function(point):
        return Point(point.right * 2, point.left)

    program = export(function, (Point(torch.ones(2), torch.zeros(3)),))
    assert program.input_names == ["point.left", "point.right"]
    result = program(Point(torch.ones(2), torch.full((3,), 4.0)))
    assert isinstance(result, Point)
    torch.testing.assert_close(result.left, torch.full((3,), 8.0))


def test_names_can_be_given() -> None:
    program = export(Mlp(), (torch.randn(2, 6),), input_names=["features"], output_names=["scores"])
    assert program.input_names == ["features"]
    assert program.output_names == ["scores"]


def test_too_many_names_are_refused() -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="input_names"):
        export(Mlp(), (torch.randn(2, 6),), input_names=["a", "b"])
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="output_names"):
        export(Mlp(), (torch.randn(2, 6),), output_names=["a", "b"])


def test_keyword_arguments_may_come_in_any_order() -> None:
    class Difference(torch.nn.Module):
        def forward(self, *, a, b):
            return a - b

    program = export(Difference(), (), kwargs={"a": torch.ones(2), "b": torch.zeros(2)})
    torch.testing.assert_close(program(b=torch.ones(2), a=torch.zeros(2)), torch.full((2,), -1.0))


def test_weights_are_views_of_the_model() -> None:
    model = Mlp()
    program = export(model, (torch.randn(2, 6),))
    weight = program.model.graph.initializers["first.weight"].const_value
    assert weight is not None
    assert weight.raw.data_ptr() == model.first.weight.data_ptr()


def test_tied_weights_are_stored_once() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    model = Tied()
    program = export(model, (torch.tensor([1, 2]),))
    sizes = [value.const_value.size for value in program.model.graph.initializers.values()]
    assert sizes.count(40) == 1
    ids = torch.tensor([3, 9])
    torch.testing.assert_close(program(ids), model(ids))


def test_nodes_say_where_they_come_from() -> None:
    program = export(Mlp(), (torch.randn(2, 6),))
    metadata = [node.metadata_props for node in program.model.graph]
    assert {entry["onnxops.fx_node"] for entry in metadata} == {"linear", "relu", "linear_1"}
    modules = {entry["onnxops.fx_node"]: entry.get("onnxops.module") for entry in metadata}
    assert modules == {"linear": "first", "relu": None, "linear_1": "second"}
    relu = next(node for node in program.model.graph if node.op_type == "Relu")
    assert relu.metadata_props["onnxops.source"].split(":")[0].endswith("test_export.py")


def test_the_model_passes_the_checker() -> None:
    onnx.checker.check_model(export(Mlp(), (torch.randn(2, 6),)).model_proto, full_check=True)


def test_a_translation_of_your_own_wins() -> None:
    def relu_as_max(op, self):
        return op.Max(self, 0.0)

    program = export(Mlp(), (torch.randn(2, 6),), custom_translation_table={torch.ops.aten.relu.default: relu_as_max})
    assert "Max" in [node.op_type for node in program.model.graph]
    assert "Relu" in [node.op_type for node in export(Mlp(), (torch.randn(2, 6),)).model.graph]


def test_no_grad_regions_are_part_of_the_model() -> None:
    class Region(torch.nn.Module):
        def forward(self, x):
            with torch.no_grad():
                y = x * 2
            return y + x

    x = torch.randn(3)
    torch.testing.assert_close(export(Region(), (torch.ones(3),))(x), x * 3)


def test_cond_becomes_if() -> None:
    class Choice(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t * t - 1, (x,))

    program = export(Choice(), (torch.ones(3),))
    assert "If" in [node.op_type for node in program.model.graph]
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(program(x), Choice()(x))


def test_half_precision_models_run() -> None:
    model = Mlp().half()
    program = export(model, (torch.randn(2, 6).half(),), dynamic_shapes=({0: "rows"},))
    x = torch.randn(5, 6).half()
    torch.testing.assert_close(program(x), model(x), rtol=1e-2, atol=1e-2)


@torch.library.custom_op("onnx_fx_export_tests::window", mutates_args=())
def window(x: torch.Tensor, width: int, weight: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    y = x[:, :width].clone()
    return y if weight is None else y * weight, x.sum(1)


@window.register_fake
def _(x, width, weight=None):
    return x.new_empty(x.shape[0], width), x.new_empty(x.shape[0])


def lower_window(op, x, width, weight=None):
    y = op.Slice(x, [0], [width], [1])
    return y if weight is None else op.Mul(y, weight), op.ReduceSum(x, [1], keepdims=0)


@pytest.mark.parametrize("opset", [9, 13, 20, 23])
def test_an_operator_of_your_own_is_written_as_its_lowering_says(opset: int) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(3))

        def forward(self, x):
            left, total = window(x, 2)
            return left, window(x, 3, self.weight)[0], total * 2

    table = {torch.ops.onnx_fx_export_tests.window.default: lower_window}
    shapes = {"x": {0: "rows", 1: torch.export.Dim("columns", min=3)}}
    options = {"dynamic_shapes": shapes, "custom_translation_table": table, "opset_version": opset}
    program = export(Model(), (torch.randn(2, 4),), **options)
    x, model = torch.randn(5, 7), Model()
    model.load_state_dict(program.exported_program.state_dict)
    for actual, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(actual, expected)


def test_numbers_that_are_outputs_of_dynamic_sizes() -> None:
    def function(x):
        return x + 1, x.shape[0] * 2

    program = export(function, (torch.ones(3),), dynamic_shapes={"x": {0: "n"}})
    _, count = program(torch.ones(5))
    assert int(count) == 10
