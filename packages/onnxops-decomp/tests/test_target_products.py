"""Products of transposed and scaled matrices become ``FusedMatMul``, or stay as they are."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
import torch
from decomp_harness import check
from opset_sweep import swept

from onnxops_decomp.runtimes.onnxruntime.kernel_gaps import is_older

# Divided by, so that none may be close to 0 by chance.
SEEDED = torch.Generator().manual_seed(0)
A, B = torch.randn(2, 3, 5, 7, generator=SEEDED), torch.randn(2, 3, 11, 7, generator=SEEDED)
OTHERS = [
    tuple(torch.randn(*shape, generator=SEEDED) for shape in shapes)
    for shapes in (((4, 6, 8, 9), (4, 6, 12, 9)), ((1, 2, 1, 3), (1, 2, 1, 3)))
]
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]
TURNED = {"transB": 1}
# What is computed, and the attributes of each FusedMatMul.
FUSED: dict[str, tuple[Function, list[dict[str, float]]]] = {
    "the second one turned": (lambda a, b: a @ b.mT, [TURNED]),
    "the first one turned": (lambda a, b: a.mT @ (a * 2), [{"transA": 1}]),
    "both turned": (lambda a, b: a.mT @ (b @ a.mT).mT, [TURNED, {"transA": 1, "transB": 1}]),
    "multiplied": (lambda a, b: a @ b.mT * 0.25, [{**TURNED, "alpha": 0.25}]),
    "multiplied from the left": (lambda a, b: 0.25 * (a @ b.mT), [{**TURNED, "alpha": 0.25}]),
    "divided": (lambda a, b: a @ b.mT / 4, [{**TURNED, "alpha": 0.25}]),
    "multiplied alone": (lambda a, b: a @ a.reshape(*a.shape[:2], a.shape[3], -1) * 2, [{"alpha": 2.0}]),
    "a factor with a dimension": (lambda a, b: (a @ b.mT) * torch.tensor([0.25]), [{**TURNED, "alpha": 0.25}]),
    "a factor with more dimensions": (lambda a, b: (a @ b.mT) * torch.full((1, 1, 1, 1, 1), 0.25), [TURNED]),
    "a factor for each column": (lambda a, b: (a.mT @ a) * a[0, 0, 0], [{"transA": 1}]),
    "read twice": (lambda a, b: (a @ b.mT) * 2 + (a @ b.mT).exp(), [TURNED]),
    "an output": (lambda a, b: (a @ b.mT, (a @ b.mT) * 2), [TURNED]),
    "the divisor": (lambda a, b: 3 / (a @ b.mT), [TURNED]),
    "divided by zero": (lambda a, b: a @ b.mT / 0.0, [TURNED]),
    "another transposition": (lambda a, b: a.transpose(0, 1) @ b.transpose(0, 1).mT.contiguous(), []),
    "vectors": (lambda a, b: a[0, 0, 0] @ b[0, 0].mT * 2, []),
}  # fmt: skip


def attributes(model: onnx.ModelProto) -> list[dict[str, float]]:
    nodes = [node for node in model.graph.node if node.op_type == "FusedMatMul"]
    assert {node.domain for node in nodes} <= {"com.microsoft"}
    return [{a.name: onnx.helper.get_attribute_value(a) for a in node.attribute} for node in nodes]


@pytest.mark.parametrize("opset", swept(7, 13, 20, 23))
@pytest.mark.parametrize("case", FUSED)
def test_products_turn_and_scale(case: str, opset: int) -> None:
    if case == "a factor with more dimensions" and is_older(1, 23):
        pytest.skip("ONNX Runtime before 1.23 fuses such factors, and loses the dimensions")
    function, expected = FUSED[case]
    lowered = check(function, A, B, opset=opset, target="onnxruntime")
    assert attributes(lowered.proto) == expected
    # A product over a width that may be 0 is guarded, and scaled behind the guard.
    dynamic = check(function, A, B, others=OTHERS, opset=opset, target="onnxruntime")
    turns = [{name: value for name, value in each.items() if name != "alpha"} for each in expected]
    assert [each for each in attributes(dynamic.proto) if "alpha" not in each] == [each for each in turns if each]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_dtypes_without_a_kernel_stay_as_they_are(dtype: torch.dtype) -> None:
    lowered = check(lambda a, b: a @ b.mT * 0.25, A.to(dtype), B.to(dtype), target="onnxruntime")
    assert attributes(lowered.proto) == []


def test_nothing_of_it_without_the_target() -> None:
    assert attributes(check(lambda a, b: a @ b.mT * 0.25, A, B).proto) == []
