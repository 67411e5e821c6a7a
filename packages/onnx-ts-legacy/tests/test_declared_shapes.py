"""``dynamic_shapes`` of torch.export, and other arguments that come with a change of the import alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import onnx_ts_legacy
from onnx_ts_legacy.errors import ArgumentsError, OnnxExporterError

X = torch.randn(2, 3)


class Nested(nn.Module):
    def forward(self, pair: tuple[Tensor, dict[str, Tensor]], scale: Tensor) -> Tensor:
        return (pair[0] + pair[1]["b"]) * scale


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
@pytest.mark.parametrize(
    "declared",
    [{"input": {0: "n"}}, ({0: "n"},), [{0: Dim("n")}], {"input": {0: Dim.DYNAMIC}}, {"x": {0: "n", 1: None}}],
    ids=["names", "tuple", "Dim", "DYNAMIC", "input_names"],
)
def test_dimensions_are_dynamic_as_declared(declared: object, scripted: bool) -> None:
    model = torch.jit.script(nn.Linear(3, 4)) if scripted else nn.Linear(3, 4)
    program = onnx_ts_legacy.export(model, [X], input_names=["x"], dynamic_shapes=declared)

    first, second = program.model.graph.inputs[0].shape
    assert str(first) == ("x_0" if "DYNAMIC" in str(declared) else "n")
    assert second == 3
    torch.testing.assert_close(program(torch.ones(7, 3))[0], model(torch.ones(7, 3)).detach())


def test_dimensions_inside_of_containers_are_dynamic() -> None:
    args = ((X, {"b": X}), torch.ones(3))
    program = onnx_ts_legacy.export(Nested(), args, dynamic_shapes={"pair": ({0: "n"}, {"b": {0: "n"}}), "scale": None})

    shapes = [str(value.shape) for value in program.model.graph.inputs]
    assert shapes == ["[n,3]", "[n,3]", "[3]"]


def test_bounds_are_conditions_of_the_program() -> None:
    n = Dim("n", min=2, max=6)
    program = onnx_ts_legacy.export(nn.ReLU(), (X,), dynamic_shapes=({0: n},))

    assert set(program.constraints.conditions) == {"n >= 2", "n <= 6"}
    with pytest.raises(OnnxExporterError, match="n <= 6"):
        program(torch.ones(7, 3))


def test_what_is_no_dimension_of_a_tensor_is_refused() -> None:
    with pytest.raises(ArgumentsError, match="factor"):
        onnx_ts_legacy.export(lambda x, factor: x * factor, (X, 2), dynamic_shapes=({0: "n"}, Dim.DYNAMIC))
    with pytest.raises(ArgumentsError, match="onnx_fx_export"):
        onnx_ts_legacy.export(nn.ReLU(), (X,), dynamic_shapes="auto")
    with pytest.raises(OnnxExporterError, match="not an input"):
        onnx_ts_legacy.export(nn.ReLU(), (X,), dynamic_shapes={"nothing": {0: "n"}})


def test_a_list_of_arguments_is_taken_as_a_tuple() -> None:
    program = onnx_ts_legacy.export(lambda x, y: x - y, [X, X * 2])
    torch.testing.assert_close(program(X, X * 2)[0], -X)


def test_a_scripted_program_that_takes_a_list_gets_it() -> None:
    @torch.jit.script
    def total(xs: list[Tensor]) -> Tensor:
        return xs[0] + xs[1]

    assert len(onnx_ts_legacy.export(total, [X, X]).input_names) == 2


def test_a_dimension_that_torch_is_to_decide_on_stays_static_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"axis 1 of x stays static.*Dim\.DYNAMIC"):
        program = onnx_ts_legacy.export(nn.ReLU(), (X,), input_names=["x"], dynamic_shapes=({0: "n", 1: Dim.AUTO},))
    assert program(torch.randn(5, 3))[0].shape == (5, 3)
    with pytest.raises(OnnxExporterError, match="size 4 along axis 1"):
        program(torch.randn(5, 4))
