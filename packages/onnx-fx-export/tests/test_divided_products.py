"""Products whose columns go different ways become one product for each, where that is faster."""

from __future__ import annotations

import onnx
import pytest
import torch
from language_models import language_model
from test_finish_generation import operators

import onnx_fx_export
from onnx_fx_export.generation import export_folder
from onnxops_decomp.exporting import DivideWideProducts

BATCH = torch.export.Dim("batch")


class Gated(torch.nn.Module):
    def __init__(self, parts: tuple[int, ...], *, bias: bool = True, keeps: bool = False) -> None:
        super().__init__()
        self.parts, self.keeps = parts, keeps
        self.joined = torch.nn.Linear(8, sum(parts), bias=bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = self.joined(x)
        first, *others = whole.split(self.parts, -1)
        result = torch.nn.functional.silu(first), *(other * 2 for other in others)
        return (*result, whole + 1) if self.keeps else result


def exported(model: torch.nn.Module) -> tuple[onnx_fx_export.ONNXProgram, bool]:
    x = torch.randn(2, 3, 8)
    program = onnx_fx_export.export(model, (x,), dynamic_shapes=({0: BATCH},), target="onnxruntime")
    return program, DivideWideProducts()(program.model).modified


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("parts", [(12, 12), (12, 9, 30)])
def test_wide_parts_have_products_of_their_own(parts: tuple[int, ...], bias: bool, tmp_path) -> None:
    model = Gated(parts, bias=bias).eval()
    program, modified = exported(model)

    assert modified
    assert operators(program).count("MatMul") == len(parts)
    assert "Split" not in operators(program)
    for weights in (None, Gated(parts, bias=bias)):
        if weights is not None:
            model.load_state_dict(weights.state_dict())
            program.apply_weights(model.state_dict())
        program.save(tmp_path / "model.onnx", external_data=True)
        onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
        for batch in (1, 5):
            x = torch.randn(batch, 3, 8)
            torch.testing.assert_close(tuple(program(x)), model(x))


@pytest.mark.parametrize("model", [Gated((8, 12)), Gated((12, 12), keeps=True)], ids=["narrow", "read as a whole"])
def test_others_stay_one_product(model: torch.nn.Module) -> None:
    program, modified = exported(model.eval())

    assert not modified
    assert operators(program).count("MatMul") == 1
    x = torch.randn(4, 3, 8)
    torch.testing.assert_close(tuple(program(x)), model(x))


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_gates_of_language_models_are_products_of_their_own(precision: str, tmp_path) -> None:
    folder = export_folder(language_model("phi3"), tmp_path / "out", precision, engine="onnxruntime")

    nodes = [node.op_type for node in onnx.load(folder.path / "model.onnx", load_external_data=False).graph.node]
    assert "QuickGelu" in nodes
    assert "Split" not in nodes
    assert {compared.tokens for compared in folder.compared} == {64}
