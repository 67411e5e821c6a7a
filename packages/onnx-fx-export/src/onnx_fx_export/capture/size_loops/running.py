"""What rewritten loops call while a model is captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_fx_export.torch_private import scan

__all__ = [
    "Appended",
    "backwards",
    "is_open",
    "length",
    "newest",
    "numbers",
    "part",
    "pieces",
    "put",
    "row",
    "run",
    "stack",
    "steps",
    "taken",
    "total",
    "unbound",
]

Body = Callable[..., tuple[Sequence[Any], Sequence[Any]]]


def is_open(*bounds: Any) -> bool:
    """Tell whether ``range`` has a dynamic number of steps, all of one size."""
    ends, step = bounds[:2], bounds[2:]
    return any(isinstance(end, torch.SymInt) for end in ends) and not any(
        isinstance(each, torch.SymInt) for each in step
    )


def steps(*bounds: Any, is_reversed: bool, known: bool | None = None) -> torch.Tensor | None:
    """Return the numbers of ``range`` as a tensor if there is a dynamic number of them, in steps of one size.

    Args:
        bounds: Its arguments.
        is_reversed: Whether the last one comes first.
        known: Whether the number is dynamic, if that was asked before.
    """
    if not (is_open(*bounds) if known is None else known):
        return None
    numbers = torch.arange(*bounds)
    return numbers.flip(0) if is_reversed else numbers


def numbers(*sources: Any) -> torch.Tensor | None:
    """Return the numbers of the steps over the rows of tensors if there is a dynamic number of rows."""
    tensors = [_stacked(source) for source in sources]
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() for tensor in tensors):
        return None
    counts = [tensor.shape[0] for tensor in tensors]
    if not any(isinstance(count, torch.SymInt) for count in counts):
        return None
    count = counts[0]
    for other in counts[1:]:
        count = torch.sym_min(count, other)
    return torch.arange(count)


def row(source: Any, number: torch.Tensor) -> torch.Tensor:
    """Return a row of a tensor, or what a loop appended in one step."""
    return _stacked(source).index_select(0, number.reshape(1))[0]  # type: ignore[no-any-return]


def run(body: Body, carried: Sequence[Any], numbers: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """Run the body of a loop as a scan.

    Args:
        body: Takes the carried values and the number of a step, and returns those after it, and what it appends.
        carried: Values before the first step. Where they are numbers, that step is made apart: only what comes after it
            need have the dtype and the shape that all further steps have.
        numbers: The number of each step.

    Returns:
        The carried tensors after the last step, and what was appended, stacked.
    """
    if all(isinstance(value, torch.Tensor) for value in carried):
        return _scanned(body, carried, numbers)
    after, first = body(*carried, numbers[0])
    state, rest = _scanned(body, list(map(_tensor, after)), numbers[1:])
    return state, [torch.cat([one.unsqueeze(0), others]) for one, others in zip(first, rest, strict=True)]


def _scanned(body: Body, carried: Sequence[torch.Tensor], numbers: torch.Tensor) -> tuple[list[Any], list[Any]]:
    def step(state: Sequence[torch.Tensor], number: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        after, appended = body(*map(_copy, state[:count]), number)
        return [*map(_copy, map(_tensor, after)), *map(_copy, state[count:])], [*map(_copy, appended)]

    count = len(carried)
    # A scan carries something.
    start = [*map(_copy, carried)] if carried else [torch.zeros(())]
    state, stacked = scan(step, start, numbers)
    return list(state[:count]), list(stacked)


def _tensor(value: Any) -> torch.Tensor:
    """Return a number as a tensor, which promotes like it."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def _copy(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of its own: no result of a scan is another one, or an operand."""
    return value.clone(memory_format=torch.contiguous_format)


# ---- parts of tensors


def taken(value: Any, key: Any) -> Any:
    """Return ``value[key]``, where numbers in the key may be tensors without dimensions."""
    if not isinstance(value, torch.Tensor):
        return value[key]
    places, rest = _apart(value, key)
    for axis, index in places:
        value = value.index_select(axis, index)
    return value[rest]


def put(value: torch.Tensor, key: Any, part: Any) -> torch.Tensor:
    """Return a tensor after ``value[key] = part``."""
    places, rest = _apart(value, key)
    return _put(value, places, rest, part)


def _put(value: torch.Tensor, places: Sequence[tuple[int, torch.Tensor]], rest: Any, part: Any) -> torch.Tensor:
    if not places:
        result = value.clone()
        result[rest] = part
        return result
    (axis, index), *others = places
    return value.index_copy(axis, index, _put(value.index_select(axis, index), others, rest, part))


def _apart(value: torch.Tensor, key: Any) -> tuple[list[tuple[int, torch.Tensor]], Any]:
    """Return the dimensions that tensors index as numbers, with their indices, and the key of what these leave."""
    parts = key if isinstance(key, tuple) else (key,)
    numbers = [place for place, part in enumerate(parts) if _is_number(part)]
    if not numbers:
        return [], key
    places = [(_axis(value, parts, place), parts[place].reshape(1)) for place in numbers]
    return places, tuple(0 if place in numbers else part for place, part in enumerate(parts))


def part(owner: Any, name: str, index: int, *args: Any, **kwargs: Any) -> Any:
    """Return ``owner.split(...)[index]`` or that of ``chunk``, however many parts a dynamic size leaves.

    Args:
        owner: The tensor, or ``torch``.
        name: What is called.
        index: Which part, from 0.
        args: The arguments of the call.
        kwargs: Those by keyword.
    """
    values, size, dim = _divided(owner, args, kwargs)
    if not isinstance(values, torch.Tensor) or not isinstance(values.shape[dim], torch.SymInt) or type(size) is not int:
        return getattr(owner, name)(*args, **kwargs)[index]
    count = values.shape[dim]
    step = size if name == "split" else (count + size - 1) // size
    if index:
        torch._check(index * step < count)
    kept = (slice(None),) * (dim % values.dim())
    return values[(*kept, slice(index * step, torch.sym_min((index + 1) * step, count)))]


def _divided(owner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any, int]:
    """Return what ``split`` or ``chunk`` takes apart, into pieces of which size, or into how many, and along what."""
    values, *rest = args if owner is torch else (owner, *args)
    given = dict(zip(("size", "dim"), rest, strict=False))
    given |= {"dim" if key == "dim" else "size": value for key, value in kwargs.items()}
    return values, given.get("size"), given.get("dim", 0)


def pieces(owner: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call ``split`` or ``chunk``, or return as many pieces of size 1 as a dynamic size says for further loops.

    Args:
        owner: The tensor, or ``torch``.
        name: What is called.
        args: The arguments of the call.
        kwargs: Those by keyword.
    """
    values, size, dim = _divided(owner, args, kwargs)
    count = values.shape[dim] if isinstance(values, torch.Tensor) else None
    are_single = type(size) is int and size == 1 if name == "split" else str(size) == str(count)
    if not isinstance(count, torch.SymInt) or not are_single:
        return getattr(owner, name)(*args, **kwargs)
    return Appended([], values.unsqueeze(dim % values.dim()).movedim(dim % values.dim() + 1, 0))


def _is_number(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype == torch.int64


def _axis(value: torch.Tensor, parts: Sequence[Any], place: int) -> int:
    """Return the dimension of a tensor that a part of its index is for."""
    if any(part is Ellipsis for part in parts[:place]):
        return value.dim() - sum(map(_axes, parts[place:]))
    return sum(map(_axes, parts[:place]))


def _axes(part: Any) -> int:
    """Return how many dimensions of a tensor a part of its index is for."""
    if isinstance(part, torch.Tensor) and part.dtype == torch.bool:
        return part.dim()
    return int(part is not None)


# ---- lists


class Appended:
    """A list that a loop has added to, in one tensor; it can do what lists do that need no length in Python.

    Args:
        before: What the list held before.
        stacked: What was added in each step, in their order.
        in_front: Whether it was added at the start.
    """

    def __init__(
        self, before: Sequence[torch.Tensor] | Appended, stacked: torch.Tensor, *, in_front: bool = False
    ) -> None:
        self.stacked: torch.Tensor = stacked.flip(0) if in_front else stacked
        if isinstance(before, Appended) or before:
            kept = before.stacked if isinstance(before, Appended) else torch.stack(list(before))
            self.stacked = torch.cat([self.stacked, kept] if in_front else [kept, self.stacked])

    def __getitem__(self, index: Any) -> Any:
        """Return an element, which there has to be, or a part of the list."""
        if not isinstance(index, slice):
            return row(self.stacked, index) if isinstance(index, torch.Tensor) else self.stacked[index]
        if index == slice(None, None, -1):
            return Appended([], self.stacked.flip(0))
        return Appended([], self.stacked[index])

    def append(self, value: torch.Tensor) -> None:
        """Add an element at the end."""
        self.stacked = torch.cat([self.stacked, value.unsqueeze(0)])

    def reverse(self) -> None:
        """Reverse the order of the elements."""
        self.stacked = self.stacked.flip(0)


def newest(values: Any, in_front: bool) -> Any:
    """Return the element that was added to a list last."""
    return values[0] if in_front else values[-1]


def length(function: Callable[..., Any], values: Any) -> Any:
    """Call ``len``, also of a list that a loop has added to."""
    return values.stacked.shape[0] if isinstance(values, Appended) else function(values)


def backwards(function: Callable[..., Any], values: Any) -> Any:
    """Call ``reversed``, also of a list that a loop has added to."""
    return Appended([], values.stacked.flip(0)) if isinstance(values, Appended) else function(values)


def unbound(owner: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``unbind`` of a tensor or of ``torch``, or return as many parts as a dynamic size says for further loops."""
    values, *rest = args if owner is torch else (owner, *args)
    dim = rest[0] if rest else kwargs.get("dim", 0)
    if not isinstance(values, torch.Tensor) or not isinstance(values.shape[dim], torch.SymInt):
        return owner.unbind(*args, **kwargs)
    return Appended([], values.movedim(dim, 0))


def _stacked(source: Any) -> Any:
    return source.stacked if isinstance(source, Appended) else source


def stack(function: Callable[..., Any], values: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``torch.stack`` or ``torch.cat`` of a list, or of what a loop appended to it."""
    if not isinstance(values, Appended):
        return function(values, *args, **kwargs)
    stacked, dim = values.stacked, args[0] if args else kwargs.get("dim", kwargs.get("axis", 0))
    if function is torch.stack:
        return stacked.movedim(0, dim)
    dim = dim % (stacked.dim() - 1)
    return stacked.movedim(0, dim).flatten(dim, dim + 1)


def total(function: Callable[..., Any], values: Any, *start: Any) -> Any:
    """Call ``sum`` of a list, or of what a loop appended to it."""
    if not isinstance(values, Appended) or function is not sum:
        return function(values, *start)
    stacked = values.stacked
    result = stacked.sum(0, dtype=None if stacked.dtype == torch.bool else stacked.dtype)
    return result + start[0] if start else result
