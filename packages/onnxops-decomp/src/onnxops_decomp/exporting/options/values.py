"""What the values of an export's options may be."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch.export import AdditionalInputs, ShapesCollection

from onnxops_decomp.lowerings.registry import LoweringTable
from onnxops_decomp.spec.schemas import NEWEST_OPSET, OLDEST_OPSET

__all__ = [
    "AXES",
    "CALLABLE",
    "CLASSES",
    "DESTINATION",
    "FLAG",
    "NAMES",
    "OPERATORS",
    "OPSET",
    "PATH",
    "SHAPES",
    "TRAINING",
    "TRANSLATIONS",
    "VALUES",
    "VERSIONS",
    "Kind",
    "either",
]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of values.

    Attributes:
        text: What they are, for a message: ``state is <text>, not 3.``
        fits: Whether a value is one.
    """

    text: str
    fits: Callable[[Any], bool]

    def or_none(self) -> Kind:
        """Return the kind to which None belongs as well."""
        return Kind(self.text, lambda value: value is None or self.fits(value))


def either(*words: Any) -> Kind:
    """Return the kind of a few values; a word is only equal to a word, and a number to no truth value."""
    shown = [f'"{word}"' if isinstance(word, str) else str(word) for word in words]
    text = " or ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
    kinds = frozenset(map(type, words))
    return Kind(text, lambda value: type(value) in kinds and value in words)


def _is_name_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def _is_opset(value: Any) -> bool:
    return type(value) is int and OLDEST_OPSET <= value <= NEWEST_OPSET


def _is_destination(value: Any) -> bool:
    if not hasattr(value, "write"):
        return isinstance(value, str | os.PathLike)
    # Files for text have an encoding, those behind a wrapper of tempfile too.
    is_text = isinstance(value, io.TextIOBase) or hasattr(value, "encoding")
    return not is_text and not getattr(value, "closed", False) and getattr(value, "writable", lambda: True)()


def _is_axis(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_axes(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(axes, Mapping | Sequence) and all(map(_is_axis, axes))
        for name, axes in value.items()
    )


def _are_versions(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(domain, str) and type(version) is int and version > 0 for domain, version in value.items()
    )


def _are_classes(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    # What is captured already knows its classes by name.
    is_collection = isinstance(value, Collection) and not isinstance(value, str | Mapping)
    return is_collection and all(isinstance(kind, type | str) for kind in value)


def _enumeration(name: str, count: int) -> Kind:
    """Return the kind of the members of an enumeration: torch's, the exporters' own, and their numbers."""

    def fits(value: Any) -> bool:
        number = getattr(value, "value", value)
        return type(number) is int and 0 <= number < count

    return Kind(f"a member of {name}", fits).or_none()


FLAG = either(True, False)
NAMES = Kind("a list of strings", _is_name_list).or_none()
OPSET = Kind(f"a whole number, {OLDEST_OPSET} to {NEWEST_OPSET}", _is_opset).or_none()
DESTINATION = Kind("a path or a file that is open for writing bytes", _is_destination).or_none()
PATH = Kind("a path", lambda value: isinstance(value, str | os.PathLike))
AXES = Kind("a dictionary with a list of axes, or their names by axis, for each name", _are_axes).or_none()
SHAPES = Kind(
    'a dictionary, tuple or list of dimensions, or "auto"',
    lambda value: isinstance(value, Mapping | Sequence | ShapesCollection | AdditionalInputs),
).or_none()


def _are_keywords(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


VALUES = Kind(
    "a dictionary of arguments by name, or a list of them for several examples",
    lambda value: _are_keywords(value) or (isinstance(value, list) and all(map(_are_keywords, value))),
).or_none()
VERSIONS = Kind("a dictionary with a version above 0 for each domain", _are_versions).or_none()
TRANSLATIONS = Kind(
    "a dictionary of functions by operator, or a LoweringTable",
    lambda value: isinstance(value, Mapping | LoweringTable),
).or_none()
CLASSES = Kind("True, False or classes of modules", _are_classes)
CALLABLE = Kind("a function", callable).or_none()
TRAINING = _enumeration("TrainingMode", 3)
OPERATORS = _enumeration("OperatorExportTypes", 4)
