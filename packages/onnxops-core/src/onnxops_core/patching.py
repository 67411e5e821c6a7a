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
    """An attribute that is or was replaced; ``replacements`` holds a thread, or None for all, with each value."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.own = owner.__dict__.get(name, _MISSING)
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
        own = self.owner.__dict__.get(self.name, _MISSING)
        return own is self.own and (own is not _MISSING or _inherited(self.owner, self.name) is self.usual)

    def current(self) -> Any:
        """Return what the running thread is to see."""
        for thread, value in reversed(self.replacements):
            if thread is None or thread == threading.get_ident():
                return value
        return self.usual

    def enter(self, entry: tuple[int | None, Any]) -> None:
        """Let a value take the place of the others, for a thread or for all."""
        self.replacements = (*self.replacements, entry)
        thread, value = entry
        if self.installed is _MISSING and (thread is None or not _is_function(value)):
            # Most are the only one.
            self.installed = value
            setattr(self.owner, self.name, value)
        else:
            self._install()

    def leave(self, entry: tuple[int | None, Any]) -> None:
        """Take a value away; after the last one, what was there is back."""
        if len(self.replacements) > 1:
            kept = list(self.replacements)
            del kept[next(index for index in reversed(range(len(kept))) if kept[index] is entry)]
            self.replacements = tuple(kept)
            self._install()
            return
        owner, name = self.owner, self.name
        if owner.__dict__.get(name, _MISSING) is self.installed or self._is_installed():
            if self.own is _MISSING and name in owner.__dict__:
                delattr(owner, name)
            else:
                setattr(owner, name, self.usual)
        self.replacements, self.installed = (), _MISSING
        if self.dispatching is not _MISSING and not callable(self.dispatching):
            self.dispatching = _MISSING

    def _install(self) -> None:
        """Put in place what is needed now, unless someone else has replaced it meanwhile."""
        if not self._is_installed():
            return
        value = self.replacements[-1][1]
        if _is_function(value) and any(thread is not None for thread, _ in self.replacements):
            if self.dispatching is _MISSING:
                self.dispatching = _dispatching(self, value)
            value = self.dispatching
        self.installed = value
        setattr(self.owner, self.name, value)

    def _is_installed(self) -> bool:
        """Tell whether nobody else has replaced meanwhile what was put in place, if anything was."""
        if self.installed is _MISSING:
            return True
        own = self.owner.__dict__
        stored = own[self.name] if self.name in own else getattr(self.owner, self.name, _MISSING)
        return stored is self.installed


def _inherited(owner: Any, name: str) -> Any:
    """Return an attribute that an owner does not define itself, as it is stored where it is defined."""
    if isinstance(owner, type):
        for base in owner.__mro__:
            if name in base.__dict__:
                return base.__dict__[name]
        return _MISSING
    found = _MISSING if type(owner) is ModuleType else inspect.getattr_static(owner, name, _MISSING)
    if found is _MISSING and isinstance(owner, ModuleType):
        # What a module does not define it finds among the builtins.
        return getattr(builtins, name, _MISSING)
    return found


@functools.lru_cache(1024)
def _is_computed(kind: type, name: str) -> bool:
    """Tell whether objects of a class compute an attribute, so that what they store under its name is not its value."""
    return inspect.isdatadescriptor(inspect.getattr_static(kind, name, None))


# With those of torch and Python in which nothing is replaced at present; most exports replace the same.
_places: dict[tuple[int, str], _Place] = {}


def original(owner: Any, name: str) -> Any:
    """Return what an attribute is without the replacements of :func:`replaced`."""
    place = _places.get((id(owner), name))
    return place.usual if place is not None and place.replacements else getattr(owner, name)


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
            key, entry = (id(owner), name), (thread, value)
            place = _places.get(key)
            if place is None or not (place.replacements or place.is_as_before()):
                place = _places[key] = _Place(owner, name)
            place.enter(entry)
            entered.append((place, entry))
    try:
        yield
    finally:
        with _lock:
            for place, entry in reversed(entered):
                place.leave(entry)
                if not (place.replacements or place.is_lasting):
                    del _places[id(place.owner), place.name]


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
