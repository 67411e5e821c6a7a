"""Sizes that depend on what tensors hold: each is a size of its own, and parts of detection models that have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from ts_models import exported

from onnx_ts_legacy import export
from onnx_ts_legacy.errors import DynamicDimensionError

X, Y = torch.tensor([1.0, 2, 2, -3, 4, 0]), torch.tensor([-1.0, 3, -2, -3, -4, 0])

SELECTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "nonzero": lambda x: (x > 0).nonzero(),
    "argwhere": lambda x: torch.argwhere(x > 0),
    "where": lambda x: torch.where(x > 0)[0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "index": lambda x: x[x > 0],
    "unique": lambda x: torch.unique(x),
    "counts of unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True)[2],
    "unique_consecutive": lambda x: torch.unique_consecutive(x),
    "bincount": lambda x: torch.bincount(x.abs().long()),
    "repeat_interleave": lambda x: torch.repeat_interleave(x.abs().long()),
    "slice": lambda x: x[x.argsort()[: (x > 0).sum()]],
}


@pytest.mark.parametrize("axes", [None, {"x": {0: "n"}, "y": {0: "n"}}], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", SELECTIONS)
def test_what_is_selected_from_equal_shapes_has_sizes_of_its_own(name: str, axes: dict | None) -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = SELECTIONS[name](x), SELECTIONS[name](y)
        return first, second, torch.cat([first.reshape(-1), second.reshape(-1)]) * 2

    program = exported(both, (X, Y), (Y, X), (X, X), dynamic_axes=axes, opset=18)

    first, second, _ = program.model.graph.outputs
    assert str(first.shape[0]) != str(second.shape[0])


def boxes(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    corners = torch.rand(count, 2, generator=generator) * 4 - 1
    return torch.cat([corners, corners + torch.randn(count, 2, generator=generator)], 1)


def kept_per_image(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    kept = [b[torch.where((b[:, 2] - b[:, 0] >= 0.1) & (b[:, 3] - b[:, 1] >= 0.1))[0]] for b in (x, y)]
    first, second = torch.cat(kept, 0).split([b.shape[0] for b in kept], 0)
    return first * first[:, :1], second + 1


def pooled_by_level(x: Tensor) -> Tensor:
    sizes = torch.sqrt(((x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])).abs())
    levels = torch.floor(4 + torch.log2(sizes / 2 + 1e-6)).clamp(2, 5).to(torch.int64) - 2
    result = torch.zeros((x.shape[0], 3))
    for level in range(4):
        places = torch.where(levels == level)[0]
        result[places] = x[places][:, :3] * (level + 1)
    return result


def best_of_levels(x: Tensor) -> Tensor:
    scores = torch.cat([x[:, ::2], x[:, 1::2]], 1)
    found, offset = [], 0
    for part in scores.split([x[:, ::2].shape[1], x[:, 1::2].shape[1]], 1):
        found.append(part.topk(min(part.shape[1], 5), dim=1)[1] + offset)
        offset += part.shape[1]
    return torch.cat(found, 1)


def best_scores(x: Tensor) -> tuple[Tensor, Tensor]:
    scores = x.softmax(-1)
    labels = torch.arange(scores.shape[1]).view(1, -1).expand_as(scores)
    scores, labels = scores[:, 1:].reshape(-1), labels[:, 1:].reshape(-1)
    kept = torch.where(scores > 0.2)[0]
    scores, places = scores[kept].topk(min(3, kept.shape[0]))
    return scores, labels[kept][places]


def anchors(x: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    y, x = torch.meshgrid(torch.arange(height) * 8, torch.arange(width) * 8, indexing="ij")
    shifts = torch.stack((x.reshape(-1), y.reshape(-1), x.reshape(-1), y.reshape(-1)), 1)
    base = torch.tensor([[-8.0, -8, 8, 8], [-16, -8, 16, 8]])
    return (shifts.view(-1, 1, 4) + base.view(1, -1, 4)).reshape(-1, 4)


def clipped_and_scaled(x: Tensor, y: Tensor) -> Tensor:
    height, width = y.shape[-2:]
    clipped = torch.stack((x[..., 0::2].clamp(min=0, max=width), x[..., 1::2].clamp(min=0, max=height)), dim=x.dim())
    a, b, c, d = clipped.reshape(x.shape).unbind(1)
    return torch.stack((a * width, b * height, c * width, d * height), dim=1)


PARTS: dict[Callable[..., Any], tuple[list[tuple[Tensor, ...]], dict[str, dict[int, str]]]] = {
    kept_per_image: (
        [(boxes(7), boxes(8)), (boxes(9), boxes(30)), (boxes(8), boxes(8))],
        {"x": {0: "n"}, "y": {0: "m"}},
    ),
    pooled_by_level: ([(boxes(9),), (boxes(30),)], {"x": {0: "n"}}),
    best_of_levels: ([(torch.randn(1, 20),), (torch.randn(1, 31),)], {"x": {1: "n"}}),
    best_scores: ([(torch.randn(6, 4),), (torch.randn(20, 4),), (torch.zeros(1, 4),)], {"x": {0: "n"}}),
    anchors: ([(torch.randn(1, 3, 4, 5),), (torch.randn(1, 3, 7, 6),)], {"x": {2: "h", 3: "w"}}),
    clipped_and_scaled: (
        [(boxes(7), torch.randn(1, 3, 2, 3)), (boxes(12), torch.randn(1, 3, 1, 2))],
        {"x": {0: "n"}, "y": {2: "h", 3: "w"}},
    ),
}


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_a_part_of_a_detection_model_runs_at_other_sizes(part: Callable[..., Any], opset: int) -> None:
    examples, axes = PARTS[part]

    exported(part, *examples, dynamic_axes=axes, opset=opset)


def test_boxes_of_two_images_of_equal_static_sizes_are_told_apart() -> None:
    exported(kept_per_image, (boxes(8), boxes(8).flip(0)), (boxes(8) * 0.1, boxes(8)), (boxes(8), boxes(8) * 0.05))


def resized_and_padded(x: Tensor) -> Tensor:
    """The shorter side becomes 96, and both are filled up to multiples of 32, as detection models do."""
    scale = 96 / torch._shape_as_tensor(x)[-2:].min().float()
    y = F.interpolate(x, scale_factor=scale, mode="bilinear", recompute_scale_factor=True, align_corners=False)
    height, width = (torch._shape_as_tensor(y)[-2:].float() / 32).ceil().mul(32).long()
    return F.pad(y, [0, width - y.shape[3], 0, height - y.shape[2], 0, 0])


def test_levels_of_an_image_that_is_resized_have_sizes_of_their_own() -> None:
    weights, mean, variance = torch.randn(5, 3, 3, 3, 3) / 5, torch.randn(3) / 5, torch.rand(3) + 1

    def levels(x: Tensor) -> tuple[Tensor, ...]:
        found = [resized_and_padded(x)]
        for weight in weights:
            # torch cannot make this call for sizes that it does not know.
            normalized = F.batch_norm(found[-1], mean, variance)
            found.append(F.max_pool2d(F.conv2d(normalized, weight, stride=2, padding=1), 3, 1, 1))
        return (*found, found[1] + F.interpolate(found[2], size=found[1].shape[-2:]))

    images = [(torch.rand(1, 3, 96, 128),), (torch.rand(1, 3, 75, 48),), (torch.rand(1, 3, 32, 100),)]
    exported(levels, *images, dynamic_axes={"x": {2: "h", 3: "w"}}, opset=13)


def all_squeezed(x: Tensor) -> Tensor:
    return x.squeeze() * 2


def first_squeezed(x: Tensor) -> Tensor:
    return x.clone().squeeze_(-3) * 2


def several_squeezed(x: Tensor) -> Tensor:
    return x.squeeze([1, 0]) * 2


def others_squeezed(x: Tensor) -> Tensor:
    return x.squeeze(1).squeeze([0, 1] if x.dim() == 1 else [1])


def squeezed_copy(x: Tensor) -> Tensor:
    return torch.squeeze_copy(x) * 2


def covariance(x: Tensor) -> Tensor:
    return torch.cov(x[:, 0])


def correlation(x: Tensor) -> Tensor:
    return torch.corrcoef(x[:, 0])


SQUEEZING = [all_squeezed, first_squeezed, several_squeezed, squeezed_copy, covariance, correlation]


@pytest.mark.parametrize("capture", [lambda f: f, torch.jit.script], ids=["traced", "scripted"])
@pytest.mark.parametrize("function", SQUEEZING)
def test_a_dynamic_dimension_that_is_squeezed_is_told_of_with_its_line(function: Any, capture: Any) -> None:
    line = function.__code__.co_firstlineno + 1

    with pytest.warns(UserWarning, match=rf"squeezed at .*test_data_dependent_sizes\.py:{line}\."):
        exported(capture(function), (torch.randn(2, 1, 3),), (torch.randn(5, 1, 3),), dynamic_axes={"x": {0: "n"}})


@pytest.mark.parametrize("capture", [lambda f: f, torch.jit.script], ids=["traced", "scripted"])
@pytest.mark.parametrize("function", SQUEEZING)
def test_squeezing_a_dynamic_dimension_that_is_one_in_the_example_is_an_error(function: Any, capture: Any) -> None:
    line = function.__code__.co_firstlineno + 1
    place = rf"that is 1 in the example is squeezed.*test_data_dependent_sizes\.py:{line}"

    with pytest.raises(DynamicDimensionError, match=place):
        exported(capture(function), (torch.randn(1, 1, 3),), dynamic_axes={"x": {0: "n"}})


def test_squeezing_a_size_that_data_makes_one_in_the_example_is_an_error() -> None:
    class Zeros(torch.nn.Module):
        def forward(self, n: Tensor) -> Tensor:
            return torch.zeros(n[0], 4).squeeze(0)

    with pytest.raises(DynamicDimensionError, match="1 in the example is squeezed"):
        export(Zeros(), (torch.tensor([1]),))


def test_squeezing_dimensions_that_are_known_is_not_told_of(recwarn: pytest.WarningsRecorder) -> None:
    exported(others_squeezed, (torch.randn(2, 1, 3),), (torch.randn(1, 1, 3),), dynamic_axes={"x": {0: "n"}})

    assert [str(warning.message) for warning in recwarn if "squeezed" in str(warning.message)] == []
