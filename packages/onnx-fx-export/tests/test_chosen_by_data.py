"""Loops over rows that data decides, whose bodies choose modules, entries or texts by the row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onnx_fx_export import export
from onnx_fx_export.errors import CaptureError

EXPERTS = 5


class Mixture(torch.nn.Module):
    def __init__(self, function: Callable[[Mixture, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.gate = torch.nn.Linear(8, EXPERTS)
        torch.nn.init.eye_(self.gate.weight)
        self.experts = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(EXPERTS)])
        self.norms = torch.nn.ModuleDict({f"norm_{index}": torch.nn.LayerNorm(8) for index in range(EXPERTS)})
        self.scales = [0.5 * index for index in range(EXPERTS)]
        self.acts = {0: torch.relu, 2: torch.tanh, 3: torch.sigmoid}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)

    def hit(self, x: torch.Tensor) -> torch.Tensor:
        """Return the experts that some row asks for (hit,)."""
        return (self.gate(x) > 0.4).any(0).nonzero().flatten()


def a_module_of_a_list(m, x):
    weights, chosen = torch.topk(torch.softmax(m.gate(x), -1), 2)
    found = torch.zeros_like(x)
    mask = torch.nn.functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)
    for expert in torch.greater(mask.sum((-1, -2)), 0).nonzero():
        place, row = torch.where(mask[expert].squeeze(0))
        found.index_add_(0, row, m.experts[expert](x[row]) * weights[row, place, None])
    return found


def a_key_that_is_text(m, x):
    found = torch.zeros_like(x)
    for expert in m.hit(x)[:, None]:
        found = found + m.norms[f"norm_{expert[0]}"](m.experts[expert](x))
    return found


def a_key_that_is_a_number(m, x):
    found = torch.zeros_like(x)
    for expert in m.hit(x):
        found = found + m.acts.get(expert.item(), torch.neg)(x)
    return found


def numbers_of_a_list(m, x):
    found = torch.zeros_like(x)
    for expert in m.hit(x).tolist():
        found = found + m.experts[expert](x)
    return found


def an_attribute(m, x):
    found = torch.zeros_like(x)
    for expert in m.gate(x).argmax(-1).unique():
        found = found + getattr(m.norms, "norm_" + str(int(expert)))(x)
    return found


def two_numbers_of_a_row(m, x):
    found = torch.zeros_like(x)
    for row, expert in torch.nonzero(m.gate(x[:2]) > 0):
        found = found + m.experts[expert](x) * m.scales[row] + m.scales[expert]
    return found


def parts_of_a_row(m, x):
    found = torch.zeros_like(x)
    for place in torch.nonzero(m.gate(x[:2]) > 0):
        found = found + m.experts[place[-1]](x) * m.scales[place[1]] + m.scales[place[0]]
    return found


def one_of_them_left_out(m, x):
    found = torch.zeros_like(x)
    for expert in m.hit(x):
        if expert == 2:
            continue
        found = found + m.experts[expert](x)
    return found


CHOICES = [
    a_module_of_a_list,
    a_key_that_is_text,
    a_key_that_is_a_number,
    numbers_of_a_list,
    an_attribute,
    two_numbers_of_a_row,
    parts_of_a_row,
    one_of_them_left_out,
]


@pytest.mark.parametrize("function", CHOICES)
def test_what_a_row_chooses_becomes_a_way(function: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = Mixture(function).eval()

    program = export(model, (torch.randn(6, 8),), dynamic_shapes=({0: "n"},))

    assert program.capture_strategy == "row-loops"
    # None of the experts, each of them alone, and several.
    calls = [torch.full((3, 8), -2.0) for _ in range(EXPERTS + 1)]
    for index, x in enumerate(calls[:EXPERTS]):
        x[:, index] = 2
    for x in (*calls, *(torch.randn(rows, 8) for rows in (2, 3, 6, 17))):
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def less_by_one(m, x):
    hit, found = m.hit(x), torch.zeros_like(x)
    shown = hit.view(-1)
    hit.sub_(1)
    for expert in shown:
        found = found + m.experts[expert](x)
    return found


def written_in_the_body(m, x):
    found = torch.zeros_like(x)
    for expert in m.hit(x):
        expert = expert.clone()
        expert -= 1
        found = found + m.experts[expert](x)
    return found


def computed(m, x):
    found = torch.zeros_like(x)
    for expert in m.hit(x):
        found = found + m.experts[expert - 1](x)
    return found


def the_largest_of_all(m, x):
    found = torch.zeros_like(x)
    for index in (m.hit(x) * 100).max().unique():
        found = found + m.experts[index](x)
    return found


def how_many_of_each(m, x):
    found, (_, counts) = torch.zeros_like(x), m.gate(x).argmax(-1).unique(return_counts=True)
    for count in counts:
        found = found + m.scales[count]
    return found


NOT_KNOWN = [less_by_one, written_in_the_body, computed, the_largest_of_all, how_many_of_each]


@pytest.mark.parametrize("function", NOT_KNOWN)
def test_numbers_that_may_be_negative_or_large_choose_nothing(function: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(CaptureError, match=r"test_chosen_by_data\.py"):
        export(Mixture(function).eval(), (torch.randn(6, 8),), dynamic_shapes=({0: "n"},))
