"""ONNX operators that a model calls by name, through a trace."""

from __future__ import annotations

import pytest
import torch

import onnxops_core
from onnx_ts_legacy import export
from onnx_ts_legacy.errors import UnsupportedOperatorsError


class Attention(torch.nn.Module):
    def forward(self, q):
        return onnxops_core.attention(q, q, q, is_causal=True, num_outputs=1)


class Rotary(torch.nn.Module):
    def forward(self, x, cos, sin):
        return torch.onnx.ops.rotary_embedding(x, cos, sin)


CALLS = {
    "Attention": (Attention(), (torch.randn(1, 2, 3, 4),)),
    "RotaryEmbedding": (Rotary(), (torch.randn(2, 3, 4, 8), torch.randn(2, 4, 4), torch.randn(2, 4, 4))),
}


@pytest.mark.parametrize("op_type", CALLS)
def test_a_native_operator_is_one_node(op_type: str) -> None:
    model, args = CALLS[op_type]
    program = export(model, args, opset_version=24)
    assert [node.op_type for node in program.model.graph] == [op_type]
    torch.testing.assert_close(program(*args), [model(*args)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", CALLS)
def test_below_its_opset_it_is_refused_by_name(op_type: str) -> None:
    model, args = CALLS[op_type]
    with pytest.raises(UnsupportedOperatorsError, match=rf"{op_type}.*the lowest opset that works is 23"):
        export(model, args, opset_version=18)
