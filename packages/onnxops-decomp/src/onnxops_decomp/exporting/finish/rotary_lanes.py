"""Where the elements of a rotated head come from: which lanes of the head, by which cosines and sines.

Models write a rotary embedding with slices, stacks, splits and concatenations in many ways. Here the last axis is
followed lane by lane; two ways are the same where each lane is the same sum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.passes.matching import constant, dims, operand, producer

__all__ = ["LARGEST_TABLE", "Angles", "Rotation", "rotation"]

_HEADS_RANK, _END = 4, 1 << 62
# So many numbers of constant cosines are looked at.
LARGEST_TABLE = 1 << 22
# The longest way from the heads to what is turned.
_MOST_STEPS = 12
Lanes = npt.NDArray[Any]


class Angles(NamedTuple):
    """Cosines or sines (B, S, h), of angles, times a constant or not, and in half precision or that of the angles.

    Where positions are known, these are constants: there is no function then, and ``angles`` are the cosines or sines
    themselves, (..., S, E), of whose lanes ``part`` are those of the angles.
    """

    function: str
    angles: ir.Value
    scale: ir.Value | None
    is_half: bool = False
    part: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int | str | None, ...]:
        """The sizes (B, S, h)."""
        sizes = dims(self.angles) or ()
        if self.part is None:
            return sizes
        end, step = self.part
        return (1, sizes[-2], end // step)


class _Term(NamedTuple):
    """A lane of the head, or its negation, times a lane of a table."""

    sign: int
    lane: int
    table: tuple[Angles, int] | None


@dataclasses.dataclass(frozen=True)
class Rotation:
    """A rotary embedding.

    Attributes:
        source: The heads (B, N, S, D) before it.
        cosine: The cosines (B, S, width / 2).
        sine: The sines of the same angles.
        width: How many lanes turn.
        interleaved: Whether neighbours turn together, and not the lanes of both halves.
    """

    source: ir.Value
    cosine: Angles
    sine: Angles
    width: int
    interleaved: bool


class _Unknown(Exception):
    """A value is no sum of lanes."""


def rotation(value: ir.Value) -> Rotation | None:
    """Return the rotary embedding that gives ``value`` (B, N, S, D), or None if none does."""
    shape = dims(value)
    if shape is None or len(shape) != _HEADS_RANK or not isinstance(shape[-1], int):
        return None
    reader = _Reader(shape)
    try:
        lanes = reader.lanes(value)
    except _Unknown:
        return None
    tables = list(dict.fromkeys(term.table[0] for lane in lanes for term in lane if term.table is not None))
    if reader.source is None or len(tables) != 2 or tables[0].shape != tables[1].shape:
        return None
    half = tables[0].shape[-1]
    if not isinstance(half, int) or 2 * half > shape[-1]:
        return None
    found = [frozenset(lane) for lane in lanes]
    for cosine, sine in (tables, tables[::-1]):
        # Constants are cosines and sines by what they are to the lanes.
        if cosine.part is None and ((cosine.function, sine.function) != ("Cos", "Sin") or cosine[1:] != sine[1:]):
            continue
        for interleaved in (False, True):
            if found == _turned(shape[-1], half, cosine, sine, interleaved=interleaved):
                return Rotation(reader.source, cosine, sine, 2 * half, interleaved)
    return None


def _turned(size: int, half: int, cosine: Angles, sine: Angles, *, interleaved: bool) -> list[frozenset[_Term]]:
    """Return the lanes as ONNX's RotaryEmbedding has them."""
    result = [frozenset((_Term(1, lane, None),)) for lane in range(size)]
    for angle in range(half):
        first, second = (2 * angle, 2 * angle + 1) if interleaved else (angle, angle + half)
        by_cosine, by_sine = (cosine, angle), (sine, angle)
        result[first] = frozenset((_Term(1, first, by_cosine), _Term(-1, second, by_sine)))
        result[second] = frozenset((_Term(1, second, by_cosine), _Term(1, first, by_sine)))
    return result


class _Reader:
    """Reads what is computed of one value of heads.

    Args:
        shape: Shape (B, N, S, D) of the result.
    """

    def __init__(self, shape: tuple[int | str | None, ...]) -> None:
        self._shape = shape
        self.source: ir.Value | None = None
        self._known: dict[ir.Value, Lanes] = {}
        self._steps = 0

    def lanes(self, value: ir.Value | None) -> Lanes:
        """Return the sums that stand at the places behind (B, N, S)."""
        if value is None or self._steps == _MOST_STEPS:
            raise _Unknown
        if value not in self._known:
            self._steps += 1
            self._known[value] = self._read(value)
            self._steps -= 1
        return self._known[value]

    def _read(self, value: ir.Value) -> Lanes:
        node = value.producer()
        rule = None if node is None or node.domain else _RULES.get(node.op_type)
        shape = dims(value)
        if shape is None or shape[: _HEADS_RANK - 1] != self._shape[:-1]:
            raise _Unknown
        if node is None or rule is None or (node.op_type == "Reshape" and not self._unstacks(node)):
            return self._leaf(value)
        return rule(self, node, value)

    def _leaf(self, value: ir.Value) -> Lanes:
        shape = dims(value)
        if shape != self._shape or self.source not in (None, value):
            raise _Unknown
        self.source = value
        assert isinstance(shape[-1], int)
        return _filled([(_Term(1, lane, None),) for lane in range(shape[-1])])

    def _add(self, node: ir.Node, _: ir.Value) -> Lanes:
        return _each(lambda x, y: (*x, *y), *(self.lanes(each) for each in node.inputs))

    def _sub(self, node: ir.Node, _: ir.Value) -> Lanes:
        return _each(lambda x, y: (*x, *_negated(y)), *(self.lanes(each) for each in node.inputs))

    def _neg(self, node: ir.Node, _: ir.Value) -> Lanes:
        return _each(_negated, self.lanes(node.inputs[0]))

    def _mul(self, node: ir.Node, _: ir.Value) -> Lanes:
        for head, table in (node.inputs, reversed(node.inputs)):
            factors = _table(table)
            if factors is not None and len(dims(table) or ()) == _HEADS_RANK:
                return _each(_times, self.lanes(head), factors)
        raise _Unknown

    def _concat(self, node: ir.Node, value: ir.Value) -> Lanes:
        axis = node.attributes.get_int("axis", 0) % len(dims(value) or ()) - (_HEADS_RANK - 1)
        parts = [self.lanes(each) for each in node.inputs]
        if axis < 0:
            raise _Unknown
        return np.concatenate(parts, axis)

    def _slice(self, node: ir.Node, value: ir.Value) -> Lanes:
        part = _last_slice(node, value)
        size = (dims(node.inputs[0]) or (None,))[-1]
        if part is None or not isinstance(size, int):
            return self._leaf(value)
        if dims(value) == self._shape and part.indices(size) != (0, size, 1):
            return self._leaf(value)
        return self.lanes(node.inputs[0])[..., part]

    def _split(self, node: ir.Node, value: ir.Value) -> Lanes:
        whole = self.lanes(node.inputs[0])
        if node.attributes.get_int("axis", 0) % len(dims(value) or ()) != len(dims(value) or ()) - 1:
            raise _Unknown
        sizes = [(dims(each) or (None,))[-1] for each in node.outputs]
        place = list(node.outputs).index(value)
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) != len(sizes):
            raise _Unknown
        return whole[..., sum(known[:place]) : sum(known[: place + 1])]

    def _unsqueeze(self, node: ir.Node, value: ir.Value) -> Lanes:
        axes, rank = constant(operand(node, 1)), len(dims(value) or ())
        if axes is None or axes.size != 1 or int(axes.item()) % rank != rank - 1:
            raise _Unknown
        return self.lanes(node.inputs[0])[..., None]

    def _unstacks(self, node: ir.Node) -> bool:
        """Tell whether a Reshape only joins what stands behind (B, N, S)."""
        before, after = dims(node.inputs[0]), dims(node.outputs[0])
        kept = _HEADS_RANK - 1
        return (
            before is not None and after is not None and len(before) > kept and before[:kept] == after[:kept]
            and all(isinstance(size, int) for size in (*before[kept:], *after[kept:]))
        )  # fmt: skip

    def _reshape(self, node: ir.Node, value: ir.Value) -> Lanes:
        behind = (dims(value) or ())[_HEADS_RANK - 1 :]
        return self.lanes(node.inputs[0]).reshape([size for size in behind if isinstance(size, int)])


_RULES: dict[str, Callable[[_Reader, ir.Node, ir.Value], Lanes]] = {
    "Add": _Reader._add,
    "Sub": _Reader._sub,
    "Neg": _Reader._neg,
    "Mul": _Reader._mul,
    "Concat": _Reader._concat,
    "Slice": _Reader._slice,
    "Split": _Reader._split,
    "Unsqueeze": _Reader._unsqueeze,
    "Reshape": _Reader._reshape,
}


def _filled(items: Sequence[Any]) -> Lanes:
    """Return a vector of tuples, of which numpy would make a matrix."""
    result = np.empty(len(items), object)
    for place, item in enumerate(items):
        result[place] = item
    return result


def _each(function: Any, *operands: Lanes) -> Lanes:
    first = np.broadcast(*operands).shape if len(operands) > 1 else operands[0].shape
    result = np.empty(first, object)
    for place in np.ndindex(first):
        result[place] = function(*(np.broadcast_to(each, first)[place] for each in operands))
    return result


def _negated(lane: tuple[_Term, ...]) -> tuple[_Term, ...]:
    return tuple(term._replace(sign=-term.sign) for term in lane)


def _times(lane: tuple[_Term, ...], table: tuple[Angles, int]) -> tuple[_Term, ...]:
    if any(term.table is not None for term in lane):
        raise _Unknown
    return tuple(term._replace(table=table) for term in lane)


def _table(value: ir.Value | None) -> Lanes | None:
    """Return which cosines or sines stand in the lanes of a value (B, 1, S, E) or (B, S, E)."""
    if (array := constant(value, LARGEST_TABLE)) is not None:
        return _constants(value, array)
    node = None if value is None else value.producer()
    if node is None or node.domain or value is None:
        return None
    source, rank = node.inputs[0], len(dims(value) or ())
    if node.op_type == "Unsqueeze" and _axis_of(node) in (1, -3) and rank == _HEADS_RANK:
        return _table(source)
    if node.op_type == "Slice":
        inner, part = _table(source), _last_slice(node, value)
        return None if inner is None or part is None else inner[part]
    if node.op_type == "Concat" and node.attributes.get_int("axis", 0) % rank == rank - 1:
        parts = [_table(each) for each in node.inputs]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None
    if node.op_type == "Reshape":
        return _repeated(node)
    if node.op_type == "Cast":
        return _halved(_table(source)) if value.dtype == ir.DataType.FLOAT16 else None
    return _angles(value)


def _constants(value: ir.Value | None, array: npt.NDArray[Any]) -> Lanes | None:
    """Return the lanes of constants (..., S, E) of one entry and head; of angles that stand there twice, the first."""
    if value is None or array.ndim < 3 or any(size != 1 for size in array.shape[:-2]):
        return None
    size = array.shape[-1]
    part, places = (size, 1), list(range(size))
    if size % 2 == 0 and np.array_equal(array[..., : size // 2], array[..., size // 2 :]):
        part, places = (size // 2, 1), [lane % (size // 2) for lane in range(size)]
    elif size % 2 == 0 and np.array_equal(array[..., ::2], array[..., 1::2]):
        part, places = (size, 2), [lane // 2 for lane in range(size)]
    table = Angles("", value, None, part=part)
    return _filled([(table, place) for place in places])


def _halved(lanes: Lanes | None) -> Lanes | None:
    """Return lanes of a table in half precision."""
    if lanes is None or any(table.is_half for table, _ in lanes):
        return None
    return _filled([(table._replace(is_half=True), lane) for table, lane in lanes])


def _repeated(node: ir.Node) -> Lanes | None:
    """Return the lanes of ``repeat_interleave``, which is an Unsqueeze, an Expand and a Reshape."""
    spread = producer(node.inputs[0], "Expand")
    apart = producer(operand(spread, 0), "Unsqueeze") if spread else None
    inner = _table(apart.inputs[0]) if apart else None
    wide = dims(node.inputs[0])
    if inner is None or apart is None or wide is None or dims(apart.outputs[0]) != (*wide[:-1], 1):
        return None
    copies, whole = wide[-1], (dims(node.outputs[0]) or (None,))[-1]
    return np.repeat(inner, copies) if isinstance(copies, int) and whole == len(inner) * copies else None


def _angles(value: ir.Value) -> Lanes | None:
    """Return the lanes of cosines or sines (B, S, E) of angles that may stand there twice."""
    scale, node = None, value.producer()
    if node is not None and node.op_type == "Mul":
        scale = next((each for each in node.inputs if (found := constant(each)) is not None and found.size == 1), None)
        node = next((each.producer() for each in node.inputs if each is not scale and each is not None), None)
    shape = dims(value)
    if node is None or node.domain or node.op_type not in ("Cos", "Sin") or shape is None or len(shape) != 3:
        return None
    if value.producer() is not node and scale is None:
        return None
    angles, joined = node.inputs[0], producer(node.inputs[0], "Concat")
    twice = joined is not None and len(joined.inputs) == 2 and joined.inputs[0] is joined.inputs[1]
    if joined is not None and twice and joined.attributes.get_int("axis", 0) % 3 == 2:
        angles = joined.inputs[0]
    half = (dims(angles) or (None,))[-1]
    if angles is None or not isinstance(half, int) or not isinstance(shape[-1], int):
        return None
    return _filled([(Angles(node.op_type, angles, scale), lane % half) for lane in range(shape[-1])])


def _axis_of(node: ir.Node) -> int | None:
    axes = constant(operand(node, 1))
    return int(axes.item()) if axes is not None and axes.size == 1 else None


def _last_slice(node: ir.Node, value: ir.Value) -> slice | None:
    """Return what a Slice takes of the last axis, or None if it takes of another."""
    starts, ends, axes = (constant(operand(node, place)) for place in (1, 2, 3))
    steps = constant(operand(node, 4)) if operand(node, 4) is not None else np.array([1])
    rank = len(dims(value) or ())
    if starts is None or ends is None or axes is None or steps is None or starts.size != 1 or steps.item() < 1:
        return None
    if int(axes.item()) % rank != rank - 1:
        return None
    return slice(int(starts.item()), min(int(ends.item()), _END), int(steps.item()))
