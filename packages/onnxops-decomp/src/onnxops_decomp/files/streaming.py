"""Writes a model as one protobuf message without a copy of its weights in memory.

The fields of a message may come in any order, and a message inside another is its length and its bytes
(https://protobuf.dev/programming-guides/encoding): everything but the large weights is serialized as usual, and they
follow, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

import numpy as np
import onnx
import onnx_ir as ir

__all__ = ["length_delimited", "write_model"]

_LARGE_BYTES = 1 << 16
_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER


def write_model(model: ir.Model, file: IO[bytes]) -> None:
    """Write a model to a binary file; its weights are read one at a time."""
    weights = ((str(value.name), value.const_value) for value in model.graph.initializers.values())
    large = {name: tensor for name, tensor in weights if tensor is not None and _is_large(tensor)}
    if not large:
        file.write(ir.serde.serialize_model(model).SerializeToString())
        return
    with _left_out(model, large):
        proto = ir.serde.serialize_model(model)
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in large]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    heads = {name: _head(name, tensor) for name, tensor in large.items()}
    size = len(graph) + sum(len(head) + large[name].nbytes for name, head in heads.items())
    file.write(proto.SerializeToString() + length_delimited(_GRAPH, size) + graph)
    for name, head in heads.items():
        file.write(head)
        tensor = large[name]
        if hasattr(tensor, "tofile"):
            tensor.tofile(file)
        else:
            file.write(tensor.tobytes())


def _is_large(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype != ir.DataType.STRING and int(tensor.dtype.bitwidth) >= 8 and tensor.nbytes > _LARGE_BYTES


@contextmanager
def _left_out(model: ir.Model, tensors: Mapping[str, ir.TensorProtocol]) -> Iterator[None]:
    """Put empty tensors in place of weights."""
    values = [model.graph.initializers[name] for name in tensors]
    for value in values:
        value.const_value = ir.tensor(np.zeros(0, np.float32), name=value.name)
    try:
        yield
    finally:
        for value in values:
            value.const_value = tensors[str(value.name)]


def _head(name: str, tensor: ir.TensorProtocol) -> bytes:
    """Return the bytes of an initializer up to its contents."""
    proto = onnx.TensorProto(name=name, dims=tensor.shape.numpy(), data_type=int(tensor.dtype))
    if tensor.doc_string:
        proto.doc_string = tensor.doc_string
    fields: bytes = proto.SerializeToString() + length_delimited(_RAW_DATA, tensor.nbytes)
    return length_delimited(_INITIALIZER, len(fields) + tensor.nbytes) + fields


def length_delimited(field: int, size: int) -> bytes:
    """Return the bytes that stand before the contents of a field of so many bytes."""
    return _varint(field << 3 | 2) + _varint(size)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))
