"""What torch decides about sizes by itself because it takes them for 2 or more, without a guard.

Where ``n`` is 2 or more, ``v[:, :n] = 0`` writes to all of a ``v`` with two columns, and ``unfold`` takes ``min(n, 2)``
for 2.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import sympy

from onnx_fx_export.sizes.questions import SizeQuestion
from onnx_fx_export.sizes.trial_runs import as_plain
from onnx_fx_export.torch_private import SymNode, is_of_dynamo, is_users_code
from onnxops_core.exporting import original, replaced

__all__ = ["noted_decisions"]


@contextlib.contextmanager
def noted_decisions(questions: list[SizeQuestion]) -> Iterator[None]:
    """Note the numbers that torch makes of symbolic sizes, and the relations that it takes for granted, in the body.

    Args:
        questions: Gets them at the end.
    """
    found: dict[SizeQuestion, None] = {}
    usual_number, usual_truth = original(SymNode, "guard_int"), original(SymNode, "statically_known_true")

    def note(relation: Any) -> None:
        if isinstance(relation, sympy.Rel):
            frame: FrameType | None = sys._getframe(2)
            while frame is not None and not _is_users(frame):
                frame = frame.f_back
            place = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
            found.setdefault(SizeQuestion(relation, place, is_of_model=False))

    def guard_int(self: Any, file: str, line: int) -> int:
        number: int = usual_number(self, file, line)
        if getattr(self.expr, "free_symbols", None):
            note(sympy.Eq(as_plain(self.expr), number))
        return number

    def statically_known_true(self: Any, file: str, line: int) -> bool:
        is_true = bool(usual_truth(self, file, line))
        if is_true and getattr(self.expr, "free_symbols", None):
            note(as_plain(self.expr))
        return is_true

    with replaced([(SymNode, "guard_int", guard_int), (SymNode, "statically_known_true", statically_known_true)]):
        yield
    questions.extend(found)


def _is_users(frame: FrameType) -> bool:
    return is_users_code(frame.f_code.co_filename, frame.f_code.co_name) and not is_of_dynamo(frame)
