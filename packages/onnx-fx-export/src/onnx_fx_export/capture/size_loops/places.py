"""Parts of tensors that loops read and write at places which are tensors themselves, as a scan counts its steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

__all__ = ["put", "put_anywhere", "row_at", "taken", "taken_anywhere", "window"]


def _from_start(place: torch.Tensor, size: Any) -> torch.Tensor:
    """Return a place as an index (1,); those below 0 count from the end. What is beyond the end stays there."""
    index = place.reshape(1)
    return torch.where(index < 0, index + size, index)


def _somewhere(places: torch.Tensor, size: Any) -> torch.Tensor:
    """Return places, each as it counts from the start or the end, or any other that there is."""
    return torch.remainder(places, torch.sym_max(size, 1))


def row_at(values: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Return a row of a tensor; places below 0 count from the end."""
    return values.index_select(0, _from_start(place, values.shape[0]))[0]


class Window:
    """A slice whose begin is a tensor.

    Args:
        begin: Where it begins, without dimensions.
        length: How long it is.
    """

    def __init__(self, begin: torch.Tensor, length: Any) -> None:
        self._places = begin + torch.arange(length)

    def places(self, size: Any, is_wanted: bool) -> torch.Tensor:
        """Return its places in a dimension; some that there are, where they may not be wanted."""
        return self._places if is_wanted else _somewhere(self._places, size)


def window(lower: Any, upper: Any, step: Any, *begins: Any) -> Any:
    """Return a slice, or a window where its bounds are tensors.

    Args:
        lower: Its begin.
        upper: Its end.
        step: Its step.
        begins: Both bounds where all counters are 0, and where they are 1.
    """
    if not isinstance(lower, torch.Tensor) and not isinstance(upper, torch.Tensor):
        return slice(lower, upper, step)
    length, later = begins[1] - begins[0], begins[3] - begins[2]
    if step not in (None, 1) or length != later:
        raise TypeError("A slice has another length in further steps.")
    return Window(lower if isinstance(lower, torch.Tensor) else torch.as_tensor(lower), length)


def taken(value: Any, key: Any, *counted: int) -> Any:
    """Return ``value[key]``, where numbers in the key may be tensors without dimensions.

    Args:
        value: A tensor, or what else has parts.
        key: Which part.
        counted: Which parts of the key are the number of a step, and so not below 0.
    """
    return _taken(value, key, counted, is_wanted=True)


def taken_anywhere(value: Any, key: Any) -> Any:
    """Return ``value[key]``, or any part of the same shape where there is none: a condition leaves it aside then."""
    return _taken(value, key, (), is_wanted=False)


def _taken(value: Any, key: Any, counted: Collection[int], *, is_wanted: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value[key]
    places, rest = _apart(value, key, counted, is_wanted)
    for axis, index in places:
        value = value.index_select(axis, index)
    return value[rest]


def put(value: Any, key: Any, part: Any, *counted: int) -> Any:
    """Return a tensor, list or dict after ``value[key] = part``; see :func:`taken`."""
    return _after_put(value, key, part, counted, is_wanted=True)


def put_anywhere(value: Any, key: Any, part: Any) -> Any:
    """Return what :func:`put` does, or anything of that shape where there is no such part."""
    return _after_put(value, key, part, (), is_wanted=False)


def _after_put(value: Any, key: Any, part: Any, counted: Collection[int], *, is_wanted: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        result = dict(value) if isinstance(value, dict) else list(value)
        result[key] = part
        return result
    places, rest = _apart(value, key, counted, is_wanted)
    return _put(value, places, rest, part)


def _put(value: torch.Tensor, places: Sequence[tuple[int, torch.Tensor]], rest: Any, part: Any) -> torch.Tensor:
    if not places:
        result = value.clone()
        result[rest] = part
        return result
    (axis, index), *others = places
    return value.index_copy(axis, index, _put(value.index_select(axis, index), others, rest, part))


def _apart(
    value: torch.Tensor, key: Any, counted: Collection[int], is_wanted: bool
) -> tuple[list[tuple[int, torch.Tensor]], Any]:
    """Return the dimensions that tensors index as numbers, with their indices, and the key of what these leave."""
    parts = key if isinstance(key, tuple) else (key,)
    places, rest = [], []
    for place, each in enumerate(parts):
        if _is_number(each):
            axis = _axis(value, parts, place)
            placed = _from_start if is_wanted else _somewhere
            places.append((axis, each.reshape(1) if place in counted else placed(each.reshape(1), value.shape[axis])))
        elif isinstance(each, Window):
            axis = _axis(value, parts, place)
            places.append((axis, each.places(value.shape[axis], is_wanted)))
        rest.append(0 if _is_number(each) else slice(None) if isinstance(each, Window) else each)
    return places, tuple(rest) if places else key


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
