"""Where an opset has one operator for a call, the call becomes that node; below, others give the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

import onnxops_core

# Operator -> the opset that brought it, a call, the shapes of its tensors.
FUSED: dict[str, tuple[int, Callable[..., Any], list[tuple[int, ...]]]] = {
    "AffineGrid": (20, lambda t: F.affine_grid(t, [2, 1, 4, 5], False), [(2, 2, 3)]),
    "Attention": (23, lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [(2, 4, 6, 8)] * 3),
    "CumProd": (26, lambda x: x.cumprod(1), [(2, 4)]),
    "CumSum": (11, lambda x: x.cumsum(1), [(2, 4)]),
    "DFT": (17, lambda x: torch.fft.rfft(x), [(2, 6)]),
    "Einsum": (12, lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 3, 4), (2, 5, 4)]),
    "Gelu": (20, lambda x: F.gelu(x), [(2, 4)]),
    "GridSample": (16, lambda x, g: F.grid_sample(x, g, align_corners=False), [(2, 3, 4, 5), (2, 3, 3, 2)]),
    "GroupNormalization": (21, lambda x, w, b: F.group_norm(x, 2, w, b), [(2, 4, 6), (4,), (4,)]),
    "HardSwish": (14, lambda x: F.hardswish(x), [(2, 4)]),
    "LayerNormalization": (17, lambda x, w, b: F.layer_norm(x, (6,), w, b), [(2, 4, 6), (6,), (6,)]),
    "Mish": (18, lambda x: F.mish(x), [(2, 4)]),
    "RMSNormalization": (23, lambda x, w: F.rms_norm(x, (6,), w, 1e-5), [(2, 4, 6), (6,)]),
    "Round": (11, lambda x: torch.round(x), [(2, 4)]),
    "Swish": (24, lambda x: F.silu(x), [(2, 4)]),
    "Trilu": (14, lambda x: torch.tril(x), [(2, 4)]),
}
# ONNX Runtime has no kernel there, and expands the operator by a definition that it cannot run.
NO_KERNEL = {("Swish", opset) for opset in range(25, 29)}


@pytest.mark.parametrize("opset", swept(9, 11, 12, 13, 14, 16, 17, 18, 20, 21, 22, 23, 24, 25, 26, 27, 28))
@pytest.mark.parametrize("op_type", FUSED)
def test_a_call_is_one_operator_from_the_opset_on_that_has_it(op_type: str, opset: int) -> None:
    first, function, shapes = FUSED[op_type]
    lowered = check(function, *(torch.randn(shape) for shape in shapes), opset=opset)
    fused = opset >= first and (op_type, opset) not in NO_KERNEL
    assert lowered.op_types().count(op_type) == fused


@pytest.mark.parametrize("op_type", FUSED)
def test_the_change_lies_between_two_neighbouring_opsets(op_type: str) -> None:
    first, function, shapes = FUSED[op_type]
    tensors = [torch.randn(shape) for shape in shapes]
    below, above = (check(function, *tensors, opset=opset).op_types() for opset in (first - 1, first))
    assert op_type not in below
    assert op_type in above
    assert onnx.defs.has(op_type, first)
    # Deprecated forms (GroupNormalization of opset 18) do not count.
    assert not onnx.defs.has(op_type, first - 1) or onnx.defs.get_schema(op_type, first - 1).deprecated


def test_rotary_embedding_is_one_node_from_opset_23_on() -> None:
    args = (torch.randn(2, 4, 6, 8), torch.randn(9, 4), torch.randn(9, 4), torch.arange(6).repeat(2, 1))
    for opset in (13, 22, 23, 26):
        lowered = check(lambda *tensors: onnxops_core.rotary_embedding(*tensors), *args, opset=opset)
        assert ("RotaryEmbedding" in lowered.op_types()) == (opset >= 23)


def test_tensor_scatter_is_one_node_from_opset_24_on() -> None:
    args = (torch.randn(2, 3, 8, 4), torch.randn(2, 3, 2, 4), torch.tensor([1, 4]))
    for opset in (13, 23, 24, 26):
        lowered = check(lambda *tensors: onnxops_core.tensor_scatter(*tensors), *args, opset=opset)
        assert ("TensorScatter" in lowered.op_types()) == (opset >= 24)
