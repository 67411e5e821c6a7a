"""Rotary position embeddings that models spell out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxops_decomp.passes.matching import constant, dims, operand, other_operand, producer, replace

__all__ = ["FuseRotaryEmbedding"]

_FIRST_OPSET = 23
_END = 1 << 62


class FuseRotaryEmbedding(ir.passes.InPlacePass):
    """Puts RotaryEmbedding in the place of ``x * cos + rotate_half(x) * sin``.

    The operator takes the cosines and sines of half a head, so both halves must be the same: they are where they come
    from one ``Concat(angles, angles)``. It wants them for every batch entry, so those that all entries share are
    expanded once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._caches: dict[tuple[ir.Node, int | str | None], ir.Value | None] = {}
        self._halves: dict[ir.Node, ir.Value] = {}
        self._sizes: dict[int | str | None, ir.Value] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on the main graph."""
        modified = False
        if model.opset_imports[""] >= _FIRST_OPSET:
            for node in list(model.graph):
                if node.op_type == "Add" and node.graph is not None:
                    modified |= self._fuse(node)
        return ir.passes.PassResult(model, modified)

    def _fuse(self, total: ir.Node) -> bool:
        left, right = (producer(value, "Mul") for value in total.inputs[:2])
        if left is None or right is None:
            return False
        return self._fuse_products(total, left, right) or self._fuse_products(total, right, left)

    def _fuse_products(self, total: ir.Node, plain: ir.Node, rotated: ir.Node) -> bool:
        for index in (0, 1):
            turned = rotated.inputs[index]
            x = self._unrotated(turned)
            if x is None or turned is None:
                continue
            cosine, sine = other_operand(plain, x), other_operand(rotated, turned)
            shape = dims(x)
            if cosine is None or sine is None or shape is None or len(shape) != 4:
                continue
            halves = [_doubled(cosine, "Cos", shape), _doubled(sine, "Sin", shape)]
            caches = [self._cache(half, shape[0]) for half in halves if half is not None]
            if len(caches) != 2 or None in caches:
                continue
            replace(total, "RotaryEmbedding", [x, *caches], {}, total.outputs[0])
            return True
        return False

    def _unrotated(self, value: ir.Value | None) -> ir.Value | None:
        """Return x if ``value`` is ``concat(-x[..., D/2:], x[..., :D/2])``."""
        joined = producer(value, "Concat")
        if joined is None or len(joined.inputs) != 2:
            return None
        negated = producer(operand(joined, 0), "Neg")
        upper = producer(operand(negated, 0), "Slice") if negated else None
        lower = producer(operand(joined, 1), "Slice")
        if upper is None or lower is None or upper.inputs[0] is not lower.inputs[0]:
            return None
        x = operand(upper, 0)
        shape = dims(x)
        if shape is None or not isinstance(shape[-1], int) or shape[-1] % 2:
            return None
        axis = joined.attributes.get_int("axis", 0)
        if axis % len(shape) != len(shape) - 1:
            return None
        size = shape[-1]
        halves = _range(lower, len(shape), size), _range(upper, len(shape), size)
        return x if halves == ((0, size // 2), (size // 2, size)) else None

    def _cache(self, computed: ir.Node, batch: int | str | None) -> ir.Value | None:
        """Return the cosines or sines of one half for every batch entry, or None if the batch cannot be computed."""
        key = (computed, batch)
        if key not in self._caches:
            self._caches[key] = self._new_cache(computed, batch)
        return self._caches[key]

    def _new_cache(self, computed: ir.Node, batch: int | str | None) -> ir.Value | None:
        angles = computed.inputs[0].producer().inputs[0]  # type: ignore[union-attr]
        graph = computed.graph
        assert angles is not None
        assert graph is not None
        shape = dims(angles)
        assert shape is not None
        size = None if shape[0] == batch else self._batch_size(graph, batch)
        if batch is None or (shape[0] != batch and (shape[0] != 1 or size is None)):
            return None
        name = f"{computed.outputs[0].name}.half"
        half = self._halves.get(computed)
        if half is None:
            half = self._halves[computed] = _insert(computed, computed.op_type, [angles], name, angles)
        if size is None:
            return half
        name = f"{name}.{batch}"
        ones = _initializer(graph, f"{name}.ones", [1, 1])
        target = _insert(computed, "Concat", [size, ones], f"{name}.shape", size, axis=0)
        target.shape = ir.Shape([3])
        expanded = _insert(computed, "Expand", [half, target], f"{name}.expanded", half)
        expanded.shape = ir.Shape([batch, *shape[1:]])
        return expanded

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


def _doubled(value: ir.Value, function: str, shape: tuple[int | str | None, ...]) -> ir.Node | None:
    """Return the node that computes ``function`` of [B, S, D/2] angles for both halves, spread over the heads."""
    spread = producer(value, "Unsqueeze")
    axes = constant(operand(spread, 1)) if spread else None
    computed = producer(operand(spread, 0), function) if spread else None
    joined = producer(operand(computed, 0), "Concat") if computed else None
    if axes is None or axes.tolist() != [1] or joined is None or len(joined.inputs) != 2:
        return None
    half = dims(joined.inputs[0])
    if joined.inputs[0] is not joined.inputs[1] or half is None or len(half) != 3 or half[1] is None:
        return None
    if joined.attributes.get_int("axis", 0) % 3 != 2 or not isinstance(half[2], int) or not isinstance(shape[3], int):
        return None
    return computed if half[2] * 2 == shape[3] and half[1] == shape[2] else None


def _initializer(graph: ir.Graph, name: str, values: list[int]) -> ir.Value:
    found = graph.initializers.get(name)
    if found is None:
        tensor = ir.tensor(np.array(values, np.int64), name=name)
        found = ir.Value(
            name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([len(values)]), const_value=tensor
        )
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


def _range(node: ir.Node, rank: int, size: int) -> tuple[int, int] | None:
    """Return start and end of a Slice of step 1 along the last axis."""
    starts, ends, axes = (constant(operand(node, index)) for index in (1, 2, 3))
    steps = constant(operand(node, 4))
    if starts is None or ends is None or axes is None or starts.size != 1 or int(axes.item()) % rank != rank - 1:
        return None
    if operand(node, 4) is not None and (steps is None or steps.item() != 1):
        return None
    start, end, _ = slice(int(starts.item()), min(int(ends.item()), _END)).indices(size)
    return start, end
