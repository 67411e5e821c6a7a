"""Which containers a model still holds after a run, and what those held before that are others now."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from onnxops_decomp.exporting.state.containers import Globals, Record
from onnxops_decomp.exporting.state.inventory import is_users

__all__ = ["contents_before", "reachable"]

_CONTAINERS = (dict, list, collections.OrderedDict, collections.defaultdict, collections.deque)


def reachable(records: Sequence[Record]) -> Callable[[Any], bool]:
    """Return a function that tells whether the model holds a container now, if another one held it before.

    Args:
        records: What the model held.
    """
    before = {id(part) for record in records for part in record.parts}
    known: dict[int, list[Record]] = {}
    for record in records:
        known.setdefault(id(record.target), []).append(record)
    left = [record.target for record in records if id(record.target) not in before]
    now: dict[int, Any] = {}
    while left:
        value = left.pop()
        if id(value) not in now:
            now[id(value)] = value
            left.extend(_parts(value, known.get(id(value), [])))
    return lambda container: id(container) in now or id(container) not in before


def _parts(value: Any, records: Sequence[Record]) -> Iterator[Any]:
    """Yield what a value holds now; of what is new there is no record."""
    for record in records:
        yield from record.read()
    if any(isinstance(record, Globals) for record in records):
        # Of a module the model holds what its code names.
        return
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | collections.deque):
        yield from value
    elif is_users(type(value)) and hasattr(value, "__dict__"):
        yield from vars(value).values()


def contents_before(records: Sequence[Record], value: Any) -> Any:
    """Return a value with the containers of Python in it as they were before.

    Args:
        records: What the model held.
        value: It, or something that it held.
    """
    if type(value) is tuple:
        return tuple(contents_before(records, part) for part in value)
    record = next((record for record in records if record.target is value), None)
    if record is None or type(value) not in _CONTAINERS:
        return value
    held = {key: contents_before(records, part) for key, part in record.before.items()}
    before = copy.copy(value)
    before.clear()
    if isinstance(before, dict):
        before.update(held)
    else:
        before.extend(held.values())
    return before
