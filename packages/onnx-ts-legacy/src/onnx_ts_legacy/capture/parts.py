"""Into how many parts a call divides a tensor: the length of a list is a number of Python, which no trace records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.graph.parts import node_outputs
from onnx_ts_legacy.graph.sources import Place

__all__ = ["Parts", "number_of_parts"]


class Parts(NamedTuple):
    """The parts of a tensor.

    Attributes:
        number: How many there are, as sizes decide it.
        parts: They.
        place: The line that divides the tensor.
    """

    number: torch.Tensor
    parts: Sequence[torch.Tensor]
    place: Place

    def reach(self, results: Collection[torch.Tensor]) -> bool:
        """Tell whether a result follows from a part. To be called while the trace is being recorded."""
        wanted = {private.traced_value(result).unique() for result in results}
        seen, left = set[int](), [private.traced_value(part) for part in self.parts]
        while left:
            value = left.pop()
            if value.unique() in wanted:
                return True
            if value.unique() not in seen:
                seen.add(value.unique())
                left.extend(output for use in value.uses() for output in node_outputs(use.user))
        return False


def number_of_parts(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return how many tensors a call gives, computed from the size that decides it; None if none does.

    Args:
        name: What is called.
        args: Its arguments by position.
        kwargs: Those by name.
    """
    if name not in _DIVIDING:
        return None
    count, *names = _DIVIDING[name]
    given = dict(zip(("self", *names), args, strict=False)) | dict(kwargs)
    tensor = given.get("self", given.get("tensor", given.get("input")))
    how = [given[key] for key in (*names[:-1], "split_size") if key in given]
    if tensor is None or not tensor.dim() or any(isinstance(each, list | tuple) for each in how):
        return None
    # In a trace the size is a tensor.
    size: Any = tensor.size(given.get("dim", 0))
    number: torch.Tensor | None = count(size, *how) if isinstance(size, torch.Tensor) else None
    return number


def _pieces(size: Any, length: Any) -> Any:
    return (size + (length - 1)) // length


def _chunks(size: Any, count: Any) -> Any:
    return _pieces(size, _pieces(size, count))


# With the names of the arguments after the tensor, the last of which is the axis.
_DIVIDING: dict[str, tuple[Any, ...]] = {
    "unbind": (lambda size: size, "dim"),
    **dict.fromkeys(("split", "unsafe_split"), (_pieces, "split_size_or_sections", "dim")),
    **dict.fromkeys(("chunk", "unsafe_chunk"), (_chunks, "chunks", "dim")),
}
