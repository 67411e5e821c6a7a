"""QuantizeLinear and DequantizeLinear as native operators, in the opsets before the form that they are declared in."""

from __future__ import annotations

import onnx_ir as ir
import onnxruntime
import pytest
import torch

import onnx_fx_export
import onnx_ts_legacy
from onnxops_core import dequantize_linear, quantize_linear

EXPORTERS = {"fx": onnx_fx_export.export, "ts": onnx_ts_legacy.export}
BYTE, SIGNED, WORD = (torch.uint8, 3), (torch.int8, -2), (torch.int16, 5)


class Rounded(torch.nn.Module):
    """Rounds to integers of a dtype, and back."""

    def __init__(self, kind, scale, dtype=torch.float32, **options):
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale, dtype=dtype))
        self.register_buffer("zero_point", torch.full(self.scale.shape, kind[1], dtype=kind[0]))
        self.options = options

    def forward(self, x):
        q = quantize_linear(x, self.scale, self.zero_point, **self.options)
        return q, dequantize_linear(q, self.scale, self.zero_point, **self.options)


def operators(program):
    return {node.op_type for node in ir.traversal.RecursiveGraphIterator(program.model.graph)}


# The scales are powers of two, and the values ties: an order of the steps other than the specification's shows.
CASES = [
    (Rounded(BYTE, 0.25), 10),
    (Rounded(SIGNED, 0.5), 10),
    (Rounded(SIGNED, [0.5, 0.25, 2.0]), 13),
    (Rounded(BYTE, [0.5, 0.25, 2.0, 1.0], axis=2), 13),
    (Rounded(BYTE, 0.25, torch.float16), 19),
    (Rounded(WORD, 0.25), 21),
    (Rounded(SIGNED, [[[0.5, 2.0]] * 3] * 2, axis=2, block_size=2), 21),
]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("opset", [10, 13, 18, 19, 20, 21])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_oldest_form_that_has_what_a_call_needs(case: int, opset: int, exporter: str) -> None:
    model, lowest = CASES[case]
    is_old = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 30)
    if is_old and opset >= lowest and model.scale.dtype == torch.float16:
        pytest.skip("ONNX Runtime rounds ties of half precision away from 0 before 1.30")
    x = torch.arange(-12, 12).reshape(2, 3, 4).to(model.scale.dtype) / 8
    program = EXPORTERS[exporter](model, (x,), opset_version=opset)
    assert ({"QuantizeLinear", "DequantizeLinear"} <= operators(program)) == (opset >= lowest)
    for value in (x, 31 * x):
        for actual, expected in zip(program(value), model(value), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
