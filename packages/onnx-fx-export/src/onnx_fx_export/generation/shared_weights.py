"""Weights that the graphs of a folder share, stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

__all__ = ["DATA_FILE", "share_weights"]

DATA_FILE = "model.onnx.data"
# Runtimes map weights that begin with a page.
_PAGE = 4096


def share_weights(folder: Path, files: Sequence[str]) -> None:
    """Put the weights of several model files into one file, each once, in the place of a file beside each.

    Args:
        folder: Where the model files are.
        files: Their names; the weights of each are in a file of the same name with ``.data`` behind it, if it has one.

    Raises:
        OSError: If a file cannot be read or written.
    """
    models = {file: ir.load(folder / file) for file in files}
    beside = folder / f"{DATA_FILE}.joined"
    with beside.open("wb") as data:
        places: dict[bytes, int] = {}
        for model in models.values():
            for value, tensor in _external(model):
                value.const_value = _moved(tensor, data, places)
    for file in files:
        (folder / f"{file}.data").unlink(missing_ok=True)
    beside.rename(folder / DATA_FILE)
    for file, model in models.items():
        ir.save(model, folder / file)


def _external(model: ir.Model) -> Iterator[tuple[ir.Value, ir.ExternalTensor]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value, value.const_value


def _moved(tensor: ir.ExternalTensor, data: BinaryIO, places: dict[bytes, int]) -> ir.ExternalTensor:
    """Return the same weight in the joined file, which gets it if it has no equal one.

    Args:
        tensor: The weight.
        data: The joined file, at its end.
        places: Where each weight begins, by a digest of its bytes.
    """
    content = tensor.tobytes()
    digest = hashlib.blake2b(content).digest()
    if digest not in places:
        data.write(b"\0" * (-data.tell() % _PAGE))
        places[digest] = data.tell()
        data.write(content)
    return ir.ExternalTensor(
        DATA_FILE, places[digest], len(content), tensor.dtype, name=tensor.name or "", shape=tensor.shape,
        base_dir=tensor.base_dir,
    )  # fmt: skip
