"""Functions of Python's ``math`` of dynamic sizes and numbers, which stay open.

Python makes a number of the example of what ``__float__`` returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.sizes.lengths import homes_of
from onnxops_core.exporting import replaced
from onnxops_decomp.exporting import MATH_FUNCTIONS, math_stand_ins

__all__ = ["math_of_sizes"]


@contextlib.contextmanager
def math_of_sizes(model: torch.nn.Module) -> Iterator[None]:
    """Let the functions of ``math`` keep symbolic numbers in the body.

    Args:
        model: The model; functions that the files of its classes import by name are replaced there.
    """
    with replaced([*math_stand_ins(homes_of(model), _is_symbolic, _of_symbols)]):
        yield


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat)


def _of_symbols(name: str, *numbers: Any) -> Any:
    """Compute a function of symbolic numbers; those that torch has no symbol for are computed in a tensor."""
    if name in ("sqrt", "isqrt"):
        root = torch.sym_sqrt(torch.sym_float(numbers[0]))
        return torch.sym_int(root) if name == "isqrt" else root
    if name == "pow":
        return torch.sym_float(numbers[0]) ** numbers[1]
    return MATH_FUNCTIONS[name](*(torch.scalar_tensor(number, dtype=torch.float64) for number in numbers)).item()
