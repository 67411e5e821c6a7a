"""Constants of a graph under construction: equal ones are one value, and their contents stay readable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

__all__ = ["NUMBER_KEY", "ConstantPool", "is_number", "is_value", "natural_dtype", "to_array"]

NUMBER_KEY = "onnxops_decomp.number"
"""Metadata of a value that is a Python number of the model."""

Array = npt.NDArray[Any]
_SCALARS = frozenset((bool, int, float))


def is_value(value: object) -> TypeGuard[ir.Value]:
    """Tell whether an operand is a value; ``isinstance`` takes long for what is none, as the class is a protocol."""
    return value.__class__ is ir.Value or ir.Value in type(value).__mro__


def is_number(value: object) -> bool:
    """Tell whether a value is a Python number of the model, whose dtype follows from the tensors beside it."""
    if not is_value(value):
        return False
    # The shape is asked first, as reading the metadata of a value makes a place for it.
    shape = value.shape
    return (shape is None or not shape.dims) and NUMBER_KEY in value.meta


def natural_dtype(value: object) -> ir.DataType:
    """Return the ONNX dtype of a Python scalar, or of a flat list of them, that no type variable fixes."""
    if isinstance(value, np.ndarray | np.generic):
        return ir.DataType.from_numpy(value.dtype)
    if isinstance(value, list | tuple):
        kinds = {natural_dtype(element) for element in value}
        return ir.DataType.FLOAT if ir.DataType.FLOAT in kinds else next(iter(kinds), ir.DataType.INT64)
    if isinstance(value, bool):
        return ir.DataType.BOOL
    if isinstance(value, int):
        return ir.DataType.INT64
    if isinstance(value, float):
        return ir.DataType.FLOAT
    raise TypeError(f"{value!r} is not a constant that ONNX can hold.")


def to_array(value: object, dtype: ir.DataType) -> Array:
    """Convert a Python scalar, list or array to an array of ``dtype``, wrapping integers as torch does."""
    numpy_dtype = dtype.numpy()
    if isinstance(value, np.ndarray):
        return value.astype(numpy_dtype, copy=False)
    if isinstance(value, list | tuple) and not value:
        return np.zeros((0,), numpy_dtype)
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(numpy_dtype)


class ConstantPool:
    """Holds one value for each distinct constant.

    A constant becomes an initializer only when a node uses it, so that asking for one costs nothing in the model.
    """

    def __init__(self, new_name: Callable[[str], str]) -> None:
        self._new_name = new_name
        self._by_content: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
        self._arrays: dict[ir.Value, Array] = {}
        self._by_python: dict[tuple[object, ...], ir.Value] = {}

    def of_python(self, value: object, dtype: ir.DataType | None) -> ir.Value:
        """Return the value that holds a Python scalar, a list of them or an array, by default in its natural dtype."""
        # 1, 1.0 and True are equal, and so are 0.0 and -0.0: the class and the text tell them apart.
        kind = value.__class__
        kinds = {*map(type, value)} if isinstance(value, list | tuple) else {kind}
        if not kinds <= _SCALARS:
            return self._of_array(value, dtype)
        key = (kind, value if kind is int else repr(value), dtype)
        found = self._by_python.get(key)
        if found is None:
            found = self._by_python[key] = self._of_array(value, dtype)
        return found

    def _of_array(self, value: object, dtype: ir.DataType | None) -> ir.Value:
        dtype = dtype or natural_dtype(value)
        return self.value(np.asarray(to_array(value, dtype), order="C"), dtype)

    def value(self, array: Array, dtype: ir.DataType) -> ir.Value:
        """Return the value that holds ``array``, which must already have the numpy form of ``dtype``."""
        key = (dtype, array.shape, array.tobytes())
        found = self._by_content.get(key)
        if found is None:
            name = self._new_name("constant")
            found = ir.Value(
                name=name,
                shape=ir.Shape(array.shape),
                type=ir.TensorType(dtype),
                const_value=ir.Tensor(array, dtype=dtype, name=name),
            )
            self._by_content[key] = found
            self._arrays[found] = array
        return found

    def adopt(self, value: ir.Value, array: Array) -> None:
        """Take a value that is made already, with its own name, for a constant of this pool."""
        self._arrays[value] = array

    def array(self, value: ir.Value) -> Array | None:
        """Return the contents of ``value`` if it is a constant of this pool, else None."""
        return self._arrays.get(value)

    def used(self) -> Iterator[ir.Value]:
        """Yield the constants that some node or graph output uses."""
        return (value for value in self._arrays if value.uses() or value.is_graph_output())
