"""Whether the calls of a block depend on nothing but what repetitions are compared by, and change nothing.

The code of one call is noted while it runs, and stock is taken of what that code and the block can reach. If a second
call leaves all of it as it was, and if no code can tell one block from another but by what it holds, then a third call
does what the others did as long as the stock is still the same.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from onnx_fx_export.repeats.attribute_reads import AttributeReads
from onnx_fx_export.torch_private import recorded_apart
from onnxops_core.exporting import without_collection
from onnxops_decomp.exporting import Inventory, is_library, written_code

__all__ = ["Purity"]

# By these, code can tell an object from an equal one.
_TELLING = frozenset(
    ("id", "hash", "index", "vars", "locals", "globals", "__dict__", "__closure__", "setattr", "delattr")
)
_SHOWING = frozenset(("vars", "__dict__"))
_CONSTANT = (type(None), bool, int, float, complex, str, bytes, type, types.FunctionType, types.ModuleType)
# Modules whose objects hold nothing that calls change: loggers, annotations, operators.
_WITHOUT_STATE = frozenset(
    ("_abc", "builtins", "dataclasses", "functools", "logging", "onnx_fx_export", "operator", "re", "torch", "typing")
)
_IS = dis.opmap["IS_OP"]
_STORES_FREE = (dis.opmap["STORE_DEREF"], dis.opmap["DELETE_DEREF"])


class Purity:
    """What is known of the calls of one kind of block.

    Attributes:
        doubtful: Whether something was met that rules a proof out.
        shows_marks: Whether code was met to which blocks that are watched look different.
    """

    def __init__(self) -> None:
        self.doubtful = self.shows_marks = False
        self._namespaces: dict[types.CodeType, dict[str, Any]] = {}
        # Code with variables of another function, whose values may be others in the next call.
        self._enclosed: set[types.CodeType] = set()
        self._skipped: set[int] = set()
        self._stock: Inventory | None = None

    @contextlib.contextmanager
    def code_noted(self) -> Iterator[None]:
        """Note what code runs in the first call."""
        # A debugger, or a measurement of coverage, stays undisturbed.
        self.doubtful |= sys.gettrace() is not None
        if self.doubtful:
            yield
            return
        # What torch does with its own operators is most of the work, and none of the model's code.
        with recorded_apart(_untraced):
            sys.settrace(self._note)
            try:
                yield
            finally:
                sys.settrace(None)

    def take_stock(self, block: torch.nn.Module) -> None:
        """Take stock before the second call, that of another block."""
        if self.doubtful:
            return
        with without_collection():
            stock = Inventory(block)
            for code, namespace in self._namespaces.items():
                stock.add_code(code, namespace)
        known = {function.__code__ for function in stock.functions if isinstance(function, types.FunctionType)}
        inner = {one for code in self._namespaces for one in code.co_consts if isinstance(one, types.CodeType)}
        self.doubtful = (
            stock.has_iterators
            or not all(map(_keeps_nothing, stock.unread))
            or not all(_cannot_tell(written_code(code), code in self._enclosed) for code in self._namespaces)
            or not self._enclosed <= known | inner
        )
        self._stock = stock

    def confirm(self, *calls: AttributeReads) -> None:
        """Tell what was noted of both calls once the second one has ended."""
        self.doubtful |= not all(reads.pure and not reads.asks_identity for reads in calls)

    def holds(self) -> bool:
        """Tell whether a call now does what the first two did."""
        return not self.doubtful and self._stock is not None and not self._stock.changes()

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if id(code) in self._skipped:
            return
        if is_library(frame.f_globals.get("__name__")):
            self._skipped.add(id(code))
            return
        # Only the first call imports what it needs.
        if frame.f_back is not None and frame.f_back.f_globals.get("__name__") == "importlib._bootstrap":
            return
        self._namespaces.setdefault(code, frame.f_globals)
        self.shows_marks |= not _SHOWING.isdisjoint(code.co_names)
        names = [name for name in code.co_freevars if name != "__class__"]
        if not names:
            self._skipped.add(id(code))
        elif not all(isinstance(frame.f_locals.get(name), _CONSTANT) for name in names):
            self._enclosed.add(code)


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    tracing = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracing)


def _keeps_nothing(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _WITHOUT_STATE


@functools.lru_cache(maxsize=4096)
def _cannot_tell(code: types.CodeType, encloses: bool) -> bool:
    """Tell whether code neither asks which of two equal objects it has, nor sets variables of an outer function.

    Args:
        code: The code.
        encloses: Whether its variables of an outer function may be objects of the model.
    """
    if not _TELLING.isdisjoint(code.co_names):
        return False
    operations = code.co_code[::2]
    if _IS not in operations and not any(store in operations for store in _STORES_FREE):
        return True
    constants = ("LOAD_CONST", "LOAD_GLOBAL", *(() if encloses else ("LOAD_DEREF",)))
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        known = before is not None and before.opname in constants and before.argval not in code.co_cellvars
        if instruction.opcode == _IS and not known:
            return False
        if instruction.opcode in _STORES_FREE and instruction.argval in code.co_freevars:
            return False
        before = instruction
    return True
