"""How an operator of a newer opset is written in an older one.

An adapter belongs to one change of one operator: ``@adapter("ReduceMean", below=18)`` is what opset 18 changed. It
writes with ``op`` like a lowering. The call that needs the form before the change is one of ``older``, a builder that
speaks the dialect just below it, so older changes apply on top by themselves::

    @adapter("ReduceMean", below=18)
    def reduce_mean(op, data, axes=None, *, older, keepdims=1, noop_with_empty_axes=0): ...

A change that only widened the allowed dtypes needs no adapter: the builder casts where the older form lacks a dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import onnx_ir as ir

from onnxops_decomp.builder.parts import ADAPTERS
from onnxops_decomp.builder.runtime import Runtime

__all__ = ["Adapter", "adapter", "find_adapter", "find_forms", "other_meanings", "without_kernel"]

Adapter = Callable[..., ir.Value | tuple[ir.Value, ...] | None]
# The opset of the forms that ``older`` takes, None for a function without that parameter; and the function.
Form = tuple[int | None, Adapter]
Written = TypeVar("Written", bound=Adapter)

_ADAPTERS: dict[str, dict[int, Adapter]] = {}
_OTHER_MEANINGS: dict[str, list[int]] = {}
_COMPOSED: dict[str, list[tuple[int, frozenset[ir.DataType] | None, Adapter]]] = {}
_FORMS: dict[tuple[Any, ...], tuple[Form, ...]] = {}


def adapter(*op_types: str, below: int, keeps_meaning: bool = True) -> Callable[[Written], Written]:
    """Register a function as the form of ``op_types`` below opset ``below``.

    The function is called as ``function(op, *inputs, **attributes)`` with the operands of the newer form; where the
    caller asked for more than one output, ``_outputs`` says how many. It returns the values that stand for the node's
    outputs, or raises :class:`~onnxops_decomp.errors.UnsupportedOpsetError`. ``op`` takes calls in the newest forms. A
    function with a keyword parameter ``older`` is given a builder that takes them in the forms of opset ``below - 1``.

    Args:
        op_types: Operators that it is for.
        below: The opset that brought the change.
        keeps_meaning: Whether a call of the older form means the same where the newer one takes it, too.

    Raises:
        ValueError: If the change has an adapter already.
    """

    def register(function: Written) -> Written:
        for op_type in op_types:
            changes = _ADAPTERS.setdefault(op_type, {})
            if below in changes:
                raise ValueError(f"{op_type} already has an adapter below opset {below}.")
            changes[below] = function
            if not keeps_meaning:
                _OTHER_MEANINGS.setdefault(op_type, []).append(below)
        _FORMS.clear()
        return function

    return register


def without_kernel(
    *op_types: str, dtypes: Iterable[ir.DataType] | None = None, operand: int = 0
) -> Callable[[Written], Written]:
    """Register a function that composes ``op_types`` of other operators where runtimes lack a kernel.

    It is called like an adapter, without ``older``, and may return None for a call that the runtime has a kernel for.

    Args:
        op_types: Operators that it stands for.
        dtypes: Dtypes that have no kernel; None for an operator that has none at all at the opsets that
            :attr:`.Runtime.no_kernel` lists.
        operand: Index of the input whose dtype counts.
    """
    without = None if dtypes is None else frozenset(dtypes)

    def register(function: Written) -> Written:
        for op_type in op_types:
            _COMPOSED.setdefault(op_type, []).append((operand, without, function))
        _FORMS.clear()
        return function

    return register


def find_adapter(op_type: str, opset: int, dialect: int) -> tuple[int, Adapter] | None:
    """Return the newest change between ``opset`` and ``dialect`` with its adapter, or None if there is none."""
    ADAPTERS.get()
    changes = _ADAPTERS.get(op_type)
    if changes is None:
        return None
    below = max((version for version in changes if opset < version <= dialect), default=None)
    return None if below is None else (below, changes[below])


def other_meanings(op_type: str, older: int, newer: int) -> list[int]:
    """Return the opsets between two that gave another meaning to calls which their older form has, too."""
    ADAPTERS.get()
    return [below for below in _OTHER_MEANINGS.get(op_type, ()) if older < below <= newer]


def find_forms(
    op_type: str, opset: int, dialect: int, dtypes: tuple[ir.DataType | None, ...], runtime: Runtime | None
) -> tuple[Form, ...]:
    """Return the forms in which a call may be written otherwise, in order; none if it stays as it is.

    Args:
        op_type: Operator of the default domain.
        opset: Requested opset.
        dialect: Opset in whose form the call stands.
        dtypes: Dtypes of its operands.
        runtime: The runtime whose missing kernels are written otherwise; None for all that ONNX specifies.
    """
    key = (op_type, opset, dialect, dtypes, runtime)
    try:
        return _FORMS[key]
    except KeyError:
        forms = _FORMS[key] = _forms(op_type, opset, dialect, dtypes, runtime)
        return forms


def _forms(
    op_type: str, opset: int, dialect: int, dtypes: tuple[ir.DataType | None, ...], runtime: Runtime | None
) -> tuple[Form, ...]:
    ADAPTERS.get()
    found: list[Form] = []
    first, last = runtime.no_kernel.get(op_type, (1, 0)) if runtime else (1, 0)
    for operand, without, function in _COMPOSED.get(op_type, ()) if runtime else ():
        dtype = dtypes[operand] if operand < len(dtypes) else None
        if first <= opset <= last if without is None else dtype in without:
            found.append((None, function))
    if (change := find_adapter(op_type, opset, dialect)) is not None:
        below, function = change
        found.append((below - 1 if "older" in inspect.signature(function).parameters else None, function))
    return tuple(found)
