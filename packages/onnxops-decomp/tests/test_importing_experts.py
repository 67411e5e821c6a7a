"""Layers of experts as ONNX Runtime's own operators come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from importable_models import model, wanted
from onnx import helper

from onnxops_decomp import to_torch

EXPERTS, WIDTH, INNER = 4, 32, 16
GATED = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0}


def drawn(*shape: int) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * 0.3).astype(np.float32)


def assert_comes_back(op_type: str, inputs: list[str], constants: dict[str, np.ndarray], **attributes: object) -> None:
    node = helper.make_node(op_type, inputs, ["y"], domain="com.microsoft", **attributes)
    given = {"x": WIDTH, "router": EXPERTS} | ({"shares": EXPERTS} if "shares" in inputs else {})
    declared = [(name, ["t", width]) for name, width in given.items()]
    made = model([node], declared, [("y", ["t", WIDTH])], constants)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    module = to_torch(made)
    for length in (5, 3):
        feeds = {name: np.abs(drawn(length, width) * 5) for name, width in given.items()}
        (want,) = wanted(made, feeds)
        got = module(*(torch.from_numpy(feeds[name]) for name in module.meta["onnx"]["inputs"]))
        torch.testing.assert_close(got, torch.from_numpy(want), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("normalized", [0, 1])
@pytest.mark.parametrize("attributes", [GATED, {**GATED, "swiglu_limit": 0.4}, {}, {"activation_type": "gelu"}])
def test_experts_come_back(attributes: dict[str, object], normalized: int) -> None:
    pytest.importorskip("onnxruntime", minversion="1.23", reason="ONNX Runtime has these experts since 1.23")
    rows = 2 * INNER if "swiglu_fusion" in attributes else INNER
    constants = {"w": drawn(EXPERTS, rows, WIDTH), "b": drawn(EXPERTS, rows)}
    constants |= {"v": drawn(EXPERTS, WIDTH, INNER), "c": drawn(EXPERTS, WIDTH)}
    inputs = ["x", "router", *constants]
    assert_comes_back("MoE", inputs, constants, k=2, normalize_routing_weights=normalized, **attributes)


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_experts_come_back(bits: int, shares: bool) -> None:
    pytest.importorskip("onnxruntime", minversion="1.31", reason="ONNX Runtime has these experts since 1.31")
    rng = np.random.default_rng(0)
    rows, columns = 2 * INNER, [WIDTH * bits // 8, INNER * bits // 8]
    constants = {"w": rng.integers(0, 256, (EXPERTS, rows, columns[0])).astype(np.uint8)}
    constants |= {"s": np.abs(drawn(EXPERTS, rows)) * 0.02, "b": drawn(EXPERTS, rows)}
    constants |= {"v": rng.integers(0, 256, (EXPERTS, WIDTH, columns[1])).astype(np.uint8)}
    constants |= {"t": np.abs(drawn(EXPERTS, WIDTH)) * 0.02, "c": drawn(EXPERTS, WIDTH)}
    inputs = ["x", "router", *constants, *([""] * 6 + ["shares"] if shares else [])]
    settings = {"expert_weight_bits": bits, "accuracy_level": 1, "weights_prepacked": 0}
    assert_comes_back("QMoE", inputs, constants, k=2, normalize_routing_weights=1, **GATED, **settings)
