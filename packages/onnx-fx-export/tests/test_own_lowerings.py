"""Functions of onnxscript and of one's own in ``custom_translation_table``."""

from __future__ import annotations

import pytest
import torch
from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

from onnx_fx_export import export


@script(Opset("onnx_fx_export_tests", 1), default_opset=op)
def Softshrink(self, lambd: float):
    limit = op.Mul(op.Sign(self), lambd)
    kept = op.Cast(op.Greater(op.Abs(self), op.CastLike(lambd, self)), to=1)
    return op.Mul(op.Sub(self, limit), kept)


@pytest.mark.parametrize("opset", [7, 9, 13, 18, 20, 23, 26])
def test_an_onnxscript_function_takes_the_place_of_the_built_in_lowering(opset: int) -> None:
    model = torch.nn.Softshrink(0.25)
    program = export(
        model,
        (torch.randn(3, 4),),
        dynamic_shapes=({0: "n"},),
        custom_translation_table={torch.ops.aten.softshrink.default: Softshrink},
        opset_version=opset,
    )
    x = torch.randn(5, 4)
    torch.testing.assert_close(program(x), model(x))
    assert "Sign" in [node.op_type for node in program.model.graph] or opset < 9
    assert not program.model.functions
