"""Weights that the graphs of a folder share, stored once."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

__all__ = ["DATA_FILE", "save_together"]

DATA_FILE = "model.onnx.data"
# Runtimes map weights that begin with a page.
_PAGE = 4096
# Smaller ones stay in the model files.
_LARGE = 1024


def save_together(folder: Path, models: Mapping[str, ir.Model]) -> None:
    """Write several models, and all their weights into one file, each once.

    A weight is read, converted and written once, whichever models read it; what has been written already is taken back.

    Args:
        folder: Where the files go.
        models: The models by the names of their files.

    Raises:
        OSError: If a file cannot be written.
        SaveError: If a weight cannot be converted.
    """
    places: dict[bytes, int] = {}
    with (folder / DATA_FILE).open("wb") as data:
        stored = {value: _stored(value, data, places) for model in models.values() for value in _large(model)}
    with _replaced(stored):
        for file, model in models.items():
            ir.save(model, folder / file)


def _large(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.nbytes >= _LARGE:
                yield value


def _stored(value: ir.Value, data: BinaryIO, places: dict[bytes, int]) -> ir.ExternalTensor:
    """Write a weight to a file, at its end, if no equal one is there; return it as one that is stored there.

    Args:
        value: The weight.
        data: The file.
        places: Where each weight begins, by a digest of its bytes.
    """
    tensor = value.const_value
    assert tensor is not None
    end = data.tell()
    data.write(b"\0" * (-end % _PAGE))
    begin, digested = data.tell(), _Digested(data)
    if isinstance(tensor, ir.Tensor | ir.LazyTensor):
        tensor.tofile(digested)  # piece by piece
    else:
        digested.write(tensor.tobytes())
    length = data.tell() - begin
    if (known := places.setdefault(digested.digest(), begin)) != begin:
        data.seek(end)
        data.truncate()
    return ir.ExternalTensor(
        DATA_FILE, known, length, tensor.dtype, name=tensor.name or "", shape=ir.Shape(tensor.shape.numpy()),
        base_dir=Path(data.name).parent,
    )  # fmt: skip


class _Digested:
    """A binary file that knows a digest of what is written to it.

    Args:
        file: The file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.blake2b()

    def write(self, content: bytes | memoryview) -> int:
        """Write bytes."""
        self._hash.update(content)
        return self._file.write(content)

    def digest(self) -> bytes:
        """Return the digest of all bytes."""
        return self._hash.digest()


@contextlib.contextmanager
def _replaced(stored: Mapping[ir.Value, ir.ExternalTensor]) -> Iterator[None]:
    """Let weights be the stored ones, and afterwards themselves again."""
    own = {value: value.const_value for value in stored}
    for value, tensor in stored.items():
        value.const_value = tensor
    try:
        yield
    finally:
        for value, before in own.items():
            value.const_value = before
