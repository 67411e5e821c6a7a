"""Writes models to disk: whole or not at all, weights streamed."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import onnx_ir as ir

from onnxops_decomp.exporting.errors import SaveError
from onnxops_decomp.exporting.weights.initializers import has_data
from onnxops_decomp.files.streaming import write_model
from onnxops_decomp.passes.derived import ComputedTensor

__all__ = [
    "MAX_MESSAGE_BYTES",
    "MAX_SINGLE_FILE_BYTES",
    "Saving",
    "check_data",
    "own_errors",
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


@dataclasses.dataclass(frozen=True)
class Saving:
    """How a model is written.

    Attributes:
        include_initializers: Whether the weights are written; without them the model is a skeleton.
        keep_initializers_as_inputs: Whether weights are listed as inputs too, as IR version 3 wanted it.
        external_data: Whether weights go to a file of their own; None for those above 1 GiB.
    """

    include_initializers: bool = True
    keep_initializers_as_inputs: bool = False
    external_data: bool | None = None

    @property
    def folds_weights(self) -> bool:
        """Tell whether a weight may differ from the torch weight of its name: only if nobody else gives it."""
        return self.include_initializers and not self.keep_initializers_as_inputs

    def with_given(self, **given: bool | None) -> Saving:
        """Return what is given, and the same as here where that is None."""
        return dataclasses.replace(self, **{name: value for name, value in given.items() if value is not None})


def save_model(model: ir.Model, destination: str | os.PathLike[str] | IO[bytes], how: Saving) -> None:
    """Write ``model`` to ``destination``; see :meth:`ONNXProgram.save`.

    The files are written to a folder beside the destination and moved into place when they are complete.

    Raises:
        SaveError: If the destination cannot be written, or weights have no contents.
    """
    if how.include_initializers:
        check_data(model)
    if not isinstance(destination, str | os.PathLike):
        _write_to(model, destination, how)
        return
    path = Path(destination)
    large = weight_bytes(model) >= MAX_SINGLE_FILE_BYTES
    external = how.include_initializers and (large if how.external_data is None else how.external_data)
    if how.include_initializers and not external:
        _check_size(model, "external_data=False")
    if path.is_dir():
        raise SaveError(f"The model cannot be written to {path}: it is a folder.")
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder, _adjusted(model, how):
            beside, data = Path(folder) / path.name, f"{path.name}.data"
            with own_errors():
                if external:
                    ir.save(model, beside, external_data=data, size_threshold_bytes=_EXTERNAL_THRESHOLD_BYTES)
                else:
                    with beside.open("wb") as file:
                        write_model(model, file)
            # The data goes first: a model file never lies next to data that is not its own.
            _move(Path(folder), path.parent, [name for name in (data, path.name) if (Path(folder) / name).exists()])
    except OSError as error:
        raise SaveError(f"The model cannot be written to {path}: {error.strerror or error}.") from error


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raise what a weight refuses while it is read, and not what a library makes of that.

    Raises:
        SaveError: If one does.
    """
    try:
        yield
    except ir.serde.SerdeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, SaveError):
            cause = cause.__cause__
        raise cause or error from error


def _move(folder: Path, parent: Path, names: Sequence[str]) -> None:
    """Move files into another folder, all of them or none.

    Raises:
        OSError: If one cannot be moved; then the others are as they were.
    """
    with contextlib.ExitStack() as undo:
        for name in names[:-1]:
            if (parent / name).exists():
                os.replace(parent / name, folder / f"{name}.before")
                undo.callback(os.replace, folder / f"{name}.before", parent / name)
            os.replace(folder / name, parent / name)
            undo.callback(os.unlink, parent / name)
        os.replace(folder / names[-1], parent / names[-1])
        undo.pop_all()


def _write_to(model: ir.Model, file: IO[bytes], how: Saving) -> None:
    """Write a model to an open file, in one piece; a file that can be cut is as it was if that fails.

    Raises:
        SaveError: If the file takes no bytes, or not so many, or weights are to be stored next to it.
    """
    if how.external_data:
        raise SaveError(
            "External data is stored next to the model, but an open file has no path. Give a path, or "
            "external_data=False."
        )
    if isinstance(file, io.TextIOBase) or not hasattr(file, "write"):
        raise SaveError(f"The model needs a path or a file opened for writing bytes, not {type(file).__name__}.")
    if how.include_initializers:
        _check_size(model, "an open file")
    seekable = hasattr(file, "seekable") and file.seekable()
    start = file.tell() if seekable else 0
    try:
        with _adjusted(model, how), own_errors():
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
def _adjusted(model: ir.Model, how: Saving) -> Iterator[None]:
    """Show the model's weights as inputs, or leave their data out, while it is written; constants stay."""
    graph = model.graph
    inputs, initializers = len(graph.inputs), list(graph.initializers.values())
    weights = {value: value.const_value for value in initializers if _is_weight(value.const_value)}
    if not how.folds_weights:
        graph.inputs.extend(value for value in weights if not value.is_graph_input())
    if not how.include_initializers:
        for value in weights:
            graph.initializers.pop(str(value.name))
    try:
        yield
    finally:
        if not how.include_initializers:
            graph.initializers.clear()  # their order is that of before
            for value in initializers:
                value.const_value = weights.get(value, value.const_value)
                graph.initializers.add(value)
        while len(graph.inputs) > inputs:  # a slice that is deleted leaves its values marked as inputs
            graph.inputs.pop()


def _is_weight(tensor: ir.TensorProtocol | None) -> bool:
    """Tell whether a tensor is one of torch, or computed of such: constants of the exporter are neither."""
    return isinstance(tensor, ir.tensor_adapters.TorchTensor | ComputedTensor)
