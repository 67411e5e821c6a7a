"""What rewritten loops call while a model is captured."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnx_fx_export.capture.size_loops.numbers import all_of, any_of, computed, is_not, truth_of
from onnx_fx_export.capture.size_loops.places import put, put_anywhere, row_at, taken, taken_anywhere, window
from onnx_fx_export.torch_private import scan

__all__ = [
    "Appended",
    "Unset",
    "all_of",
    "any_of",
    "are_apart",
    "as_rows",
    "backwards",
    "choose",
    "computed",
    "copied",
    "either",
    "is_not",
    "is_open",
    "length",
    "newest",
    "numbers",
    "part",
    "pieces",
    "put",
    "put_anywhere",
    "row",
    "run",
    "stack",
    "steps",
    "taken",
    "taken_anywhere",
    "total",
    "unbound",
    "window",
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


def as_rows(source: Any) -> torch.Tensor:
    """Return a tensor of its own with the rows that a loop goes over."""
    return _copy(_stacked(source))


def row(source: Any, number: torch.Tensor | int) -> torch.Tensor:
    """Return a row of a tensor, or what a loop appended in one step."""
    if not isinstance(number, torch.Tensor):
        return _stacked(source)[number]  # type: ignore[no-any-return]
    return _stacked(source).index_select(0, number.reshape(1))[0]  # type: ignore[no-any-return]


class Unset:
    """The value of a name that has none before the first step, which reads it under no condition."""


def run(body: Body, carried: Sequence[Any], numbers: torch.Tensor, first: Any) -> tuple[list[Any], list[Any]]:
    """Run the body of a loop as a scan.

    Args:
        body: Takes the carried values and the number of a step, and returns those after it, and what it appends.
        carried: Values before the first step: tensors, and lists, tuples and dicts of them. Numbers and names without a
            value become tensors like those after the first step. Where there is None or something else, that step is
            made apart, and the scan leaves it as it is: only what comes after it need have the structure that all
            further steps have.
        numbers: The number of each step.
        first: The first of them, if it is a number that is known.

    Returns:
        The carried values after the last step, and what was appended, stacked.
    """
    leaves = leaves_of(carried)
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return _scanned(body, carried, numbers)
    after, appended = body(*_copies(carried), first if type(first) is int else numbers[0])
    if all(_is_open(leaf) for leaf in leaves):
        begin = [_like_later(value, later) for value, later in zip(carried, after, strict=True)]
        return _scanned(body, begin, numbers)
    return _scanned(_from_second(body, [*map(_copy, appended)], _copy(numbers[0])), after, numbers)


def _from_second(body: Body, appended: Sequence[torch.Tensor], first: torch.Tensor) -> Body:
    """Return the body of a loop whose first step is made: that one changes nothing, and appends what it did."""

    def further(*values: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        *state, number = values
        after, added = body(*_copies(state), number)
        is_first = number == first
        pairs = zip(leaves_of(state), leaves_of(after), strict=True)
        kept = [_chosen(is_first, before, later) for before, later in pairs]
        chosen = [torch.where(is_first, one, other) for one, other in zip(appended, added, strict=True)]
        return like(after, kept), chosen

    return further


def _is_open(leaf: Any) -> bool:
    return isinstance(_tensor(leaf), torch.Tensor | Unset)


def _like_later(value: Any, later: Any) -> Any:
    """Return a carried value with tensors for its numbers, as they are after a step; zeros if it is not set."""
    after = [*map(_tensor, leaves_of(later))]
    if isinstance(value, Unset):
        return like(later, [torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in after])
    before = leaves_of(value)
    if len(before) != len(after):
        raise TypeError("A loop carries values of another structure in further steps.")
    return like(value, [_filled(*pair) for pair in zip(before, after, strict=True)])


def _filled(value: Any, later: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not isinstance(later, torch.Tensor) or value.shape != later.shape:
            raise TypeError("A loop changes a shape in its first step.")
        return value
    return torch.full_like(later, value) if isinstance(later, torch.Tensor) else value


def _scanned(body: Body, carried: Sequence[Any], numbers: torch.Tensor) -> tuple[list[Any], list[Any]]:
    leaves = [*map(_tensor, leaves_of(carried))]
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def filled(state: Sequence[torch.Tensor]) -> list[Any]:
        known = dict(zip(places, state, strict=True))
        return list(like(carried, [known.get(place, leaf) for place, leaf in enumerate(leaves)]))

    def step(state: Sequence[torch.Tensor], number: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        after, appended = body(*filled([*map(_copy, state[:count])]), number)
        found = [*map(_tensor, leaves_of(after))]
        if len(found) != len(leaves) or any(found[place] != leaves[place] for place in others):
            raise TypeError("A loop carries values of another structure in further steps.")
        return [*(_copy(found[place]) for place in places), *map(_copy, state[count:])], [*map(_copy, appended)]

    count, others = len(places), [place for place in range(len(leaves)) if place not in places]
    # A scan carries something.
    start = [_copy(leaves[place]) for place in places] if places else [torch.zeros(())]
    state, stacked = scan(step, start, numbers)
    return filled(list(state[:count])), list(stacked)


def _tensor(value: Any) -> Any:
    """Return a number as a tensor, which promotes like it; other values as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float | torch.SymInt | torch.SymFloat):
        return value
    number: Any = value
    return torch.full((), number, dtype=torch.float64 if isinstance(value, float | torch.SymFloat) else torch.int64)


def _copy(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of its own: no result of a scan is another one, or an operand."""
    return value.clone(memory_format=torch.contiguous_format)


def are_apart(owner: Any, attributes: Sequence[str], called: Sequence[str], read: Sequence[str]) -> bool:
    """Tell whether nothing that a loop calls or reads asks for attributes of its module.

    Args:
        owner: The module.
        attributes: The attributes that the loop assigns.
        called: Those that it calls: modules of their own know nothing of the one that they are in.
        read: All that it reads: what the class computes may be computed of them.
    """
    found = [inspect.getattr_static(type(owner), name, None) for name in (*attributes, *read)]
    if any(hasattr(each, "__get__") for each in found):
        return False
    known = all(hasattr(owner, name) and not isinstance(getattr(owner, name), torch.nn.Module) for name in attributes)
    return known and all(isinstance(getattr(owner, name, None), torch.nn.Module) for name in called)


# ---- conditions on counters


def either(test: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return what one of two functions returns, or a choice among both where a tensor or a size decides."""
    return choose(test, lambda: [then()], lambda: [otherwise()], [])[0]


def choose(
    test: Any, then: Callable[..., Sequence[Any]], otherwise: Callable[..., Sequence[Any]], values: Sequence[Any]
) -> Sequence[Any]:
    """Return the values after one of two branches, or a choice among both where a tensor or a size decides."""
    if not isinstance(test, torch.Tensor | torch.SymBool):
        return then(*values) if test else otherwise(*values)
    is_first = truth_of(test)
    first, second = (branch(*_copies(values)) for branch in (then, otherwise))
    pairs = zip(leaves_of(first), leaves_of(second), strict=True)
    return list(like(first, [_chosen(is_first, one, other) for one, other in pairs]))


def _chosen(test: torch.Tensor, one: Any, other: Any) -> Any:
    first, second = _tensor(one), _tensor(other)
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        if first.shape != second.shape:
            raise TypeError("A condition on the number of a step decides about a shape.")
        return torch.where(test, first, second)
    if type(one) is not type(other) or one != other:
        raise TypeError("A condition on the number of a step decides about a value that is no tensor.")
    return one


def _copies(values: Sequence[Any]) -> list[Any]:
    copies = [_copy(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves_of(values)]
    return list(like(values, copies))


# ---- values in lists, tuples and dicts


def leaves_of(value: Any) -> list[Any]:
    """Return what lists, tuples and dicts hold, in order; those of other classes are values of their own."""
    if not _holds(value):
        return [value]
    return [leaf for each in (value.values() if isinstance(value, dict) else value) for leaf in leaves_of(each)]


def like(value: Any, leaves: list[Any]) -> Any:
    """Return lists, tuples and dicts like some others, that hold other values, which are taken from a list."""
    if not _holds(value):
        return leaves.pop(0)
    if isinstance(value, dict):
        return {key: like(each, leaves) for key, each in value.items()}
    found = [like(each, leaves) for each in value]
    if isinstance(value, list):
        return found
    return type(value)(*found) if hasattr(value, "_fields") else tuple(found)


def _holds(value: Any) -> bool:
    return type(value) in (list, tuple, dict) or (isinstance(value, tuple) and hasattr(value, "_fields"))


def copied(value: Callable[[], Any]) -> Any:
    """Return a value that a loop reads with copies of its tensors, as no operand of a scan is a view of another one."""
    try:
        found = value()
    except NameError:
        return Unset()
    return _copies([found])[0]


# ---- parts of what is taken apart


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
            return row_at(self.stacked, index) if isinstance(index, torch.Tensor) else self.stacked[index]
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
    if not isinstance(values, Appended) and not values:
        return Unset()
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
