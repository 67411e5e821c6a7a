"""Sizes of tensors inside a lowering: plain ints where they are static, values where they are known only at run time.

A runtime size is a 0-d INT64 value. Behind it stands a vector of one element, because shape operands are vectors;
``vector`` takes the short way between the two.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import sympy

from onnxops_decomp.builder.expressions import at_sizes, emit_expression, is_computable
from onnxops_decomp.builder.scope import NodeWriter
from onnxops_decomp.errors import LoweringError
from onnxops_decomp.spec.inference import UNKNOWN_DIM, Dim, dims_of, same_dim
from onnxops_decomp.spec.traits import Trait, has_trait

__all__ = ["INT64_MAX", "Size", "SizeOperations", "is_one", "is_zero"]

Size = int | ir.Value
INT64_MAX = np.iinfo(np.int64).max

DIM_KEY = "onnxops_decomp.dim"


@functools.cache
def _of_tensor(size: sympy.Expr) -> sympy.Expr:
    """Return the size of a tensor for all sizes of the inputs: n - 1 holds for what is left of n, unless n is 0."""
    symbols = size.free_symbols
    # Where a size divides, it is not 0.
    values = (at_sizes(size, dict.fromkeys(symbols, least)) for least in (0, 1))
    smallest = next((value for value in values if value is not None), None)
    return sympy.Max(size, 0, evaluate=False) if smallest is not None and smallest.is_negative else size


class SizeOperations(NodeWriter):
    """The part of the builder that deals with sizes and shapes."""

    def sizes(self, value: ir.Value) -> list[Size]:
        """Return all sizes of ``value``.

        Raises:
            LoweringError: If the rank is not known.
        """
        op = self.newest
        return [self.size(value, axis) for axis in range(op.rank(value))]

    def size(self, value: ir.Value, axis: int) -> Size:
        """Return the size of ``value`` along ``axis``, which may be negative."""
        op = self.newest
        dims = dims_of(value)
        if dims is None:
            if axis < 0:
                raise LoweringError(f"The rank of {value.name} has to be known to count axis {axis} from its end.")
            return self.as_size(op.Shape(value, start=axis, end=axis + 1), UNKNOWN_DIM)
        axis = range(len(dims))[axis]
        dim = dims[axis]
        if isinstance(dim, int):
            return dim
        expression = op.context.expressions.get(dim.value) if dim.value is not None else None
        if expression is not None and is_computable(op, expression):
            return self.size_of_expression(_of_tensor(expression), dim)
        return self.as_size(op.Shape(value, start=axis, end=axis + 1), dim)

    def size_of_expression(self, expression: sympy.Expr, dim: ir.SymbolicDim = UNKNOWN_DIM) -> Size:
        """Return the size that a SymPy expression of the model's input dimensions gives."""
        if isinstance(expression, sympy.Integer):
            return int(expression)
        op = self.newest
        # A quotient that is known to be whole is computed in doubles, which hold every size.
        return self.as_size(op.cast(emit_expression(op, expression), ir.DataType.INT64), dim)

    def as_size(self, vector: ir.Value, dim: Dim = UNKNOWN_DIM) -> Size:
        """Turn a 1-D value of one element into a size; ``dim`` is what it is called in shapes."""
        op = self.newest
        array = op.static(vector)
        if array is not None:
            return int(array.item())
        scalar: ir.Value = op.Squeeze(vector, [0])
        if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
            scalar.meta[DIM_KEY] = dim
        return scalar

    def dim(self, size: Size) -> Dim:
        """Return the dimension that a tensor of this size has in shapes."""
        return size if isinstance(size, int) else cast(Dim, size.meta.get(DIM_KEY, UNKNOWN_DIM))

    def vector(self, sizes: Sequence[Any]) -> ir.Value:
        """Return a 1-D INT64 value of the given sizes.

        Args:
            sizes: Ints, or INT64 values of rank 0 or of one element.
        """
        op = self.newest
        if all(isinstance(size, int | np.integer) for size in sizes):
            return op.constant([int(size) for size in sizes], ir.DataType.INT64)
        parts: list[ir.Value] = []
        run: list[int] = []
        for size in sizes:
            number = op.static(size) if isinstance(size, ir.Value) else np.asarray(size)
            if number is not None:
                run.append(int(number.item()))
                run = self._continued(parts, run)
                continue
            vector = self._begun_earlier(self._one_size(size), run)
            if run:
                parts.append(op.constant(run, ir.DataType.INT64))
                run = []
            self._append(parts, vector)
        if run:
            parts.append(op.constant(run, ir.DataType.INT64))
        return op.Concat(*parts, axis=0)

    def _one_size(self, size: ir.Value) -> ir.Value:
        """Return ``size`` as a vector of one INT64."""
        op = self.newest
        size = op.cast(size, ir.DataType.INT64)
        dims = dims_of(size)
        return op.Unsqueeze(size, [0]) if dims == () else op.Reshape(size, [1]) if dims is None else size

    def _append(self, parts: list[ir.Value], vector: ir.Value) -> None:
        """Append ``vector``, joining it with the slice of the same Shape that stands before it."""
        here, before = _shape_slice(vector), _shape_slice(parts[-1]) if parts else None
        if here is not None and before is not None and here[0] is before[0] and here[1] == before[2]:
            parts[-1] = self.newest.Shape(here[0], start=before[1], end=here[2])
        else:
            parts.append(vector)

    def _continued(self, parts: list[ir.Value], run: list[int]) -> list[int]:
        """Let the slice of a Shape that stands last in ``parts`` go on over ``run`` where the sizes are its own."""
        here = _shape_slice(parts[-1]) if parts else None
        if here is None:
            return run
        value, start, end = here
        if list(dims_of(value) or ())[end : end + len(run)] != run:
            return run
        parts[-1] = self.newest.Shape(value, start=start, end=end + len(run))
        return []

    def _begun_earlier(self, vector: ir.Value, run: list[int]) -> ir.Value:
        """Let a slice of a Shape begin with the last numbers of ``run``, which lose them, where these are its sizes."""
        here = _shape_slice(vector)
        if here is None:
            return vector
        value, start, end = here
        dims = dims_of(value) or ()
        begin = start
        while run and begin > 0 and dims[begin - 1] == run[-1]:
            begin -= 1
            run.pop()
        return vector if begin == start else self.newest.Shape(value, start=begin, end=end)

    def reshape(self, value: ir.Value, sizes: Sequence[Size]) -> ir.Value:
        """Reshape ``value`` to ``sizes``, with at most one -1 among them, in the shortest form that ONNX has.

        A size that is 0 at run time is one; beside it a -1 is an error of the runtime, as it is in torch.
        """
        op = self.newest
        wanted = [self.dim(size) for size in sizes]
        if _has_dims(value, wanted):
            return value
        target = _reshape_target(dims_of(value), sizes, wanted)
        for source in _reshaped_from(value):
            if _has_dims(source, wanted):
                return source
            shortcut = _reshape_target(dims_of(source), sizes, wanted)
            if shortcut is not None:
                value, target = source, shortcut
        if target == [0, -1]:
            # Beside a size of 0, Reshape infers none, but Flatten does.
            result: ir.Value = op.Flatten(value, axis=1)
        elif target is not None:
            result = op.Reshape(value, self.vector(target))
        else:
            result = op.Reshape(value, self.vector(sizes), allowzero=1)
        if not any(isinstance(size, int) and size == -1 for size in sizes):
            self.set_dims(result, wanted)
        return result

    def expand(self, value: ir.Value, sizes: Sequence[Size]) -> ir.Value:
        """Broadcast ``value`` to ``sizes``; -1 keeps the size it has."""
        op = self.newest
        dims = dims_of(value)
        if dims is not None:
            lead = len(sizes) - len(dims)
            target = [
                1
                if (isinstance(size, int) and size == -1)
                or (axis >= lead and same_dim(dims[axis - lead], self.dim(size)))
                else size
                for axis, size in enumerate(sizes)
            ]
        else:
            target = [1 if isinstance(size, int) and size == -1 else size for size in sizes]
        if lead_free(dims, target):
            return value
        if any(map(is_zero, target)) and value.dtype is not None:
            # Nothing is left of the value.
            lead = len(target) - len(dims or ())
            kept = [i >= lead and isinstance(size, int) and size == 1 for i, size in enumerate(target)]
            whole = [self.size(value, i - lead) if kept[i] else size for i, size in enumerate(target)]
            return op.filled_with_zeros(whole, value.dtype)
        result: ir.Value = op.Expand(value, self.vector(target))
        if dims is not None:
            lead = len(sizes) - len(dims)
            self.set_dims(
                result,
                [
                    dims[axis - lead] if isinstance(size, int) and size == -1 else self.dim(size)
                    for axis, size in enumerate(sizes)
                ],
            )
        return result

    def filled_with_zeros(self, sizes: Sequence[Size], dtype: ir.DataType) -> ir.Value:
        """Return zeros of ``dtype`` in the shape ``sizes``."""
        op = self.newest
        if all(isinstance(size, int) for size in sizes):
            return op.constant(np.zeros([size for size in sizes if isinstance(size, int)]), dtype)
        zero = ir.tensor(np.zeros(1, dtype.numpy()), dtype=dtype)
        result: ir.Value = op.ConstantOfShape(self.vector(sizes), value=zero)
        self.set_dims(result, [self.dim(size) for size in sizes])
        return result

    def set_dims(self, value: ir.Value, dims: Sequence[Dim]) -> None:
        """Note what is known of the shape of ``value`` beyond what inference found; an input is as it was declared."""
        known = dims_of(value)
        if known is not None and value.producer() is None:
            return
        if known is not None and len(known) == len(dims):
            dims = [
                new if isinstance(new, int) or (new.value is not None and not isinstance(old, int)) else old
                for new, old in zip(dims, known, strict=True)
            ]
        value.shape = ir.Shape(dims)

    def number(self, size: Size, dtype: ir.DataType) -> ir.Value:
        """Return a size as a 0-d value of ``dtype``, to compute with."""
        op = self
        return op.constant(float(size), dtype) if isinstance(size, int) else op.cast(size, dtype)

    # ---- arithmetic on sizes, folded where both are static

    def size_add(self, a: Size, b: Size) -> Size:
        """Return ``a + b``."""
        return a + b if isinstance(a, int) and isinstance(b, int) else self._size("Add", a, b)

    def size_sub(self, a: Size, b: Size) -> Size:
        """Return ``a - b``."""
        return a - b if isinstance(a, int) and isinstance(b, int) else self._size("Sub", a, b)

    def size_mul(self, *factors: Size) -> Size:
        """Return the product of all factors; 1 for none."""
        if any(map(is_zero, factors)):
            return 0
        static = 1
        product: Size | None = None
        for factor in factors:
            if isinstance(factor, int):
                static *= factor
            else:
                product = factor if product is None else self._size("Mul", product, factor)
        if product is None:
            return static
        return product if static == 1 else self._size("Mul", product, static)

    def size_floordiv(self, a: Size, b: Size) -> Size:
        """Return ``a // b``, rounded down as in Python."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return self.as_size(self.floor_div(self.vector([a]), self.vector([b])))

    def size_max(self, a: Size, b: Size) -> Size:
        """Return the larger of two sizes."""
        return max(a, b) if isinstance(a, int) and isinstance(b, int) else self._size("Max", a, b)

    def size_min(self, a: Size, b: Size) -> Size:
        """Return the smaller of two sizes."""
        return min(a, b) if isinstance(a, int) and isinstance(b, int) else self._size("Min", a, b)

    def _size(self, op_type: str, a: Size, b: Size) -> Size:
        op = self.newest
        return self.as_size(op.emit(op_type, self.vector([a]), self.vector([b])))


def _has_dims(value: ir.Value, wanted: Sequence[Dim]) -> bool:
    dims = dims_of(value)
    return dims is not None and len(dims) == len(wanted) and all(map(same_dim, dims, wanted))


def _reshaped_from(value: ir.Value) -> Iterator[ir.Value]:
    """Yield the values that hold the same elements in the same order as ``value``, the nearest first."""
    node = value.producer()
    # An Identity stands where the same elements mean something else: the parts of complex numbers, or real ones.
    while node is not None and node.op_type != "Identity" and has_trait(node.op_type, Trait.RESHAPES, node.domain):
        source = node.inputs[0]
        assert source is not None
        yield source
        node = source.producer()


def _reshape_target(dims: Sequence[Dim] | None, sizes: Sequence[Size], wanted: Sequence[Dim]) -> list[int] | None:
    """Write sizes as Reshape takes them: 0 where the size is copied, and -1 for one that follows from the others.

    Returns None where that leaves a size known only at run time: it may be 0, and would be taken for a copy.
    """
    if any(map(is_zero, sizes)):
        return None
    target = list(sizes)
    for axis, dim in enumerate(wanted):
        if dims is not None and axis < len(dims) and not isinstance(dim, int) and same_dim(dims[axis], dim):
            target[axis] = 0
    unknown = [axis for axis, size in enumerate(target) if isinstance(size, ir.Value)]
    if len(unknown) == 1 and not any(isinstance(size, int) and size == -1 for size in sizes):
        target[unknown[0]] = -1
    known = [size for size in target if isinstance(size, int)]
    return known if len(known) == len(target) else None


def lead_free(dims: Sequence[Dim] | None, target: Sequence[Size]) -> bool:
    """Tell whether expanding to ``target`` changes nothing."""
    if dims is None or len(target) > len(dims):
        return False
    return all(map(is_one, target))


def is_zero(size: Size) -> bool:
    """Tell whether a size is known to be 0."""
    return isinstance(size, int) and size == 0


def is_one(size: Size) -> bool:
    """Tell whether a size is known to be 1."""
    return isinstance(size, int) and size == 1


def _shape_slice(value: ir.Value) -> tuple[ir.Value, int, int] | None:
    node = value.producer()
    if node is None or node.op_type != "Shape" or "end" not in node.attributes or node.inputs[0] is None:
        return None
    start = node.attributes["start"].as_int() if "start" in node.attributes else 0
    return node.inputs[0], start, node.attributes["end"].as_int()
