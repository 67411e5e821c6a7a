"""Which functions of installed packages a call of a model may reach, by the names that code has for them.

The classes of a large library bring hundreds of methods along that load, save and patch a model. What they ask of
numbers and tensors says nothing of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from types import FunctionType
from typing import Any

from onnxops_decomp.exporting.state.code import all_names

__all__ = ["reached_functions"]

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_OF_CLASSES = ("__class_getitem__", "__init_subclass__", "__set_name__")
_HELD = frozenset(("forward",))
# How a name may begin that code composes for getattr(): "step_".
_LEAST_PREFIX = 3


def reached_functions(
    functions: Mapping[Callable[..., Any], Any],
    named: Mapping[Callable[..., Any], Set[str]],
    is_own: Callable[[Callable[..., Any]], bool],
) -> list[Callable[..., Any]]:
    """Return the functions that may run in a call.

    Args:
        functions: All that were met, with the objects or classes that they belong to.
        named: Those that code finds by a name alone, as methods of classes and globals, with these names.
        is_own: Whether a function is the user's, and so is taken to run.
    """
    waiting = [each for each in functions if _begins(named.get(each, _HELD), is_own(each))]
    begun = set(waiting)
    left = {each: _names(functions[each], named[each]) for each in functions if each not in begun}
    while waiting:
        codes = [each.__code__ for each in waiting if isinstance(each, FunctionType)]
        known = frozenset[str]().union(*map(all_names, codes))
        prefixes = tuple(text for text in known if text.endswith("_") and len(text) >= _LEAST_PREFIX)
        waiting = [
            each
            for each, names in left.items()
            if not known.isdisjoint(names) or any(name.startswith(prefixes) for name in names)
        ]
        for each in waiting:
            del left[each]
    return [each for each in functions if each not in left or is_own(each)]


def _begins(names: Set[str], own: bool) -> bool:
    """Tell whether a function may run without being named, as that of an operator does; the user's own may."""
    is_implicit = any(name == "forward" or name[:2] == name[-2:] == "__" for name in names)
    return (own or is_implicit) and names.isdisjoint((*_CONSTRUCTORS, *_OF_CLASSES))


def _names(owner: Any, names: Set[str]) -> set[str]:
    """Return the names by which code runs a function: that of the class if it constructs."""
    constructs = not names.isdisjoint(_CONSTRUCTORS)
    return {*names, *([owner.__name__] if constructs and isinstance(owner, type) else [])}
