"""The table between ``torch.dtype`` and ONNX ``TensorProto.DataType`` integers.

Source: the ``DataType`` enumeration of ``onnx.proto`` (IR version 13). The integers are fixed by the format,
so the table needs no ``onnx`` package.

``INT4``, ``UINT4``, ``INT2`` and ``UINT2`` have torch dtypes that name them, but torch computes nothing in
them: the native operators hold such values one per element in the *carrier* dtype (``int8`` or ``uint8``).
``FLOAT4E2M1`` has a torch dtype that packs two values in a byte.
"""

from __future__ import annotations

from typing import cast

import torch

__all__ = [
    "ONNX_TO_TORCH",
    "TORCH_TO_ONNX",
    "carrier_dtype",
    "is_onnx_dtype",
    "onnx_dtype",
    "onnx_dtype_name",
    "torch_dtype",
]

_NAMES = {
    0: "UNDEFINED",
    1: "FLOAT",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: "STRING",
    9: "BOOL",
    10: "FLOAT16",
    11: "DOUBLE",
    12: "UINT32",
    13: "UINT64",
    14: "COMPLEX64",
    15: "COMPLEX128",
    16: "BFLOAT16",
    17: "FLOAT8E4M3FN",
    18: "FLOAT8E4M3FNUZ",
    19: "FLOAT8E5M2",
    20: "FLOAT8E5M2FNUZ",
    21: "UINT4",
    22: "INT4",
    23: "FLOAT4E2M1",
    24: "FLOAT8E8M0",
    25: "UINT2",
    26: "INT2",
    27: "FLOAT6E2M3",
    28: "FLOAT6E3M2",
}

# torch's type stubs do not list its sub-byte integers.
_UINT4, _INT4, _UINT2, _INT2 = (cast(torch.dtype, getattr(torch, name)) for name in ("uint4", "int4", "uint2", "int2"))

TORCH_TO_ONNX: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.uint16: 4,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.uint32: 12,
    torch.uint64: 13,
    torch.complex64: 14,
    torch.complex128: 15,
    torch.bfloat16: 16,
    torch.float8_e4m3fn: 17,
    torch.float8_e4m3fnuz: 18,
    torch.float8_e5m2: 19,
    torch.float8_e5m2fnuz: 20,
    _UINT4: 21,
    _INT4: 22,
    torch.float4_e2m1fn_x2: 23,
    torch.float8_e8m0fnu: 24,
    _UINT2: 25,
    _INT2: 26,
}
"""Every torch dtype that ONNX can hold, with its ``TensorProto.DataType`` integer."""

ONNX_TO_TORCH: dict[int, torch.dtype] = {number: dtype for dtype, number in TORCH_TO_ONNX.items()}
"""The inverse of :data:`TORCH_TO_ONNX`."""

_CARRIERS = {
    _UINT4: torch.uint8,
    _INT4: torch.int8,
    _UINT2: torch.uint8,
    _INT2: torch.int8,
}


def onnx_dtype(dtype: torch.dtype | int) -> int:
    """Return the ONNX integer of a dtype; an ONNX integer that torch can represent is returned as it is.

    Raises:
        ValueError: ONNX has no such dtype, or torch has none for the integer.
    """
    if isinstance(dtype, torch.dtype):
        number = TORCH_TO_ONNX.get(dtype)
        if number is None:
            raise ValueError(f"dtype {dtype} has no ONNX counterpart; convert the tensor to one that has")
        return number
    torch_dtype(dtype)
    return int(dtype)


def torch_dtype(number: int) -> torch.dtype:
    """Return the torch dtype that an ONNX ``TensorProto.DataType`` integer stands for.

    Raises:
        ValueError: the integer is not an ONNX dtype, or one without a torch counterpart (STRING, the FLOAT6
            types).
    """
    dtype = ONNX_TO_TORCH.get(number)
    if dtype is None:
        known = _NAMES.get(number)
        what = f"ONNX dtype {number} ({known}) has no torch counterpart" if known else f"{number} is not an ONNX dtype"
        raise ValueError(f"{what}; expected one of {sorted(ONNX_TO_TORCH)}")
    return dtype


def onnx_dtype_name(dtype: torch.dtype | int) -> str:
    """Return the ONNX name of a dtype, such as ``"FLOAT16"``.

    Raises:
        ValueError: the dtype is unknown to ONNX.
    """
    number = dtype if isinstance(dtype, int) else onnx_dtype(dtype)
    name = _NAMES.get(number)
    if name is None:
        raise ValueError(f"{number} is not an ONNX dtype")
    return name


def is_onnx_dtype(number: int) -> bool:
    """Tell whether an integer is a dtype of the ONNX format, one without a torch counterpart included."""
    return number != 0 and number in _NAMES


def carrier_dtype(dtype: torch.dtype | int) -> torch.dtype:
    """Return the torch dtype in which native operators hold values of a dtype, one value per element.

    That is the dtype itself, but for the 4-bit and 2-bit integers, which are held in ``int8`` or ``uint8``.

    Raises:
        ValueError: as :func:`torch_dtype`.
    """
    resolved = dtype if isinstance(dtype, torch.dtype) else torch_dtype(dtype)
    return _CARRIERS.get(resolved, resolved)
