"""The equations of sizes that torch takes for granted while it captures a model, as it logs them."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator

import torch

from onnx_fx_export.torch_private import exported, is_users_code
from onnxops_core.exporting import replaced

__all__ = ["equating_operators", "specializations"]

# Where torch.export is called.
_EXPORTED = (exported.__code__.co_filename, exported.__name__)


@contextlib.contextmanager
def specializations() -> Iterator[list[str]]:
    """Note which lines of the user's code give a symbolic size one value, while torch captures a model.

    The place is the innermost one on the stack of the model that belongs to neither torch nor this package, if any.
    """
    found: list[str] = []

    def note(equation: str) -> None:
        for frame in reversed(traceback.extract_stack()):
            if is_users_code(frame.filename, frame.name):
                found.append(f"{frame.filename}:{frame.lineno}: {frame.line} ({equation})")
                return
            if (frame.filename, frame.name) == _EXPORTED:
                return  # Dynamo reads the model, and does not run it.

    with _noted_equations(note):
        yield found


@contextlib.contextmanager
def equating_operators() -> Iterator[dict[torch._ops.OpOverload, None]]:
    """Note the operators whose kernels take an equation of sizes for granted, while torch captures a model.

    The operator is that of the innermost frame that dispatches one (``FakeTensorMode``, ``proxy_call``).
    """
    found: dict[torch._ops.OpOverload, None] = {}

    def note(equation: str) -> None:
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            operator = frame.f_locals.get("func")
            # What reads a size gives no tensor.
            if isinstance(operator, torch._ops.OpOverload) and operator is not torch.ops.aten.size.default:
                found.setdefault(operator)
                return

    with _noted_equations(note):
        yield found


_LISTENERS: contextvars.ContextVar[tuple[Callable[[str], None], ...]] = contextvars.ContextVar("listeners", default=())


@contextlib.contextmanager
def _noted_equations(note: Callable[[str], None]) -> Iterator[None]:
    """Tell of the equations that ``torch.fx.experimental.symbolic_shapes`` logs when it takes one for granted.

    Several may listen, one inside the other; the outermost one is what hears the logger.
    """
    logger, outer = logging.getLogger("torch.fx.experimental.symbolic_shapes"), _LISTENERS.get()
    enabled, handle = logger.isEnabledFor, logger.handle

    def listen(record: logging.LogRecord) -> None:
        equation = re.match(r"eval (Eq\(.*\)) \[", record.getMessage())
        for listener in _LISTENERS.get() if equation is not None else ():
            listener(equation[1])  # type: ignore[index]
        if enabled(record.levelno):
            handle(record)

    places = [(logger, "isEnabledFor", lambda level: level >= logging.INFO), (logger, "handle", listen)]
    token = _LISTENERS.set((*outer, note))
    try:
        with replaced([] if outer else places):
            yield
    finally:
        _LISTENERS.reset(token)
