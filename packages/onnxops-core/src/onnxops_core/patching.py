"""The one way in which these packages put something else in place of a function or attribute of torch."""

from __future__ import annotations

import builtins
import functools
import inspect
import logging
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

__all__ = ["Replacements", "original", "replaced", "without_replacement"]

# What a place holds while it has one replacement.
_Alone = tuple[tuple[int | None, Any]]
_MISSING: Any = object()
_DESCRIPTORS = (property, classmethod)
_lock = threading.RLock()


class _Place:
    """An attribute that is or was replaced; ``replacements`` holds a thread, or None for all, with each value.

    Attributes:
        names: The attributes that the owner has itself.
        is_known: Whether it is the one of this attribute among ``_places``.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name, self.names = owner, name, owner.__dict__
        # What these are given is theirs without a call.
        self.is_stored = type(owner) is ModuleType
        self.is_known = True
        self.own = self.names.get(name, _MISSING)
        self.usual = _inherited(owner, name) if self.own is _MISSING else self.own
        is_found = self.usual is not _MISSING and (self.is_stored or not _is_computed(owner.__class__, name))
        if not is_found:
            self.usual = getattr(owner, name)
        self.is_lasting = is_found and _stays(owner)
        self.replacements: tuple[tuple[int | None, Any], ...] = ()
        self.installed: Any = _MISSING
        self.dispatching: Any = _MISSING

    def is_as_before(self) -> bool:
        """Tell whether what is in place now is what was there when it was made."""
        if self.name in self.names:
            return self.names[self.name] is self.own
        return self.own is _MISSING and _inherited(self.owner, self.name) is self.usual

    def current(self) -> Any:
        """Return what the running thread is to see."""
        for thread, value in reversed(self.replacements):
            if thread is None or thread == threading.get_ident():
                return value
        return self.usual

    def enter(self, entry: tuple[int | None, Any]) -> None:
        """Let a value take the place of the others, for a thread or for all."""
        self.replacements = (*self.replacements, entry)
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
    if isinstance(owner, ModuleType):
        # What a module does not define it finds by a function of its own, or among the builtins.
        found = getattr(owner, name, _MISSING)
        return getattr(builtins, name, _MISSING) if found is _MISSING else found
    return inspect.getattr_static(owner, name, _MISSING)


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


def replaced(
    replacements: Sequence[tuple[Any, str, Any]] | Replacements, *, in_all_threads: bool = False
) -> AbstractContextManager[None]:
    """Put other functions, properties, class methods or values in place of attributes in the body.

    Contexts may nest and may end in any order, in any number of threads: each takes its own replacements away, and the
    last one puts back what was there. What someone else has put in their place meanwhile stays.

    Args:
        replacements: What has the attribute, its name, and what takes its place: a function, property or class method,
            or any other value.
        in_all_threads: Whether other threads see functions too, which then cost no more than those that they replace;
            they see values that are not functions in any case.
    """
    return _Replaced(replacements, None if in_all_threads else threading.get_ident())


class Replacements:
    """Replacements for :func:`replaced` that many contexts make in turn.

    What takes each place is made once, and anew after someone else has put something else there.

    Args:
        makers: What has the attribute, its name, and what makes of :func:`original` what takes its place.
    """

    def __init__(self, makers: Iterable[tuple[Any, str, Callable[[Any], Any]]]) -> None:
        self._makers = [*makers]
        self._made: list[tuple[_Place, Any]] = []
        self._by_id: dict[int, Any] = {}

    def made(self) -> list[tuple[_Place, Any]]:
        """Return the places, each with what takes it now. To be called with the lock held."""
        made = self._made or [self._make(*maker) for maker in self._makers]
        is_new = made is not self._made
        for index, (place, _) in enumerate(made):
            owner, name, names = place.owner, place.name, place.names
            # As _place_of(), with a call for inherited attributes only: there are many places.
            if place.is_known and (
                place.replacements
                or (names[name] is place.own if name in names else getattr(owner, name, _MISSING) is place.usual)
                or place.is_as_before()
            ):
                continue
            made[index], is_new = self._make(*self._makers[index]), True
        if is_new:
            self._made = made
            self._by_id = {id(key): value for place, value in made for key in (place.usual, value)}
        return made

    def of_other_names(self, module: ModuleType) -> list[tuple[Any, str, Any]]:
        """Return replacements for what a module has of this, or of what takes its place, under names of its own."""
        with _lock:
            self.made()
        names = vars(module)
        if self._by_id.keys().isdisjoint(map(id, names.values())):
            return []
        return [(module, name, self._by_id[id(v)]) for name, v in [*names.items()] if id(v) in self._by_id]

    def _make(self, owner: Any, name: str, make: Callable[[Any], Any]) -> tuple[_Place, Any]:
        return _place_of(owner, name), make(original(owner, name))


class _Replaced:
    """See :func:`replaced`."""

    def __init__(self, replacements: Sequence[tuple[Any, str, Any]] | Replacements, thread: int | None) -> None:
        self._replacements, self._thread = replacements, thread
        self._entered: Sequence[tuple[_Place, _Alone]] = ()

    def __enter__(self) -> None:
        given, thread = self._replacements, self._thread
        with _lock:
            if isinstance(given, Replacements):
                found = given.made()
            else:
                found = [(_place_of(owner, name), value) for owner, name, value in given]
            entries = [(place, ((thread, value),)) for place, value in found]
            index = 0
            try:
                for index, (place, alone) in enumerate(entries):  # noqa: B007
                    if thread is not None or place.replacements:
                        place.enter(alone[0])
                        continue
                    # Most are for all threads, and the only one.
                    place.replacements = alone
                    place.installed = value = alone[0][1]
                    if place.is_stored:
                        place.names[place.name] = value
                    else:
                        setattr(place.owner, place.name, value)
            except BaseException:
                reached = entries[: index + 1]
                _leave([each for each in reached if any(entry is each[1][0] for entry in each[0].replacements)])
                raise
        self._entered = entries

    def __exit__(self, *exception: object) -> None:
        entered, self._entered = self._entered, ()
        with _lock:
            _leave(entered)


def _place_of(owner: Any, name: str) -> _Place:
    """Return the place of an attribute, another one than before if someone else has replaced it meanwhile."""
    key = (id(owner), name)
    place = _places.get(key)
    if place is None or not (place.replacements or place.is_as_before()):
        if place is not None:
            place.is_known = False
        place = _places[key] = _Place(owner, name)
    return place


def _leave(entered: Sequence[tuple[_Place, _Alone]]) -> None:
    """Take replacements away. To be called with the lock held."""
    for place, alone in entered[::-1]:
        names, name = place.names, place.name
        if place.replacements is alone and name in names and names[name] is place.installed:
            # As leave(), with fewer calls.
            if place.own is not _MISSING and place.is_stored:
                names[name] = place.own
            elif place.own is not _MISSING:
                setattr(place.owner, name, place.own)
            else:
                delattr(place.owner, name)
            place.replacements, place.installed = (), _MISSING
        else:
            place.leave(alone[0])
        if not (place.replacements or place.is_lasting):
            place.is_known = False
            del _places[id(place.owner), name]


def _stays(owner: Any) -> bool:
    """Tell whether a module, class or logger is there as long as the process."""
    if isinstance(owner, logging.Logger):
        return True
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
