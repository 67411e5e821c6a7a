"""State whose rank changes: an empty tensor at first, and one of a higher rank from the first call on.

An ONNX input has one rank. Such a state has the higher one in the model's interface, with a first size of 0 for the
empty tensor; inside, it has the rank that it has in the program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from onnx_ts_legacy.errors import StateError
from onnxops_decomp import OpBuilder

__all__ = ["Form", "StateSlot", "reshaped", "unnamed", "unranked"]

Form = tuple[torch.dtype, tuple[int | None, ...]]


@dataclasses.dataclass
class StateSlot:
    """An attribute that is an input and an output of the model.

    Attributes:
        name: Qualified name.
        initial: What the module holds now: a tensor, number or truth value.
        forms: For a tensor, the dtypes and shapes (of dynamic sizes: None) that it may have between calls.
    """

    name: str
    initial: Any
    forms: list[Form] = dataclasses.field(default_factory=list)

    def add(self, dtype: torch.dtype, sizes: tuple[int | None, ...]) -> None:
        """Let the forms cover one more; two of the same rank become one with sizes that may change.

        Raises:
            StateError: If the dtype is another one.
        """
        for index, (known, old) in enumerate(self.forms):
            if known != dtype:
                raise StateError(f"{self.name!r} changes its dtype from {known} to {dtype} from one call to the next.")
            if len(old) == len(sizes):
                joined = tuple(a if a == b else None for a, b in zip(old, sizes, strict=True))
                self.forms[index] = (dtype, joined)
                return
        self.forms.append((dtype, sizes))

    @property
    def empty_sizes(self) -> tuple[int, ...] | None:
        """Sizes of the empty form where there is another one of a higher rank, else None.

        Raises:
            StateError: If there are several ranks in another way.
        """
        if len(self.forms) == 1:
            return None
        (_, lower), *others = sorted(self.forms, key=lambda form: len(form[1]))
        sizes = tuple(size for size in lower if size is not None)
        if len(others) != 1 or len(sizes) != len(lower) or sizes[:1] != (0,):
            ranks = sorted(len(sizes) for _, sizes in self.forms)
            raise StateError(
                f"{self.name!r} changes its rank from one call to the next ({ranks}), which ONNX allows only for a "
                "tensor that is empty at first; initialize it with its final rank."
            )
        return sizes

    @property
    def interface(self) -> tuple[int | None, ...]:
        """Sizes that the state has as an input and output of the model."""
        sizes = max((sizes for _, sizes in self.forms), key=len)
        return sizes if self.empty_sizes is None else (None, *sizes[1:])

    def empty_interface(self) -> list[int]:
        """Sizes that stand for the empty form in the interface."""
        empty = self.empty_sizes or ()
        return [*empty, *(1 if size is None else size for size in self.interface[len(empty) :])]

    def initial_tensor(self) -> torch.Tensor:
        """Return the initial contents as the model takes them."""
        if not isinstance(self.initial, torch.Tensor):
            dtype = torch.float64 if isinstance(self.initial, float) else None
            return torch.tensor(self.initial, dtype=dtype, device="cpu")
        if self.empty_sizes is None or self.initial.dim() == len(self.interface):
            return self.initial
        return self.initial.new_zeros(self.empty_interface())


def unnamed(dims: Sequence[Any]) -> tuple[Any, ...]:
    """Return dimensions without the names of dynamic ones: what has such a name is taken to be of one size."""
    return tuple(dim if isinstance(dim, int) else ir.SymbolicDim(None) for dim in dims)


def unranked(op: OpBuilder, value: ir.Value, decided: ir.Value) -> ir.Value:
    """Return the same tensor without a rank that shape inference could find.

    Args:
        op: Builder.
        value: The tensor.
        decided: Any boolean scalar that the runtime computes; without it, runtimes would fold the shape of a constant.
    """
    shape = op.emit_custom("", "Shape", [value], {}, [ir.DataType.INT64])[0]
    always = op.emit_custom("", "Equal", [shape, shape], {}, [ir.DataType.BOOL])[0]
    return reshaped(op, value, op.emit_custom("", "Or", [always, decided], {}, [ir.DataType.BOOL])[0])


def reshaped(op: OpBuilder, value: ir.Value, kept: ir.Value) -> ir.Value:
    """Reshape to the dimensions of ``value`` that ``kept`` says; a first size of 0 is copied as such."""
    shape = op.emit_custom("", "Shape", [value], {}, [ir.DataType.INT64])[0]
    chosen = op.newest.Compress(shape, kept)
    return op.emit_custom("", "Reshape", [value, chosen], {}, [value.dtype])[0]
