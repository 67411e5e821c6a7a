"""Enumerations of the public interface; values are those that ``torch.onnx`` has."""

from __future__ import annotations

import enum
from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import ArgumentsError
from onnx_ts_legacy.graph.dtypes import dtype_of_code, scalar_type_code
from onnxops_decomp.exporting import to_ir, to_torch

__all__ = ["JitScalarType", "OperatorExportTypes", "TrainingMode"]


class TrainingMode(enum.IntEnum):
    """Mode in which a module is traced."""

    EVAL = 0
    PRESERVE = 1
    TRAINING = 2


class OperatorExportTypes(enum.IntEnum):
    """What becomes of operators that cannot be converted."""

    ONNX = 0
    """The export fails."""
    ONNX_ATEN = 1
    """Every ATen operator is written as ``org.pytorch.aten::ATen``."""
    ONNX_ATEN_FALLBACK = 2
    """Operators that cannot be converted are written as ``org.pytorch.aten::ATen``."""
    ONNX_FALLTHROUGH = 3
    """Operators that cannot be converted are written under their own name and namespace."""


_BY_NAME = {
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT": torch.int32,
    "INT64": torch.int64,
    "HALF": torch.float16,
    "FLOAT": torch.float32,
    "DOUBLE": torch.float64,
    "COMPLEX32": torch.complex32,
    "COMPLEX64": torch.complex64,
    "COMPLEX128": torch.complex128,
    "BOOL": torch.bool,
    "QINT8": torch.qint8,
    "QUINT8": torch.quint8,
    "QINT32": torch.qint32,
    "BFLOAT16": torch.bfloat16,
    "FLOAT8E5M2": torch.float8_e5m2,
    "FLOAT8E4M3FN": torch.float8_e4m3fn,
    "FLOAT8E5M2FNUZ": torch.float8_e5m2fnuz,
    "FLOAT8E4M3FNUZ": torch.float8_e4m3fnuz,
}
_SCALAR_NAMES = {
    "UINT8": "Byte",
    "INT8": "Char",
    "INT16": "Short",
    "INT": "Int",
    "INT64": "Long",
    "HALF": "Half",
    "FLOAT": "Float",
    "DOUBLE": "Double",
    "COMPLEX32": "ComplexHalf",
    "COMPLEX64": "ComplexFloat",
    "COMPLEX128": "ComplexDouble",
    "BOOL": "Bool",
    "QINT8": "QInt8",
    "QUINT8": "QUInt8",
    "QINT32": "QInt32",
    "BFLOAT16": "BFloat16",
    "FLOAT8E5M2": "Float8_e5m2",
    "FLOAT8E4M3FN": "Float8_e4m3fn",
    "FLOAT8E5M2FNUZ": "Float8_e5m2fnuz",
    "FLOAT8E4M3FNUZ": "Float8_e4m3fnuz",
}


# Those that are not the name itself in lower case.
_TORCH_NAMES = {
    "UINT8": "uint8_t",
    "INT8": "int8_t",
    "INT16": "int16_t",
    "INT64": "int64_t",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
}


class JitScalarType(enum.IntEnum):
    """TorchScript's numbers for dtypes, as they stand in graphs."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT = 3
    INT64 = 4
    HALF = 5
    FLOAT = 6
    DOUBLE = 7
    COMPLEX32 = 8
    COMPLEX64 = 9
    COMPLEX128 = 10
    BOOL = 11
    QINT8 = 12
    QUINT8 = 13
    QINT32 = 14
    BFLOAT16 = 15
    FLOAT8E5M2 = 23
    FLOAT8E4M3FN = 24
    FLOAT8E5M2FNUZ = 25
    FLOAT8E4M3FNUZ = 26
    UNDEFINED = 255

    @classmethod
    def from_name(cls, name: str | None) -> JitScalarType:
        """Return the number for a name of TorchScript (``"Float"``) or of C++ (``"float"``).

        Raises:
            ArgumentsError: If there is none.
        """
        for kind in cls:
            if kind is not cls.UNDEFINED and name in (kind.scalar_name(), kind.torch_name()):
                return kind
        raise ArgumentsError(f"{name!r} is not the name of a scalar type.")

    _from_name = from_name

    @classmethod
    def from_dtype(cls, dtype: torch.dtype | None) -> JitScalarType:
        """Return the number of a dtype.

        Raises:
            ArgumentsError: If there is none.
        """
        if dtype is None or dtype not in _BY_NAME.values():
            raise ArgumentsError(f"{dtype} has no scalar type.")
        return cls(scalar_type_code(dtype))

    @classmethod
    def from_onnx_type(cls, onnx_type: int | None) -> JitScalarType:
        """Return the number for an ONNX element type.

        Raises:
            ArgumentsError: If torch has no such dtype.
        """
        if onnx_type is None:
            raise ArgumentsError("An ONNX type is needed, got None.")
        return cls.from_dtype(to_torch(ir.DataType(int(onnx_type))))

    @classmethod
    def from_value(cls, value: Any, default: Any = None) -> Any:
        """Return the number of the dtype of a value, a tensor or a type; ``default`` if it is not known.

        Raises:
            ArgumentsError: If it is not known and there is no default.
        """
        dtype = _dtype_of(value)
        if dtype is None:
            if default is not None:
                return default
            raise ArgumentsError("The dtype of a value is not known.")
        return cls.from_dtype(dtype)

    def scalar_name(self) -> str:
        """Return the name that TorchScript prints, such as ``"Float"``."""
        return _SCALAR_NAMES.get(self.name, "Undefined")

    def torch_name(self) -> str:
        """Return the name in C++, such as ``"float"`` or ``"int64_t"``."""
        return _TORCH_NAMES.get(self.name, self.name.lower())

    def dtype(self) -> torch.dtype:
        """Return the torch dtype."""
        return dtype_of_code(int(self))

    def onnx_type(self) -> ir.DataType:
        """Return the ONNX element type."""
        return to_ir(self.dtype())

    def onnx_compatible(self) -> bool:
        """Tell whether ONNX has the dtype."""
        return self not in (JitScalarType.QINT8, JitScalarType.QUINT8, JitScalarType.QINT32, JitScalarType.UNDEFINED)


def valid_scalar_name(scalar_name: str) -> bool:
    """Tell whether TorchScript has a dtype of this name, such as ``"Float"``."""
    return any(scalar_name == kind.scalar_name() for kind in JitScalarType if kind is not JitScalarType.UNDEFINED)


def valid_torch_name(torch_name: str) -> bool:
    """Tell whether C++ has a dtype of this name, such as ``"int64_t"``."""
    return any(torch_name == kind.torch_name() for kind in JitScalarType if kind is not JitScalarType.UNDEFINED)


def _dtype_of(value: Any) -> torch.dtype | None:
    if isinstance(value, torch.dtype):
        return value
    if isinstance(value, torch.Tensor):
        return value.dtype
    kind = value.type() if callable(getattr(value, "type", None)) else value
    if kind is None:
        return None
    names = {"IntType": torch.int64, "FloatType": torch.float32, "BoolType": torch.bool, "NumberType": None}
    if kind.kind() in names:
        return names[kind.kind()]
    if kind.kind() == "ListType":
        return _dtype_of(kind.getElementType())
    found: torch.dtype | None = kind.dtype() if kind.kind() == "TensorType" else None
    return found
