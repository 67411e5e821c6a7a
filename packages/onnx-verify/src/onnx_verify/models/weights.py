"""Initializers that are read when they are needed, and never copied before."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from onnx_verify.errors import ModelLoadError
from onnx_verify.models.external_files import parse_offset, resolve_external
from onnx_verify.values.dtypes import PACKED_BITS, is_known, numpy_dtype
from onnx_verify.values.packing import raw_size, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Array = npt.NDArray[Any]


class Weight(Protocol):
    """One large initializer: its header, and its data on demand."""

    @property
    def code(self) -> int:
        """ONNX element type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""

    def load(self) -> Array:
        """Return the values; a view of memory or of the file where that is possible."""


def payload_size(name: str, code: int, dims: Iterable[int]) -> int:
    """Return the number of bytes that a tensor's raw data must have.

    Raises:
        ModelLoadError: if the element type is unknown, has no fixed size, or a dimension is negative.
    """
    if not is_known(code):
        raise ModelLoadError(f"tensor {name!r} has the unknown element type {code}")
    count = 1
    for dim in dims:
        if dim < 0:
            raise ModelLoadError(f"tensor {name!r} has the negative dimension {dim}")
        count *= dim
    return raw_size(code, count)


@dataclass(frozen=True)
class FileWeight:
    """Values in an external data file, mapped into memory when loaded."""

    path: Path
    offset: int
    code: int
    shape: tuple[int, ...]

    def load(self) -> Array:
        """Map the file, or read it where the bytes are not aligned or are packed."""
        size = payload_size(self.path.name, self.code, self.shape)
        if size == 0:
            return np.zeros(self.shape, numpy_dtype(self.code))
        if self.code in PACKED_BITS:
            raw = np.fromfile(self.path, np.uint8, size, offset=self.offset)
            return unpack(raw, self.code, self.shape)
        raw = np.memmap(self.path, np.uint8, "r", self.offset, (size,))
        values = raw.view(np.ndarray)
        if self.offset % 64:
            values = np.array(values)
        return values.view(numpy_dtype(self.code)).reshape(self.shape)


@dataclass(frozen=True)
class BytesWeight:
    """Values in little-endian raw bytes."""

    data: bytes
    code: int
    shape: tuple[int, ...]

    def load(self) -> Array:
        """Return a read-only view of the bytes."""
        if self.code in PACKED_BITS:
            return unpack(np.frombuffer(self.data, np.uint8), self.code, self.shape)
        return np.frombuffer(self.data, numpy_dtype(self.code)).reshape(self.shape)


@dataclass(frozen=True)
class ProtoWeight:
    """Values inside a TensorProto that belongs to the caller."""

    proto: onnx.TensorProto

    @property
    def code(self) -> int:
        """ONNX element type."""
        return int(self.proto.data_type)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""
        return tuple(self.proto.dims)

    def load(self) -> Array:
        """Decode the proto."""
        return tensor_values(self.proto)


@dataclass(frozen=True)
class IrWeight:
    """Values of an onnx_ir tensor."""

    tensor: ir.TensorProtocol

    @property
    def code(self) -> int:
        """ONNX element type."""
        return int(self.tensor.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions."""
        return tuple(self.tensor.shape.numpy())

    def load(self) -> Array:
        """Ask the tensor for its numpy values."""
        return np.asarray(self.tensor.numpy())


def weight_bytes(weight: Weight) -> int:
    """Return how many bytes a weight takes once loaded."""
    count = 1
    for dim in weight.shape:
        count *= dim
    return count * numpy_dtype(weight.code).itemsize


def check_payload(proto: onnx.TensorProto) -> None:
    """Check, without reading its data, that a TensorProto with inline data can hold what it claims.

    Raises:
        ModelLoadError: if it cannot.
    """
    expected = payload_size(proto.name, proto.data_type, proto.dims)
    size = proto.ByteSize()
    # Raw data takes its bytes; a typed field packs small numbers into one byte each, of up to 16 in memory.
    room = size if proto.HasField("raw_data") else 16 * size
    if expected > room and proto.data_type != onnx.TensorProto.STRING:
        raise ModelLoadError(
            f"tensor {proto.name!r} of shape {list(proto.dims)} needs {expected} bytes and has at most {size}"
        )


def tensor_values(proto: onnx.TensorProto) -> Array:
    """Decode a TensorProto with inline data.

    Raises:
        ModelLoadError: if its data does not fit its shape.
    """
    check_payload(proto)
    try:
        if _is_numpy_own(numpy_dtype(proto.data_type)):
            return np.asarray(numpy_helper.to_array(proto))
        return np.asarray(ir.serde.deserialize_tensor(proto).numpy())
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ModelLoadError(f"tensor {proto.name!r} cannot be decoded: {error}") from error


def tensor_proto(values: Array, name: str = "") -> onnx.TensorProto:
    """Return an array as ONNX stores it, with inline data."""
    if _is_numpy_own(values.dtype):
        return numpy_helper.from_array(values, name)
    return ir.to_proto(ir.Tensor(values, name=name))


def _is_numpy_own(dtype: np.dtype[Any]) -> bool:
    """Tell whether numpy itself has the dtype; what onnx makes of the others differs between its releases."""
    return dtype.kind in "OSUT" or dtype.isbuiltin == 1


def external_weight(proto: onnx.TensorProto, base: Path | None) -> FileWeight:
    """Describe the external data of a TensorProto, after checking that a model may use it.

    Raises:
        UnsafeModelError: if the data lies outside the model's folder.
        ModelLoadError: if the file is missing or too short, or the entry makes no sense.
    """
    entries = {entry.key: entry.value for entry in proto.external_data}
    if base is None:
        raise ModelLoadError(
            f"tensor {proto.name!r} has external data ({entries.get('location')!r}), and a model in memory "
            "has no folder; pass the model's path, or load its external data first"
        )
    if proto.data_type == onnx.TensorProto.STRING:
        raise ModelLoadError(f"string tensor {proto.name!r} has external data, which ONNX does not allow")
    path = resolve_external(base, entries.get("location", ""), proto.name)
    expected = payload_size(proto.name, proto.data_type, proto.dims)
    offset = parse_offset(entries.get("offset") or "0", "offset", proto.name)
    length = parse_offset(entries.get("length") or str(expected), "length", proto.name)
    if length != expected:
        raise ModelLoadError(
            f"tensor {proto.name!r} of shape {list(proto.dims)} needs {expected} bytes, its entry says {length}"
        )
    size = path.stat().st_size
    if offset + expected > size:
        raise ModelLoadError(
            f"tensor {proto.name!r} needs bytes {offset} to {offset + expected} of {path}, which has {size}"
        )
    return FileWeight(path, offset, int(proto.data_type), tuple(proto.dims))
