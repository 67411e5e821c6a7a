"""The user's own conversions of operators ("custom symbolics"), by name and opset.

A function registered at an opset serves that opset and all above, until one that is registered higher takes over.
Opset 9 is the base: opsets 7 and 8 are also served by the nearest function above them, up to 9, and what is registered
for one of them with :func:`onnx_symbolic` is an exception for that opset, which does not serve 9 and above.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from onnx_ts_legacy.errors import ArgumentsError
from onnxops_decomp.exporting import NEWEST_OPSET, OLDEST_OPSET

__all__ = [
    "Registry",
    "onnx_symbolic",
    "register_custom_op_symbolic",
    "registry",
    "unregister_custom_op_symbolic",
]

BASE_OPSET = 9
Symbolic = Callable[..., Any]
F = TypeVar("F", bound=Symbolic)

_NAME = re.compile(r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*::[A-Za-z_][A-Za-z0-9_.]*$")


class Registry:
    """Functions by qualified operator name and opset."""

    def __init__(self) -> None:
        self._functions: dict[str, dict[int, Symbolic]] = {}
        self._exceptions: set[tuple[str, int]] = set()

    def register(self, name: str, opset: int, function: Symbolic, *, only_below_base: bool = False) -> None:
        """Enter a function.

        Args:
            name: Operator.
            opset: Lowest opset that it is for; one below 7 stands for 7.
            function: The function.
            only_below_base: Whether a function for opset 7 or 8 is for that opset alone.

        Raises:
            ArgumentsError: If the name is not qualified or the opset unknown.
        """
        name = qualified(name)
        if not 1 <= opset <= NEWEST_OPSET:
            raise ArgumentsError(
                f"The symbolic for {name} is registered for opset {opset}; the opsets are 7 to {NEWEST_OPSET}."
            )
        opset = max(opset, OLDEST_OPSET)
        self._functions.setdefault(name, {})[opset] = function
        if only_below_base and opset < BASE_OPSET:
            self._exceptions.add((name, opset))
        else:
            self._exceptions.discard((name, opset))

    def unregister(self, name: str, opset: int) -> None:
        """Take a function out; nothing happens if there is none."""
        versions = self._functions.get(qualified(name), {})
        versions.pop(max(opset, OLDEST_OPSET), None)
        if not versions:
            self._functions.pop(qualified(name), None)

    def find(self, name: str, opset: int) -> Symbolic | None:
        """Return the function that serves ``name`` at ``opset``, or None."""
        versions = self._functions.get(name)
        if not versions:
            return None
        below = [version for version in versions if version == opset or self._serves_above(name, version, opset)]
        if below:
            return versions[max(below)]
        above = [version for version in versions if opset <= version <= BASE_OPSET]
        return versions[min(above)] if above else None

    def _serves_above(self, name: str, version: int, opset: int) -> bool:
        return version <= opset and (name, version) not in self._exceptions

    def names(self) -> list[str]:
        """Return the operators that have a function."""
        return sorted(self._functions)


registry = Registry()


def qualified(name: str) -> str:
    """Return ``namespace::name``; names without a namespace are ATen's.

    Raises:
        ArgumentsError: If it is not an operator name.
    """
    full = f"aten{name}" if name.startswith("::") else name
    if not _NAME.match(full):
        raise ArgumentsError(f"{name!r} is not an operator name; write 'namespace::operator', such as 'aten::relu'.")
    return full


def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: Symbolic, opset_version: int) -> None:
    """Convert an operator with a function of the user from ``opset_version`` on.

    Args:
        symbolic_name: Qualified name, such as ``"mylib::fused"``; for a Python operator ``"prim::PythonOp"``.
        symbolic_fn: Called as ``symbolic_fn(g, *inputs)`` with a :class:`GraphContext` and the inputs of the call;
            returns its outputs, made with ``g.op``.
        opset_version: Lowest opset that it is for.

    Raises:
        ArgumentsError: If the name or opset is wrong.
    """
    registry.register(symbolic_name, opset_version, symbolic_fn)


def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int) -> None:
    """Take back what :func:`register_custom_op_symbolic` did.

    Args:
        symbolic_name: Qualified name of the operator.
        opset_version: The opset that the symbolic was registered for.
    """
    registry.unregister(symbolic_name, opset_version)


def onnx_symbolic(
    name: str,
    opset: int | Sequence[int],
    decorate: Iterable[Callable[[Any], Any]] | None = None,
    custom: bool = False,
) -> Callable[[F], F]:
    """Return a decorator that registers a function.

    Args:
        name: Qualified operator name.
        opset: Opset, or several, from which on it serves.
        decorate: Decorators to apply to what is registered; the decorated function itself stays as it is.
        custom: Kept for compatibility: every registered function takes precedence over the built-in conversion.
    """

    def enter(function: F) -> F:
        registered: Any = function
        for decorator in decorate or ():
            registered = decorator(registered)
        for version in (opset,) if isinstance(opset, int) else opset:
            registry.register(name, version, registered, only_below_base=not custom)
        return function

    return enter
