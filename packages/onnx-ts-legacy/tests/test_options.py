"""Options of an export, and what stands around it."""

from __future__ import annotations

import io

import onnx
import pytest
import torch
from ts_models import exported, run

import onnx_ts_legacy
from onnx_ts_legacy import JitScalarType, TrainingMode
from onnx_ts_legacy.errors import ArgumentsError
from onnx_ts_legacy.operators import shape_as_tensor

X = torch.randn(2, 3)


class Dropping(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.linear(x))


def saved(program: onnx_ts_legacy.TSProgram) -> onnx.ModelProto:
    file = io.BytesIO()
    program.save(file)
    return onnx.load_from_string(file.getvalue())


def test_weights_can_be_listed_as_inputs_that_override_them() -> None:
    model = torch.nn.Linear(3, 2)

    proto = saved(onnx_ts_legacy.export(model, (X,), keep_initializers_as_inputs=True))

    assert {value.name for value in proto.graph.input} == {"input", "weight", "bias"}
    assert {value.name for value in proto.graph.initializer} == {"weight", "bias"}
    (result,) = run(proto, {"input": X.numpy(), "bias": torch.zeros(2).numpy()})
    torch.testing.assert_close(torch.from_numpy(result), torch.nn.functional.linear(X, model.weight).detach())


def test_without_parameters_the_weights_are_inputs_only() -> None:
    model = torch.nn.Linear(3, 2)

    proto = saved(onnx_ts_legacy.export(model, (X,), export_params=False))

    assert len(proto.graph.initializer) == 0
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    (result,) = run(proto, {"input": X.numpy(), **weights})
    torch.testing.assert_close(torch.from_numpy(result), model(X).detach())


def test_the_mode_of_every_module_is_the_same_after_an_export() -> None:
    model = Dropping().train()
    model.dropout.eval()

    onnx_ts_legacy.export(model, (X,))

    assert [module.training for module in model.modules()] == [True, True, False]


def test_training_mode_keeps_dropout_and_evaluation_drops_it() -> None:
    kept = onnx_ts_legacy.export(Dropping(), (X,), training=TrainingMode.TRAINING)
    dropped = onnx_ts_legacy.export(Dropping(), (X,))

    assert "Dropout" in {node.op_type for node in kept.model.graph}
    assert [node.op_type for node in dropped.model.graph] == ["Gemm"]


def normalized() -> torch.nn.Sequential:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    model(torch.randn(8, 3, 6, 6) * 3 + 1)
    return model.eval()


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_batch_normalization_goes_into_the_weights_before_it(scripted: bool) -> None:
    model = torch.jit.script(normalized()) if scripted else normalized()

    program = exported(model, (torch.randn(2, 3, 6, 6),), (torch.randn(5, 3, 6, 6),), dynamic_axes={"input": {0: "n"}})

    assert [node.op_type for node in program.model.graph] == ["Conv", "Relu"]


@pytest.mark.parametrize(
    "options",
    [
        {"do_constant_folding": False},
        {"keep_initializers_as_inputs": True},
        {"export_params": False},
        {"training": TrainingMode.PRESERVE},
    ],
    ids=lambda options: next(iter(options)),
)
def test_weights_are_not_folded_where_they_have_to_stay(options: dict) -> None:
    program = onnx_ts_legacy.export(normalized(), (torch.randn(2, 3, 6, 6),), **options)

    assert [node.op_type for node in program.model.graph] == ["Conv", "BatchNormalization", "Relu"]


def test_a_model_knows_that_it_is_being_exported() -> None:
    class Asking(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if onnx_ts_legacy.is_in_onnx_export() else x - 1

    program = onnx_ts_legacy.export(Asking(), (X,))

    assert [node.op_type for node in program.model.graph] == ["Add"]
    assert not onnx_ts_legacy.is_in_onnx_export()


def test_the_readable_graph_names_weights_shapes_modules_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    text = onnx_ts_legacy.export_to_pretty_string(Dropping(), (X,), dynamic_axes={"x": {0: "n"}})
    onnx_ts_legacy.export(Dropping(), (X,), dynamic_axes={"x": {0: "n"}}, verbose=True)

    assert "input  %x : FLOAT[n,3]" in text
    assert "weight %linear.weight : FLOAT[3,3]" in text
    assert "scope: linear" in text
    assert "test_options.py:" in text
    assert capsys.readouterr().out.strip() == text


def test_exports_print_their_graphs_while_the_log_is_on(capsys: pytest.CaptureFixture[str]) -> None:
    onnx_ts_legacy.enable_log()
    try:
        onnx_ts_legacy.export(Dropping(), (X,))
        logged = capsys.readouterr().out
    finally:
        onnx_ts_legacy.disable_log()
    onnx_ts_legacy.export(Dropping(), (X,))

    assert logged.strip() == onnx_ts_legacy.export_to_pretty_string(Dropping(), (X,))
    assert capsys.readouterr().out == ""


def test_the_readable_graph_shows_branches_and_functions() -> None:
    class Choosing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Dropping()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            if bool(y.sum() > 0):
                y = torch.exp(y)
            return y

    model = torch.jit.script(Choosing())
    text = onnx_ts_legacy.export_to_pretty_string(model, (X,))
    functions = onnx_ts_legacy.export_to_pretty_string(Dropping(), (X,), export_modules_as_functions={torch.nn.Linear})

    lines = [line.strip() for line in text.splitlines()]
    branches = [lines.index("then_branch():"), lines.index("else_branch():")]
    exponential = next(index for index, line in enumerate(lines) if "= Exp(" in line)
    assert "%inner.linear.weight : FLOAT[3,3]" in text
    assert "scope: inner.linear" in text
    assert exponential - 1 in branches
    assert "= torch.nn.modules.linear::Linear(%" in functions
    assert "function torch.nn.modules.linear::Linear(%" in functions
    assert "= Gemm" in functions.partition("function ")[2]


def test_the_shape_as_a_tensor_follows_the_input() -> None:
    program = onnx_ts_legacy.export(lambda x: shape_as_tensor(x) * 2, (X,), dynamic_axes={"x": {0: "n"}})

    (result,) = program(torch.zeros(7, 3))
    assert result.tolist() == [14, 6]


@pytest.mark.parametrize(("opset", "reason"), [(6, "7 to 28"), (27, "up to 26")])
def test_opsets_outside_of_7_to_26_are_refused(opset: int, reason: str) -> None:
    with pytest.raises(ArgumentsError, match=reason):
        onnx_ts_legacy.export(Dropping(), (X,), opset_version=opset)


def test_scalar_types_translate_between_torch_torchscript_and_onnx() -> None:
    for kind in JitScalarType:
        if kind.onnx_compatible() and not kind.dtype().is_complex:
            assert JitScalarType.from_dtype(kind.dtype()) is kind
            assert JitScalarType.from_onnx_type(int(kind.onnx_type())) is kind
    assert JitScalarType.from_value(torch.zeros(1, dtype=torch.bfloat16)).scalar_name() == "BFloat16"
    assert JitScalarType.FLOAT.onnx_type() == onnx.TensorProto.FLOAT
    with pytest.raises(ArgumentsError):
        JitScalarType.from_dtype(None)


def test_the_codes_of_dtypes_are_those_that_stand_in_graphs() -> None:
    def cast(dtype: torch.dtype) -> int:
        graph = torch.jit.trace(lambda x: x.to(dtype), torch.zeros(1)).graph
        constants = [node.output().toIValue() for node in graph.nodes() if node.kind() == "prim::Constant"]
        return next(value for value in constants if isinstance(value, int) and not isinstance(value, bool))

    for dtype in (torch.uint8, torch.int64, torch.float64, torch.bool, torch.bfloat16, torch.float8_e4m3fn):
        assert cast(dtype) == int(JitScalarType.from_dtype(dtype))


def test_functions_are_found_where_published_programs_import_them_from() -> None:
    from onnx_ts_legacy.utils import (
        export,
        register_custom_op_symbolic,
        unconvertible_ops,
        unregister_custom_op_symbolic,
    )

    assert export is onnx_ts_legacy.export
    assert unconvertible_ops is onnx_ts_legacy.unconvertible_ops
    assert register_custom_op_symbolic is onnx_ts_legacy.register_custom_op_symbolic
    assert unregister_custom_op_symbolic is onnx_ts_legacy.unregister_custom_op_symbolic
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        onnx_ts_legacy.utils.nothing


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_another_version_of_the_domain_of_onnx_is_refused(domain: str) -> None:
    onnx_ts_legacy.export(torch.nn.ReLU(), (X,), opset_version=13, custom_opsets={domain: 13})

    with pytest.raises(ArgumentsError, match="opset_version=13"):
        onnx_ts_legacy.export(torch.nn.ReLU(), (X,), opset_version=13, custom_opsets={domain: 12})
