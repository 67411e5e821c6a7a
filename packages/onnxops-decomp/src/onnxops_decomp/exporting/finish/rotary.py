"""Rotary position embeddings that models spell out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.exporting.finish.rotary_lanes import LARGEST_TABLE, Angles, rotation
from onnxops_decomp.passes.matching import constant, dims, replace

__all__ = ["FuseRotaryEmbedding"]

_FIRST_OPSET = 23


class FuseRotaryEmbedding(ir.passes.InPlacePass):
    """Puts RotaryEmbedding in place of heads whose lanes turn in pairs, however that is written.

    The operator takes the cosines and sines of half of what turns. It wants them for every batch entry, so those that
    all entries share are expanded once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._caches: dict[tuple[Angles, int | str | None], ir.Value | None] = {}
        self._halves: dict[Angles, ir.Value] = {}
        self._sizes: dict[int | str | None, ir.Value] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        if model.opset_imports[""] >= _FIRST_OPSET:
            # What turns a part of the lanes ends in a Concat, within which an Add turns all of a slice.
            for op_type in ("Concat", "Add", "Reshape"):
                for node in list(model.graph):
                    if node.op_type == op_type and not node.domain and node.graph is not None:
                        modified |= self._fuse(node)
        return ir.passes.PassResult(model, modified)

    def _fuse(self, total: ir.Node) -> bool:
        found = rotation(total.outputs[0])
        if found is None:
            return False
        shape = dims(found.source)
        assert shape is not None
        caches = [self._cache(each, total, shape) for each in (found.cosine, found.sine)]
        if None in caches:
            return False
        attributes = {"interleaved": 1} if found.interleaved else {}
        if found.width != shape[-1]:
            attributes["rotary_embedding_dim"] = found.width
        replace(total, "RotaryEmbedding", [found.source, *caches], attributes, total.outputs[0])
        return True

    def _cache(self, table: Angles, user: ir.Node, heads: tuple[int | str | None, ...]) -> ir.Value | None:
        """Return the cosines or sines of one half for every batch entry, or None if the batch cannot be computed."""
        key = (table, heads[0])
        if key not in self._caches:
            self._caches[key] = self._new_cache(table, user, heads)
        return self._caches[key]

    def _new_cache(self, table: Angles, user: ir.Node, heads: tuple[int | str | None, ...]) -> ir.Value | None:
        batch, shape, graph = heads[0], table.shape, user.graph
        assert graph is not None
        size = None if shape[0] == batch else self._batch_size(graph, batch)
        if shape[1] != heads[2] or batch is None or (shape[0] != batch and (shape[0] != 1 or size is None)):
            return None
        half = self._halves.get(table)
        if half is None:
            half = self._halves[table] = self._half(table) if table.part is None else _constant_half(graph, table)
        if size is None:
            return half
        before = _next(half) if half.producer() else _next(size) if size.producer() else graph[0]
        name = f"{half.name}.{batch}"
        ones = _initializer(graph, f"{name}.ones", [1, 1])
        target = _insert(before, "Concat", [size, ones], f"{name}.shape", size, axis=0)
        target.shape = ir.Shape([3])
        expanded = _insert(before, "Expand", [half, target], f"{name}.expanded", half)
        expanded.shape = ir.Shape([batch, *shape[1:]])
        return expanded

    def _half(self, table: Angles) -> ir.Value:
        """Compute cosines or sines of the angles where these are."""
        before = _next(table.angles)
        name = f"{table.angles.name}.{table.function.lower()}"
        found = _insert(before, table.function, [table.angles], f"{name}.half", table.angles)
        if table.scale is not None:
            found = _insert(before, "Mul", [found, table.scale], f"{name}.half.scaled", found)
        if table.is_half:
            found = _insert(before, "Cast", [found], f"{found.name}.cast", found, to=int(ir.DataType.FLOAT16))
            found.type = ir.TensorType(ir.DataType.FLOAT16)
        return found

    def _batch_size(self, graph: ir.Graph, batch: int | str | None) -> ir.Value | None:
        """Return the size of the batch as a vector, read off an input of the model."""
        if batch in self._sizes:
            return self._sizes[batch]
        if isinstance(batch, int):
            return _initializer(graph, f"rotary_batch_{batch}", [batch])
        for value in graph.inputs:
            shape = dims(value)
            if shape is not None and batch is not None and batch in shape:
                axis = shape.index(batch)
                first = next(iter(graph))
                size = _insert(first, "Shape", [value], f"rotary_batch_{batch}", value, start=axis, end=axis + 1)
                size.type, size.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([1])
                self._sizes[batch] = size
                return size
        return None


def _next(value: ir.Value) -> ir.Node:
    """Return the first node behind the one that computes a value."""
    node = value.producer()
    assert node is not None
    assert node.graph is not None
    nodes = iter(node.graph)
    while next(nodes) is not node:
        pass
    return next(nodes)


def _constant_half(graph: ir.Graph, table: Angles) -> ir.Value:
    """Return the constant cosines or sines of one half."""
    array = constant(table.angles, LARGEST_TABLE)
    assert array is not None
    assert table.part is not None
    end, step = table.part
    half = np.ascontiguousarray(array.reshape(1, *array.shape[-2:])[..., :end:step])
    return _initializer(graph, f"{table.angles.name}.half", half)


def _initializer(graph: ir.Graph, name: str, values: list[int] | npt.NDArray[Any]) -> ir.Value:
    found = graph.initializers.get(name)
    if found is None:
        array = np.array(values, np.int64) if isinstance(values, list) else values
        tensor = ir.tensor(array, name=name)
        found = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        graph.initializers.add(found)
    return found


def _insert(
    before: ir.Node, op_type: str, inputs: list[ir.Value], name: str, like: ir.Value, **attributes: int
) -> ir.Value:
    """Insert a node whose result has the type and shape of ``like``."""
    attrs = [ir.Attr(key, ir.AttributeType.INT, value) for key, value in attributes.items()]
    node = ir.Node("", op_type, inputs, attrs, num_outputs=1, name=name, metadata_props=dict(before.metadata_props))
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = name, like.type, like.shape
    assert before.graph is not None
    before.graph.insert_before(before, node)
    return node.outputs[0]
