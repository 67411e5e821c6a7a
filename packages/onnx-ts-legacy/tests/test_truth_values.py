"""Truth values of Python where operators take numbers are in traces what they are to PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from ts_models import exported

X = torch.tensor([1.0, -1.0, 2.0])


def in_place(x: Tensor) -> Tensor:
    mask = (x > 0).clone()
    mask &= True
    mask |= False
    mask[1:] = True
    return mask.fill_(True) ^ mask


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "and": lambda x: (x > 0) & True,
    "and, reflected": lambda x: True & (x > 0),
    "or, reflected": lambda x: False | (x > 0),
    "xor": lambda x: (x > 0) ^ True,
    "and of integers": lambda x: x.int() & True,
    "in place": in_place,
    "chosen for a tensor": lambda x: torch.where(x > 0, x, True),
    "chosen before a tensor": lambda x: torch.where(x > 0, False, x),
    "chosen from two": lambda x: torch.where(x > 0, True, False),
    "chosen from two classes": lambda x: torch.where(x > 0, True, 2),
    "filled mask": lambda x: (x > 0).masked_fill(x > 1, True),
    "filled numbers": lambda x: x.clone().masked_fill_(x > 0, False),
    "filled rows": lambda x: torch.index_fill(x > 0, 0, torch.tensor([0]), True),
    "scattered": lambda x: torch.scatter(x > 0, 0, torch.tensor([0, 1]), True),
    "full": lambda x: torch.full((2,), True),
    "full, by name": lambda x: torch.full((2,), fill_value=True),
    "full of numbers": lambda x: torch.full((2,), True, dtype=torch.float32),
    "fill": lambda x: torch.fill(x, True) + torch.fill(x > 0, value=True) + torch.fill(x, 2) + torch.fill(x, x[0]),
    "full like numbers": lambda x: torch.full_like(x, True),
    "full like a mask": lambda x: torch.full_like(x > 0, True),
    "new full": lambda x: x.new_full((2,), True),
    "scalar": lambda x: torch.scalar_tensor(True),
    "bounds": lambda x: x.clamp(False, True),
    "one bound": lambda x: torch.clip(x, max=True),
    "power": lambda x: x**True,
    "base": lambda x: True**x,
    "factor of a mask": lambda x: (x > 0) * True,
    "quotient of a mask": lambda x: (x > 0) / True,
    "rounded quotient": lambda x: True // (x.int() + 5),
    "remainder": lambda x: True % (x.int() + 5),
    "factor of a sum": lambda x: torch.add(x > 0, x > 1, alpha=True),
    "activation": lambda x: F.hardtanh(x, False, True),
    "flags": lambda x: x.unsqueeze(0).sum(0, True) + x.sort(0, True)[0],
}


@pytest.mark.parametrize("call", CALLS)
def test_a_truth_value_is_recorded(call: str) -> None:
    exported(CALLS[call], (X,))


CHOICES: dict[str, Callable[[Tensor], Tensor]] = {
    "quotient": lambda x: torch.where(x > 0, x.shape[0] / 2, 0),
    "quotient, last": lambda x: torch.where(x > 0, 0, x.shape[0] / 2),
    "size and fraction": lambda x: torch.where(x > 0, x.shape[0], 1.5),
    "size and quotient": lambda x: torch.where(x > 0, x.shape[0] / 2, x.shape[0]),
    "size": lambda x: torch.where(x > 0, x.shape[0], 0),
    "size and truth": lambda x: torch.where(x > 0, x.shape[0], True),
    "truths": lambda x: torch.where(x > 0, x.shape[0] > 2, True),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_between_numbers_is_a_tensor_of_their_dtype(choice: str) -> None:
    exported(CHOICES[choice], (X,), (X[:2],), dynamic_axes={"x": {0: "n"}})
