"""What an export as a whole promises: names, files, arguments, dynamic dimensions, errors."""

from __future__ import annotations

import io
from pathlib import Path

import onnx
import pytest
import torch
from ts_models import agree, exported

import onnx_ts_legacy
from onnx_ts_legacy.errors import (
    ArgumentsError,
    DynamicDimensionError,
    OnnxExporterError,
    OnnxExporterWarning,
    SaveError,
    StateError,
    UnsupportedOperatorsError,
    VerificationError,
)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        z = self.linear(x) * self.scale
        return z if y is None else z + y


def test_a_file_holds_the_model_with_the_names_that_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"

    onnx_ts_legacy.export(Scaled(), (torch.randn(2, 3),), path, input_names=["a"], output_names=["b"], opset_version=13)

    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["a"]
    assert [value.name for value in graph.output] == ["b"]
    assert {value.name for value in graph.initializer} == {"linear.weight", "linear.bias", "scale"}


def test_a_binary_file_object_takes_the_model() -> None:
    file = io.BytesIO()

    onnx_ts_legacy.export(Scaled(), (torch.randn(2, 3),), file)

    onnx.checker.check_model(onnx.load_model_from_string(file.getvalue()))


def test_keyword_arguments_and_a_dict_at_the_end_of_args_are_the_same() -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 4)

    by_dict = onnx_ts_legacy.export(Scaled(), (x, {"y": y}))
    by_keyword = onnx_ts_legacy.export(Scaled(), (x,), kwargs={"y": y})

    assert by_dict.input_names == by_keyword.input_names == ["x", "y"]


def test_nested_inputs_and_dict_outputs_keep_their_names() -> None:
    class Nested(torch.nn.Module):
        def forward(self, batch: dict[str, torch.Tensor], pair: tuple[torch.Tensor, torch.Tensor]) -> object:
            return {"sum": batch["x"] + pair[0], "rest": [pair[1] * 2, batch["y"]]}

    a, b, c, d = (torch.randn(2) for _ in range(4))
    program = onnx_ts_legacy.export(Nested(), ({"x": a, "y": b}, (c, d)))

    assert program.input_names == ["batch.x", "batch.y", "pair.0", "pair.1"]
    assert program.output_names == ["sum", "rest.0", "rest.1"]
    agree(program, Nested(), ({"x": d, "y": c}, (b, a)))


def test_tied_weights_are_stored_once() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(x)))

    program = exported(Tied().eval(), (torch.randn(2, 4),))

    weights = [name for name in program.model.graph.initializers if name.endswith("weight")]
    assert weights == ["first.weight"]


@pytest.mark.parametrize("axes", [{"x": {0: "batch"}}, {"x": [0]}])
def test_a_dynamic_axis_takes_other_sizes(axes: dict) -> None:
    model = Scaled()

    program = onnx_ts_legacy.export(model, (torch.randn(2, 3),), dynamic_axes=axes)

    agree(program, model, (torch.randn(1, 3),), (torch.randn(7, 3),))
    assert program.model.graph.inputs[0].shape[1] == 3
    assert not isinstance(program.model.graph.inputs[0].shape[0], int)


def test_sizes_read_from_a_traced_tensor_stay_dynamic() -> None:
    class Folded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, width = x.shape
            return x.view(batch * length, width).view(batch, -1)[:, : length // 2 + 1]

    model = Folded()

    program = onnx_ts_legacy.export(model, (torch.randn(2, 6, 4),), dynamic_axes={"x": {0: "batch", 1: "length"}})

    agree(program, model, (torch.randn(2, 6, 4),), (torch.randn(3, 9, 4),), (torch.randn(1, 1, 4),))


def test_a_dynamic_dimension_that_the_trace_fixed_is_refused_with_its_line() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(6)

    with pytest.raises(DynamicDimensionError, match=r"batch.*test_export\.py"):
        onnx_ts_legacy.export(Fixed(), (torch.randn(2, 3),), dynamic_axes={"x": {0: "batch"}})


@pytest.mark.parametrize(
    ("axes", "text"),
    [({"z": {0: "batch"}}, "'z'"), ({"x": {5: "batch"}}, "axis 5")],
)
def test_dynamic_axes_of_nothing_are_refused(axes: dict, text: str) -> None:
    with pytest.raises(ArgumentsError, match=text):
        onnx_ts_legacy.export(Scaled(), (torch.randn(2, 3),), dynamic_axes=axes)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((torch.randn(2, 3), torch.randn(2, 4), torch.randn(1)), ArgumentsError),
        ((), ArgumentsError),
        # A dict whose keys are not parameters is an argument itself.
        ((torch.randn(2, 3), {"nothing": 1}), OnnxExporterError),
    ],
)
@pytest.mark.parametrize("scripted", [False, True])
def test_arguments_that_do_not_fit_the_signature_are_refused(
    args: tuple, error: type[Exception], scripted: bool, tmp_path: Path
) -> None:
    model = torch.jit.script(Scaled()) if scripted else Scaled()
    path = tmp_path / "model.onnx"

    with pytest.raises(error):
        onnx_ts_legacy.export(model, args, path)

    assert list(tmp_path.iterdir()) == []


@torch.library.custom_op("ts_legacy_test::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@torch.library.custom_op("ts_legacy_test::riddle", mutates_args=())
def riddle(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@mystery.register_fake
@riddle.register_fake
def _like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_all_unsupported_operators_are_reported_together_with_count_and_line(tmp_path: Path) -> None:
    class Unsupported(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return mystery(riddle(mystery(x)))

    with pytest.raises(UnsupportedOperatorsError, match=r"3 call\(s\) of 2 operator") as caught:
        onnx_ts_legacy.export(Unsupported(), (torch.randn(3, 3),), tmp_path / "model.onnx")

    counts = {call.operator: call.count for call in caught.value.calls}
    assert counts == {"ts_legacy_test::mystery": 2, "ts_legacy_test::riddle": 1}
    assert all("test_export.py:" in source for call in caught.value.calls for source in call.sources)
    assert list(tmp_path.iterdir()) == []


def test_an_opset_that_cannot_express_an_operator_is_named_with_the_lowest_that_can() -> None:
    @torch.jit.script
    def head(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x[: int(n)]

    with pytest.raises(OnnxExporterError, match=r"opset 9 .*lowest opset that works is 10"):
        onnx_ts_legacy.export(head, (torch.randn(4), torch.tensor(2)), opset_version=9)


def test_a_path_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "model.onnx"

    with pytest.raises(SaveError, match="cannot be written"):
        onnx_ts_legacy.export(Scaled(), (torch.randn(2, 3),), missing)
    with pytest.raises(SaveError, match="cannot be written"):
        onnx_ts_legacy.export(Scaled(), (torch.randn(2, 3),), tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_buffer_that_the_model_changes_becomes_state_or_the_export_fails() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    model = Counting()
    with pytest.raises(StateError, match="count"):
        onnx_ts_legacy.export(model, (torch.ones(2),))

    program = onnx_ts_legacy.export(model, (torch.ones(2),), state="io")

    first, state = program(torch.ones(2))
    second, _ = program(torch.ones(2), count=state)
    assert program.output_names == ["output", "count.next"]
    assert first.tolist() == [1, 1]
    assert second.tolist() == [2, 2]
    assert model.count.tolist() == [0, 0]


def test_an_input_that_the_model_changes_is_an_output_where_that_is_asked_for() -> None:
    class Changing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) * 2

    with pytest.warns(OnnxExporterWarning, match=r"input x \(at .*test_export.py:\d+\).*state=\"io\""):
        onnx_ts_legacy.export(Changing(), (torch.ones(2),))

    program = onnx_ts_legacy.export(Changing(), (torch.ones(2),), state="io")

    result, changed = program(torch.ones(2))
    assert result.tolist() == [4, 4]
    assert changed.tolist() == [2, 2]


def test_verification_passes_a_right_model_and_refuses_a_wrong_one() -> None:
    model = Scaled()
    onnx_ts_legacy.export(model, (torch.randn(2, 3),), verify=True)

    wrong = {torch.ops.aten.relu.default: lambda op, self: op.Neg(self)}
    with pytest.raises(VerificationError, match="DISAGREES"):
        onnx_ts_legacy.export(torch.nn.ReLU(), (torch.randn(2, 3),), verify=True, custom_translation_table=wrong)
