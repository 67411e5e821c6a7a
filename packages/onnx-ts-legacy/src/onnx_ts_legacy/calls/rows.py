"""Rows of the table of handlers (:mod:`onnx_ts_legacy.conversion.dispatch`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from onnx_ts_legacy.state.context import ConversionContext

__all__ = ["Handler", "Row", "Test", "of_operands", "rows"]

# Called with the context, the node and what its inputs stand for; returns what its outputs stand for.
Handler = Callable[[ConversionContext, Any, Sequence[Any]], Any]
# Called with the same; tells whether a row takes the call.
Test = Callable[[ConversionContext, Any, Sequence[Any]], bool]


class Row(NamedTuple):
    """One row of the table.

    Attributes:
        kinds: The kinds of nodes that it is for, or the start of these; None for all of them.
        convert: Converts a call.
        takes: Tells whether the row is for a call of such a kind; None if it is for all.
        is_noted: Whether the nodes that the handler writes are noted to come from this call.
    """

    kinds: Collection[str] | str | None
    convert: Handler
    takes: Test | None = None
    is_noted: bool = True

    def is_for(self, kind: str) -> bool:
        """Tell whether the row may be for nodes of a kind."""
        if isinstance(self.kinds, str):
            return kind.startswith(self.kinds)
        return self.kinds is None or kind in self.kinds


def rows(handlers: Mapping[str, Handler], takes: Test | None = None) -> tuple[Row, ...]:
    """Return a row for each kind."""
    return tuple(Row((kind,), handler, takes) for kind, handler in handlers.items())


def of_operands(function: Callable[..., Any]) -> Handler:
    """Return the handler that calls ``function`` with the context and the operands of the node."""
    return lambda context, node, args: function(context, *args)
