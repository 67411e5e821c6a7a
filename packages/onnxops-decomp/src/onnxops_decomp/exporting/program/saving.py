"""Writes models to disk: whole or not at all, weights streamed."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import onnx_ir as ir

from onnxops_decomp.exporting.errors import SaveError
from onnxops_decomp.exporting.weights.initializers import has_data
from onnxops_decomp.files.streaming import write_model

__all__ = [
    "MAX_MESSAGE_BYTES",
    "MAX_SINGLE_FILE_BYTES",
    "check_data",
    "replaced_file",
    "save_model",
    "weight_bytes",
    "write_text",
]

# Above this, weights go to a file of their own unless the caller says otherwise.
MAX_SINGLE_FILE_BYTES = 1 << 30
# A protobuf message ends at 2 GiB, and the weights are not all of it.
MAX_MESSAGE_BYTES = 1_900_000_000
_EXTERNAL_THRESHOLD_BYTES = 1024


def save_model(
    model: ir.Model,
    destination: str | os.PathLike[str] | IO[bytes],
    *,
    include_initializers: bool = True,
    keep_initializers_as_inputs: bool = False,
    external_data: bool | None = None,
) -> None:
    """Write ``model`` to ``destination``; see :meth:`ONNXProgram.save`.

    The files are written to a folder beside the destination and moved into place when they are complete.

    Raises:
        SaveError: If the destination cannot be written, or weights have no contents.
    """
    if include_initializers:
        check_data(model)
    if not isinstance(destination, str | os.PathLike):
        _write_to(model, destination, include_initializers, keep_initializers_as_inputs, external_data)
        return
    path = Path(destination)
    external = weight_bytes(model) >= MAX_SINGLE_FILE_BYTES if external_data is None else external_data
    if include_initializers and not external:
        _check_size(model, "external_data=False")
    if path.is_dir():
        raise SaveError(f"The model cannot be written to {path}: it is a folder.")
    try:
        with (
            tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder,
            _adjusted(model, include_initializers, keep_initializers_as_inputs),
        ):
            data = f"{path.name}.data"
            if external and include_initializers:
                ir.save(
                    model, Path(folder) / path.name, external_data=data, size_threshold_bytes=_EXTERNAL_THRESHOLD_BYTES
                )
            else:
                with (Path(folder) / path.name).open("wb") as file:
                    write_model(model, file)
            # The data goes first: a model file never stands beside data that is not its own.
            for name in (data, path.name):
                if (Path(folder) / name).exists():
                    os.replace(Path(folder) / name, path.parent / name)
    except OSError as error:
        raise SaveError(f"The model cannot be written to {path}: {error.strerror or error}.") from error


def _write_to(
    model: ir.Model,
    file: IO[bytes],
    include_initializers: bool,
    keep_initializers_as_inputs: bool,
    external_data: bool | None,
) -> None:
    """Write a model to an open file, in one piece; a file that can be cut is as it was if that fails.

    Raises:
        SaveError: If the file takes no bytes, or not so many, or weights are to stand beside it.
    """
    if external_data:
        raise SaveError("External data needs a path to stand beside; an open file has none.")
    if isinstance(file, io.TextIOBase) or not hasattr(file, "write"):
        raise SaveError(f"The model needs a path or a file opened for writing bytes, not {type(file).__name__}.")
    if include_initializers:
        _check_size(model, "an open file")
    seekable = hasattr(file, "seekable") and file.seekable()
    start = file.tell() if seekable else 0
    try:
        with _adjusted(model, include_initializers, keep_initializers_as_inputs):
            write_model(model, file)
    except OSError as error:
        if seekable:
            file.truncate(file.seek(start))
        raise SaveError(f"The model cannot be written: {error.strerror or error}.") from error


def _check_size(model: ir.Model, what: str) -> None:
    """Refuse weights that no single message can hold.

    Raises:
        SaveError: If there are so many.
    """
    if weight_bytes(model) > MAX_MESSAGE_BYTES:
        raise SaveError(
            f"The weights have {weight_bytes(model):,} bytes, and with {what} the model would be one protobuf message, "
            "which ends at 2 GiB; give a path, and leave out external_data."
        )


def weight_bytes(model: ir.Model) -> int:
    """Return how many bytes the weights have."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def check_data(model: ir.Model) -> None:
    """Refuse a model whose weights have no contents.

    Raises:
        SaveError: If there are such weights.
    """
    values = model.graph.initializers.values()
    missing = [str(v.name) for v in values if v.const_value is not None and not has_data(v.const_value)]
    if missing:
        raise SaveError(
            f"{len(missing)} weights were never allocated, {missing[0]} among them: give them contents with "
            "apply_weights(...), or save with include_initializers=False."
        )


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Give a path to write to that becomes ``path`` when the body ends well.

    Raises:
        SaveError: If it cannot be written; then ``path`` is as it was.
    """
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            yield Path(folder) / path.name
            os.replace(Path(folder) / path.name, path)
    except OSError as error:
        raise SaveError(f"The file {path} cannot be written: {error.strerror or error}.") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        SaveError: If it cannot be written.
    """
    with replaced_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _adjusted(model: ir.Model, include_initializers: bool, keep_initializers_as_inputs: bool) -> Iterator[None]:
    """Show the model's weights as inputs, or leave their data out, while it is written."""
    graph = model.graph
    initializers = list(graph.initializers.values())
    inputs = len(graph.inputs)
    data = [value.const_value for value in initializers]
    if keep_initializers_as_inputs or not include_initializers:
        graph.inputs.extend(value for value in initializers if not value.is_graph_input())
    if not include_initializers:
        graph.initializers.clear()
    try:
        yield
    finally:
        if not include_initializers:
            for value, tensor in zip(initializers, data, strict=True):
                value.const_value = tensor
                graph.initializers.add(value)
        while len(graph.inputs) > inputs:  # a slice that is deleted leaves its values marked as inputs
            graph.inputs.pop()
