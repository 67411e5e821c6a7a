"""Reads a model file whose large weights stay in the file until they are used.

A message of protobuf is a sequence of fields, and a message inside another is its length and its bytes
(https://protobuf.dev/programming-guides/encoding), so that large initializers are found without reading them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxops_decomp.files.streaming import length_delimited

__all__ = ["read_mapped"]

_LARGE_BYTES = 1 << 16
_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5

Span = tuple[int, int]
"""Where bytes begin and end."""


class _UnexpectedError(Exception):
    """The bytes are not laid out as is expected here."""


def read_mapped(path: Path) -> ir.Model | None:
    """Return a model whose large initializers of the main graph are external tensors, which lie in the file itself.

    Returns:
        The model, or None if the file is to be read as a whole: it is small, or not laid out as is expected.
    """
    if path.suffix != ".onnx" or not path.is_file() or path.stat().st_size <= _LARGE_BYTES:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            rest, weights = _split(data)
        except _UnexpectedError:
            return None
    if not weights:
        return None
    model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(rest))
    ir.external_data.set_base_dir(model.graph, path.parent)
    file_of_weights = path.resolve()
    for name, (start, stop) in weights.items():
        value = model.graph.initializers.get(name)
        if value is None or value.const_value is None:
            return None
        known = value.const_value
        value.const_value = ir.ExternalTensor(
            file_of_weights.name,
            start,
            stop - start,
            known.dtype,
            shape=ir.Shape(known.shape.numpy()),
            name=name,
            doc_string=known.doc_string,
            metadata_props=dict(known.metadata_props),
            base_dir=file_of_weights.parent,
        )
    return model


def _split(data: mmap.mmap) -> tuple[bytes, dict[str, Span]]:
    """Return a model without the contents of its large initializers, and where these lie by name."""
    model = bytearray()
    weights: dict[str, Span] = {}
    for field, kind, whole, inside in _fields(data, (0, len(data))):
        if (field, kind) == (_GRAPH, _BYTES):
            graph = _without_weights(data, inside, weights)
            model += length_delimited(_GRAPH, len(graph)) + graph
        else:
            model += data[whole[0] : whole[1]]
    return bytes(model), weights


def _without_weights(data: mmap.mmap, graph: Span, weights: dict[str, Span]) -> bytes:
    kept = bytearray()
    for field, kind, whole, inside in _fields(data, graph):
        if (field, kind) != (_INITIALIZER, _BYTES) or inside[1] - inside[0] <= _LARGE_BYTES:
            kept += data[whole[0] : whole[1]]
            continue
        tensor, contents = bytearray(), None
        for inner, _, around, span in _fields(data, inside):
            if inner == _RAW_DATA:
                contents = span
            else:
                tensor += data[around[0] : around[1]]
        name = onnx.TensorProto.FromString(bytes(tensor)).name if contents is not None else ""
        if contents is None or not name or name in weights:
            raise _UnexpectedError
        weights[name] = contents
        kept += length_delimited(_INITIALIZER, len(tensor)) + tensor
    return bytes(kept)


def _fields(data: mmap.mmap, message: Span) -> Iterator[tuple[int, int, Span, Span]]:
    """Yield number, kind, whole span and span of the contents of each field of a message.

    Raises:
        _UnexpectedError: If a field does not end inside the message, or is of an old kind.
    """
    place, end = message
    while place < end:
        start = place
        tag, place = _number(data, place, end)
        kind = tag & 7
        if kind == _VARINT:
            inside = place
            _, place = _number(data, place, end)
        elif kind == _BYTES:
            size, inside = _number(data, place, end)
            place = inside + size
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            inside, place = place, place + (8 if kind == _EIGHT_BYTES else 4)
        else:
            raise _UnexpectedError
        if place > end:
            raise _UnexpectedError
        yield tag >> 3, kind, (start, place), (inside, place)


def _number(data: mmap.mmap, place: int, end: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 64, 7):
        if place >= end:
            raise _UnexpectedError
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise _UnexpectedError
