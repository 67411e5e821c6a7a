"""The containers that an inventory takes stock of: what each holds, whether that changed, and how it is put back.

What a container held is kept as a flat tuple of references, in which a comparison by identity finds no change without
building anything. Tensors are not copied.
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import operator
import types
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from onnxops_decomp.exporting.state.library_objects import contents_of, restore_contents

__all__ = [
    "ATOMS",
    "ATOM_KINDS",
    "MISSING",
    "Attributes",
    "Cache",
    "Cell",
    "Class",
    "Contents",
    "Defaults",
    "Globals",
    "Items",
    "Members",
    "Partial",
    "Record",
    "Sequential",
    "key_text",
    "mutable_results",
    "same",
    "with_replaced",
]

#: What cannot be changed and holds nothing else.
ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
ATOM_KINDS = frozenset(ATOMS)
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()
_METHODS = (types.MethodWrapperType, types.BuiltinMethodType, types.MethodType)


class Record(ABC):
    """A container and what it held.

    Args:
        path: What leads to it from the model, in dotted form; empty for the model itself.
        target: The container.
        owner: The module or object by whose attribute it is reached.

    Attributes:
        path: What leads to it.
        target: The container.
        owner: Who has it.
        parts: What it held, flat.
    """

    __slots__ = ("owner", "parts", "path", "target")

    def __init__(self, path: str, target: Any, owner: Any) -> None:
        self.path, self.target, self.owner = path, target, owner
        self.parts: Sequence[Any] = self.read()

    @abstractmethod
    def read(self) -> Sequence[Any]:
        """Return what the container holds now, flat."""

    @abstractmethod
    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return what it holds by attribute, key or index, of what :meth:`read` gave."""

    @abstractmethod
    def write(self, items: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        """Let it hold these items; ``now`` is what it holds."""

    @property
    def before(self) -> dict[Any, Any]:
        """What it held by attribute, key or index."""
        return self.items(self.parts)

    def now(self) -> dict[Any, Any]:
        """Return what it holds now by attribute, key or index."""
        return self.items(self.read())

    def is_unchanged(self) -> bool:
        """Tell whether it holds what it held, one by one."""
        now = self.read()
        return len(now) == len(self.parts) and all(map(operator.is_, now, self.parts))

    def put(self, items: Mapping[Any, Any]) -> None:
        """Let it hold these items."""
        now = self.now()
        if list(now) != list(items) or any(now[key] is not value for key, value in items.items()):
            self.write(items, now)

    def replace(self, given: Mapping[int, Any]) -> None:
        """Let it hold, and have held, other objects, given by what they stand for."""
        before = self.before
        items = {key: with_replaced(value, given) for key, value in before.items()}
        if any(items[key] is not value for key, value in before.items()):
            self.put(items)
            self.parts = self.read()

    def path_of(self, key: Any) -> str:
        """Return the path of an item."""
        return ".".join(part for part in (self.path, key_text(key)) if part)


class Items(Record):
    """A dict, which may be the attributes of a function or of an object without slots."""

    __slots__ = ()

    def read(self) -> tuple[Any, ...]:
        """Return the keys and then the values.

        Subclasses may make something else of what they hold when they are asked for it.
        """
        base = _base(self.target)
        return (*base.keys(self.target), *base.values(self.target))

    def is_unchanged(self) -> bool:
        """Tell whether it holds what it held, one by one."""
        return _holds(self.target, self.parts) if type(self.target) is dict else super().is_unchanged()

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return the items."""
        return _halves(parts)

    def write(self, items: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        """Replace all items."""
        base = _base(self.target)
        base.clear(self.target)
        base.update(self.target, items)


class Sequential(Record):
    """A list or deque."""

    __slots__ = ()

    def read(self) -> tuple[Any, ...]:
        """Return the members."""
        return tuple(self.target)

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return the members by index."""
        return dict(enumerate(parts))

    def write(self, items: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        """Replace all members."""
        self.target.clear()
        self.target.extend(items.values())


class Members(Sequential):
    """A set."""

    __slots__ = ()

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return the members by themselves; tensors, which compare element by element, by their text."""
        return {repr(item) if isinstance(item, torch.Tensor) else item: item for item in parts}

    def write(self, items: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        """Replace all members."""
        self.target.clear()
        self.target.update(items.values())


class Cell(Record):
    """A variable of a closure."""

    __slots__ = ()

    def read(self) -> tuple[Any, ...]:
        """Return what it holds; nothing if it is not set yet."""
        try:
            return (self.target.cell_contents,)
        except ValueError:
            return ()

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return what it holds under an empty name."""
        return dict(zip(("",), parts, strict=False))

    def write(self, items: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        """Set or unset it."""
        if items:
            self.target.cell_contents = items[""]
        else:
            del self.target.cell_contents


class Contents(Record):
    """An object that only its own methods read and set, such as an array; it is compared as a value."""

    __slots__ = ()

    def read(self) -> tuple[Any, ...]:
        """Return a copy of what it holds."""
        return (contents_of(self.target),)

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return what it holds under an empty name."""
        return {"": parts[0]}

    def is_unchanged(self) -> bool:
        """Tell whether it holds equal numbers, texts and bytes, and else the very same."""
        return _is_same_value(self.read(), self.parts)

    def write(self, items: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        """Set it."""
        restore_contents(self.target, items[""])


class Cache(Record):
    """A cache of functools, which cannot be put back: it is emptied if it was given tensors, or what can be changed."""

    __slots__ = ()

    def read(self) -> tuple[Any, ...]:
        """Return how many results it holds."""
        return (self.target.cache_info().currsize,)

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return the cache itself where it holds more than before, and what matters among it."""
        return {"": self.target} if parts[0] > self.parts[0] and _holds_state(self.target) else {}

    def is_unchanged(self) -> bool:
        """Tell whether it was given nothing that matters."""
        return not self.now()

    def write(self, items: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        """Empty it."""
        self.target.cache_clear()


class Defaults(Record):
    """The defaults of a function's parameters."""

    __slots__ = ()

    def read(self) -> tuple[Any, ...]:
        """Return the defaults, in order."""
        return (*(self.target.__defaults__ or ()), *(self.target.__kwdefaults__ or {}).values())

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return the defaults by parameter."""
        code, keywords = self.target.__code__, self.target.__kwdefaults__ or {}
        count = len(parts) - len(keywords)
        names = code.co_varnames[code.co_argcount - count : code.co_argcount]
        return dict(zip((*names, *keywords), parts, strict=True))

    def write(self, items: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        """Set the defaults."""
        keywords = self.target.__kwdefaults__ or {}
        self.target.__defaults__ = tuple(value for name, value in items.items() if name not in keywords) or None
        keywords.update({name: items[name] for name in keywords})


class Partial(Record):
    """A function with some arguments given."""

    __slots__ = ()

    def read(self) -> tuple[Any, ...]:
        """Return the function, positional and keyword arguments."""
        return self.target.func, self.target.args, self.target.keywords

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return them by name."""
        return dict(zip(("func", "args", "keywords"), parts, strict=True))

    def write(self, items: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        """Set all of them."""
        self.target.__setstate__((*items.values(), vars(self.target)))


class _Named(Record):
    """What has its items by name, of which single ones are set and deleted."""

    __slots__ = ()

    def write(self, items: Mapping[Any, Any], now: Mapping[Any, Any]) -> None:
        """Set and delete what differs."""
        for name in now.keys() - items.keys():
            self.delete(name)
        for name, value in items.items():
            if now.get(name, MISSING) is not value:
                self.set(name, value)

    @abstractmethod
    def set(self, name: str, value: Any) -> None:
        """Set one item."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete one item."""


class Globals(_Named):
    """Those variables of a module that code names.

    Attributes:
        names: The names of those that are set.
        absent: The names of those that are not.
    """

    __slots__ = ("absent", "names")

    def __init__(self, path: str, target: dict[str, Any], owner: Any) -> None:
        self.names: list[str] = []
        self.absent: set[str] = set()
        super().__init__(path, target, owner)

    def add(self, name: str) -> None:
        """Watch a variable that is set."""
        self.names.append(name)
        self.parts = (*self.parts, self.target[name])

    def read(self) -> tuple[Any, ...]:
        """Return the values of the names, and then the names that were set since."""
        values = map(self.target.get, self.names, itertools.repeat(MISSING))
        return (*values, *(() if self.target.keys().isdisjoint(self.absent) else self.target.keys() & self.absent))

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return the values by name."""
        found = {name: value for name, value in zip(self.names, parts, strict=False) if value is not MISSING}
        return {**found, **{name: self.target[name] for name in parts[len(self.names) :]}}

    def set(self, name: str, value: Any) -> None:
        """Set a global."""
        self.target[name] = value

    def delete(self, name: str) -> None:
        """Delete a global."""
        del self.target[name]


class Attributes(_Named):
    """The attributes of an object, in slots or not."""

    __slots__ = ("slots",)

    def __init__(self, path: str, target: Any, owner: Any) -> None:
        kind: type = type(target)
        self.slots = _slots(kind)
        super().__init__(path, target, owner)

    def read(self) -> tuple[Any, ...]:
        """Return the names and then the values."""
        held = getattr(self.target, "__dict__", {})
        if not self.slots:
            return (*held, *held.values())
        slots = [name for name in self.slots if hasattr(self.target, name)]
        return (*slots, *held, *(getattr(self.target, name) for name in slots), *held.values())

    def is_unchanged(self) -> bool:
        """Tell whether it holds what it held, one by one."""
        return super().is_unchanged() if self.slots else _holds(getattr(self.target, "__dict__", {}), self.parts)

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return the values by name."""
        return _halves(parts)

    def set(self, name: str, value: Any) -> None:
        """Set an attribute past what its class does when one is set."""
        place = getattr(self.target, "__dict__", None)
        if place is not None and (name in place or not hasattr(type(self.target), name)):
            place[name] = value
        else:
            object.__setattr__(self.target, name, value)

    def delete(self, name: str) -> None:
        """Delete an attribute past what its class does when one is deleted."""
        place = getattr(self.target, "__dict__", {})
        if name in place:
            del place[name]
        else:
            object.__delattr__(self.target, name)


class Class(_Named):
    """The attributes of a class that are not methods, properties or the like."""

    __slots__ = ()

    def read(self) -> tuple[Any, ...]:
        """Return all names and then the values."""
        held = vars(self.target)
        return (*held, *held.values())

    def items(self, parts: Sequence[Any]) -> dict[Any, Any]:
        """Return the values by name."""
        named = _halves(parts).items()
        return {name: x for name, x in named if not name.startswith("__") and not hasattr(x, "__get__")}

    def set(self, name: str, value: Any) -> None:
        """Set an attribute."""
        setattr(self.target, name, value)

    def delete(self, name: str) -> None:
        """Delete an attribute past what the metaclass does."""
        type.__delattr__(self.target, name)


def with_replaced(value: Any, given: Mapping[int, Any]) -> Any:
    """Return what stands for an object, and a tuple or method with what stands for its parts.

    Other containers are entered by records of their own.
    """
    if isinstance(value, tuple):
        items = [with_replaced(item, given) for item in value]
        if all(map(operator.is_, items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, _METHODS) and id(value.__self__) in given:
        return getattr(given[id(value.__self__)], value.__name__)
    return given.get(id(value), value)


def key_text(key: Any) -> str:
    """Return how a path names a key: by its text, or its class where the text says no more than an address."""
    return type(key).__name__ if " at 0x" in (text := str(key)) else text


def same(before: Any, after: Any) -> bool:
    """Tell whether two values are the same to a program that does not change them in place."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(before, ATOMS):
        return bool(before == after) or before != before
    if isinstance(before, types.MethodType | torch.Size | range | slice):
        return bool(before == after)
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(same(before[key], after[key]) for key in before)
    if isinstance(before, list | tuple | collections.deque):
        return len(before) == len(after) and all(map(same, before, after))
    return bool(before == after) if isinstance(before, set | frozenset) else False


def _is_same_value(now: Any, before: Any) -> bool:
    """Tell whether values are one, or made of equal atoms in the same way; of what can be changed, equals are not."""
    if now is before:
        return True
    kind = type(now)
    if kind is not type(before):
        return False
    if issubclass(kind, tuple):
        # The state of a generator is hundreds of numbers.
        if ATOM_KINDS.issuperset(map(type, now)):
            return bool(now == before) and all(map(operator.is_, map(type, now), map(type, before)))
        return len(now) == len(before) and all(map(_is_same_value, now, before))
    if kind is dict:
        return now.keys() == before.keys() and all(_is_same_value(item, before[key]) for key, item in now.items())
    return kind in ATOM_KINDS and bool(now == before)


def _halves(parts: Sequence[Any]) -> dict[Any, Any]:
    count = len(parts) // 2
    return dict(zip(parts[:count], parts[count:], strict=True))


def _holds(held: dict[Any, Any], parts: Sequence[Any]) -> bool:
    """Tell whether a dict holds the keys and the values that are given one after the other; it is asked very often."""
    return 2 * len(held) == len(parts) and all(map(operator.is_, itertools.chain(held, held.values()), parts))


def _base(target: dict[Any, Any]) -> type[dict[Any, Any]]:
    return collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict


_SLOT = types.MemberDescriptorType


@functools.lru_cache(maxsize=128)
def _slots(kind: type) -> tuple[str, ...]:
    """Return the names of the slots of a class, as attributes of objects are called outside of its methods."""
    found: list[str] = []
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{each.__name__.lstrip('_')}{name}" if private else name)
    # A subclass may compute what a slot of its base holds.
    return tuple(name for name in dict.fromkeys(found) if isinstance(getattr(kind, name, None), _SLOT))


def mutable_results(cache: Any) -> list[Any]:
    """Return what a cache of functools gives that can be changed in place, tensors left out."""
    return [part for part in _entries(cache)[1] if _is_mutable(part)] if cache.cache_info().currsize else []


def _holds_state(cache: Any) -> bool:
    """Tell whether a cache of functools holds tensors, or results that can be changed in place."""
    arguments, results = _entries(cache)
    return any(isinstance(part, torch.Tensor) or _is_mutable(part) for part in results) or any(
        isinstance(part, torch.Tensor) for part in arguments
    )


def _entries(cache: Any) -> tuple[list[Any], list[Any]]:
    """Return the arguments and the results that a cache holds, tuples with their parts.

    Only the garbage collector reaches them: a cache without bounds has a dict of the results, one with bounds refers to
    all of them beside a dict of links.
    """
    held = gc.get_referents(cache)
    tables = [part for part in held if isinstance(part, dict) and part is not vars(cache)]
    if cache.cache_parameters()["maxsize"] is not None:
        tables = [table for table in tables if all(type(link).__name__ == "_lru_list_elem" for link in table.values())]
        arguments = [key for table in tables for key in table]
        known = {*map(id, arguments), *map(id, tables), id(vars(cache)), id(cache.__wrapped__)}
        results = [part for part in held if id(part) not in known]
    else:
        arguments = [key for table in tables for key in table]
        results = [result for table in tables for result in table.values()]
    parts = (
        [(x, *(gc.get_referents(x) if isinstance(x, tuple) else ())) for x in group] for group in (arguments, results)
    )
    first, second = (list(itertools.chain.from_iterable(group)) for group in parts)
    return first, second


def _is_mutable(part: Any) -> bool:
    if isinstance(part, list | dict | set | bytearray | collections.deque):
        return True
    return hasattr(part, "__dict__") and not callable(part) and not isinstance(part, torch.Tensor | types.ModuleType)
