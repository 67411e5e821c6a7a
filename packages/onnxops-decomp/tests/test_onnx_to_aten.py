"""Native ONNX operators decompose into ATen operators that compute the same, also with dynamic sizes."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import onnxops_core
from onnxops_core import native_ops
from onnxops_decomp import aten_decompositions


def test_every_native_operator_has_a_decomposition() -> None:
    assert set(native_ops()) <= set(aten_decompositions())


def test_the_operators_of_torch_have_one_too() -> None:
    table = aten_decompositions()
    assert torch.ops.onnx.Attention.opset23 in table
    assert torch.ops.onnx.RotaryEmbedding.opset23 in table


def attention(q, k, v, mask):
    return onnxops_core.attention(q, k, v, mask, softcap=3.0)[0]


def torch_rotary(x, cos, sin, position):
    return torch.onnx.ops.rotary_embedding(x, cos, sin, position)


def rms(x, scale):
    return onnxops_core.rms_normalization(x, scale)


def group_norm(x, scale, bias):
    return onnxops_core.group_normalization(x, scale, bias, num_groups=2)


CASES = {
    "attention": (
        attention,
        lambda n: (torch.randn(n, 4, 5, 8), torch.randn(n, 2, 6, 8), torch.randn(n, 2, 6, 8), torch.randn(5, 6)),
        (0, 1, 2),
    ),
    "torch rotary": (
        torch_rotary,
        lambda n: (torch.randn(n, 3, 4, 8), torch.randn(9, 4), torch.randn(9, 4), torch.arange(4).repeat(n, 1)),
        (0, 3),
    ),
    "rms": (rms, lambda n: (torch.randn(n, 3, 8), torch.randn(8)), (0,)),
    "group norm": (group_norm, lambda n: (torch.randn(n, 4, 6), torch.randn(4), torch.randn(4)), (0,)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_decomposed_program_equals_the_operator_at_other_sizes(name: str) -> None:
    function, inputs, dynamic = CASES[name]

    class Model(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    args = inputs(3)
    dims = [({0: torch.export.Dim("n")} if index in dynamic else None) for index in range(len(args))]
    program = torch.export.export(Model(), args, dynamic_shapes=(tuple(dims),))
    decomposed = program.run_decompositions(aten_decompositions())
    targets = [node.target for node in decomposed.graph.nodes if node.op == "call_function"]
    assert not [t for t in targets if getattr(t, "namespace", "aten") in ("onnxops", "onnx")]
    other = inputs(5)
    torch.testing.assert_close(decomposed.module()(*other), function(*other), rtol=1e-4, atol=1e-5)


def non_max_suppression(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return onnxops_core.non_max_suppression(boxes, scores, 5, 0.3, 0.2)


def test_non_max_suppression_decomposes_for_any_number_of_boxes() -> None:
    example = torch.rand(2, 7, 4), torch.rand(2, 3, 7)
    traced = make_fx(non_max_suppression, aten_decompositions(), tracing_mode="symbolic")(*example)
    for count in (1, 4, 20):
        inputs = torch.rand(2, count, 4), torch.rand(2, 3, count)
        torch.testing.assert_close(traced(*inputs), non_max_suppression(*inputs), rtol=0, atol=0)


def test_non_max_suppression_of_very_many_boxes_does_not_decompose() -> None:
    with pytest.raises(NotImplementedError, match="at most 1024 boxes per class"):
        make_fx(
            lambda b, s: onnxops_core.non_max_suppression(b, s, 5000, 0.3),
            aten_decompositions(),
            tracing_mode="symbolic",
        )(torch.rand(1, 7, 4), torch.rand(1, 1, 7))
