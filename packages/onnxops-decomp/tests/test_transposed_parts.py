"""Parts of a transposed tensor are split before it is transposed, where one of them gates what is transposed back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from decomp_harness import check

X, W = torch.randn(2, 5, 12), torch.randn(4, 1, 3)
OTHERS = [(torch.randn(*shape, 12), W) for shape in ((1, 1), (3, 8))]
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]


def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv1d(torch.nn.functional.pad(x, (2, 0)), w, groups=4)


def gated(x: torch.Tensor, w: torch.Tensor, gate: int = 1) -> torch.Tensor:
    parts = [*x.mT.chunk(3, 1)]
    gating = parts.pop(gate)
    return gating * convolved(parts[0] * parts[1], w)


def added(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first, second, third = x.mT.split([4, 4, 4], -2)
    return (convolved(first + second, w) + third).mT


def over_channels(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first, second, third = x[..., None].permute(2, 3, 0, 1).chunk(3)
    mean = (second * third).mean(0, keepdim=True)
    return (mean.expand(first.shape) * first).permute(2, 3, 0, 1).squeeze(-1)


LATER: dict[str, Function] = {
    "the first gates": lambda x, w: gated(x, w, 0).mT,
    "the second gates": lambda x, w: gated(x, w).mT,
    "the last gates": lambda x, w: gated(x, w, 2).mT,
    "added": added,
    "other axes": over_channels,
}


def gating_read_twice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first, second, third = x.mT.chunk(3, 1)
    return (first * convolved(second * third, w)).mT + first.exp().mT


def read_apart(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first, second, third = x.mT.chunk(3, 1)
    return (first * convolved(second, w)).mT + third.exp().mT


def whole_read(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return gated(x, w).mT, x.mT + 1


def gated_is_a_result(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    result = gated(x, w)
    return result, result.mT


def product_is_a_result(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first, second, third = x.mT.chunk(3, 1)
    product = second * third
    return (first * convolved(product, w)).mT, product


def broadcast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first, second, third = x.mT.chunk(3, 1)
    return (first * (second * third).amax(1, keepdim=True)).mT


def not_back(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first, second, third = x.permute(2, 0, 1).chunk(3)
    return (first * (second * third).exp()).permute(2, 0, 1)


AS_THEY_ARE: dict[str, Function] = {
    "the gate is read twice": gating_read_twice,
    "parts are read apart": read_apart,
    "the whole is read": whole_read,
    "what is gated is a result": gated_is_a_result,
    "what is read is a result": product_is_a_result,
    "broadcast": broadcast,
    "another order": not_back,
}


def positions(model: object) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type in ("Split", "Transpose")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", LATER)
def test_parts_are_split_first(case: str) -> None:
    static = check(LATER[case], X, W, opset=18, target="onnxruntime")
    assert positions(static.proto) == ["Split", "Transpose", "Transpose"]
    # With as many channels as the input has, nothing says that their parts have those of the weight.
    check(LATER[case], X, W, others=OTHERS, opset=18, target="onnxruntime")


@pytest.mark.parametrize("case", AS_THEY_ARE)
def test_others_stay_as_they_are(case: str) -> None:
    static = check(AS_THEY_ARE[case], X, W, opset=18, target="onnxruntime")
    assert positions(static.proto)[0] == "Transpose"
    check(AS_THEY_ARE[case], X, W, others=OTHERS, opset=18, target="onnxruntime")
