"""Sequences behind each other in one tensor, taken apart at lengths that the data decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onnx_fx_export import OnnxExporterError, export
from onnx_fx_export.inputs.arguments import FunctionModule

DIMS = ({0: "rows"}, {0: "pieces"})
LENGTHS = ([3, 4], [5], [1, 2, 3], [2, 0, 2, 1])


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        return self.function(x, lengths)


def attended(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    parts = [torch.split(tensor, lengths.tolist(), dim=0) for tensor in (x, x + 1, x * 2)]
    found = [F.scaled_dot_product_attention(q[None], k[None], v[None])[0] for q, k, v in zip(*parts, strict=True)]
    return torch.cat(found, dim=0).reshape(x.shape[0], -1) + x


def asked_in_vain(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """A question whose answer changes nothing, but that a condition becomes a flag."""
    found = []
    for part in x[None].split(lengths.tolist(), dim=1):
        is_causal = part.shape[1] > 1 and x.dim() > 4
        part = part * 2 if part.shape[1] == 1 and is_causal else part + 1
        found.append(F.scaled_dot_product_attention(part, part, part, is_causal=is_causal))
    return torch.cat(found, dim=1)[0]


def along_columns(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.softmax(1) for part in x.T.split(lengths.tolist(), dim=1)], dim=-1)


def summed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.stack([part.sum(0) for part in x.split(lengths.tolist())], dim=1)


def two_rows_each(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    parts = []
    for part in torch.split(x, lengths.tolist()):
        parts.append(torch.stack([part.sum(0), part.new_ones(4) * part.shape[0]]))
    return torch.cat(parts)


def as_they_were(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(x.split(lengths.tolist()))) * 2


def in_layers(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = torch.cat([part - part.sum(0) for part in x.split(lengths.tolist())])
        x = torch.relu(x) + x.sum()
    return x


def at_bounds(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    bounds = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return torch.cat([part.cumsum(0) for part in x.split((bounds[1:] - bounds[:-1]).tolist())])


@pytest.mark.parametrize(
    "function", [attended, asked_in_vain, along_columns, summed, two_rows_each, as_they_were, in_layers, at_bounds]
)
def test_pieces_of_any_number_and_length(function: Callable[..., Any]) -> None:
    model, double = Model(function), torch.float64  # sums that cancel leave little of single precision
    program = export(model, (torch.randn(7, 4, dtype=double), torch.tensor([3, 4])), dynamic_shapes=DIMS)
    for lengths in LENGTHS:
        call = torch.randn(sum(lengths), 4, dtype=double), torch.tensor(lengths)
        torch.testing.assert_close(program(*call), model(*call))


def numbered(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([part * number for number, part in enumerate(x.split(lengths.tolist()))])


def one_after_the_other(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    total, parts = x.new_zeros(4), []
    for part in x.split(lengths.tolist()):
        total = total + part.sum(0)
        parts.append(part + total)
    return torch.cat(parts)


def first_alone(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x.split(lengths.tolist())[0]


def until_one_is_found(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    for part in x.split(lengths.tolist()):
        return part.sum(0)
    return x


def counted(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x * len(x.split(lengths.tolist()))


def counted_lengths(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x * len(lengths.tolist())


def reversed_pieces(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([*x.split(lengths.tolist())][::-1])


def lengths_alone(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x * sum(length * length for length in lengths.tolist())


def long_pieces(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.flip(0) for part in x.split(lengths.tolist()) if part.shape[0] > 1])


def otherwise_if_short(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([part if part.shape[0] > 2 else part * 0 for part in x.split(lengths.tolist())])


def otherwise_if_two(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([part if part.shape[0] != 2 else part * 0 for part in x.split(lengths.tolist())])


def causal_if_long(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    parts = x[None].split(lengths.tolist(), dim=1)
    return torch.cat([F.scaled_dot_product_attention(p, p, p, is_causal=p.shape[1] > 2) for p in parts], dim=1)


def constant_by_length(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    parts = x.split(lengths.tolist())
    return torch.cat([part * torch.tensor([2.0 if part.shape[0] > 1 else 3.0]) for part in parts])


def scalar_by_length(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([part * (2.0 if part.shape[0] > 1 else 3.0) for part in x.split(lengths.tolist())])


def by_their_lengths(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    sizes = lengths.tolist()
    return torch.stack([part.sum(0) for part, size in zip(x.split(sizes), sizes, strict=True) if size >= 3])


def written(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for part in x.split(lengths.tolist()):
        out[0] += part.sum(0)
    return out


@pytest.mark.parametrize(
    "function",
    [
        *(numbered, one_after_the_other, first_alone, until_one_is_found, counted, counted_lengths, reversed_pieces),
        *(lengths_alone, long_pieces, otherwise_if_short, otherwise_if_two, causal_if_long),
        *(constant_by_length, scalar_by_length, by_their_lengths, written),
    ],
)
def test_what_is_not_the_same_for_each_piece_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(OnnxExporterError):
        export(Model(function), (torch.randn(7, 4), torch.tensor([3, 4])), dynamic_shapes=DIMS)


# ---- pieces of one size, of a dimension whose size is dynamic


def of_four(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.softmax(1) for part in x.split(4, 1)], 1)


def of_four_by_keyword(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.cumsum(1) for part in torch.split(x, split_size_or_sections=4, dim=-2)], dim=1)


def means(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([part.sum(1) for part in x.split(4, 1)], 1)


def padded_pieces(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([F.pad(part, (0, 0, 0, 4 - part.shape[1])) for part in x.split(4, 1)], 1)


def of_two_tensors(x: torch.Tensor) -> torch.Tensor:
    found = []
    for part, other in zip(x.split(4, 1), (x + 1).split(4, 1), strict=True):
        found.append(F.scaled_dot_product_attention(part, other, other))
    return torch.cat(found, dim=1)


def twice(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([part - part.sum(1, keepdim=True) for part in of_four(x).split(3, 1)], 1)


def with_new_tensors(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([part @ torch.ones(3, 2) + torch.arange(2) for part in x.split(4, 1)], 1)


def between_others(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:, :1], *(part * 2 for part in x.split(4, 1)), x], 1)


def between_other_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[:, 0], *(part.sum(1) for part in x.split(4, 1))], 1)


EVEN = [of_four, of_four_by_keyword, means, padded_pieces, of_two_tensors, twice, with_new_tensors]


@pytest.mark.parametrize("function", [*EVEN, between_others, between_other_rows])
@pytest.mark.parametrize("example", [8, 9])
def test_pieces_of_one_size_with_a_rest(function: Callable[..., Any], example: int) -> None:
    program = export(FunctionModule(function), (torch.randn(2, example, 3),), dynamic_shapes=({0: "batch", 1: "n"},))
    for size in (1, 2, 3, 4, 5, 7, 8, 9, 12, 15):
        x = torch.randn(3, size, 3)
        torch.testing.assert_close(program(x), function(x))


@pytest.mark.parametrize("function", [means, lambda x: torch.stack([part.sum(1) for part in x.chunk(4, 1)], 1)])
def test_as_many_pieces_as_there_are(function: Callable[..., Any]) -> None:
    x = torch.randn(2, 9, 3)
    program = export(FunctionModule(function), (x,), dynamic_shapes=({1: "n"},), strategy="open-sizes")
    for size in range(14):
        x = torch.randn(2, size, 3)
        torch.testing.assert_close(program(x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.split(4, 1)[0] * 2,
        lambda x: x * len(x.split(4, 1)),
        lambda x: torch.cat([part * place for place, part in enumerate(x.split(4, 1))], 1),
        lambda x: sum(part.sum(1) for part in x.split(4, 1)),
        lambda x: torch.cat([*reversed([*x.split(4, 1)])], 1),
        lambda x: next(iter(x.split(4, 1))) + 1,
        lambda x: torch.cat([part * number for number, part in zip((1, 2), x.split(8, 1), strict=True)], 1),
        lambda x: torch.cat([a.sum(1, keepdim=True) * b for a, b in zip(x.split(8, 1), x.split(5, 1), strict=True)], 1),
    ],
)
def test_what_differs_between_pieces_of_one_size_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(OnnxExporterError):
        export(FunctionModule(function), (torch.randn(2, 9, 3),), dynamic_shapes=({0: "batch", 1: "n"},))
