"""What may be said of dynamic dimensions: torch's collections are read, and what makes no sense is refused."""

from __future__ import annotations

import pytest
import torch
from both_exporters import TRACING, tracing
from torch.export import AdditionalInputs, Dim, ShapesCollection

from onnxops_core import OnnxExporterError


class Sum(torch.nn.Module):
    def forward(self, *values: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return sum([*values, *named.values()])


class Pair(torch.nn.Module):
    def forward(self, x: torch.Tensor, others: dict[str, torch.Tensor]) -> torch.Tensor:
        return x + others["y"]


x, y = torch.randn(3, 4), torch.randn(3, 4)
n = Dim("n")


def collection() -> ShapesCollection:
    shapes = ShapesCollection()
    shapes[x] = {0: n}
    shapes[y] = {0: n}
    return shapes


def additional_inputs() -> AdditionalInputs:
    inputs = AdditionalInputs()
    inputs.add((torch.randn(5, 4), {"y": torch.randn(5, 4)}))
    return inputs


@tracing
@pytest.mark.parametrize("declared", [collection, additional_inputs])
def test_collections_of_torch_declare_dimensions(exporter: str, declared) -> None:
    program = TRACING[exporter](Pair(), (x, {"y": y}), dynamic_shapes=declared())
    program.answer = "structure"
    other = torch.randn(6, 4), {"y": torch.randn(6, 4)}
    torch.testing.assert_close(program(*other), Pair()(*other))


@tracing
def test_a_collection_of_other_tensors_is_refused(exporter: str) -> None:
    shapes = ShapesCollection()
    shapes[torch.randn(3, 4)] = {0: n}
    with pytest.raises(OnnxExporterError, match="does not fit the example"):
        TRACING[exporter](Pair(), (x, {"y": y}), dynamic_shapes=shapes)


@tracing
@pytest.mark.parametrize("declared", [({0: n}, {0: n}), {"values": ({0: n}, {0: n})}])
def test_variadic_arguments_have_an_entry_each(exporter: str, declared) -> None:
    if isinstance(declared, tuple):
        declared = (declared,)
    program = TRACING[exporter](Sum(), (x, y), dynamic_shapes=declared)
    program.answer = "structure"
    other = torch.randn(6, 4), torch.randn(6, 4)
    torch.testing.assert_close(program(*other), Sum()(*other))


@tracing
@pytest.mark.parametrize(
    "args, declared, message",
    [
        ((x,), ({0: n},), "one entry for each"),
        ((x,), ({0: "n"},), "one entry for each"),
        ((x,), (3,), "one entry for each"),
        ((x,), (({5: n},),), "axis 5 of a tensor of 2 dimensions"),
        ((x,), (({-3: n},),), "axis -3 of a tensor of 2 dimensions"),
        ((x,), (({"0": n},),), "axis '0' of a tensor"),
        ((x,), (({0: object()},),), "a dimension is a name, a torch.export.Dim, a number, or None"),
        ((x,), ((3,),), "one entry for each"),
        ((x, y), ({0: n}, {0: n}), "values, which holds 2 values"),
    ],
)
def test_what_describes_no_dimensions_is_refused(exporter: str, args, declared, message: str) -> None:
    with pytest.raises(OnnxExporterError, match=message):
        TRACING[exporter](Sum(), args, dynamic_shapes=declared)
