"""``torch.equal``, ``torch.allclose`` and ``torch.is_nonzero`` as the truth of a tensor, which ``if`` may ask for.

torch.export has no way to go on where they give a Python value that the data decides, whatever is done with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from numbers import Number
from typing import Any, cast

import torch

from onnxops_core.exporting import original, replaced

__all__ = ["truths_of_elements"]

_ELEMENTS = (torch.Tensor, Number, torch.SymInt, torch.SymFloat, torch.SymBool)


@contextlib.contextmanager
def truths_of_elements() -> Iterator[None]:
    """Compute them with operators in the body."""
    owners = (torch, torch.Tensor)
    truths = [(owner, f.__name__, f) for owner in owners for f in (equal, allclose, is_nonzero)]
    with replaced([*truths, (torch.Tensor, "__contains__", contains), (torch, "_assert", assert_true)]):
        yield


def equal(input: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors have the same sizes and elements."""
    return input.shape == other.shape and bool((input == other).all())


def allclose(
    input: torch.Tensor, other: torch.Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Tell whether the elements of two tensors are close."""
    return bool(torch.isclose(input, other, rtol, atol, equal_nan).all())


def is_nonzero(input: torch.Tensor) -> bool:
    """Tell whether the only element of a tensor is not zero."""
    return bool(input)


def contains(input: torch.Tensor, element: Any) -> bool | torch.Tensor:
    """Return whether a tensor has an element; Python asks for the truth of that in the code that says ``in``."""
    if isinstance(element, _ELEMENTS):
        return cast(torch.Tensor, element == input).any()
    refused: bool = original(torch.Tensor, "__contains__")(input, element)
    return refused


def assert_true(condition: bool | torch.Tensor, message: str) -> None:
    """Assert that a condition holds, which ``torch._assert`` would ask a tensor for at once."""
    if isinstance(condition, torch.Tensor):
        torch.ops.aten._assert_async.msg(condition, message)
    else:
        original(torch, "_assert")(condition, message)
