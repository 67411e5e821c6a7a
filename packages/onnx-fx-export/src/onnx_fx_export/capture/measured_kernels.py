"""Operators of torch that fix sizes by themselves, or that torch cannot run without data, captured nevertheless.

The kernels of some operators turn sizes into numbers, and others have none for tensors without data. The shapes of
their results are measured: the operator runs at many sizes, and a formula has to give each shape that comes out. As
this proves nothing, what is captured so is compared with the model at other sizes, or refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.comparison import compare_at_other_sizes, holds_for_example
from onnx_fx_export.capture.equations import equating_operators
from onnx_fx_export.capture.torch_export import Recorded, Run, record
from onnx_fx_export.capture.torch_private import operator_without_kernel, replaced_kernels
from onnx_fx_export.errors import DynamicShapeError
from onnx_fx_export.origin import source_line
from onnx_fx_export.sizes.fitting import SizeFormula, fitted
from onnx_fx_export.sizes.questions import SizeQuestion
from onnx_fx_export.sizes.trial_runs import plain
from onnx_fx_export.torch_private import hint_of
from onnxops_decomp.exporting import real_tensors

__all__ = ["lacks_kernel", "record_measured"]

_MOST_ROUNDS = 4
_RESHAPES = (
    torch.ops.aten.view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.view_copy.default,
)
_RESHAPING = (torch.Tensor.view, torch.Tensor.reshape, torch.reshape, torch.view_copy)
# How far sizes are moved from those of the example.
_STEPS = (*range(1, 17), 37)
_FEWER = (-1, -2)
_FACTORS = (2, 3, 5)
# More sizes than this are not measured.
_MOST_SIZES = 8

Shapes = list[tuple[torch.dtype, tuple[int, ...]]]


class _NotMeasuredError(Exception):
    """The shapes of a call follow no formula that is looked for."""


def lacks_kernel(error: Exception) -> bool:
    """Tell whether torch cannot run an operator without data."""
    return operator_without_kernel(error) is not None


def record_measured(run: Callable[..., Run]) -> Recorded:
    """Capture with measured shapes for the operators whose kernels fail, or fix sizes.

    Args:
        run: Makes a run of torch.export.

    Raises:
        Exception: What torch.export raises, if it is for another reason.
        CaptureError: If the program and the model differ at other sizes.
    """
    operators: dict[torch._ops.OpOverload, None] = {}
    recorded: Recorded | None = None
    failure: Exception | None = None
    is_broadcast = False
    for _ in range(_MOST_ROUNDS):
        with equating_operators() as equating:
            try:
                recorded, failure = record(run(around=_without_own_sizes(operators))), None
            except Exception as error:
                failure = error
        lacking = operator_without_kernel(failure)
        found = {
            operator for operator in (lacking, *equating) if operator is not None and not operator._schema.is_mutable
        }
        # What is equal in the example that is captured, and not in the user's, is broadcast there.
        is_broadcast = is_broadcast or (recorded is not None and not _takes_example(recorded, run()))
        if found <= operators.keys() or (failure is None and not is_broadcast):
            break
        operators.update(dict.fromkeys(found))
    if recorded is None or not _takes_example(recorded, run()):
        raise failure or DynamicShapeError("Sizes that differ in the example are equal in the captured program.")
    compare_at_other_sizes(recorded, run())
    return dataclasses.replace(recorded, questions=[*(recorded.questions or ()), *_broadcast(recorded)])


def _takes_example(recorded: Recorded, run: Run) -> bool:
    """Tell whether sizes that are equal in what was captured are so in the example of the user, too."""
    return holds_for_example(recorded.program, run.request.example, run.request.specs)


def _broadcast(recorded: Recorded) -> list[SizeQuestion]:
    """Return that sizes are neither 0 nor 1 of which a result has the larger one: these are broadcast to any other."""
    found: dict[SizeQuestion, None] = {}
    for node in recorded.program.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            for size in value.shape if isinstance(value, torch.Tensor) else ():
                extremes = (part for part in sympy.preorder_traversal(plain(size)) if type(part).__name__ == "Max")
                for extreme in extremes:
                    for symbol in sorted(extreme.free_symbols, key=str):
                        place = source_line(node) or str(node)
                        found.setdefault(SizeQuestion(sympy.Ne(symbol, 1), place))
                        found.setdefault(SizeQuestion(sympy.Ge(symbol, 1), place))
    return [*found]


@contextlib.contextmanager
def _without_own_sizes(operators: Collection[torch._ops.OpOverload]) -> Iterator[None]:
    """Let operators fix no sizes in the body."""
    with contextlib.ExitStack() as stack:
        if any(operator in _RESHAPES for operator in operators):
            stack.enter_context(_FlatReshapes())
        measured = [operator for operator in operators if operator not in _RESHAPES]
        stack.enter_context(replaced_kernels(dict.fromkeys(measured, _measuring)))
        yield


class _FlatReshapes(TorchFunctionMode):
    """Reshapes tensors by way of one dimension: torch does not compare their sizes one by one then."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function, with a flat tensor if it only gives it another shape."""
        flat = func in _RESHAPING and not kwargs
        if flat and not isinstance(args[1], torch.dtype) and args[0].dim() > 1 and args[0].is_contiguous():
            args = (args[0].view(-1), *args[1:])
        return func(*args, **(kwargs or {}))


# ---- shapes


def _measuring(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that gives tensors without data, of shapes that another kernel gave at many sizes."""

    def measured(*args: Any, **kwargs: Any) -> Any:
        call = _MeasuredCall(kernel, args, kwargs)
        return call.result()

    return measured


class _MeasuredCall:
    """One call of an operator, whose sizes are varied."""

    def __init__(self, kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._kernel = kernel
        self._leaves, self._structure = pytree.tree_flatten((args, dict(kwargs)))
        self._sizes: dict[Any, torch.SymInt] = {}
        for leaf in self._leaves:
            for size in leaf.shape if isinstance(leaf, torch.Tensor) else [leaf]:
                if isinstance(size, torch.SymInt) and hint_of(size) is not None:
                    self._sizes.setdefault(plain(size), size)
        self._real = False
        self._returned: Any = None

    def result(self) -> Any:
        """Return tensors of the measured shapes.

        Raises:
            DynamicShapeError: If the shapes follow no formula.
        """
        base = tuple(int(hint_of(size)) for size in self._sizes.values())
        try:
            shapes = self._values(base)
            formulas = [self._formula(shapes, index, axis) for index, axis in _axes(shapes[base])]
        except _NotMeasuredError as error:
            raise DynamicShapeError(f"The shape of a result cannot be measured: {error}.") from error
        return self._tensors(shapes[base], iter(formulas))

    def _tensors(self, shapes: Shapes, formulas: Iterator[SizeFormula]) -> Any:
        sizes = [*self._sizes.values()]
        given = next(leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor))
        made = []
        for dtype, shape in shapes:
            found = [next(formulas) for _ in shape]
            for formula in found:
                if formula.exact:
                    torch._check(formula.dividend(sizes) % formula.divisor == 0)
            made.append(given.new_empty([formula(sizes) for formula in found], dtype=dtype))
        return pytree.tree_unflatten(made, pytree.tree_structure(self._returned))

    def _formula(self, shapes: Mapping[tuple[int, ...], Shapes], index: int, axis: int) -> SizeFormula:
        formula = fitted({sizes: found[index][1][axis] for sizes, found in shapes.items()})
        if formula is None:
            raise _NotMeasuredError(f"dimension {axis} of result {index} has no formula")
        return formula

    def _values(self, base: tuple[int, ...]) -> dict[tuple[int, ...], Shapes]:
        """Return the shapes of the results by sizes."""
        if not any(isinstance(leaf, torch.Tensor) for leaf in self._leaves) or len(base) > _MOST_SIZES:
            raise _NotMeasuredError("there are too many sizes, or no tensors")
        try:
            found = {base: self._shapes(base)}
        except NotImplementedError:
            self._real = True
            found = {base: self._shapes(base)}
        moves = [self._moves(base, position, found) for position in range(len(base))]
        bound = [position for position, move in enumerate(moves) if move == [1]]
        # Which of them are bound to each other shows where these are varied together.
        for count, others in ((2, (1, None)), (3, (None,))):
            for group, other in itertools.product(itertools.combinations(bound, count), others):
                self._note(_changed(base, group, other), found)
        for shares in ((0,) * len(base), (1,) * len(base), range(len(base))):
            joint = tuple(move[share % len(move)] for move, share in zip(moves, shares, strict=True))
            self._note(joint, found)
        for step in _STEPS[:2]:
            self._note(tuple(size + step for size in base), found)
        if any(_kinds(shapes) != _kinds(found[base]) for shapes in found.values()):
            raise _NotMeasuredError("dtypes, ranks, or the number of results depend on sizes")
        return found

    def _moves(self, base: tuple[int, ...], position: int, found: dict[tuple[int, ...], Shapes]) -> list[int]:
        """Vary one size, note the shapes, and return the values that the operator takes.

        Raises:
            _NotMeasuredError: If it takes no other.
        """
        size, taken = base[position], []
        multiples = [size * factor for factor in _FACTORS]
        for other in (*(size + step for step in (*_STEPS, *_FEWER)), *multiples):
            sizes = (*base[:position], other, *base[position + 1 :])
            if other >= 1 and self._note(sizes, found):
                taken.append(other)
        # A size that has to equal another one may be broadcast.
        if not taken and self._note((*base[:position], 1, *base[position + 1 :]), found):
            taken.append(1)
        if not taken:
            raise _NotMeasuredError(f"the operator takes no size other than {size}")
        return taken

    def _note(self, sizes: tuple[int, ...], found: dict[tuple[int, ...], Shapes]) -> bool:
        """Note the shapes at some sizes; return whether the operator takes these.

        Raises:
            _NotMeasuredError: If its shapes depend on data there.
        """
        try:
            found[sizes] = self._shapes(sizes)
        except _NotMeasuredError:
            raise
        except Exception:
            # Operators refuse sizes by errors of any kind.
            return False
        return True

    def _shapes(self, sizes: Sequence[int]) -> Shapes:
        """Run the operator at some sizes.

        Raises:
            Exception: Whatever it raises.
            _NotMeasuredError: If its shapes depend on data.
        """
        number = dict(zip(self._sizes, sizes, strict=True))

        def concrete(size: Any) -> Any:
            return number.get(plain(size), size) if isinstance(size, torch.SymInt) else size

        shapes: list[Shapes] = []
        for seed in range(2 if self._real else 1):
            with real_tensors():
                leaves = [
                    _filled(leaf, [concrete(size) for size in leaf.shape], self._real, seed)
                    if isinstance(leaf, torch.Tensor)
                    else concrete(leaf)
                    for leaf in self._leaves
                ]
            args, kwargs = pytree.tree_unflatten(leaves, self._structure)
            self._returned = self._kernel(*args, **kwargs)
            results = pytree.tree_leaves(self._returned)
            if not all(isinstance(leaf, torch.Tensor) for leaf in results):
                raise _NotMeasuredError("a result is not a tensor")
            shapes.append([(leaf.dtype, tuple(leaf.shape)) for leaf in results])
        if any(other != shapes[0] for other in shapes):
            raise _NotMeasuredError("the data decides it")
        return shapes[0]


def _filled(leaf: torch.Tensor, shape: Sequence[int], real: bool, seed: int) -> torch.Tensor:
    """Return a tensor without data of a shape, or one with random numbers."""
    if not real:
        return torch.empty(shape, dtype=leaf.dtype, device="meta")
    generator = torch.Generator().manual_seed(seed)
    if leaf.is_floating_point():
        return torch.rand(shape, generator=generator).to(leaf.dtype)
    return torch.randint(2, shape, generator=generator).to(leaf.dtype)


def _changed(base: Sequence[int], positions: Collection[int], other: int | None) -> tuple[int, ...]:
    """Return sizes with another one at some positions, by default one that is larger by 1."""
    return tuple((size + 1 if other is None else other) if i in positions else size for i, size in enumerate(base))


def _axes(shapes: Shapes) -> Iterator[tuple[int, int]]:
    """Yield each result and axis by number."""
    for index, (_, shape) in enumerate(shapes):
        yield from ((index, axis) for axis in range(len(shape)))


def _kinds(shapes: Shapes) -> list[tuple[torch.dtype, int]]:
    return [(dtype, len(shape)) for dtype, shape in shapes]
