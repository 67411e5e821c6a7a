"""Sizes that the code of a model computes in tensors of one element, as ``torch.div(x.shape[1], 2)`` does.

What is read from a tensor is a number that data decides for torch.export. While a model is captured, the numbers in
such tensors are followed as fractions of sizes, and what is read is the expression in sizes. Buffers that hold one
integer, such as the stride of a convolution, take part with their value, unless the model writes to them. The fractions
are exact where eager PyTorch divides in single precision: from 2**23 on it may round otherwise.
"""

from __future__ import annotations

import dataclasses
import fractions
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils.weak import WeakIdKeyDictionary

from onnx_fx_export.errors import CaptureError
from onnx_fx_export.torch_private import followed_scalars, is_decided_by_data, known_scalar
from onnxops_decomp.exporting import written_inputs

__all__ = ["SizesInTensors"]

aten = torch.ops.aten
_LARGEST_DENOMINATOR = 1 << 20
# Those that hold every size that occurs.
_EXACT = (torch.int32, torch.int64, torch.float32, torch.float64)


@dataclasses.dataclass(frozen=True)
class _Truth:
    """The answer to a comparison, and the buffers that it was computed with."""

    answer: bool | torch.SymBool
    buffers: frozenset[str]


@dataclasses.dataclass(frozen=True)
class _Number:
    """A fraction.

    Attributes:
        top: Its numerator.
        bottom: Its denominator, which is positive.
        buffers: The buffers that it was computed with.
        of_size: Whether it was computed with a dynamic size; it may be a constant nevertheless.
    """

    top: int | torch.SymInt
    bottom: int = 1
    buffers: frozenset[str] = frozenset()
    of_size: bool = False

    def of(self, top: int | torch.SymInt, bottom: int, *others: _Number) -> _Number:
        """Return another fraction that is computed with this one, and with others."""
        buffers = self.buffers.union(*(other.buffers for other in others))
        return _Number(top, bottom, buffers, self.of_size or any(other.of_size for other in others))

    def floor(self) -> _Number:
        return self.of(self.top // self.bottom, 1)

    def __add__(self, other: _Number) -> _Number:
        return self.of(self.top * other.bottom + other.top * self.bottom, self.bottom * other.bottom, other)

    def __neg__(self) -> _Number:
        return self.of(-self.top, self.bottom)

    def __mul__(self, other: _Number) -> _Number:
        return self.of(self.top * other.top, self.bottom * other.bottom, other)


@dataclasses.dataclass(frozen=True)
class _Real:
    """A number that is no fraction, as a logarithm is."""

    value: torch.SymFloat


_Result = _Number | None


def _difference(left: _Number, right: _Number) -> _Number:
    return left + -right


def _scaled(function: Callable[[_Number, _Number], _Number]) -> Callable[..., _Result]:
    """Return a sum or difference whose second operand is multiplied by ``alpha``."""

    def run(left: _Number, right: _Number, alpha: _Number = _Number(1)) -> _Result:
        return function(left, right * alpha)

    return run


def _quotient(left: _Number, right: _Number, *, rounding_mode: str | None = None) -> _Result:
    if not isinstance(right.top, int) or right.top == 0:
        return None
    sign = 1 if right.top > 0 else -1
    exact = left.of(sign * left.top * right.bottom, left.bottom * abs(right.top), right)
    return exact if rounding_mode is None else _ROUNDED[rounding_mode](exact)


def _truncated(number: _Number) -> _Result:
    if isinstance(number.top, int):
        return number.of(int(fractions.Fraction(number.top, number.bottom)), 1)
    return number.floor() if number.bottom == 1 or statically_known_true(number.top >= 0) else None


def _rest(left: _Number, right: _Number) -> _Result:
    quotient = _quotient(left, right, rounding_mode="floor")
    return None if quotient is None else _difference(left, right * quotient)


def _extreme(function: Callable[[Any, Any], Any]) -> Callable[..., _Result]:
    def run(left: _Number, right: _Number) -> _Result:
        larger = function(left.top * right.bottom, right.top * left.bottom)
        return left.of(larger, left.bottom * right.bottom, right)

    return run


def _same(number: _Number) -> _Number:
    return number


_ROUNDED: Mapping[str, Callable[[_Number], _Result]] = {"floor": _Number.floor, "trunc": _truncated}
_FUNCTIONS: Mapping[str, Callable[..., _Result]] = {
    "scalar_tensor": _same,
    "add": _scaled(operator.add),
    "sub": _scaled(_difference),
    "rsub": _scaled(lambda left, right: right + -left),
    "mul": operator.mul,
    "div": _quotient,
    "floor_divide": lambda left, right: _quotient(left, right, rounding_mode="floor"),
    "remainder": _rest,
    "neg": operator.neg,
    "floor": _Number.floor,
    "ceil": lambda number: -(-number).floor(),
    "trunc": _truncated,
    "maximum": _extreme(torch.sym_max),
    "minimum": _extreme(torch.sym_min),
    **dict.fromkeys(("_to_copy", "clone", "detach", "alias", "lift_fresh", "lift_fresh_copy"), _same),
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
# Arguments that decide nothing about the value.
_ABOUT_TENSORS = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")


class SizesInTensors:
    """Follows sizes through tensors while it is active.

    Args:
        model: The model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        in_checkpoint = model.state_dict(keep_vars=True).keys()
        buffers = [(name, buffer) for name, buffer in model.named_buffers() if _holds_an_integer(buffer)]
        found = [*_integer_attributes(model), *buffers]
        # The values are read here, as nothing can be while the model is captured.
        self._known = {id(tensor): _Number(int(tensor), buffers=frozenset([name])) for name, tensor in found}
        self._constants = {name for name, _ in found} - in_checkpoint
        self._numbers: Any = WeakIdKeyDictionary()
        self._used: set[str] = set()
        self._stack = ExitStack()

    def __enter__(self) -> SizesInTensors:
        self._stack.enter_context(followed_scalars(self._computed, self._made, self._read, self._named))
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()

    def note(self, tensor: torch.Tensor, number: torch.SymFloat) -> None:
        """Let what is read from a tensor be a number."""
        self._note(tensor, _Real(number))

    def check(self, program: torch.export.ExportedProgram) -> None:
        """Make sure that what was taken for constant stays what it is.

        Raises:
            CaptureError: If the model writes to a buffer that decided a size.
        """
        signature = program.graph_signature
        targets = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        written = {targets.get(node.name) for node in written_inputs(program.graph)}
        for name in sorted(self._used.intersection(written)):
            raise CaptureError(f"The buffer {name} decides a size, and the model writes to it.")

    def _made(self, tensor: torch.Tensor, fake: torch.Tensor) -> None:
        """Note the value of a buffer."""
        if id(tensor) in self._known:
            self._note(fake, self._known[id(tensor)])

    def _named(self, tensor: torch.Tensor, number: torch.SymInt) -> None:
        """Note the symbol of a number that data decides: what is computed with it may be a size after all."""
        if tensor.dtype in (torch.int32, torch.int64) and not tensor.dim():
            self._note(tensor, _Number(number, of_size=True))

    def _read(self, tensor: torch.Tensor) -> Any:
        """Return the number in a tensor; None if it is not known to follow from sizes."""
        noted = self._noted(tensor)
        if isinstance(noted, _Number):
            if noted.bottom > 1 or tensor.is_floating_point() or not self._is_decided(noted) or _is_data(noted.top):
                return None
        elif not isinstance(noted, _Truth):
            return None if noted is None else noted.value
        self._used |= noted.buffers
        return noted.top if isinstance(noted, _Number) else noted.answer

    def _is_decided(self, number: _Number) -> bool:
        """Tell whether it is no data: computed with sizes, or with nothing but constants of the model."""
        return number.of_size or (bool(number.buffers) and number.buffers <= self._constants)

    def _note(self, fake: torch.Tensor, number: _Number | _Real | _Truth) -> None:
        self._numbers[fake] = (number, fake._version)

    def _noted(self, tensor: Any) -> Any:
        """Return what was noted of a tensor that was not written to since."""
        number, version = self._numbers.get(tensor, (None, None)) if isinstance(tensor, torch.Tensor) else (None, None)
        return number if number is not None and version == tensor._version else None

    def _computed(self, operation: Any, args: Any, kwargs: Any, result: torch.Tensor) -> None:
        """Note what a new tensor holds, if that follows from sizes and constants."""
        name = operation._schema.name.partition("::")[2]
        if name not in _FUNCTIONS and name not in _COMPARISONS:
            return
        truth = self._noted(args[0])
        if isinstance(truth, _Truth):
            # What asks whether a tensor is true compares it first.
            if name == "ne" and args[1] == 0:
                self._note(result, truth)
            return
        options = {key: value for key, value in (kwargs or {}).items() if key not in _ABOUT_TENSORS}
        rounding = {"rounding_mode": options.pop("rounding_mode")} if options.get("rounding_mode") else {}
        options.pop("rounding_mode", None)
        numbers = [self._number(each) for each in args]
        named = {key: self._number(value) for key, value in options.items()}
        if None in numbers or None in named.values():
            return
        if name in _COMPARISONS:
            left, right = numbers
            if self._is_decided(left) or self._is_decided(right):  # type: ignore[arg-type]
                answer = _plain_truth(_COMPARISONS[name](left.top * right.bottom, right.top * left.bottom))  # type: ignore[union-attr]
                # What data decides would have to be one more symbol.
                if not _is_data(answer):
                    self._note(result, _Truth(answer, left.buffers | right.buffers))  # type: ignore[union-attr]
            return
        number = _FUNCTIONS[name](*numbers, **named, **rounding)
        if number is not None and name == "_to_copy" and not result.is_floating_point():
            number = _truncated(number)
        if number is not None and number.bottom <= _LARGEST_DENOMINATOR and result.dtype in _EXACT:
            self._note(result, _reduced(number))

    def _number(self, value: Any) -> _Result:
        """Return what is known of an operand."""
        if isinstance(noted := self._noted(value), _Number):
            return noted
        if isinstance(value, torch.Tensor):
            value = known_scalar(value)
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, torch.SymInt):
            return _Number(value, of_size=True)
        if isinstance(value, int | float) and abs(value) < 2**63:
            exact = fractions.Fraction(value)
            return _Number(exact.numerator, exact.denominator)
        return None


def _plain_truth(answer: bool | torch.SymBool) -> bool | torch.SymBool:
    """Return an answer; as no symbol, which passes of torch.export do not take, where it is the same for every size."""
    if isinstance(answer, torch.SymBool) and answer.node.expr in (sympy.true, sympy.false):
        return bool(answer.node.expr)
    return answer


def _is_data(number: int | torch.SymInt | torch.SymBool) -> bool:
    return isinstance(number, torch.SymInt | torch.SymBool) and is_decided_by_data(number.node.expr)


def _integer_attributes(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the attributes of modules that are not buffers and hold one integer, with their names."""
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor) and _holds_an_integer(value):
                yield f"{path}.{key}".lstrip("."), value


def _holds_an_integer(tensor: torch.Tensor) -> bool:
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return whole and tensor.dim() == 0 and tensor.device.type == "cpu" and type(tensor) in _PLAIN


_PLAIN = (torch.Tensor, torch.nn.Buffer)


def _reduced(number: _Number) -> _Number:
    """Return a fraction of numbers in its lowest terms."""
    if not isinstance(number.top, int):
        return number
    exact = fractions.Fraction(number.top, number.bottom)
    return number.of(exact.numerator, exact.denominator)
