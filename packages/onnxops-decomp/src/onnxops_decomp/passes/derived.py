"""Weights that are computed from other weights, and only when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

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
    """

    def __init__(
        self,
        derive: Callable[..., Array],
        sources: Sequence[ir.TensorProtocol],
        *,
        name: str,
        dtype: ir.DataType,
        shape: ir.Shape,
    ) -> None:
        super().__init__(sources, name=name, dtype=dtype, shape=shape)
        self.derive = derive

    def _computed(self) -> ir.TensorProtocol:
        array = self.derive(*(np.asarray(source.numpy()) for source in self.sources))
        with np.errstate(over="ignore"):
            return ir.Tensor(array.astype(self.dtype.numpy(), copy=False), dtype=self.dtype, name=self.name)

    def of(self, sources: Sequence[ir.TensorProtocol]) -> DerivedTensor:
        """Return the same function of other sources."""
        assert isinstance(self.shape, ir.Shape)
        return DerivedTensor(self.derive, sources, name=str(self.name), dtype=self.dtype, shape=self.shape)
