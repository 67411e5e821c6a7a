"""Python values that tracing freezes: each is reported with the line of the user's program.

torch warns of most of them, of some with a line of its own; of others it says nothing: integers that ``range()`` and
lists take, functions of tensors that give Python values, sizes as keys, and attributes that ``forward`` sets.
"""

from __future__ import annotations

import builtins
import functools
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.capture.checks import in_a_check
from onnx_ts_legacy.capture.decided_values import Cause, TracedData
from onnx_ts_legacy.capture.expanded_numbers import expanding_functions, is_integer
from onnx_ts_legacy.capture.number_classes import isinstance_of_numbers, open_extreme
from onnx_ts_legacy.capture.parts import Parts
from onnx_ts_legacy.capture.size_decisions import SizeDecision, sizes_behind
from onnx_ts_legacy.capture.watched_calls import WatchedCalls
from onnx_ts_legacy.capture.watched_threads import watched_threads
from onnx_ts_legacy.errors import CaptureError
from onnx_ts_legacy.graph.parts import node_outputs
from onnx_ts_legacy.graph.sources import Place, is_library, source_line, user_frame
from onnxops_core.exporting import Replacements, original, replaced
from onnxops_decomp.exporting import are_close, unwatched

__all__ = ["FrozenValues", "reported_frozen_values"]

_CONSTANT = "The trace keeps the constant that it is in the example."
_INDEX = f"A tensor or a size is used here as a Python integer, by range(), a list or other Python code. {_CONSTANT}"
# torch warns of these with every number, but numbers that are made of tensors are seen when they are.
_OF_CONSTANTS = ("torch.tensor results", "torch.as_tensor results")
_THREAD = "The model calls torch in another thread here, which a trace does not record. Call it in forward itself."
_OFFSET = f"storage_offset() of part of a tensor is a Python value. {_CONSTANT}"
_CONSTRUCT = "Write torch.tensor([...]) or x.new_tensor([...]) instead of x.new([...]) or torch.Tensor([...])."
_INSTEAD = "Use x.numel() * x.element_size()."
_STORAGE = f"The size of a tensor's storage is a Python value. {_CONSTANT} {_INSTEAD}"
_STORAGES = (torch.UntypedStorage, torch.TypedStorage)
_TEXT = f"A tensor is written as text here. {_CONSTANT}"
# What lies between a replaced function and the code that calls it.
_MACHINERY = (__file__, *(sys.modules[function.__module__].__file__ for function in (original, open_extreme)))
# Functions of tensors whose results are Python values.
_PYTHON_RESULTS = (
    *((torch, name) for name in ("equal", "allclose", "is_nonzero")),
    *((torch.Tensor, name) for name in ("equal", "allclose", "is_nonzero")),
)
# Methods of tensors that make Python values of their elements.
_READING = ("__array__", "__bool__", "__complex__", "__float__", "__int__", "item", "numpy", "tolist")


class FrozenValues:
    """What one trace froze.

    Args:
        refuses: Whether values that the data decides are refused.
        keeps: Whether what the model keeps from one call to the next is data.
    """

    def __init__(self, refuses: bool = False, keeps: bool = False) -> None:
        self._reported: dict[tuple[str, str, int], Place] = {}
        self._integers: list[tuple[torch.Tensor, Any, int, Place]] = []
        self._parts: list[Parts] = []
        self._inputs: frozenset[int] = frozenset()
        self._is_muted = self._compares = self._is_dynamic = False
        self._refuses, self._keeps = refuses, keeps
        self._data: TracedData | None = None
        self._decided: dict[str, Cause] = {}
        self._by_weights: dict[str, set[str]] = {}
        self.decisions: list[SizeDecision] = []
        """What sizes decided."""
        self.decided: list[torch.Tensor] = []
        """What Python read for each of them."""

    def begin(
        self,
        inputs: Sequence[torch.Tensor],
        dynamic: Sequence[Collection[int]],
        weights: Callable[[], Mapping[str, torch.Tensor]],
    ) -> None:
        """Note the model's inputs, their dynamic axes, and its weights. To be called as the trace begins."""
        self.decisions.clear()
        self.decided.clear()
        self._is_dynamic = any(dynamic)
        if private.traces():
            self._inputs = frozenset(private.traced_value(tensor).unique() for tensor in inputs)
        if private.traces() and (self._refuses or self._keeps):
            self._by_weights.clear()
            self._data = TracedData(inputs, dynamic, weights() if self._keeps else {})

    def add_decision(
        self, what: str, operands: Any, of_shape: bool, place: Place | None = None, least: Cause = Cause.MODEL
    ) -> None:
        """Note that a Python value is made of tensors.

        Args:
            what: The value, for a message.
            operands: The tensors, in any structure.
            of_shape: Whether it follows from their sizes alone.
            place: The line, if it is not the one that runs.
            least: The least cause that it is taken for.
        """
        if self._data is None or in_a_check():
            return
        tensors = [leaf for leaf in pytree.tree_leaves(operands) if isinstance(leaf, torch.Tensor)]
        text = f"{what} at {place or _place() or 'an unknown line'}"
        if self._refuses:
            cause = max((self._data.cause(tensor, of_shape=of_shape) for tensor in tensors), default=least)
            self._decided[text] = max(cause, least, self._decided.get(text, cause))
        if not of_shape and (weights := set[str]().union(*map(self._data.weights_behind, tensors))):
            self._by_weights.setdefault(text, set()).update(weights)

    @contextmanager
    def checked(self, changed: Collection[str]) -> Iterator[None]:
        """Refuse the trace of the body if the data, state, or a dynamic dimension decided something in it.

        Args:
            changed: Names of the weights that a call of the model changes, as far as is known at the end.

        Raises:
            CaptureError: If it did, whatever else went wrong.
        """
        try:
            yield
        except Exception as error:
            self._check(changed, error)
            raise
        self._check(changed, None)

    def _check(self, changed: Collection[str], error: Exception | None) -> None:
        by_size = [text for text, cause in self._decided.items() if cause is Cause.SIZE]
        by_data = [text for text, cause in self._decided.items() if cause is Cause.DATA]
        by_state = {text: min(names) for text, weights in self._by_weights.items() if (names := weights & set(changed))}
        lines = [f"  the data decides: {text}" for text in by_data]
        lines += [f"  {name}, which the model changes, decides: {text}" for text, name in by_state.items()]
        lines += [f"  a size that is declared dynamic or cannot be traced decides: {text}" for text in by_size]
        if not lines:
            return
        raise CaptureError(
            "A trace would fix, for all inputs, what the example decided:\n" + "\n".join(lines) + "\nScript the model "
            "(torch.jit.script), or use torch.cond"
            + (", or make the size static: int(), no dynamic axis." if by_size else " where the data chooses a branch.")
        ) from error

    def read(self, tensor: torch.Tensor, usual: Callable[[], Any]) -> Any:
        """Read a Python value of a tensor; one that sizes alone decide becomes a condition of the model.

        Args:
            tensor: The tensor.
            usual: Reads it.
        """
        place = None if tensor.requires_grad or self._is_muted or in_a_check() else _place()
        value = None if place is None else private.traced_value(tensor)
        if place is None or not sizes_behind(value, self._inputs):
            return usual()
        with self._state(_is_muted=True):
            answer = usual()
            # What is written to the tensor later is not read here.
            self._decide(tensor.clone(), answer, place)
        return answer

    def may_be_size(self, value: Any) -> bool:
        """Tell whether a value is an integer that may follow from dynamic sizes."""
        return self._is_dynamic and is_integer(value)

    def lose(self, tensor: torch.Tensor) -> None:
        """Note that an operator takes a tensor for a number that the trace does not hold."""
        place = None if self._is_muted or in_a_check() else _place()
        if place is None:
            return
        if sizes_behind(private.traced_value(tensor), self._inputs):
            with self._state(_is_muted=True):
                self._decide(tensor.clone(), tensor.item(), place)
        else:
            self.tell(_INDEX, place)

    def text(self, tensor: torch.Tensor, usual: Callable[[], str]) -> str:
        """Return a tensor as text; a size is a number there, as it is outside of traces."""
        if not self._is_muted and sizes_behind(private.traced_value(tensor), self._inputs):
            return repr(tensor.item())
        if not self._is_muted:
            self.tell(_TEXT, _place())
        with self._state(_is_muted=True):
            return usual()

    def check(self, usual: Callable[..., None], error_type: Any, cond: Any, message: Any) -> None:
        """Check a condition that torch asks for; one of sizes is a tensor in a trace."""
        if isinstance(cond, torch.Tensor) and sizes_behind(private.traced_value(cond), self._inputs):
            cond = bool(cond)
        usual(error_type, cond, message)

    def key(self, tensor: torch.Tensor, usual: Callable[[], int]) -> int:
        """Return the hash of a tensor; a size equals what the number does, and the key is noted."""
        if tensor.dim() or not sizes_behind(private.traced_value(tensor), self._inputs):
            return usual()
        self.add_decision("the key of a dict, set or cache", tensor, False)
        return hash(tensor.item())

    def strides(self, tensor: torch.Tensor, usual: Callable[[], Any]) -> Any:
        """Return strides, Python values that sizes decide."""
        place = None if self._is_muted or in_a_check() else _place()
        if place is not None:
            with self._state(_is_muted=True):
                self._decide(tensor.detach(), tensor.stride(), place, of_strides=True)
        return usual()

    def contiguity(self, tensor: torch.Tensor, usual: Callable[[], bool], memory_format: torch.memory_format) -> bool:
        """Return whether a tensor is contiguous, a truth value that sizes decide."""
        answer, place = usual(), _asking_place()
        if place is not None and not self._is_muted and not in_a_check():
            with self._state(_is_muted=True):
                decision = SizeDecision(answer, str(place), place.home, of_strides=True, memory_format=memory_format)
                self.decisions.append(decision)
                self.decided.append(tensor.detach())
        return answer

    def drop_order(self, run: Callable[[], Sequence[Any]]) -> None:
        """Drop the question whether tensors are contiguous, if the opposite answer changes no result.

        Args:
            run: Calls the model on the example, outside of traces, and returns the leaves of its results.
        """
        if not any(decision.is_of_order for decision in self.decisions):
            return
        try:
            expected = run()
            with replaced(_other_order()):
                actual = run()
        except Exception:
            # What cannot be tried is taken to matter.
            return
        if len(actual) == len(expected) and all(map(are_close, actual, expected)):
            self.decisions[:] = [d._replace(matters=not d.is_of_order) for d in self.decisions]

    def storage(self, usual: Callable[[], int]) -> int:
        """Return how large the memory of a tensor is, a Python value that sizes decide."""
        if not self._is_muted:
            self._tell_memory(_STORAGE, f"the size of a tensor's storage ({_INSTEAD.lower()[:-1]})", _asking_place())
        return usual()

    def offset(self, tensor: torch.Tensor, usual: Callable[[], int]) -> int:
        """Return where a tensor starts in its memory, a Python value that sizes and indices decide."""
        answer = usual()
        if answer and not self._is_muted and not in_a_check():
            self._tell_memory(_OFFSET, "storage_offset()", _place())
        return answer

    def _tell_memory(self, text: str, what: str, place: Place | None) -> None:
        """Note a number that follows from how a tensor lies in memory, which is another one for other sizes."""
        if place is not None and self._is_dynamic:
            self._decided.setdefault(f"{what} at {place}", Cause.SIZE)
        else:
            self.tell(text, place)

    def bytes(self, tensor: torch.Tensor, usual: Callable[[], int]) -> Any:
        """Return the bytes of a tensor's elements, a number that the trace records as following from its sizes."""
        return usual() if self._is_muted else tensor.numel() * tensor.element_size()

    def without_notes(self, usual: Callable[[], Any]) -> Any:
        """Return what is noted where Python makes something of it, or makes no difference to the model."""
        with self._state(_is_muted=True):
            return usual()

    def length(self, tensor: torch.Tensor, usual: Callable[[], int]) -> int:
        """Return the number of rows, a condition of the model where its code asks for that past what stands for len."""
        answer, place = int(self.without_notes(usual)), _asking_place()
        if place is not None and self._is_dynamic and not self._is_muted and not in_a_check():
            with self._state(_is_muted=True):
                # In a trace the size is a tensor.
                self._decide(torch.as_tensor(tensor.size(0)), answer, place)
        return answer

    def add_thread(self, name: str) -> None:
        """Note that another thread calls a function of torch for the model."""
        place = _place()
        self.tell(_THREAD, place)
        if self._refuses:
            self._decided[f"{name}() in another thread at {place or 'an unknown line'}"] = Cause.DATA

    def compare(self, usual: Callable[[], Any]) -> Any:
        """Find the least or the largest of some numbers."""
        with self._state(_compares=True):
            return usual()

    def is_news(self, text: str) -> bool:
        """Tell whether something that torch warns of is not noted otherwise."""
        # A loop over rows is recorded as such, and refused where their number is dynamic.
        return not self._is_muted and not text.startswith("Iterating over a tensor") and not in_a_check()

    @contextmanager
    def _state(self, **values: bool) -> Iterator[None]:
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    def _decide(self, tensor: torch.Tensor, answer: Any, place: Place, *, of_strides: bool = False) -> None:
        if private.traced_value(tensor).node().kind() == "prim::Constant":
            # What the old constructors of torch do is not recorded.
            if self._is_dynamic:
                raise CaptureError(f"A size becomes a number here, which no trace records: {place}. {_CONSTRUCT}")
            return
        self.decisions.append(SizeDecision(answer, str(place), place.home, self._compares, of_strides))
        self.decided.append(tensor)

    def tell(self, text: str, place: Place | None) -> None:
        """Warn of something at the end, once for each line."""
        if place is not None:
            self._reported[text, place.file, place.line] = place

    def add_integer(self, tensor: torch.Tensor, answer: int) -> None:
        """Note that a tensor was made a Python integer, which may be recorded afterwards."""
        place = None if self._is_muted or in_a_check() else _place()
        if place is not None:
            self._integers.append((tensor, private.traced_value(tensor), answer, place))

    def add_parts(self, number: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        """Note into how many parts a tensor was divided, as sizes decide it: their number is one of Python."""
        place = None if self._is_muted or in_a_check() else _place()
        if place is not None and sizes_behind(private.traced_value(number), self._inputs):
            self._parts.append(Parts(number, parts, place))

    def close(self, results: Sequence[torch.Tensor]) -> None:
        """Note integers that no operator took, and numbers of parts that the results do not follow from.

        To be called while the trace is still being recorded.

        Args:
            results: What the model returns.
        """
        # The conversion sees to the number of the others.
        for parts in (parts for parts in self._parts if not parts.reach(results)):
            self._decide(parts.number, len(parts.parts), parts.place)
        self._parts.clear()
        calls = Counter((value.unique(), str(place)) for _, value, _, place in self._integers)
        for tensor, value, answer, place in self._integers:
            if calls[value.unique(), str(place)] <= _recorded_calls(value, str(place)):
                continue
            if sizes_behind(value, self._inputs):
                self._decide(tensor.clone(), answer, place)
            else:
                self.tell(_INDEX, place)
        self._integers.clear()

    def warn(self) -> None:
        """Issue the warnings."""
        decided = {decision.place for decision in self.decisions}
        for (text, file, line), place in self._reported.items():
            if text.startswith(_OF_CONSTANTS) and str(place) in decided:
                continue
            warnings.warn_explicit(
                text,
                private.TracerWarning,
                file,
                line,
                module=place.module.get("__name__"),
                registry=place.module.setdefault("__warningregistry__", {}),
            )


_active = threading.local()


@contextmanager
def reported_frozen_values(
    keep: Callable[[Any, Sequence[Any], Mapping[str, Any]], None], refuses: bool = False, keeps: bool = False
) -> Iterator[FrozenValues]:
    """Collect what the trace that is recorded meanwhile freezes, and warn of it at the end.

    Args:
        keep: Called with each function of torch that is called meanwhile, and its arguments, before it runs.
        refuses: Whether :meth:`FrozenValues.checked` refuses what the data decides.
        keeps: Whether it refuses what state decides that is kept from one call to the next.
    """
    values = FrozenValues(refuses, keeps)
    before, _active.values = getattr(_active, "values", None), values
    lose = None if refuses else values.lose
    watched = WatchedCalls(values.may_be_size, lose, values.add_decision, values.add_parts, keep)
    try:
        functions = replaced(_replacements(), in_all_threads=True)
        with warnings.catch_warnings(), functions, watched, watched_threads(values.add_thread):
            warnings.simplefilter("always", private.TracerWarning)
            warnings.showwarning = functools.partial(_show, values, warnings.showwarning)
            yield values
    finally:
        _active.values = before
        values.warn()


def _show(values: FrozenValues, usual: Callable[..., None], message: Any, category: Any, *where: Any) -> None:
    if not values.is_news(str(message)):
        return
    place = _place() if issubclass(category, private.TracerWarning) else None
    if place is None:
        usual(message, category, *where)
    else:
        values.tell(str(message), place)


def _place() -> Place | None:
    frame = user_frame()
    return None if frame is None else Place(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def _asking_place() -> Place | None:
    """Return the line that asks, unless that is in a library: torch asks how tensors lie in memory for itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _MACHINERY:
        frame = frame.f_back
    if frame is None or is_library(frame.f_code.co_filename):
        return None
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def _recorded_calls(value: Any, place: str) -> int:
    """Return how many operators of a line took a traced tensor as an integer."""
    conversions = [use.user for use in value.uses() if use.user.kind() == "aten::Int"]
    takers = [use.user for node in conversions for output in node_outputs(node) for use in output.uses()]
    return sum(source_line(taker) == place for taker in takers)


@functools.cache
def _replacements() -> Replacements:
    # They leave threads alone that record no trace.
    tensor = torch.Tensor
    reading = {
        **dict.fromkeys(_READING, FrozenValues.read),
        "__hash__": FrozenValues.key,
        "__index__": _read_integer,
        "__len__": FrozenValues.length,
        "__repr__": FrozenValues.text,
        "storage_offset": FrozenValues.offset,
        "stride": FrozenValues.strides,
    }
    return Replacements(
        [
            *((owner, name, partial(_noticed, notice=_add_result(name))) for owner, name in _PYTHON_RESULTS),
            (tensor, "__iter__", partial(_noticed, notice=_add_rows)),
            *((tensor, name, partial(_watched, read=read)) for name, read in reading.items()),
            (tensor, "nbytes", lambda usual: property(_watched(usual.__get__, FrozenValues.bytes))),
            (tensor, "is_contiguous", _contiguity),
            *(
                (kind, name, partial(_asking, ask=FrozenValues.storage))
                for kind in _STORAGES
                for name in ("__len__", "nbytes", "size")
            ),
            (builtins, "print", partial(_asking, ask=FrozenValues.without_notes)),
            *((builtins, name, _extreme) for name in ("max", "min")),
            (tensor, "split", _splitting),
            (torch, private.CHECK, _checking),
            *((kind, "check_forward_args", _unwatched) for kind in (torch.nn.RNNBase, torch.nn.LSTM)),
            (builtins, "isinstance", isinstance_of_numbers),
            *expanding_functions(),
        ]
    )


def _is_traced() -> bool:
    return getattr(_active, "values", None) is not None and private.traces()


def _watched(usual: Callable[..., Any], read: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of tensors that reads a Python value, as the trace that is being recorded notes it."""

    @functools.wraps(usual)
    def function(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        values = getattr(_active, "values", None)
        if values is None or not private.traces():
            return usual(self, *args, **kwargs)
        return read(values, self, functools.partial(usual, self, *args, **kwargs))

    return function


def _contiguity(usual: Callable[..., bool]) -> Callable[..., bool]:
    def is_contiguous(self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        read = functools.partial(usual, self, memory_format=memory_format)
        return _active.values.contiguity(self, read, memory_format) if _is_traced() else read()

    return functools.wraps(usual)(is_contiguous)


def _other_order() -> Sequence[tuple[Any, str, Any]]:
    """Return replacements that tell a model of each tensor whether it is contiguous, and the opposite of that."""
    is_contiguous, view = (original(torch.Tensor, name) for name in ("is_contiguous", "view"))

    def answer(self: torch.Tensor, **options: Any) -> bool:
        return bool(is_contiguous(self, **options)) is (_asking_place() is None)

    def shown(self: torch.Tensor, *sizes: Any) -> torch.Tensor:
        # A tensor that is contiguous can be viewed in another shape.
        is_shape = isinstance(sizes[0], int | tuple | list)
        return self.reshape(*sizes) if is_shape else view(self, *sizes)

    return [(torch.Tensor, "is_contiguous", answer), (torch.Tensor, "view", shown)]


def _read_integer(values: FrozenValues, tensor: torch.Tensor, usual: Callable[[], int]) -> int:
    answer = usual()
    values.add_integer(tensor, answer)
    return answer


def _asking(usual: Callable[..., Any], ask: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Python's that may ask for sizes, as the trace that is being recorded is to note it."""

    @functools.wraps(usual)
    def function(*args: Any, **kwargs: Any) -> Any:
        values = getattr(_active, "values", None)
        # Of values with equal keys, only one is the result.
        if values is None or "key" in kwargs or not private.traces():
            return usual(*args, **kwargs)
        return ask(values, functools.partial(usual, *args, **kwargs))

    return function


def _extreme(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``min`` or ``max`` as the trace that is being recorded is to run it."""
    return _asking(open_extreme(usual), FrozenValues.compare)


def _splitting(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of tensors that keeps the size of the parts which a trace computes."""

    @functools.wraps(usual)
    def split(self: torch.Tensor, split_size: Any, dim: int = 0) -> Any:
        is_number = isinstance(split_size, torch.Tensor) and split_size.dim() == 0
        return private.split(self, split_size, dim) if is_number and _is_traced() else usual(self, split_size, dim)

    return split


def _unwatched(usual: Callable[..., None]) -> Callable[..., None]:
    """Return a check of torch's own of sizes, of which no mode has to hear: nothing of it is noted."""

    @functools.wraps(usual)
    def check(*args: Any, **kwargs: Any) -> None:
        if not _is_traced():
            return usual(*args, **kwargs)
        with unwatched():
            return _active.values.without_notes(partial(usual, *args, **kwargs))  # type: ignore[no-any-return]

    return check


def _checking(usual: Callable[..., None]) -> Callable[..., None]:
    """Return the function in which checks of torch end, as the trace that is being recorded is to run it."""

    @functools.wraps(usual)
    def function(error_type: Any, cond: Any, message: Any) -> None:
        if _is_traced():
            _active.values.check(usual, error_type, cond, message)
        else:
            usual(error_type, cond, message)

    return function


def _noticed(usual: Callable[..., Any], notice: Callable[..., None]) -> Callable[..., Any]:
    """Return a function that notes its call, if it is made by a program that is being traced."""

    @functools.wraps(usual)
    def function(*args: Any, **kwargs: Any) -> Any:
        values = getattr(_active, "values", None)
        if values is not None and private.traces():
            notice(values, *args[:2])
        return usual(*args, **kwargs)

    return function


@functools.cache
def _add_result(name: str) -> Callable[..., None]:
    text = f"The result of {name}() is a Python value. {_CONSTANT}"
    return lambda values, *operands: values.tell(text, _place())


def _add_rows(values: FrozenValues, tensor: torch.Tensor) -> None:
    values.add_decision("a loop over the rows of a tensor", tensor, True)
