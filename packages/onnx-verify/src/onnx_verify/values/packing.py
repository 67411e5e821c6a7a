"""Elements of less than a byte: as ONNX packs them, the first in the lowest bits, and as arrays of a byte each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_verify.values.dtypes import PACKED_BITS, is_int, numpy_dtype

Array = npt.NDArray[Any]


def raw_size(code: int, count: int) -> int:
    """Return the number of bytes of raw data that elements of an ONNX type take, be they packed or not."""
    bits = PACKED_BITS.get(code, 8 * numpy_dtype(code).itemsize)
    return -(-count * bits // 8)


def pack(values: Array, code: int) -> npt.NDArray[np.uint8]:
    """Pack elements of a type of `PACKED_BITS`; the last byte is filled up with zeros."""
    numbers = values.astype(np.int8) if is_int(values.dtype) else values
    single = np.unpackbits(np.ascontiguousarray(numbers).reshape(-1, 1).view(np.uint8), axis=1, bitorder="little")
    return np.packbits(single[:, : PACKED_BITS[code]], bitorder="little")


def unpack(raw: npt.NDArray[np.uint8], code: int, shape: tuple[int, ...]) -> Array:
    """Unpack elements of a type of `PACKED_BITS`."""
    bits, count, dtype = PACKED_BITS[code], math.prod(shape), numpy_dtype(code)
    single = np.unpackbits(raw, count=count * bits, bitorder="little").reshape(count, bits)
    values = np.packbits(single, axis=1, bitorder="little").reshape(shape)
    if not is_int(dtype):
        return values.view(dtype)
    if np.array(-1).astype(dtype) > 0:
        return values.astype(dtype)
    sign = np.int8(1 << (bits - 1))
    return ((values.view(np.int8) ^ sign) - sign).astype(dtype)
