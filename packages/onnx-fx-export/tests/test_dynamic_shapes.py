"""A dimension declared dynamic is dynamic, carries its name, and is computed from the inputs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch.export import Dim

import onnx_fx_export
from onnx_fx_export import DynamicShapeError, OnnxExporterError, export


class Scorer(torch.nn.Module):
    def forward(self, x, y):
        return x.flatten(1) @ y.flatten(1).transpose(0, 1), x.reshape(-1, 2)


def example():
    return torch.randn(3, 2, 4), torch.randn(5, 2, 4)


def dims_of(program, name):
    values = [*program.model.graph.inputs, *program.model.graph.outputs]
    return [str(dim) for dim in next(value for value in values if value.name == name).shape]


@pytest.mark.parametrize(
    "declared",
    [
        {"dynamic_shapes": {"x": {0: Dim("rows")}, "y": {0: Dim("columns")}}},
        {"dynamic_shapes": {"x": {0: "rows"}, "y": {0: "columns"}}},
        {"dynamic_shapes": ({0: "rows"}, {0: "columns"})},
        {"dynamic_axes": {"x": {0: "rows"}, "y": {0: "columns"}}},
        {"dynamic_axes": {"left": {0: "rows"}, "right": {0: "columns"}}, "input_names": ["left", "right"]},
        {"dynamic_shapes": {"left": {0: "rows"}, "right": {0: "columns"}}, "input_names": ["left", "right"]},
    ],
    ids=["dims", "strings", "by position", "dynamic_axes", "dynamic_axes by input name", "by input name"],
)
def test_declared_dimensions_keep_their_names(declared) -> None:
    program = export(Scorer(), example(), output_names=["scores", "pairs"], **declared)
    assert dims_of(program, "scores") == ["rows", "columns"]
    assert dims_of(program, "pairs") == ["4*rows", "2"]
    x, y = torch.randn(7, 2, 4), torch.randn(2, 2, 4)
    for actual, expected in zip(program(x, y), Scorer()(x, y), strict=True):
        torch.testing.assert_close(actual, expected)


def test_dynamic_axes_as_a_list() -> None:
    program = export(Scorer(), example(), dynamic_axes={"x": [0], "y": [0]})
    x, y = torch.randn(7, 2, 4), torch.randn(2, 2, 4)
    torch.testing.assert_close(program(x, y)[0], Scorer()(x, y)[0])


def test_axes_get_the_names_that_torch_gives_them() -> None:
    program = export(Scorer(), example(), dynamic_axes={"x": [0], "y": {0: "columns"}}, output_names=["scores"])
    assert dims_of(program, "scores") == ["x_dynamic_axes_1", "columns"]


def test_axes_of_outputs_keep_their_own_names() -> None:
    axes = {"x": {0: "rows"}, "y": [0], "scores": {0: "rows", -1: "keys"}, "pairs": {0: "lines"}}
    program = export(Scorer(), example(), dynamic_axes=axes, output_names=["scores", "pairs"])
    assert dims_of(program, "scores") == ["rows", "keys"]
    assert dims_of(program, "pairs") == ["lines", "2"]
    x, y = torch.randn(7, 2, 4), torch.randn(2, 2, 4)
    torch.testing.assert_close(program(x, y)[0], Scorer()(x, y)[0])


def test_axes_of_outputs_that_are_not_as_declared_stay_as_they_are() -> None:
    with pytest.warns(UserWarning, match=r"Dimension 1 of output pairs is 2.*"):
        program = export(Scorer(), example(), dynamic_axes={"x": [0], "pairs": [1]}, output_names=["scores", "pairs"])
    assert dims_of(program, "pairs") == ["4*x_dynamic_axes_1", "2"]
    axes = {"x": {0: "rows"}, "pairs": {0: "rows"}}
    with pytest.warns(UserWarning, match=r"is 4\*rows, not rows"):
        program = export(Scorer(), example(), dynamic_axes=axes, output_names=["scores", "pairs"])
    assert dims_of(program, "pairs") == ["4*rows", "2"]


@pytest.mark.parametrize("axes", [{"z": [0]}, {"x": [0], "score": [0]}])
def test_axes_of_something_unknown_are_refused(axes) -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="neither an input"):
        export(Scorer(), example(), dynamic_axes=axes, output_names=["scores"])


def test_names_that_are_expressions_or_no_identifiers() -> None:
    def function(past, new, mask):
        return torch.cat([past, new], 1) * mask, past[:, 0]

    def args(*sizes):
        return (*(torch.randn(2, size) for size in sizes), torch.randn(2, sum(sizes)))

    axes = {"past": {0: "batch size", 1: "past"}, "new": {0: "batch size", 1: "new"}, "mask": {1: "past + new"}}
    axes["mask"][0] = "batch size"
    program = export(function, args(3, 4), dynamic_axes=axes)
    assert dims_of(program, "mask") == ["batch_size", "new + past"]
    torch.testing.assert_close(program(*(a := args(5, 2)))[0], function(*a)[0])


def test_one_name_for_two_sizes_is_refused() -> None:
    with pytest.raises(onnx_fx_export.DynamicShapeError, match="not n = 3"):
        export(lambda x, y: (x + 1, y + 1), (torch.ones(3), torch.ones(4)), dynamic_axes={"x": {0: "n"}, "y": {0: "n"}})


@pytest.mark.parametrize("declared", [
    {"dynamic_shapes": {"x": {0: "rows"}, "y": {0: "lines"}}},
    {"dynamic_axes": {"x": {0: "rows"}, "y": {0: "lines"}}},
])  # fmt: skip
def test_two_names_for_one_size_are_told_of_and_the_first_is_used(declared) -> None:
    with pytest.warns(UserWarning, match=r"where lines equals rows: the dimension of y \(axis 0\)") as caught:
        program = export(lambda x, y: x + y, (torch.ones(3, 2), torch.ones(3, 2)), **declared)
    assert [Path(warning.filename).name for warning in caught] == ["test_dynamic_shapes.py"]
    assert dims_of(program, "x") == dims_of(program, "y") == dims_of(program, "output") == ["rows", "2"]
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="not rows = 4"):
        program(torch.ones(4, 2), torch.ones(5, 2))


def test_two_names_for_two_sizes_need_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = export(Scorer(), example(), dynamic_shapes={"x": {0: "rows"}, "y": {0: "columns"}})
    assert [dims_of(program, name)[0] for name in ("x", "y")] == ["rows", "columns"]


def test_sizes_come_from_the_inputs_and_not_from_intermediates() -> None:
    def function(x):
        y = (x * 2).relu()
        return torch.zeros(y.shape[0] * 3 + 1)

    program = export(function, (torch.randn(4),), dynamic_shapes={"x": {0: "n"}})
    assert program(torch.randn(6)).shape == (19,)
    assert not {"Relu"} & {node.op_type for node in program.model.graph}


def test_a_fixed_dimension_fails_with_its_name() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x):
            return x + torch.ones(3, 2)

    with pytest.raises(onnx_fx_export.DynamicShapeError, match="fixed by the model"):
        export(Fixed(), (torch.randn(3, 2),), dynamic_shapes={"x": {0: Dim("rows")}})


class Halving(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2.0 if x.shape[0] % 2 else 1.0)


@pytest.mark.parametrize("size, other", [(4, 5), (5, 4)])
def test_a_condition_on_a_dim_names_the_declaration_that_takes_it(size: int, other: int) -> None:
    x = torch.randn(size, 3)
    with pytest.raises(DynamicShapeError, match=r"(?is)not accept every size.*declare the dimension") as error:
        export(Halving(), (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert "declare it static" not in str(error.value).lower()

    with pytest.warns(UserWarning, match="only some of the declared sizes"):
        program = export(Halving(), (x,), dynamic_shapes=({0: "n"},))
    torch.testing.assert_close(program(torch.ones(size + 2, 3)), Halving()(torch.ones(size + 2, 3)))
    with pytest.raises(OnnxExporterError):
        program(torch.ones(other, 3))


def test_an_unknown_input_is_refused() -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="'z'"):
        export(Scorer(), example(), dynamic_shapes={"z": {0: "rows"}})


def test_an_axis_that_does_not_exist_is_refused() -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="axis 5"):
        export(Scorer(), example(), dynamic_axes={"x": {5: "rows"}})


def test_both_declarations_at_once_are_refused() -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="not both"):
        export(Scorer(), example(), dynamic_axes={"x": [0]}, dynamic_shapes={"x": {0: "n"}, "y": None})


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_networks_keep_a_dynamic_length(kind: str) -> None:
    model = getattr(torch.nn, kind)(5, 6, num_layers=2, bidirectional=True, batch_first=True).eval()
    program = export(model, (torch.randn(2, 7, 5),), dynamic_shapes=({0: "batch", 1: "time"}, None))
    x = torch.randn(3, 11, 5)
    torch.testing.assert_close(program(x)[0], model(x)[0])


def test_sizes_that_data_decides() -> None:
    def function(x):
        return x[x > 0] * 2

    program = export(function, (torch.tensor([1.0, -1.0, 2.0]),), dynamic_shapes={"x": {0: "n"}})
    for x in (torch.tensor([-1.0, 3.0, 4.0, 5.0]), torch.tensor([-1.0, -2.0])):
        torch.testing.assert_close(program(x), function(x))


def test_as_many_places_from_the_end_as_there_are_need_no_slice() -> None:
    def function(x, part):
        return x[:, -x.shape[1] :] * 2, x[:, -part.shape[0] :]

    shapes = ({1: "n"}, {0: "m"})
    program = export(function, (torch.randn(2, 5), torch.randn(3)), dynamic_shapes=shapes)

    assert [node.op_type for node in program.model.graph].count("Slice") == 1
    for call in ((torch.randn(2, 7), torch.randn(2)), (torch.randn(2, 4), torch.randn(4))):
        torch.testing.assert_close(program(*call), function(*call))
