"""Calls of ``torch.onnx.export`` in all its forms, routed here by ``replace_torch_onnx``."""

from __future__ import annotations

import inspect
import io
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch.onnx import OperatorExportTypes, TrainingMode
from torch.utils import _pytree as pytree

import onnx_ts_legacy
from onnx_fx_export import InvalidArgumentError, ONNXProgram, export, replace_torch_onnx


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)

    def forward(self, x, scale=None, *, bias=None):
        x = self.dropout(self.linear(x))
        x = x if scale is None else x * scale
        return x if bias is None else x + bias


@pytest.fixture(autouse=True)
def routed():
    original = torch.onnx.export
    with replace_torch_onnx():
        yield
    assert torch.onnx.export is original


ORIGINAL = torch.onnx.export
X, S = torch.randn(2, 4), torch.tensor(3.0)
FORMS: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...], dict[str, Any]]] = {
    "a tensor": ((X,), {}, (X,), {}),
    "a tuple": (((X,),), {}, (X,), {}),
    "a list": (([X, S],), {}, (X, S), {}),
    "by keyword": ((), {"args": (X,)}, (X,), {}),
    "a dictionary at the end": (((X, {"scale": S, "bias": S}),), {}, (X,), {"scale": S, "bias": S}),
    "an empty dictionary at the end": (((X, {}),), {}, (X,), {}),
    "keyword arguments": (((X,),), {"kwargs": {"bias": S}}, (X,), {"bias": S}),
    "only keyword arguments": ((), {"kwargs": {"x": X, "bias": S}}, (), {"x": X, "bias": S}),
}


@pytest.mark.parametrize("form", FORMS)
def test_arguments_come_in_every_form(form: str) -> None:
    model = Scaled().eval()
    positional, options, args, kwargs = FORMS[form]
    program = torch.onnx.export(model, *positional, **options)
    assert isinstance(program, ONNXProgram)
    torch.testing.assert_close(program(*args, **kwargs)[0], model(*args, **kwargs).detach())


def test_a_dictionary_that_is_an_argument_stays_one() -> None:
    class Options(torch.nn.Module):
        def forward(self, x, options):
            return x * options["scale"]

    for args in ((X, {"scale": S}), (X, {"scale": S}, {})):
        program = torch.onnx.export(Options(), args)
        assert program.input_names == ["x", "options.scale"]
        torch.testing.assert_close(program(X, {"scale": S})[0], X * 3)


def saved(file: Path | bytes) -> torch.Tensor:
    session = onnxruntime.InferenceSession(file if isinstance(file, bytes) else str(file))
    return torch.from_numpy(session.run(None, {"x": X.numpy()})[0])


@pytest.mark.parametrize("how", ["a string", "a path", "by keyword", "a buffer", "an open file"])
def test_models_are_written_to_what_is_given(how: str, tmp_path: Path) -> None:
    model, path, buffer = Scaled().eval(), tmp_path / "model.onnx", io.BytesIO()
    if how == "an open file":
        with path.open("wb") as file:
            torch.onnx.export(model, (X,), file)
    elif how == "by keyword":
        torch.onnx.export(model=model, args=(X,), f=path)
    else:
        torch.onnx.export(model, (X,), {"a string": str(path), "a path": path, "a buffer": buffer}[how])
    torch.testing.assert_close(saved(buffer.getvalue() if how == "a buffer" else path), model(X).detach())


def test_external_data_has_no_place_beside_a_buffer() -> None:
    with pytest.raises(OSError, match=r"has no path\. Give a path"):
        torch.onnx.export(Scaled().eval(), (X,), io.BytesIO(), external_data=True)


def test_every_argument_of_torch_is_taken(tmp_path: Path) -> None:
    given = {
        "kwargs": {"bias": S},
        "verbose": False,
        "input_names": ["features"],
        "output_names": ["scores"],
        "opset_version": 17,
        "dynamic_shapes": {"features": {0: "batch"}, "bias": None},
        "report": True,
        "verify": True,
        "profile": True,
        "dump_exported_program": True,
        "artifacts_dir": tmp_path / "new" / "folder",
    }
    own = {name: p.default for name, p in inspect.signature(ORIGINAL).parameters.items() if p.kind is p.KEYWORD_ONLY}
    program = torch.onnx.export(Scaled().eval(), (X,), tmp_path / "model.onnx", **{**own, **given}, fallback=False)
    assert (program.input_names, program.output_names) == (["features", "bias"], ["scores"])
    assert program.model.opset_imports[""] == 17
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 3
    with pytest.raises(InvalidArgumentError, match="nonsense"):
        torch.onnx.export(Scaled(), (X,), nonsense=1)


@pytest.mark.parametrize(("training", "kinds"), [(TrainingMode.EVAL, 0), (TrainingMode.TRAINING, 1), (None, 0)])
def test_the_mode_of_the_model_is_as_asked(training, kinds: int) -> None:
    model = Scaled().train() if training is TrainingMode.EVAL else Scaled().eval()
    modes = [module.training for module in model.modules()]
    program = torch.onnx.export(model, (X,), training=training)
    assert [node.op_type for node in program.model.graph].count("Dropout") == kinds
    assert [module.training for module in model.modules()] == modes


def test_dropout_that_is_on_is_told_of() -> None:
    with pytest.warns(UserWarning, match=r"1 call\(s\) of dropout"):
        torch.onnx.export(Scaled().train(), (X,))


def test_versions_of_custom_domains_are_declared() -> None:
    class Custom(torch.nn.Module):
        def forward(self, x):
            return torch.onnx.ops.symbolic("com.example::Scale", (x,), {}, dtype=x.dtype, shape=x.shape)

    program = torch.onnx.export(Custom(), (X,), custom_opsets={"com.example": 7, "unused": 3})
    assert dict(program.model.opset_imports) == {"": 20, "com.example": 7}


@pytest.mark.parametrize(
    "option", [{"operator_export_type": OperatorExportTypes.ONNX_ATEN_FALLBACK}, {"autograd_inlining": False}]
)
def test_what_only_torchscript_can_do_is_refused(option) -> None:
    with pytest.raises(InvalidArgumentError, match="dynamo=False"):
        torch.onnx.export(Scaled().eval(), (X,), **option)


def test_the_torchscript_exporter_gets_its_arguments(tmp_path: Path) -> None:
    model = Scaled().train()
    program = torch.onnx.export(
        model,
        (X,),
        tmp_path / "model.onnx",
        dynamo=False,
        opset_version=12,
        input_names=["x"],
        training=TrainingMode.EVAL,
        keep_initializers_as_inputs=True,
        dynamic_axes={"x": {0: "batch"}},
        do_constant_folding=False,
    )
    assert isinstance(program, onnx_ts_legacy.TSProgram)
    proto = onnx.load(tmp_path / "model.onnx")
    assert proto.opset_import[0].version == 12
    assert len(proto.graph.input) == 1 + len(proto.graph.initializer) > 1
    assert "Dropout" not in [node.op_type for node in proto.graph.node]
    program = torch.onnx.export(model.eval(), (X,), dynamo=False, export_modules_as_functions={torch.nn.Linear})
    assert [function.name for function in program.model.functions.values()] == ["Linear"]


def test_a_captured_program_is_verified_on_its_own_example() -> None:
    captured = torch.export.export(Scaled().eval(), (X,), kwargs={"bias": S})
    program = torch.onnx.export(captured, verify=True)
    torch.testing.assert_close(program(X, bias=S)[0], captured.module()(X, bias=S))
    wrong = {torch.ops.aten.linear.default: lambda op, x, weight, bias: op.Add(x, bias)}
    with pytest.raises(Exception, match="does not agree"):
        torch.onnx.export(captured, verify=True, custom_translation_table=wrong)


def test_a_module_that_describes_its_own_export() -> None:
    class Described(torch.onnx.ExportableModule):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x)

        def example_arguments(self):
            return (X,), None

        def input_names(self):
            return ["features"]

        def output_names(self):
            return ["scores"]

        def dynamic_shapes(self):
            return ({0: "batch"},)

    model = Described()
    x = torch.randn(7, 4)
    for program in (torch.onnx.export(model, opset_version=18), export(model, opset_version=18), model.to_onnx()):
        assert (program.input_names, program.output_names) == (["features"], ["scores"])
        assert str(program.model.graph.inputs[0].shape[0]) == "batch"
        torch.testing.assert_close(pytree.tree_leaves(program(x)), [model(x).detach()])
    assert torch.onnx.export(model, (X,), output_names=["other"]).output_names == ["other"]


def test_what_the_observer_of_torch_onnx_saw_can_be_exported() -> None:
    model, observer = Scaled().eval(), torch.onnx.InputObserver()
    with observer(model):
        for batch in (2, 5):
            model(torch.randn(batch, 4), bias=S)
    arguments, declared = observer.infer_arguments(), observer.infer_dynamic_shapes()
    program = export(model, kwargs=arguments, dynamic_shapes=declared)
    x = torch.randn(9, 4)
    torch.testing.assert_close(program(x, bias=S), model(x, bias=S))


def test_both_names_give_the_same_model() -> None:
    model = Scaled().eval()
    ours = export(model, (X,), metadata="full")
    assert ir.to_proto(torch.onnx.export(model, (X,)).model) == ir.to_proto(ours.model)


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_symbolics_that_are_registered_with_torch_hold_for_the_torchscript_exporter(opset: int) -> None:
    from torch.onnx.symbolic_helper import parse_args

    @parse_args("v", "f", "f")
    def hardtanh(g, x, low, high):
        return g.op("Mul", x, g.op("Constant", value_t=torch.tensor(high - low)))

    model, x = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Hardtanh(-1.5, 2.0)), torch.randn(3, 4)
    registered = {"aten::relu": lambda g, x: g.op("Abs", x), "aten::hardtanh": hardtanh}
    for name, function in registered.items():
        torch.onnx.register_custom_op_symbolic(name, function, 9)
    try:
        program = torch.onnx.export(model, (x,), dynamo=False, opset_version=opset)
        untouched = export(model, (x,), dynamo=False, opset_version=opset)
    finally:
        for name in registered:
            torch.onnx.unregister_custom_op_symbolic(name, 9)
    torch.testing.assert_close(program(x)[0], x.abs() * 3.5)
    torch.testing.assert_close(untouched(x), model(x))
    torch.testing.assert_close(torch.onnx.export(model, (x,), dynamo=False)(x)[0], model(x))
