"""The tensors of a file as tensors of torch, without a copy where that can be."""

from __future__ import annotations

import mmap
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import torch

from onnxops_decomp.importing.errors import ModelImportError
from onnxops_decomp.importing.values import carrier, is_sub_byte

__all__ = ["FileMaps", "to_value"]

_BYTES = {1: np.uint8, 2: np.uint16}


class FileMaps:
    """Files of external data, each mapped once, so that a private page is made only of what is written to."""

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap] = {}

    def bytes_of(self, tensor: ir.ExternalTensor) -> memoryview:
        """Return the bytes of a tensor in memory that may be written to and does not write to the file.

        Raises:
            ModelImportError: If the file is not the model's, or does not hold what the tensor claims.
        """
        path = _inside(tensor)
        data = self._maps.get(path)
        if data is None:
            try:
                with path.open("rb") as file:
                    data = self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise ModelImportError(f"External data {tensor.location!r} cannot be read: {error}.") from error
        offset, length = tensor.offset or 0, tensor.nbytes
        if offset < 0 or offset + length > len(data) or (tensor.length not in (None, length)):
            raise ModelImportError(
                f"Initializer {tensor.name!r} needs {length} bytes at {offset} of {str(tensor.location)!r}, which has "
                f"{len(data)} bytes, and its entry says {tensor.length}."
            )
        return memoryview(data)[offset : offset + length]


def _inside(tensor: ir.ExternalTensor) -> Path:
    """Return the path of a tensor's file, which must lie in the model's folder and be no link."""
    location = str(tensor.location)
    where = f"Initializer {tensor.name!r} has its data in {location!r}"
    base = Path(tensor.base_dir)
    parts = Path(location.replace("\\", "/")).parts
    if not parts or "\x00" in location or ".." in parts or Path(location).is_absolute() or ":" in parts[0]:
        raise ModelImportError(f"{where}, which is not a file in the model's folder.")
    path = base
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise ModelImportError(f"{where}, behind the link {str(path)!r}; put the data itself beside the model.")
    if not path.is_file():
        raise ModelImportError(f"{where}, which is not a regular file.")
    return path


def to_value(tensor: ir.TensorProtocol, files: FileMaps) -> Any:
    """Return a tensor of a model as torch's; strings as an array of NumPy.

    Raises:
        ModelImportError: If its data do not make the tensor.
    """
    raw = getattr(tensor, "raw", None)
    if isinstance(raw, torch.Tensor):
        return raw.detach()
    number = int(tensor.dtype)
    if isinstance(tensor, ir.ExternalTensor) and not is_sub_byte(number):
        return _from_bytes(files, number, tensor)
    if isinstance(tensor, ir.ExternalTensor):
        _inside(tensor)
    if number == ir.DataType.STRING:
        return np.array(_strings(tensor), dtype=np.object_).reshape(tensor.shape.numpy())
    array = tensor.numpy()
    if is_sub_byte(number):
        return torch.from_numpy(np.ascontiguousarray(array.astype(np.float32))).to(carrier(number))
    if array.dtype.type.__module__ != "numpy":  # of ml_dtypes, whatever its kind
        bits = torch.from_numpy(np.array(array).view(_BYTES[array.dtype.itemsize]))
        return bits.view(carrier(number)).reshape(array.shape)
    with warnings.catch_warnings():
        # Nobody else knows of the memory of a tensor that was read from a file.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        # Of the names that NumPy has for one integer, torch knows one; ONNX Runtime gives another for UINT64.
        name = array.dtype.name
        return torch.from_numpy(array.view(name) if array.dtype.isnative else array.astype(name))


def _strings(tensor: ir.TensorProtocol) -> list[str]:
    return [each.decode() if isinstance(each, bytes) else str(each) for each in tensor.numpy().reshape(-1)]


def _from_bytes(files: FileMaps, number: int, tensor: ir.ExternalTensor) -> torch.Tensor:
    data, dtype = files.bytes_of(tensor), carrier(number)
    shape = list(tensor.shape.numpy())
    if not len(data):
        return torch.empty(shape, dtype=dtype)
    if (tensor.offset or 0) % dtype.itemsize == 0:
        return torch.frombuffer(data, dtype=dtype).reshape(shape)
    # Numbers may begin anywhere in a file that protobuf wrote, but not in memory.
    made = torch.empty(len(data), dtype=torch.uint8)
    _read(_inside(tensor), tensor.offset or 0, memoryview(cast(Any, made.numpy())))
    return made.view(dtype).reshape(shape)


def _read(path: Path, offset: int, into: memoryview) -> None:
    """Fill memory from a place of a file on."""
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while len(into):
            count = file.readinto(into)
            if not count:
                raise ModelImportError(f"{str(path)!r} ends before its weights do.")
            into = into[count:]
