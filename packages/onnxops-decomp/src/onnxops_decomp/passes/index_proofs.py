"""What a tensor holds at each index, as far as sizes and a padding mask alone decide it.

A mask that a model computes with ranges, comparisons and a gather is read symbolically: at the indices ``(b, i, j)`` it
is a conjunction of inequalities between them and the sizes, and of tokens that the padding mask keeps. Two masks are
the same function of sizes and padding where those are the same; nothing is run, and no form of a graph is looked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxops_decomp.passes.matching import dims, operand

__all__ = ["Affine", "Position", "Token", "Unreadable", "read"]

_LARGEST_CONSTANT = 64
_ANY_END = 1 << 31


class Unreadable(Exception):
    """More than sizes and the padding mask decide a value, or the reader does not know a node."""


@dataclasses.dataclass(frozen=True)
class Affine:
    """A whole number: a sum of multiples of symbols, each at least zero, and a constant."""

    terms: tuple[tuple[str, int], ...]
    constant: int = 0

    @classmethod
    def of(cls, value: int | str) -> Affine:
        """Return a number, or a symbol."""
        return cls((), value) if isinstance(value, int) else cls(((value, 1),))

    def __add__(self, other: Affine) -> Affine:
        sums = dict(self.terms)
        for symbol, factor in other.terms:
            sums[symbol] = sums.get(symbol, 0) + factor
        kept = tuple(sorted((symbol, factor) for symbol, factor in sums.items() if factor))
        return Affine(kept, self.constant + other.constant)

    def __sub__(self, other: Affine) -> Affine:
        return self + other.times(-1)

    def times(self, factor: int) -> Affine:
        """Return a multiple."""
        scaled = tuple((symbol, factor * each) for symbol, each in self.terms) if factor else ()
        return Affine(scaled, factor * self.constant)

    @property
    def is_positive_or_zero(self) -> bool:
        """Tell whether no symbol can make it negative."""
        return self.constant >= 0 and all(factor > 0 for _, factor in self.terms)


@dataclasses.dataclass(frozen=True)
class Token:
    """Whether the padding mask keeps a token: 1 or 0."""

    row: Affine
    place: Affine


@dataclasses.dataclass(frozen=True)
class Position:
    """How many tokens a padding mask keeps up to a place, and ``offset``; no less than ``least``.

    With ``zeroed`` it is that for the tokens alone that the mask keeps, and zero for the others.
    """

    row: Affine
    place: Affine
    offset: int = 0
    least: int | None = None
    zeroed: bool = False

    @property
    def is_plain(self) -> bool:
        """Tell whether it is a sum and no more."""
        return self.least is None and not self.zeroed


# Numbers that are at least zero, and tokens that are kept: all of them have to be.
Condition = frozenset[Affine | Token]
Element = Affine | Token | Position | Condition
Index = tuple[Affine, ...]


@dataclasses.dataclass(frozen=True)
class Read:
    """A tensor: its sizes, and what it holds at an index."""

    sizes: tuple[Affine, ...]
    at: Callable[[Index], Element]


def read(value: ir.Value, sizes: Mapping[str, Affine], padding_mask: ir.Value) -> Read:
    """Return what a value holds at each index.

    Args:
        value: The value.
        sizes: What the names of dimensions of the inputs stand for.
        padding_mask: The input (B, T) that keeps tokens.

    Raises:
        Unreadable: If it depends on anything else.
    """
    return _Reader(sizes, padding_mask).read(value)


class _Reader:
    def __init__(self, sizes: Mapping[str, Affine], padding_mask: ir.Value) -> None:
        self._sizes, self._mask = sizes, padding_mask
        self._known: dict[ir.Value, Read] = {}

    def read(self, value: ir.Value | None) -> Read:
        if value is None:
            raise Unreadable("an operand is left out")
        if value not in self._known:
            self._known[value] = self._made(value)
        return self._known[value]

    def _made(self, value: ir.Value) -> Read:
        if value is self._mask:
            return Read(self.input_sizes(value), lambda index: Token(index[0], index[1]))
        if value.is_initializer():
            return _constant(value)
        node = value.producer()
        rule = None if node is None or node.domain else _RULES.get(node.op_type)
        if node is None or rule is None:
            raise Unreadable(f"{value.name} is not decided by sizes")
        return rule(self, node)

    def input_sizes(self, value: ir.Value) -> tuple[Affine, ...]:
        """Return the sizes of an input of the model."""
        shape = dims(value)
        if shape is None or not value.is_graph_input():
            raise Unreadable(f"{value.name} is no input")
        known = [Affine.of(dim) if isinstance(dim, int) else self._sizes.get(str(dim)) for dim in shape]
        found = tuple(size for size in known if size is not None)
        if len(found) != len(known):
            raise Unreadable(f"{value.name} has sizes of unknown names")
        return found

    def numbers(self, value: ir.Value | None) -> list[Affine]:
        """Return the numbers that a vector or scalar holds."""
        tensor = self.read(value)
        count = tensor.sizes[0] if tensor.sizes else Affine.of(1)
        if len(tensor.sizes) > 1 or count.terms:
            raise Unreadable("a vector of unknown length")
        places = [(Affine.of(i),) for i in range(count.constant)] if tensor.sizes else [()]
        return [_number(tensor.at(place)) for place in places]


def _number(element: Element) -> Affine:
    if not isinstance(element, Affine):
        raise Unreadable("no number")
    return element


def _constant(value: ir.Value) -> Read:
    tensor = value.const_value
    if tensor is None or tensor.size > _LARGEST_CONSTANT or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        raise Unreadable(f"{value.name} is a weight")
    array = np.asarray(tensor.numpy())

    def at(index: Index) -> Element:
        if array.size == 1:
            return Affine.of(int(array.item()))
        if any(each.terms for each in index):
            raise Unreadable(f"{value.name} is read at computed places")
        return Affine.of(int(array[tuple(each.constant for each in index)]))

    return Read(tuple(Affine.of(size) for size in array.shape), at)


def _shape(reader: _Reader, node: ir.Node) -> Read:
    (source,) = node.inputs
    if source is None:
        raise Unreadable("an operand is left out")
    whole = reader.input_sizes(source) if source.is_graph_input() else reader.read(source).sizes
    part = whole[slice(node.attributes.get_int("start", 0), node.attributes.get_int("end", len(whole)))]
    return Read((Affine.of(len(part)),), lambda index: part[_place(index[0])])


def _place(index: Affine) -> int:
    if index.terms:
        raise Unreadable("a size at a computed place")
    return index.constant


def _axes(reader: _Reader, node: ir.Node, rank: int) -> list[int]:
    return sorted(_place(axis) % rank for axis in reader.numbers(operand(node, 1)))


def _squeeze(reader: _Reader, node: ir.Node) -> Read:
    source = reader.read(node.inputs[0])
    axes = _axes(reader, node, len(source.sizes))
    sizes = tuple(size for axis, size in enumerate(source.sizes) if axis not in axes)

    def at(index: Index) -> Element:
        rest = iter(index)
        return source.at(tuple(Affine.of(0) if axis in axes else next(rest) for axis in range(len(source.sizes))))

    return Read(sizes, at)


def _unsqueeze(reader: _Reader, node: ir.Node) -> Read:
    source = reader.read(node.inputs[0])
    rank = len(source.sizes) + len(reader.numbers(operand(node, 1)))
    axes, rest = _axes(reader, node, rank), iter(source.sizes)
    sizes = tuple(Affine.of(1) if axis in axes else next(rest) for axis in range(rank))
    return Read(sizes, lambda index: source.at(tuple(each for axis, each in enumerate(index) if axis not in axes)))


def _range(reader: _Reader, node: ir.Node) -> Read:
    (start,), (end,), (step,) = (reader.numbers(value) for value in node.inputs)
    if step != Affine.of(1) or not (end - start).is_positive_or_zero:
        raise Unreadable("a range of another step, or of no known length")
    return Read((end - start,), lambda index: start + index[0])


def _slice(reader: _Reader, node: ir.Node) -> Read:
    source = reader.read(node.inputs[0])
    (start,), (end,), (along,) = (reader.numbers(operand(node, place)) for place in (1, 2, 3))
    if operand(node, 4) is not None and reader.numbers(operand(node, 4)) != [Affine.of(1)]:
        raise Unreadable("a slice of another step")
    axis = _place(along) % len(source.sizes)
    size = source.sizes[axis]
    # What is never positive counts from the end; it is not zero either, as there is at least one new token.
    if not start.is_positive_or_zero and not start.times(-1).is_positive_or_zero:
        raise Unreadable("a slice from either end")
    first = start if start.is_positive_or_zero else size + start
    if not first.is_positive_or_zero or not (size - first).is_positive_or_zero:
        raise Unreadable("a slice that may be cut short")
    if end != size and (end.terms or end.constant < _ANY_END):
        raise Unreadable("a slice that ends before the end")
    sizes = (*source.sizes[:axis], size - first, *source.sizes[axis + 1 :])
    return Read(sizes, lambda index: source.at((*index[:axis], first + index[axis], *index[axis + 1 :])))


def _gather(reader: _Reader, node: ir.Node) -> Read:
    source, places = reader.read(node.inputs[0]), reader.read(node.inputs[1])
    axis = node.attributes.get_int("axis", 0) % len(source.sizes)
    rank = len(places.sizes)
    sizes = (*source.sizes[:axis], *places.sizes, *source.sizes[axis + 1 :])

    def at(index: Index) -> Element:
        place = _number(places.at(index[axis : axis + rank]))
        return source.at((*index[:axis], place, *index[axis + rank :]))

    return Read(sizes, at)


def _cumulated(reader: _Reader, node: ir.Node) -> Read:
    source = reader.read(node.inputs[0])
    last = len(source.sizes) - 1
    plain = not node.attributes.get_int("exclusive", 0) and not node.attributes.get_int("reverse", 0)
    if not plain or [_place(axis) % (last + 1) for axis in reader.numbers(operand(node, 1))] != [last]:
        raise Unreadable("another sum than that of all tokens up to each")

    def at(index: Index) -> Element:
        token = source.at(index)
        # The sum starts where the sequence does, so what is summed has to be the mask itself.
        if not isinstance(token, Token) or token.place != index[-1]:
            raise Unreadable("a sum of something else than tokens")
        return Position(token.row, token.place)

    return Read(source.sizes, at)


def _cast(reader: _Reader, node: ir.Node) -> Read:
    source, dtype = reader.read(node.inputs[0]), ir.DataType(node.attributes.get_int("to", 0))
    if dtype == ir.DataType.INT64 or dtype == ir.DataType.INT32:
        return source
    if dtype != ir.DataType.BOOL:
        raise Unreadable("a number of another kind")

    def at(index: Index) -> Element:
        element = source.at(index)
        if isinstance(element, frozenset):
            return element
        if not isinstance(element, Token):
            raise Unreadable("a number as a condition")
        return frozenset((element,))

    return Read(source.sizes, at)


def _together(
    combine: Callable[[Element, Element], Element],
) -> Callable[[_Reader, ir.Node], Read]:
    """Return the rule of a function of two elements, whose operands are broadcast."""

    def rule(reader: _Reader, node: ir.Node) -> Read:
        if len(node.inputs) != 2:
            raise Unreadable("other than two operands")
        left, right = (reader.read(value) for value in node.inputs)
        sizes = _broadcast(left.sizes, right.sizes)
        return Read(sizes, lambda index: combine(_at(left, index), _at(right, index)))

    return rule


def _broadcast(left: Sequence[Affine], right: Sequence[Affine]) -> tuple[Affine, ...]:
    one, rank = Affine.of(1), max(len(left), len(right))
    pairs = zip(
        [*[one] * (rank - len(left)), *left], [*[one] * (rank - len(right)), *right], strict=True
    )  # fmt: skip
    sizes = []
    for first, second in pairs:
        if first != second and one not in (first, second):
            raise Unreadable("sizes that differ")
        sizes.append(second if first == one else first)
    return tuple(sizes)


def _at(tensor: Read, index: Index) -> Element:
    own = index[len(index) - len(tensor.sizes) :]
    return tensor.at(
        tuple(Affine.of(0) if size == Affine.of(1) else at for size, at in zip(tensor.sizes, own, strict=True))
    )


def _sum(left: Element, right: Element) -> Element:
    if isinstance(left, Position) and isinstance(right, Affine) and not right.terms and left.is_plain:
        return dataclasses.replace(left, offset=left.offset + right.constant)
    return _number(left) + _number(right)


def _difference(left: Element, right: Element) -> Element:
    return _sum(left, _number(right).times(-1))


def _product(left: Element, right: Element) -> Element:
    for token, position in ((left, right), (right, left)):
        if isinstance(token, Token) and isinstance(position, Position) and _is_of(token, position):
            return dataclasses.replace(position, zeroed=True)
    first, second = _number(left), _number(right)
    if first.terms and second.terms:
        raise Unreadable("a product of sizes")
    return second.times(first.constant) if not first.terms else first.times(second.constant)


def _is_of(token: Token, position: Position) -> bool:
    return (token.row, token.place) == (position.row, position.place)


def _largest(left: Element, right: Element) -> Element:
    if isinstance(left, Position) and left.is_plain and isinstance(right, Affine) and not right.terms:
        return dataclasses.replace(left, least=right.constant)
    raise Unreadable("the larger of two numbers")


def _clip(reader: _Reader, node: ir.Node) -> Read:
    source, (least,) = reader.read(node.inputs[0]), reader.numbers(operand(node, 1))
    if operand(node, 2) is not None:
        raise Unreadable("the smaller of two numbers")
    return Read(source.sizes, lambda index: _largest(source.at(index), least))


def _chosen(reader: _Reader, node: ir.Node) -> Read:
    """Read the larger of two numbers as it is written where ONNX Runtime compares integers as 32 bits in Max."""
    condition, *choices = node.inputs
    compared = condition.producer() if condition else None
    smaller = compared is not None and compared.op_type in ("Less", "LessOrEqual")
    larger = compared is not None and compared.op_type in ("Greater", "GreaterOrEqual")
    if smaller:
        choices.reverse()
    if compared is None or not (smaller or larger) or list(compared.inputs) != choices:
        raise Unreadable("a choice by a condition")
    return _RULES["Max"](reader, compared)


def _all_of(left: Element, right: Element) -> Element:
    if not isinstance(left, frozenset) or not isinstance(right, frozenset):
        raise Unreadable("no conditions")
    return left | right


def _at_least(more: Element, less: Element, by: int) -> Element:
    """Return the condition that a number exceeds another by so much."""
    atom = _number(more) - _number(less) - Affine.of(by)
    return frozenset() if atom.is_positive_or_zero else frozenset((atom,))


_RULES: dict[str, Callable[[_Reader, ir.Node], Read]] = {
    "Shape": _shape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Range": _range,
    "Slice": _slice,
    "Gather": _gather,
    "CumSum": _cumulated,
    "Cast": _cast,
    "Add": _together(_sum),
    "Sub": _together(_difference),
    "Mul": _together(_product),
    "Max": _together(_largest),
    "Clip": _clip,
    "Where": _chosen,
    "And": _together(_all_of),
    "LessOrEqual": _together(lambda left, right: _at_least(right, left, 0)),
    "Less": _together(lambda left, right: _at_least(right, left, 1)),
    "GreaterOrEqual": _together(lambda left, right: _at_least(left, right, 0)),
    "Greater": _together(lambda left, right: _at_least(left, right, 1)),
}
