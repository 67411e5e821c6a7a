"""What a model returns beside tensors, and in which form, may depend on a size: then its program says so or refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

import onnx_ts_legacy
from onnx_fx_export import InvalidArgumentError, export


class Large(NamedTuple):
    result: torch.Tensor


class Little(NamedTuple):
    result: torch.Tensor


def counted(x: torch.Tensor, y: torch.Tensor) -> Any:
    count = 0
    while count < min(x.numel(), 4):
        count += 1
    return y + 1, count


def any_of_two(large: Callable[[torch.Tensor], Any], little: Callable[[torch.Tensor], Any]) -> Any:
    return lambda x, y: large(y + 1) if x.shape[0] > 2 else little(y + 1)


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "a count": counted,
    "a number": any_of_two(lambda y: (y, 3), lambda y: (y, 1)),
    "a size or a number": lambda x, y: (y + 1, x.shape[0] if x.shape[0] > 2 else 7),
    "a number of another class": any_of_two(lambda y: (y, 1), lambda y: (y, 1.0)),
    "a text": any_of_two(lambda y: (y, "large"), lambda y: (y, "little")),
    "none": any_of_two(lambda y: (y, None), lambda y: (y, 1)),
    "a truth value": lambda x, y: (y + 1, x.shape[0] > 2),
    "other keys": any_of_two(lambda y: {"a": y}, lambda y: {"b": y}),
    "keys in another order": any_of_two(lambda y: {"a": y, "b": y * 2}, lambda y: {"b": y * 2, "a": y}),
    "other parts": any_of_two(lambda y: ((y,), y), lambda y: (y, (y,))),
    "another class": any_of_two(Large, Little),
    "more numbers": any_of_two(lambda y: (y, [1, 1]), lambda y: (y, [1, 1, 1])),
    "more tensors": any_of_two(lambda y: [y, y], lambda y: [y, y, y]),
}


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


DIMENSIONS = {"x": {0: "n", 1: "m"}, "y": {0: "k"}}
SIZES = [(4, 3), (1, 1), (2, 1), (2, 3), (5, 5), (9, 1)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_result_has_its_form_at_every_size_or_is_refused(name: str) -> None:
    model = Model(FUNCTIONS[name])
    program = export(model, (torch.randn(4, 3), torch.randn(2)), dynamic_shapes=DIMENSIONS)
    refused = 0
    for size in SIZES:
        call = torch.randn(size), torch.randn(3)
        expected, structure = pytree.tree_flatten(model(*call))
        try:
            result = program(*call)
        except InvalidArgumentError:
            refused += 1
            continue
        actual, actual_structure = pytree.tree_flatten(result)
        assert actual_structure == structure
        assert list(map(type, actual)) == list(map(type, expected))
        torch.testing.assert_close(
            [x for x in actual if not isinstance(x, str)], [x for x in expected if not isinstance(x, str)]
        )
        assert [x for x in actual if isinstance(x, str)] == [x for x in expected if isinstance(x, str)]
    assert refused < len(SIZES) - 1


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"a text", "none"}))
def test_a_trace_gives_as_many_results_or_refuses(name: str) -> None:
    model = Model(FUNCTIONS[name])
    program = onnx_ts_legacy.export(model, (torch.randn(4, 3), torch.randn(2)), dynamic_shapes=DIMENSIONS)
    refused = 0
    for size in SIZES:
        call = torch.randn(size), torch.randn(3)
        expected = [torch.as_tensor(leaf) for leaf in pytree.tree_leaves(model(*call))]
        try:
            actual = program(*call)
        except InvalidArgumentError:
            refused += 1
            continue
        torch.testing.assert_close(list(actual), expected)
    assert refused < len(SIZES) - 1
