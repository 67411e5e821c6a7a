"""Records the body of a loop over rows, once for each way through it.

torch.export cannot know how often ``for row in hits:`` repeats its body. While a model is captured, such a loop gets a
row without contents, and marks in the graph show where its body begins and ends. Where the body decides by data, the
loop repeats it and answers otherwise, until each way was taken. What a body does to the variables of its function and
to tensors is in the graph; :mod:`onnx_fx_export.capture.loops.expansion` makes one loop of it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from onnx_fx_export.capture.conditions.assertions import passing_answer
from onnx_fx_export.capture.loops.choices import Bound, Bounds, chosen
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.sizes.texts import asking_frame
from onnx_fx_export.torch_private import SymNode, is_decided_by_data, undecided_condition
from onnxops_core.exporting import original

__all__ = ["RowLoops", "loop_marks", "place_of"]

_NAMESPACE = "onnx_fx_export_loops"
# Ways through one body, for each of the numbers that it chooses something by.
_MOST_WAYS = 16
# What makes a Python number of a tensor.
_NUMBERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__index__: int,
    torch.Tensor.__int__: int,
    torch.Tensor.__format__: format,
}


@dataclasses.dataclass
class _Body:
    """One way through the body of a loop.

    Attributes:
        loop: Number of the loop.
        way: Number of the way.
        answers: What the conditions that data decides are taken for, in the order in which they come.
        asked: How many were met.
        numbers: What symbolic numbers were taken for, by their origins.
        most: How many ways there may be.
    """

    loop: int
    way: int
    answers: list[bool]
    asked: int = 0
    numbers: dict[Any, int] = dataclasses.field(default_factory=dict)
    most: int = _MOST_WAYS

    def answer(self, condition: torch.Tensor) -> bool:
        """Mark a condition in the graph, and return what it is taken for."""
        if self.asked == len(self.answers):
            self.answers.append(True)
        found = self.answers[self.asked]
        self.asked += 1
        loop_marks().decide(condition, self.loop, self.way, found)
        return found

    def number(self, number: torch.SymInt, bound: Bound) -> int:
        """Return what a number is taken for, each time the same."""
        if bound.origin not in self.numbers:
            self.numbers[bound.origin] = chosen(number, bound.end, self.answer)
            self.most *= bound.end
        return self.numbers[bound.origin]


class RowLoops(TorchFunctionMode):
    """Records loops while it is active.

    Args:
        outside: Answers a condition that data decides, and that no body asks; None where it has no answer.

    Attributes:
        count: How many loops were met.
        broken: Where a body did not come to its end, as by ``break``.
    """

    def __init__(self, outside: Callable[[Any], bool | None]) -> None:
        super().__init__()
        self._outside = outside
        self.count = 0
        self.broken: FrameType | None = None
        self._bounds = Bounds()
        self._body: _Body | None = None

    @property
    def is_within(self) -> bool:
        """Whether the body of a loop is being recorded."""
        return self._body is not None

    @property
    def replacements(self) -> list[tuple[Any, str, Any]]:
        """What has to stand in place of methods while it is active."""
        return [
            (torch.Tensor, "__iter__", self._iterated),
            (torch.SymBool, "__bool__", self._truth),
            (torch.SymInt, "__hash__", self._hash),
            (SymNode, "guard_int", self._number_of),
        ]

    def _number_of(self, node: Any, file: str, line: int) -> int:
        """Return the number that a symbolic one is taken for where a Python number is needed."""
        number = torch.SymInt(node)
        bound = self._bounds.of(number)
        if self._body is None or bound is None:
            found: int = original(SymNode, "guard_int")(node, file, line)
            return found
        return self._body.number(number, bound)

    def _hash(self, number: Any) -> int:
        is_chosen = self._body is not None and self._bounds.of(number) is not None
        return hash(int(number)) if is_chosen else original(torch.SymInt, "__hash__")(number)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Answer whether a tensor is true, in the body of a loop, and read and write at positions that data gives."""
        if self._body is not None:
            if func is torch.Tensor.__bool__:
                return self._body.answer(args[0])
            # As a number the position would be read from the tensor first.
            if func is torch.Tensor.__getitem__ and _is_position(args[1]):
                return torch.ops.aten.index.Tensor(args[0], [args[1]])
            if func is torch.Tensor.__setitem__ and (places := _positions(args[1])):
                value = args[2] if isinstance(args[2], torch.Tensor) else args[0].new_tensor(args[2])
                return torch.ops.aten.index_put_.default(args[0], places, value.to(args[0].dtype))
            if func in _NUMBERS and (bound := self._bounds.of(args[0])) is not None:
                return _NUMBERS[func](self._body.number(args[0].item(), bound), *args[1:])
        result = func(*args, **(kwargs or {}))
        self._bounds.note_call(func, args, kwargs or {}, result)
        return result

    def _truth(self, condition: Any) -> bool:
        try:
            return bool(original(torch.SymBool, "__bool__")(condition))
        except Exception as error:
            # The frame in between is that of the replacement; what torch asks for itself has no two ways.
            if undecided_condition(error) is None or asking_frame(sys._getframe(2)) is None:
                raise
            answer = passing_answer(sys._getframe(2))
            if answer is None:
                answer = self.answered(condition)
            if answer is None:
                raise
            return answer

    def answered(self, condition: Any) -> bool | None:
        """Return the answer to a condition that data decides; None if that is no answer."""
        if self._body is None:
            return self._outside(condition)
        known = condition.node.expr.xreplace(self._bounds.numbers(self._body.numbers))
        return bool(known) if known in (True, False) else self._body.answer(_scalar(condition))

    def _iterated(self, rows: torch.Tensor) -> Iterator[Any]:
        """Iterate over the rows of a tensor."""
        if not self._is_open(rows.shape[0] if rows.dim() else 0):
            return iter(original(torch.Tensor, "__iter__")(rows))
        return self.ways(rows)

    def counted(self, count: torch.SymInt) -> Iterator[torch.Tensor] | None:
        """Return the numbers below one that data decides, each in a tensor; None for another number, or in a body."""
        if not self._is_open(count):
            return None
        return self.ways(torch.ops.aten.arange.default(count))

    def listed(self, rows: torch.Tensor) -> Any:
        """Return what stands for the list of numbers that choose something; None for other tensors, or in a body."""
        is_known = self._bounds.of(rows) is not None and rows.dim() == 1
        return _Listed(self, rows) if is_known and self._is_open(rows.shape[0]) else None

    def _is_open(self, count: int | torch.SymInt) -> bool:
        """Tell whether a loop of so many iterations is to be recorded."""
        return self._body is None and isinstance(count, torch.SymInt) and is_decided_by_data(count.node.expr)

    def ways(self, rows: torch.Tensor, *, as_numbers: bool = False) -> Iterator[Any]:
        """Yield a row for each way through the body, or a symbolic number if that is all that a row holds.

        Raises:
            CaptureError: If the loop cannot be recorded.
        """
        frame, marks = sys._getframe(1), loop_marks()
        self.count += 1
        loop = self.count
        names = {name: value for name, value in frame.f_locals.items() if isinstance(value, torch.Tensor)}
        numbers = {name: value for name, value in frame.f_locals.items() if isinstance(value, int | float | str)}
        # The last way is recorded twice, to see that the second time does the same as the first.
        answers, repeated = list[bool](), False
        for way in itertools.count():
            before = _tensors(frame, names)
            self._body = body = _Body(loop, way, answers)
            self.broken = frame
            row = marks.row(rows, loop, way)
            self._bounds.note(row, self._bounds.of(rows))
            yield row.item() if as_numbers else row
            self._body = self.broken = None
            if changed := [name for name, value in numbers.items() if frame.f_locals.get(name) is not value]:
                kept = ", ".join(changed)
                raise CaptureError(f"A loop of data-dependent length keeps a count in {kept}{place_of(frame)}")
            marks.finish(before, _tensors(frame, names), loop, way)
            if repeated:
                return
            answers = _next_answers(body)
            if not answers:
                answers, repeated = body.answers, True
            if way == body.most:
                raise CaptureError(f"There are more than {body.most} paths through a loop{place_of(frame)}")


class _Listed:
    """What ``tolist()`` gives of as many elements as data decides, to be iterated over.

    Args:
        loops: Records the loop.
        rows: The elements.
    """

    def __init__(self, loops: RowLoops, rows: torch.Tensor) -> None:
        self._loops, self._rows = loops, rows

    def __iter__(self) -> Iterator[Any]:
        """Yield a symbolic number for each way through the body."""
        return self._loops.ways(self._rows, as_numbers=True)


def _scalar(condition: Any) -> torch.Tensor:
    return torch.scalar_tensor(condition, dtype=torch.bool)


def _is_position(index: Any) -> bool:
    """Tell whether an index is one integer in a tensor."""
    if not isinstance(index, torch.Tensor) or index.dim() or index.dtype == torch.bool:
        return False
    return not index.dtype.is_floating_point and not index.dtype.is_complex


def _positions(index: Any) -> list[torch.Tensor] | None:
    """Return an index that begins with an integer in a tensor as integers, each in a tensor; None for another one.

    It may go on with other integers, and then with all of each further dimension.
    """
    entries = [*index] if isinstance(index, tuple) else [index]
    while len(entries) > 1 and isinstance(entries[-1], slice) and entries[-1] == slice(None):
        entries.pop()
    if not _is_position(entries[0]) or not all(type(entry) is int or _is_position(entry) for entry in entries):
        return None
    return [entry if isinstance(entry, torch.Tensor) else torch.tensor(entry) for entry in entries]


def _tensors(frame: FrameType, names: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that some variables hold now.

    Raises:
        CaptureError: If a variable holds no tensor any more.
    """
    values = frame.f_locals
    if lost := [name for name in names if not isinstance(values.get(name), torch.Tensor)]:
        raise CaptureError(f"A loop of data-dependent length leaves no tensor in {', '.join(lost)}{place_of(frame)}")
    return [values[name] for name in names]


def place_of(frame: FrameType) -> str:
    """Return the end of a message: where the loop is, and what to do."""
    return f", at {frame.f_code.co_filename}:{frame.f_lineno}; use torch.while_loop or torch.cond instead."


def _next_answers(body: _Body) -> list[bool]:
    """Return the answers of the next way; none if each was taken."""
    answers = body.answers[: body.asked]
    while answers and not answers[-1]:
        answers.pop()
    return [*answers[:-1], False] if answers else []


def _row_fake(rows: torch.Tensor, loop: int, way: int) -> torch.Tensor:
    return rows.new_empty(rows.shape[1:])


@functools.cache
def loop_marks() -> Any:
    """Define the operators on first use: a row, a decision, and the end of a body."""
    library = torch.library.Library(_NAMESPACE, "DEF")
    fakes: dict[str, Callable[..., Any]] = {
        "row(Tensor rows, int loop, int way) -> Tensor": _row_fake,
        "decide(Tensor condition, int loop, int way, bool answer) -> ()": lambda *args: None,
        "finish(Tensor[] before, Tensor[] after, int loop, int way) -> ()": lambda *args: None,
    }
    for schema, fake in fakes.items():
        name = library.define(schema)
        library.impl(name, fake, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{_NAMESPACE}::{name}", fake, lib=library)
    _LIBRARIES.append(library)
    operators = getattr(torch.ops, _NAMESPACE)
    for operator in (operators.decide.default, operators.finish.default):
        torch.fx.node.has_side_effect(operator)
    return operators


_LIBRARIES: list[torch.library.Library] = []
