"""The wording of what native operators refuse, and the checks that many of them share."""

from __future__ import annotations

import math

import torch

__all__ = [
    "FLOATS",
    "check_choice",
    "check_dtype",
    "check_finite",
    "check_float",
    "check_not_negative",
    "check_same_dtype",
    "describe",
    "invalid",
]

FLOATS = frozenset({torch.float16, torch.float32, torch.float64, torch.bfloat16})


def describe(tensor: torch.Tensor) -> str:
    """Return ``"of shape (2, 3) and dtype torch.float32"``."""
    return f"of shape {tuple(tensor.shape)} and dtype {tensor.dtype}"


def invalid(op: str, argument: str, got: object, expected: str) -> ValueError:
    """Return the error for an argument that the ONNX specification forbids."""
    what = f"is a tensor {describe(got)}" if isinstance(got, torch.Tensor) else f"is {got!r}"
    return ValueError(f"{op}: {argument} {what}; expected {expected}")


def check_dtype(op: str, argument: str, tensor: torch.Tensor, allowed: frozenset[torch.dtype]) -> None:
    """Refuse a tensor whose dtype the ONNX type constraint does not list."""
    if tensor.dtype not in allowed:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in allowed))
        raise invalid(op, argument, tensor, f"a dtype out of {names}")


def check_float(op: str, argument: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is neither float16, bfloat16, float32 nor float64."""
    check_dtype(op, argument, tensor, FLOATS)


def check_same_dtype(op: str, argument: str, tensor: torch.Tensor | None, other: str, dtype: torch.dtype) -> None:
    """Refuse a tensor whose dtype differs from another argument's."""
    if tensor is not None and tensor.dtype != dtype:
        raise invalid(op, argument, tensor, f"the dtype of {other}, {dtype}")


def check_finite(op: str, argument: str, value: float) -> None:
    """Refuse NaN and the infinities."""
    if not -math.inf < value < math.inf:
        raise invalid(op, argument, value, "a finite number")


def check_not_negative(op: str, argument: str, value: float) -> None:
    """Refuse negative numbers, NaN and infinity."""
    if not 0 <= value < math.inf:
        raise invalid(op, argument, value, "a finite number that is not negative")


def check_choice(op: str, argument: str, value: object, allowed: tuple[object, ...]) -> None:
    """Refuse an attribute value that is not among those ONNX defines."""
    if value not in allowed:
        raise invalid(op, argument, value, f"one of {', '.join(repr(choice) for choice in allowed)}")
