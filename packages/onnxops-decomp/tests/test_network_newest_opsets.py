"""Network operators at the opsets that ONNX Runtime does not load yet, in ONNX's own evaluator."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "linear": (lambda x, w, b: F.linear(x, w, b), [(2, 3, 5), (4, 5), (4,)]),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ki", a, b), [(2, 3), (4, 3)]),
    "cdist": (lambda a, b: torch.cdist(a, b), [(3, 4), (2, 4)]),
    "layer_norm": (lambda x: F.layer_norm(x, (5,)), [(2, 4, 5)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (5,), w), [(2, 4, 5), (5,)]),
    "group_norm": (lambda x: F.group_norm(x, 2), [(2, 4, 5)]),
    "instance_norm": (lambda x: F.instance_norm(x), [(2, 4, 5)]),
    "batch_norm": (lambda x, m, v: F.batch_norm(x, m, v.exp()), [(2, 4, 5), (4,), (4,)]),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), [(2, 4, 6, 5), (3, 4, 3, 3)]),
    "conv_transpose": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(2, 4, 6, 5), (4, 3, 3, 3)]),
    "max_pool": (lambda x: F.max_pool2d(x, 2, return_indices=True), [(2, 4, 6, 5)]),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), [(2, 4, 6, 5)]),
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), [(2, 4, 6, 5)]),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), [(2, 4, 6, 5)]),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [(2, 4, 6, 5)]),
    "bicubic": (lambda x: F.interpolate(x, size=(3, 7), mode="bicubic"), [(2, 4, 6, 5)]),
    "antialias": (lambda x: F.interpolate(x, size=(3, 7), mode="bilinear", antialias=True), [(2, 4, 6, 5)]),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), [(2, 4, 6, 5), (2, 3, 3, 2)]),
    "affine_grid": (lambda t: F.affine_grid(t, [2, 1, 4, 5], False), [(2, 2, 3)]),
    "attention": (lambda q, m: F.scaled_dot_product_attention(q, q, q, m > 0), [(2, 4, 6, 5), (6, 6)]),
    "causal_attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), [(2, 4, 6, 5)]),
    "fake_quantize": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127), [(2, 4)]),
    "lstm": (
        lambda x, h, c, *p: torch.lstm(x, [h, c], list(p), True, 1, 0.0, False, False, False),
        [(3, 2, 4), (1, 2, 5), (1, 2, 5), (20, 4), (20, 5), (20,), (20,)],
    ),
}


@pytest.mark.parametrize("opset", [27, 28])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_newest_opsets(name: str, opset: int) -> None:
    function, shapes = FUNCTIONS[name]
    check(function, *(torch.randn(shape) for shape in shapes), opset=opset)


@pytest.mark.parametrize("opset", swept(26, 27, 28))
def test_losses_and_bags_at_the_newest_opsets(opset: int) -> None:
    check(lambda x, t: F.nll_loss(x, t), torch.randn(3, 4), torch.tensor([0, 1, 3]), opset=opset)
    check(
        lambda i, w, o: F.embedding_bag(i, w, o),
        torch.tensor([1, 2, 3]),
        torch.randn(4, 3),
        torch.tensor([0, 2]),
        opset=opset,
    )
