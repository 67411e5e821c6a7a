"""ONNX element types as numpy dtypes, and how precise each of them is."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
from onnx import TensorProto

# Element types that `TensorProto` does not name in the oldest release of onnx that is supported.
_FLOAT8E8M0, _UINT2, _INT2, _FLOAT6E2M3, _FLOAT6E3M2 = 24, 25, 26, 27, 28

PACKED_BITS = {
    TensorProto.UINT4: 4,
    TensorProto.INT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    _UINT2: 2,
    _INT2: 2,
    _FLOAT6E2M3: 6,
    _FLOAT6E3M2: 6,
}
"""Element types whose elements share bytes in raw data, and the bits of an element."""

_NUMPY: dict[int, np.dtype[np.generic]] = {
    TensorProto.FLOAT: np.dtype(np.float32),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    TensorProto.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    TensorProto.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    TensorProto.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    TensorProto.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    _FLOAT8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    _FLOAT6E2M3: np.dtype(ml_dtypes.float6_e2m3fn),
    _FLOAT6E3M2: np.dtype(ml_dtypes.float6_e3m2fn),
    TensorProto.FLOAT4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
    _INT2: np.dtype(ml_dtypes.int2),
    _UINT2: np.dtype(ml_dtypes.uint2),
    TensorProto.INT4: np.dtype(ml_dtypes.int4),
    TensorProto.UINT4: np.dtype(ml_dtypes.uint4),
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT32: np.dtype(np.int32),
    TensorProto.INT64: np.dtype(np.int64),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.UINT32: np.dtype(np.uint32),
    TensorProto.UINT64: np.dtype(np.uint64),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.COMPLEX64: np.dtype(np.complex64),
    TensorProto.COMPLEX128: np.dtype(np.complex128),
    TensorProto.STRING: np.dtype(object),
}
_ONNX = {dtype: code for code, dtype in _NUMPY.items()}
_SMALL_INTEGERS = frozenset(_NUMPY[code] for code in (_INT2, _UINT2, TensorProto.INT4, TensorProto.UINT4))


def numpy_dtype(code: int) -> np.dtype[np.generic]:
    """Return the numpy dtype of an ONNX element type.

    Raises:
        KeyError: if the code is not that of a tensor element type known here.
    """
    return _NUMPY[code]


def onnx_dtype(dtype: np.dtype[np.generic]) -> int:
    """Return the ONNX element type of a numpy dtype; every text dtype is STRING.

    Raises:
        KeyError: if ONNX has no such element type.
    """
    if dtype.kind in "OSU" or dtype.kind == "T":
        return int(TensorProto.STRING)
    return _ONNX[dtype]


def is_known(code: int) -> bool:
    """Tell whether an ONNX element type has a numpy dtype here."""
    return code in _NUMPY


@cache
def is_float(dtype: np.dtype[np.generic]) -> bool:
    """Tell whether a dtype is a real floating type, the ml_dtypes ones included."""
    if dtype.kind == "f":
        return True
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        return False
    return dtype.kind not in "c"


def is_int(dtype: np.dtype[np.generic]) -> bool:
    """Tell whether a dtype is an integer type (bool is not), those of two and four bits included."""
    return dtype.kind in "iu" or dtype in _SMALL_INTEGERS
