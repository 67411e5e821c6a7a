"""The one way in which these packages put something else in place of a function or attribute of torch."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["original", "replaced", "without_replacement"]

_MISSING: Any = object()
_DESCRIPTORS = (property, classmethod)
_lock = threading.RLock()


class _Place:
    """An attribute that is replaced at present; ``replacements`` holds a thread, or None for all, with each value."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.own = vars(owner).get(name, _MISSING)
        self.usual = _inherited(owner, name) if self.own is _MISSING else self.own
        is_stored = self.usual is not _MISSING and not _is_computed(owner.__class__, name)
        if not is_stored:
            self.usual = getattr(owner, name)
        self.is_lasting = is_stored and _stays(owner)
        self.replacements: tuple[tuple[int | None, Any], ...] = ()
        self.installed: Any = _MISSING
        self.dispatching: Any = _MISSING

    def is_as_before(self) -> bool:
        """Tell whether what is in place now is what was there when it was made."""
        own = vars(self.owner).get(self.name, _MISSING)
        return own is self.own and (own is not _MISSING or _inherited(self.owner, self.name) is self.usual)

    def current(self) -> Any:
        """Return what the running thread is to see."""
        for thread, value in reversed(self.replacements):
            if thread is None or thread == threading.get_ident():
                return value
        return self.usual

    def install(self) -> None:
        """Put in place what is needed now, unless someone else has replaced it meanwhile."""
        if self.installed is not _MISSING and _stored(self.owner, self.name) is not self.installed:
            return
        if self.replacements:
            thread, value = self.replacements[-1]
            is_of_thread = thread is not None
            if len(self.replacements) > 1:
                is_of_thread = any(thread is not None for thread, _ in self.replacements)
            if is_of_thread and _is_function(value):
                if self.dispatching is _MISSING:
                    self.dispatching = _dispatching(self, value)
                value = self.dispatching
            self.installed = value
            setattr(self.owner, self.name, self.installed)
        elif self.own is _MISSING and self.name in vars(self.owner):
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.usual)


def _inherited(owner: Any, name: str) -> Any:
    """Return an attribute that an owner does not define itself, as it is stored where it is defined."""
    if isinstance(owner, type):
        return next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), _MISSING)
    found = _MISSING if type(owner) is ModuleType else inspect.getattr_static(owner, name, _MISSING)
    if found is _MISSING and isinstance(owner, ModuleType):
        # What a module does not define it finds among the builtins.
        return getattr(builtins, name, _MISSING)
    return found


@functools.lru_cache(1024)
def _is_computed(kind: type, name: str) -> bool:
    """Tell whether objects of a class compute an attribute, so that what they store under its name is not its value."""
    return inspect.isdatadescriptor(inspect.getattr_static(kind, name, None))


_places: dict[tuple[int, str], _Place] = {}
# Those of torch and Python that nothing is replaced in at present; most exports replace the same.
_idle: dict[tuple[int, str], _Place] = {}


def _stored(owner: Any, name: str) -> Any:
    """Return an attribute as it is stored, without binding it."""
    return vars(owner)[name] if name in vars(owner) else getattr(owner, name, _MISSING)


def original(owner: Any, name: str) -> Any:
    """Return what an attribute is without the replacements of :func:`replaced`."""
    place = _places.get((id(owner), name))
    return getattr(owner, name) if place is None else place.usual


def without_replacement(value: Any) -> Any:
    """Return what a replacement of :func:`replaced` stands for at present, and any other value as it is."""
    with _lock:
        return next((place.usual for place in _places.values() if place.installed is value), value)


@contextlib.contextmanager
def replaced(replacements: Sequence[tuple[Any, str, Any]], *, in_all_threads: bool = False) -> Iterator[None]:
    """Put other functions, properties, class methods or values in place of attributes in the body.

    Contexts may nest and may end in any order, in any number of threads: each takes its own replacements away, and the
    last one puts back what was there. What someone else has put in their place meanwhile stays.

    Args:
        replacements: What has the attribute, its name, and what takes its place: a function, property or class method,
            or any other value.
        in_all_threads: Whether other threads see functions too, which then cost no more than those that they replace;
            they see values that are not functions in any case.
    """
    thread = None if in_all_threads else threading.get_ident()
    entered: list[tuple[_Place, tuple[int | None, Any]]] = []
    with _lock:
        for owner, name, value in replacements:
            key = id(owner), name
            place = _places.get(key)
            if place is None:
                place = _places[key] = _place(key, owner)
            entry = (thread, value)
            place.replacements = (*place.replacements, entry)
            place.install()
            entered.append((place, entry))
    try:
        yield
    finally:
        with _lock:
            for place, entry in reversed(entered):
                _leave(place, entry)


def _place(key: tuple[int, str], owner: Any) -> _Place:
    idle = _idle.pop(key, None)
    return idle if idle is not None and idle.is_as_before() else _Place(owner, key[1])


def _leave(place: _Place, entry: tuple[int | None, Any]) -> None:
    kept: list[tuple[int | None, Any]] = []
    if len(place.replacements) > 1:
        kept = list(place.replacements)
        del kept[next(index for index in reversed(range(len(kept))) if kept[index] is entry)]
    place.replacements = tuple(kept)
    place.install()
    if not kept:
        key = id(place.owner), place.name
        del _places[key]
        place.installed = _MISSING
        if place.is_lasting:
            if not callable(place.dispatching):
                place.dispatching = _MISSING
            _idle[key] = place


def _stays(owner: Any) -> bool:
    """Tell whether a module or class is there as long as the process."""
    name = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__ if isinstance(owner, type) else ""
    root = name.partition(".")[0]
    return root == "torch" or (root in sys.stdlib_module_names and root != "__main__")


def _is_function(value: Any) -> bool:
    return callable(value) or isinstance(value, _DESCRIPTORS)


def _dispatching(place: _Place, value: Any) -> Any:
    """Return what asks the place, each time it is used, what the running thread is to see."""
    if isinstance(value, property):
        return property(
            lambda self: place.current().__get__(self, type(self)),
            lambda self, new: place.current().__set__(self, new),
        )
    if isinstance(value, classmethod):
        return classmethod(lambda cls, *args, **kwargs: place.current().__get__(None, cls)(*args, **kwargs))
    return _calling(place)


def _calling(place: _Place) -> Callable[..., Any]:
    running = threading.get_ident

    @functools.wraps(place.usual)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        # Mostly there is one replacement, and the thread that asked for it is the one that runs.
        for thread, value in place.replacements[-1:]:
            if thread is None or thread == running():
                return value(*args, **kwargs)
        return place.current()(*args, **kwargs)

    return dispatch
