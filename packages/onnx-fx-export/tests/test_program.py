"""What can be done with an exported program besides running it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import onnx_fx_export
import onnx_ts_legacy
from onnx_fx_export import export
from onnx_fx_export.errors import InvalidArgumentError, RuntimeSupportError
from onnx_fx_export.sizes.constraints import CONSTRAINTS_KEY


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


@pytest.fixture
def program():
    return export(mlp(), (torch.randn(2, 3, 4),), dynamic_shapes={"input": {0: "batch"}})


def test_weights_can_be_replaced_by_a_state_dict(program) -> None:
    other = mlp()
    x = torch.randn(2, 3, 4)
    assert not torch.allclose(program(x), other(x))
    assert program.apply_weights({**other.state_dict(), "unknown": torch.ones(1)}) == ["unknown"]
    torch.testing.assert_close(program(x), other(x))


@pytest.mark.parametrize("kind", ["checkpoint", "safetensors"])
def test_weights_can_be_replaced_from_a_file(program, kind: str, tmp_path: Path) -> None:
    other = mlp()
    if kind == "checkpoint":
        path = tmp_path / "weights.pt"
        torch.save({"state_dict": other.state_dict()}, path)
    else:
        from safetensors.torch import save_file

        path = tmp_path / "weights.safetensors"
        save_file(other.state_dict(), path)
    assert program.apply_weights(path) == []
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(program(x), other(x))


def test_a_weight_of_another_shape_replaces_nothing(program) -> None:
    x = torch.randn(2, 3, 4)
    before = program(x)
    state = {"0.bias": torch.ones(4), "2.bias": torch.ones(3)}
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match=r"2\.bias"):
        program.apply_weights(state)
    torch.testing.assert_close(program(x), before)


def test_axes_can_be_renamed() -> None:
    def function(x):
        return x.view(-1, 4) + (1 if x.shape[0] > 3 else 2)

    program = export(function, (torch.ones(8, 2),), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}})
    dim = program.model.graph.inputs[0].shape[0]
    symbol = dim.value
    program.rename_axes({dim: "lines"})
    program.rename_axes({"lines": "rows"})
    assert str(program.model.graph.inputs[0].shape[0]) == "rows"
    assert "rows" in str(program.model.graph.outputs[0].shape[0])
    assert all(symbol not in text for text in json.loads(program.model.metadata_props[CONSTRAINTS_KEY]))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="rows"):
        program(torch.ones(2, 2))


def test_an_axis_that_only_an_output_has_can_be_renamed() -> None:
    program = export(lambda x: x[x > 0], (torch.tensor([1.0, -1.0]),), dynamic_shapes={"x": {0: "n"}})
    program.rename_axes({program.model.graph.outputs[0].shape[0]: "found"})
    assert str(program.model.graph.outputs[0].shape[0]) == "found"
    assert program(torch.tensor([1.0, 2.0, -3.0])).shape == (2,)


def test_an_unknown_axis_is_refused(program) -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="'rows'"):
        program.rename_axes({"rows": "lines"})


def test_values_inside_the_model_can_be_computed(program) -> None:
    x = torch.randn(5, 3, 4)
    state = program.exported_program.state_dict
    expected = torch.relu(torch.nn.functional.linear(x, state["0.weight"], state["0.bias"]))
    output, relu, again, entered = program.compute_values(["output", "relu", "relu", "input"], (x,))
    torch.testing.assert_close(relu, expected)
    torch.testing.assert_close(again, expected)
    torch.testing.assert_close(output, program(x))
    assert entered is x


def test_values_are_computed_for_keyword_arguments() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x, *, scale):
            return torch.relu(x) * scale

    program = export(Scaled(), (torch.randn(3),), kwargs={"scale": torch.tensor(2.0)}, dynamic_shapes={"x": {0: "n"}})
    x = torch.randn(5)
    torch.testing.assert_close(program.compute_values(["relu"], (x,), {"scale": torch.tensor(3.0)}), [torch.relu(x)])


def test_a_value_that_is_not_in_the_model_is_refused(program) -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="'gelu'"):
        program.compute_values(["gelu"], (torch.randn(2, 3, 4),))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="axis 1"):
        program.compute_values(["relu"], (torch.randn(2, 5, 4),))


def test_the_session_is_made_as_asked(program) -> None:
    import onnxruntime

    x, made = torch.randn(5, 3, 4), []
    expected = program(x)

    def initializer(model: bytes):
        made.append(model)
        return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    program.initialize_inference_session(initializer)
    torch.testing.assert_close(program(x), expected)
    assert [type(model) for model in made] == [bytes]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 5  # no such level
    with pytest.raises(RuntimeError):
        program.initialize_inference_session(sess_options=options)


class Lookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(5, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rows(ids) * 2


@pytest.mark.parametrize("export_model", [export, onnx_ts_legacy.export])
def test_a_failure_of_the_runtime_names_the_node_and_the_line(export_model) -> None:
    program = export_model(Lookup(), (torch.tensor([1, 2]),), dynamic_shapes=[{0: "n"}])
    with pytest.raises(RuntimeSupportError, match=r"failed in Gather \(\S+, at .*\.py:\d+\) for ids \[3\]: .*bounds"):
        program(torch.tensor([1, 5, 2]))
    with pytest.raises(RuntimeSupportError, match=r"call_reference\(\) runs the model"):
        program.run({"ids": torch.tensor([7])})
    assert program.run({"ids": torch.tensor([4])})[program.output_names[0]].shape == (1, 2)


@pytest.mark.parametrize("export_model", [export, onnx_ts_legacy.export])
@pytest.mark.parametrize("sizes", [(-1, 1), (2, -1), (1, -1, 3)])
def test_an_open_size_beside_no_rows_is_right(export_model, sizes: tuple[int, ...]) -> None:
    class Split(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(1, sizes)

    program = export_model(Split(), (torch.randn(2, 6),), dynamic_shapes=[{0: "n"}])
    for rows in (0, 1, 3):
        x = torch.randn(rows, 6)
        found = program.run({program.input_names[0]: x})[program.output_names[0]]
        torch.testing.assert_close(found, x.unflatten(1, sizes))


@pytest.mark.parametrize("use", ["call", "session", "values"])
def test_without_a_runtime_the_error_says_what_to_install(program, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    x = torch.randn(2, 3, 4)
    with pytest.raises(onnx_fx_export.OnnxExporterError, match="pip install onnxruntime"):
        {"call": lambda: program(x), "session": program.initialize_inference_session,
         "values": lambda: program.compute_values(["relu"], (x,))}[use]()  # fmt: skip


def test_the_reference_evaluator_runs_the_model(program, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 3, 4)
    expected = program(x)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    torch.testing.assert_close(program.call_reference(x), expected)
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="axis 1"):
        program.call_reference(torch.randn(5, 2, 4))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16, torch.int32, torch.bool])
def test_the_reference_evaluator_keeps_dtypes_and_structure(dtype: torch.dtype) -> None:
    def function(x):
        return {"same": x, "rows": x.shape[0], "turned": x.transpose(0, 1)}

    program = export(function, (torch.ones(2, 3, dtype=dtype),), dynamic_shapes={"x": {0: "n"}})
    x = (torch.randn(5, 3) * 4).to(dtype)
    actual = program.call_reference(x)
    assert actual["rows"] == 5
    torch.testing.assert_close(actual["turned"], x.transpose(0, 1))


def test_a_released_program_still_runs(program) -> None:
    x = torch.randn(5, 3, 4)
    expected = program(x)
    program.release()
    assert (program.exported_program, program.lowered_program) == (None, None)
    torch.testing.assert_close(program(x), expected)


def test_a_program_is_optimized_later() -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(8))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

    shapes = {"x": {0: "n"}}
    program = export(Norm(), (torch.randn(3, 8),), opset_version=23, dynamic_shapes=shapes, optimize=False)
    x = torch.randn(5, 8)
    expected = program(x)
    assert len(program.model.graph) > 1
    program.optimize()
    assert [node.op_type for node in program.model.graph] == ["RMSNormalization"]
    torch.testing.assert_close(program(x), expected)


def test_a_program_verifies_itself_at_other_sizes(program) -> None:
    program.verify(torch.randn(5, 3, 4))
    program.apply_weights({"0.bias": torch.full((4,), 9.0)})
    with pytest.raises(onnx_fx_export.VerificationError):
        program.verify(torch.randn(5, 3, 4))


def test_a_released_program_cannot_be_verified(program) -> None:
    program.release()
    with pytest.raises(onnx_fx_export.OnnxExporterError, match="released"):
        program.verify(torch.randn(5, 3, 4))


def test_arguments_go_by_position_or_by_keyword_as_in_torch() -> None:
    class Difference(torch.nn.Module):
        def forward(self, x, y, *, scale=None):
            return x - 2 * y if scale is None else (x - 2 * y) * scale

    x, y = torch.randn(3), torch.randn(3)
    captured = torch.export.export(Difference(), (x, y))
    for program in (
        export(Difference(), (x, y)),
        export(Difference(), (x,), kwargs={"y": y}),
        export(Difference(), kwargs={"y": y, "x": x}),
        export(captured),
    ):
        for args, kwargs in (((x, y), {}), ((x,), {"y": y}), ((), {"y": y, "x": x})):
            torch.testing.assert_close(program(*args, **kwargs), x - 2 * y)
            program.verify(*args, **kwargs)
        with pytest.raises(InvalidArgumentError, match=r"exported for the arguments .*y.*, not \(x\)"):
            program(x)
        with pytest.raises(InvalidArgumentError, match=r"not \(x, y, scale=\)"):
            program(x, y, scale=x)
        with pytest.raises(InvalidArgumentError, match="argument x was exported as one value"):
            program((x,), y=y)


def test_keywords_of_a_captured_program_have_no_positions() -> None:
    x, y = torch.randn(3), torch.randn(3)
    program = export(torch.export.export(torch.nn.Bilinear(3, 3, 2), (), {"input2": y, "input1": x}))
    with pytest.raises(InvalidArgumentError, match=r"arguments \(input2=, input1=\)"):
        program(x, y)


def test_further_arguments_are_counted() -> None:
    class Collects(torch.nn.Module):
        def forward(self, x, *others):
            return x - 2 * others[0]

    x, y = torch.randn(3), torch.randn(3)
    program = export(Collects(), (x, y))
    torch.testing.assert_close(program(x, y), x - 2 * y)
    with pytest.raises(InvalidArgumentError, match=r"\(x, \*\), not \(x, \*, \*\)"):
        program(x, y, y)


@pytest.mark.parametrize(("given", "message"), [
    (torch.ones(2, 3, dtype=torch.float64), "torch.float64, the model takes torch.float32"),
    (torch.ones(2, 3, dtype=torch.int64), "torch.int64, the model takes torch.float32"),
    (None, "takes a tensor"),
    ("text", "takes a tensor"),
])  # fmt: skip
def test_arguments_of_other_dtypes_are_refused(given, message: str) -> None:
    program = export(torch.nn.Identity(), (torch.ones(2, 3),))
    with pytest.raises(InvalidArgumentError, match=message):
        program.run({"input": given})


def test_arrays_and_whole_numbers_are_taken() -> None:
    program = export(lambda x, factor: x * factor, (torch.ones(3), 2.5), dynamic_shapes=(None, "factor"))
    for x in (torch.arange(3.0), np.arange(3, dtype=np.float32)):
        torch.testing.assert_close(program(x, 3), torch.arange(3.0) * 3)


@pytest.mark.parametrize(
    ("opset", "message"),
    [("17", "whole number"), (17.0, "whole number"), (True, "whole number")],
)
def test_an_opset_is_a_whole_number(opset, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        export(torch.nn.ReLU(), (torch.ones(2),), opset_version=opset)
