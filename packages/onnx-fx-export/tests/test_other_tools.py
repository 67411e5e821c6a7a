"""Other tools' ways in and out: transformers' exporter, onnxscript's rewriter, TorchScript modules."""

from __future__ import annotations

import sys

import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from onnxscript import opset18 as op18
from onnxscript import script

import onnx_fx_export
import onnx_ts_legacy
from onnx_fx_export import InvalidArgumentError, OnnxExporterError, export, replace_torch_onnx


@script()
def doubled(x):
    return op18.Add(x, x)


@pytest.mark.filterwarnings("ignore")
def test_the_exporter_of_transformers_works_unchanged() -> None:
    exporters = pytest.importorskip("transformers.exporters.exporter_onnx")
    from transformers import BertConfig, BertModel
    from transformers.exporters.configs import OnnxConfig

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 50}
    model = BertModel(BertConfig(num_hidden_layers=1, **sizes)).eval()
    ids = torch.randint(0, 50, (2, 5))
    with replace_torch_onnx():
        model_of, _ = exporters.OnnxExporter().export_program(
            model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, OnnxConfig(dynamic=True)
        )
    assert model_of.producer_name == "onnx-fx-export"
    ids = torch.randint(0, 50, (3, 7))
    feeds = {"input_ids": ids.numpy(), "attention_mask": torch.ones_like(ids).numpy()}
    session = onnxruntime.InferenceSession(onnx_ir.to_proto(model_of).SerializeToString())
    with torch.no_grad():
        expected = model(ids, torch.ones_like(ids))[0]
    torch.testing.assert_close(torch.from_numpy(session.run(None, feeds)[0]), expected, rtol=1e-4, atol=1e-5)


def test_translations_by_onnxscript_are_used() -> None:
    x = torch.randn(3)
    with replace_torch_onnx():
        program = torch.onnx.export(
            torch.nn.ReLU(), (x,), custom_translation_table={torch.ops.aten.relu.default: doubled}
        )
    torch.testing.assert_close(program(x), (x + x,))


def test_a_translation_of_an_unknown_operator_has_to_be_callable() -> None:
    with replace_torch_onnx(), pytest.raises(InvalidArgumentError, match="mine::unknown"):
        torch.onnx.export(torch.nn.ReLU(), (torch.ones(2),), custom_translation_table={"mine::unknown": lambda x: x})


def test_onnxscript_rewrites_the_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    x = torch.randn(2, 3, 4)
    program = export(model, (x,), optimize="onnxscript", dynamic_shapes=({0: "batch"},))
    onnx.checker.check_model(program.model_proto, full_check=True)
    x = torch.randn(5, 3, 4)
    torch.testing.assert_close(program(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_another_optimizer_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'fast'"):
        export(torch.nn.ReLU(), (torch.ones(2),), optimize="fast")


def test_a_missing_onnxscript_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(OnnxExporterError, match="pip install onnxscript"):
        export(torch.nn.ReLU(), (torch.ones(2),), optimize="onnxscript")


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.randn(2, 4))])
def test_torchscript_modules_go_to_the_other_exporter(make) -> None:
    model = torch.nn.Linear(4, 2).eval()
    program = export(make(model), (torch.randn(2, 4),), dynamic_axes={"input": {0: "batch"}})
    assert isinstance(program, onnx_ts_legacy.TSProgram)
    x = torch.randn(5, 4)
    torch.testing.assert_close(program(x), model(x).detach(), rtol=1e-5, atol=1e-6)


def test_a_scripted_function_goes_there_too() -> None:
    @torch.jit.script
    def function(x: torch.Tensor, limit: float) -> torch.Tensor:
        if bool(x.sum() > limit):
            return x + 1
        return x - 1

    program = export(function, (torch.ones(3), 2.0), dynamic_axes={"x": {0: "n"}}, input_names=["x"])
    assert isinstance(program, onnx_ts_legacy.TSProgram)
    for x in (torch.ones(5), -torch.ones(2)):
        torch.testing.assert_close(program(x, 2.0), function(x, 2.0))


def test_dynamic_shapes_hold_for_the_other_exporter() -> None:
    shapes = {"input": {0: torch.export.Dim("batch"), 1: torch.export.Dim.DYNAMIC}}
    program = export(torch.nn.ReLU(), (torch.randn(2, 4),), dynamic_shapes=shapes, dynamo=False)
    assert [isinstance(dim, int) for dim in program.model.graph.inputs[0].shape] == [False, False]


def test_numbers_cannot_be_dynamic_there() -> None:
    with pytest.raises(InvalidArgumentError, match="dimensions of tensors"):
        export(lambda x, n: x * n, (torch.ones(2), 3), dynamic_shapes={"x": None, "n": "n"}, dynamo=False)


def test_without_the_other_exporter_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx_ts_legacy", None)
    with pytest.raises(onnx_fx_export.OnnxExporterError, match="pip install onnx-ts-legacy"):
        export(torch.jit.script(torch.nn.ReLU()), (torch.ones(2),))


def test_a_traced_graph_of_fx_is_a_model() -> None:
    module = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()))
    program = export(module, (torch.randn(2, 4),), dynamic_shapes=({0: "batch"},))
    x = torch.randn(5, 4)
    torch.testing.assert_close(program(x), module(x).detach())
