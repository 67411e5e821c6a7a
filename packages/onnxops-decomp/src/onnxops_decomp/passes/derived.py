"""Weights that are computed from other weights, and only when they are read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxops_decomp.passes.pieces import BLOCK_BYTES, as_integers, in_order, touch_pages, write_pieces

__all__ = ["ComputedTensor", "DerivedTensor"]

Array = npt.NDArray[Any]


class ComputedTensor(ir.LazyTensor):
    """A tensor that is computed from others whenever it is read, so that a model holds its weights once.

    Attributes:
        sources: What it is computed from.
    """

    def __init__(self, sources: Sequence[ir.TensorProtocol], *, name: str, dtype: ir.DataType, shape: ir.Shape) -> None:
        super().__init__(self._computed, dtype, shape, name=name)
        self.sources = tuple(sources)

    def _computed(self) -> ir.TensorProtocol:
        """Return the contents."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return type, shape and name; the function is a method, which would name the tensor again."""
        return f"{self._repr_base()}(name={self.name!r})"


class DerivedTensor(ComputedTensor):
    """A tensor that a function gives of others.

    Attributes:
        derive: Takes the sources as arrays and returns the contents, in any float dtype.
        by_rows: Whether blocks of rows of the sources give the same rows of the contents.
    """

    def __init__(
        self,
        derive: Callable[..., Array],
        sources: Sequence[ir.TensorProtocol],
        *,
        name: str,
        dtype: ir.DataType,
        shape: ir.Shape,
        by_rows: bool = False,
    ) -> None:
        super().__init__(sources, name=name, dtype=dtype, shape=shape)
        self.derive, self.by_rows = derive, by_rows

    def _computed(self) -> ir.TensorProtocol:
        return ir.Tensor(self._derived(*self._arrays()), dtype=self.dtype, name=self.name)

    def tofile(self, file: Any) -> None:
        """Write the bytes to a binary file, some rows after the other where they can be computed so."""
        if self.dtype.bitwidth < 8 or sys.byteorder != "little":
            super().tofile(file)
            return
        arrays = self._arrays()
        blocks = [slice(None)]
        if self.by_rows:
            rows = max(1, BLOCK_BYTES * len(arrays[0]) // max(1, self.nbytes))
            blocks = [slice(begin, begin + rows) for begin in range(0, len(arrays[0]), rows)]
            for array in arrays:
                touch_pages(as_integers(array))

        def prepared(block: slice) -> Array:
            given = (in_order(as_integers(array[block])).view(array.dtype) for array in arrays)
            return np.ascontiguousarray(self._derived(*(given if self.by_rows else arrays)))

        write_pieces(file, blocks, prepared)

    def _arrays(self) -> list[Array]:
        return [np.asarray(source.numpy()) for source in self.sources]

    def _derived(self, *arrays: Array) -> Array:
        with np.errstate(over="ignore"):
            return self.derive(*arrays).astype(self.dtype.numpy(), copy=False)

    def of(self, sources: Sequence[ir.TensorProtocol]) -> DerivedTensor:
        """Return the same function of other sources."""
        assert isinstance(self.shape, ir.Shape)
        return DerivedTensor(
            self.derive, sources, name=str(self.name), dtype=self.dtype, shape=self.shape, by_rows=self.by_rows
        )
