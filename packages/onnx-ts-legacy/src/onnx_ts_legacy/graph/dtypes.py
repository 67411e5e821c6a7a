"""TorchScript's integer codes of dtypes (``c10::ScalarType``), and arguments that are such codes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["QUANTIZED_DTYPES", "argument_converters", "dtype_of_code", "scalar_type_code"]

_NAMES: tuple[str | None, ...] = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64"),
)
_DTYPES: dict[int, torch.dtype] = {
    code: getattr(torch, name) for code, name in enumerate(_NAMES) if name and hasattr(torch, name)
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
QUANTIZED_DTYPES = (torch.qint8, torch.quint8, torch.qint32)
_MEMORY_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


def dtype_of_code(code: int | torch.dtype) -> torch.dtype:
    """Return the dtype that a TorchScript integer stands for."""
    return code if isinstance(code, torch.dtype) else _DTYPES[code]


def scalar_type_code(dtype: torch.dtype) -> int:
    """Return the integer that TorchScript has for a dtype."""
    return _CODES[dtype]


def _memory_format(code: Any) -> Any:
    return _MEMORY_FORMATS[code] if isinstance(code, int) else code


def _layout(code: Any) -> Any:
    return torch.strided if code == 0 else code


@functools.cache
def argument_converters(overload: torch._ops.OpOverload) -> dict[int, Callable[[Any], Any]]:
    """Return, by position, what turns TorchScript's integers for dtypes and layouts into torch's own."""
    kinds: dict[str, Callable[[Any], Any]] = {
        "ScalarType": dtype_of_code,
        "MemoryFormat": _memory_format,
        "Layout": _layout,
    }
    found: dict[int, Callable[[Any], Any]] = {}
    for index, argument in enumerate(overload._schema.arguments):
        text = str(argument.real_type)
        for kind, convert in kinds.items():
            if kind in text:
                found[index] = convert
    return found
