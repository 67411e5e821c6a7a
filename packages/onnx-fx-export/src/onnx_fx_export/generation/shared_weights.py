"""Weights that the graphs of a folder share, stored once."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
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
# Bytes by which weights are told apart before they are compared, and those that are compared at a time.
_HEAD, _BLOCK = 1 << 16, 4 << 20


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
    places: dict[bytes, list[int]] = {}
    with (folder / DATA_FILE).open("w+b") as data:
        stored = {value: _stored(value, data, places) for model in models.values() for value in _large(model)}
    with _replaced(stored):
        for file, model in models.items():
            ir.save(model, folder / file)


def _large(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.nbytes >= _LARGE:
                yield value


def _stored(value: ir.Value, data: BinaryIO, places: dict[bytes, list[int]]) -> ir.ExternalTensor:
    """Write a weight to a file, at its end, if no equal one is there; return it as one that is stored there.

    Args:
        value: The weight.
        data: The file, which is read, too.
        places: Where the weights begin that are of one size and begin with the same bytes, by a digest of both.
    """
    tensor = value.const_value
    assert tensor is not None
    end = data.tell()
    data.write(b"\0" * (-end % _PAGE))
    begin, watched = data.tell(), _Watched(data)
    if isinstance(tensor, ir.Tensor | ir.LazyTensor):
        tensor.tofile(watched)  # piece by piece
    else:
        watched.write(tensor.tobytes())
    length = data.tell() - begin
    alike = places.setdefault(hashlib.blake2b(watched.head + length.to_bytes(8, "little")).digest(), [])
    data.flush()
    known = next((place for place in alike if _equal(data, place, begin, length)), begin)
    if known == begin:
        alike.append(begin)
    else:
        data.seek(end)
        data.truncate()
    return ir.ExternalTensor(
        DATA_FILE, known, length, tensor.dtype, name=tensor.name or "", shape=ir.Shape(tensor.shape.numpy()),
        base_dir=Path(data.name).parent,
    )  # fmt: skip


class _Watched:
    """A binary file that keeps the first bytes of what is written to it.

    A digest of all of them would take longer than writing them does.

    Args:
        file: The file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.head = file, b""

    def write(self, content: bytes | memoryview) -> int:
        """Write bytes."""
        if len(self.head) < _HEAD:
            self.head += bytes(content[: _HEAD - len(self.head)])
        return self._file.write(content)


def _equal(data: BinaryIO, first: int, second: int, length: int) -> bool:
    """Tell whether a file holds the same bytes at two places."""
    with mmap.mmap(data.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        return all(
            contents[first + begin : first + begin + size] == contents[second + begin : second + begin + size]
            for begin in range(0, length, _BLOCK)
            for size in [min(_BLOCK, length - begin)]
        )


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
