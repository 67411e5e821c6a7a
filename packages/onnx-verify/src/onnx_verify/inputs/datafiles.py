"""Inputs and expected outputs in files: ``.npz``, ``.npy``, ``.pb`` and the ONNX test data layout."""

from __future__ import annotations

import re
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onnx_verify.errors import InputError, ModelLoadError
from onnx_verify.inputs.sets import InputSet
from onnx_verify.models.weights import tensor_proto, tensor_values

if TYPE_CHECKING:
    from pathlib import Path

_SUFFIXES = (".npz", ".npy", ".pb")


def read_inputs(path: Path) -> list[InputSet]:
    """Read the input sets at a path.

    Args:
        path: an ``.npz`` (inputs by name), an ``.npy`` or ``.pb`` (one positional input), a folder with
            ``input_0.pb``, ``input_1.pb``, ..., a folder of such folders (``test_data_set_0``, ...), or one of
            ``.npz`` files.

    Raises:
        InputError: if there is nothing there, or a file cannot be read. Pickled data is never read.
    """
    if not path.exists():
        raise InputError(f"there are no inputs at {path}")
    if path.is_file():
        return [_from_file(path)]
    numbered = _numbered(path, "input")
    if numbered:
        return [InputSet(tuple(read_value(file) for file in numbered), label=path.name)]
    sets = [found for folder in _data_sets(path) for found in read_inputs(folder)]
    sets = sets or [_from_file(file) for file in sorted(path.glob("*.npz"))]
    if not sets:
        raise InputError(f"{path} holds neither input_0.pb, test_data_set_0 nor an .npz file")
    return sets


def read_expected(path: Path) -> list[list[tuple[str, Any]]]:
    """Read the expected outputs of each data set in a folder of the ONNX test data layout.

    Raises:
        InputError: if a data set has no ``output_0.pb``.
    """
    folders = [path] if _numbered(path, "output") else _data_sets(path)
    expected = []
    for folder in folders:
        files = _numbered(folder, "output")
        if not files:
            raise InputError(f"{folder} holds no output_0.pb")
        values = [(f"output_{index}", read_value(file)) for index, file in enumerate(files)]
        expected.append(_flat(values))
    if not expected:
        raise InputError(f"{path} holds no expected outputs")
    return expected


def _flat(values: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in values:
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            flat.extend(_flat([(name, value[0])]))
        elif isinstance(value, list):
            flat.extend((f"{name}[{index}]", item) for index, item in enumerate(value))
        elif value is not None:
            flat.append((name, value))
    return flat


def _data_sets(path: Path) -> list[Path]:
    return sorted((each for each in path.glob("test_data_set_*") if each.is_dir()), key=_number)


def _numbered(path: Path, prefix: str) -> list[Path]:
    """Return prefix_0, prefix_1, ... in numeric order; a gap is an error."""
    files = sorted(
        (each for each in path.iterdir() if re.fullmatch(rf"{prefix}_\d+\.(pb|npy)", each.name)), key=_number
    )
    if [_number(file) for file in files] != list(range(len(files))):
        raise InputError(f"{path} does not hold {prefix}_0 to {prefix}_{len(files) - 1} once each")
    return files


def _number(path: Path) -> int:
    found = re.search(r"_(\d+)(\.\w+)?$", path.name)
    return int(found.group(1)) if found else 0


def _from_file(path: Path) -> InputSet:
    if path.suffix not in _SUFFIXES:
        raise InputError(f"{path} is not one of {', '.join(_SUFFIXES)}")
    if path.suffix != ".npz":
        return InputSet((read_value(path),), label=path.name)
    try:
        # A file of our own: numpy leaves the one that it opens to the garbage collector if the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return InputSet(kwargs={name: archive[name] for name in archive.files}, label=path.name)
    except (OSError, ValueError, EOFError, KeyError, MemoryError) as error:
        raise InputError(f"{path} cannot be read as an .npz file: {error}") from error
    except Exception as error:  # zipfile and zlib raise their own kinds for a damaged archive
        raise InputError(f"{path} is damaged: {error}") from error


def read_value(path: Path) -> Any:
    """Read one tensor, one sequence as a list, or an optional as a list of what it holds, from ``.npy`` or ``.pb``.

    Raises:
        InputError: if the file holds neither.
    """
    try:
        if path.suffix == ".npy":
            return np.lib.format.read_array(BytesIO(path.read_bytes()), allow_pickle=False)
        return _parse_value(path.read_bytes())
    except (OSError, ValueError, EOFError, MemoryError, DecodeError, ModelLoadError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _parse_value(data: bytes) -> Any:
    """Parse a TensorProto, else a SequenceProto; neither says which it is.

    An optional is, byte for byte, a sequence of the one value that it holds, and is read as that; one that says
    of itself that it holds nothing is None.
    """
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(data)
        return tensor_values(tensor)
    except (DecodeError, ModelLoadError):
        if tensor.HasField("raw_data"):
            raise
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(data)
        if _is_absent(sequence):
            return None
        if sequence.elem_type not in (onnx.SequenceProto.TENSOR, onnx.SequenceProto.SEQUENCE):
            raise
        return _parts(sequence)


def _is_absent(sequence: onnx.SequenceProto) -> bool:
    """Tell whether an optional read as a sequence holds nothing, of no type or of a sequence's."""
    if sequence.elem_type == onnx.SequenceProto.SEQUENCE:
        return not sequence.sequence_values
    return sequence.HasField("elem_type") and sequence.elem_type == onnx.SequenceProto.UNDEFINED


def _parts(sequence: onnx.SequenceProto) -> list[Any]:
    if sequence.elem_type == onnx.SequenceProto.SEQUENCE:
        return [_parts(each) for each in sequence.sequence_values]
    return [tensor_values(each) for each in sequence.tensor_values]


def write_value(path: Path, value: Any) -> None:
    """Write one array as a TensorProto."""
    path.write_bytes(tensor_proto(np.asarray(value), path.stem).SerializeToString())
