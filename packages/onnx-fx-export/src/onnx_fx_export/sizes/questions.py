"""What the code of a model asks about dynamic sizes.

torch.export takes a dynamic size for 2 or more: a comparison such as ``x.shape[0] == 1`` is answered at once and leaves
no guard. Here the comparisons are noted while the model is captured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import sympy
import torch

from onnx_fx_export.origin import source_line
from onnx_fx_export.sizes.size_one import computed_one
from onnx_fx_export.sizes.trial_runs import as_plain, plain, used_nodes, user_values
from onnx_fx_export.torch_private import (
    guards_of,
    hint_of,
    is_decided_by_data,
    is_of_dynamo,
    is_users_code,
    replacements_of,
)
from onnxops_core.exporting import original, replaced, warn_user
from onnxops_decomp.exporting import (
    at_sizes,
    identities_of_numbers,
    is_generated_code,
    order_relations,
)

__all__ = [
    "LARGE",
    "SizeQuestion",
    "Sizes",
    "answered",
    "noted_questions",
    "of_one_name",
    "sliced",
    "squeezed",
    "warn_of_squeezed_data",
]

_RELATIONS: dict[str, tuple[type[sympy.Rel], type[sympy.Rel]]] = {
    "__eq__": (sympy.Eq, sympy.Ne),
    "__ne__": (sympy.Ne, sympy.Eq),
    "__lt__": (sympy.Lt, sympy.Ge),
    "__le__": (sympy.Le, sympy.Gt),
    "__gt__": (sympy.Gt, sympy.Le),
    "__ge__": (sympy.Ge, sympy.Lt),
}
# Stands for any large size; a prime, so that no division by a small number comes out even.
LARGE = 1009
# One that comes out even for all of them.
_EVEN = 5040
# A comparison of more sizes than this keeps its condition without a look at each combination.
_MOST_SYMBOLS = 4
_SQUEEZES = frozenset(
    getattr(packet, overload)
    for packet in (torch.ops.aten.squeeze, torch.ops.aten.squeeze_, torch.ops.aten.squeeze_copy)
    for overload in packet.overloads()
)
# Calls that squeeze their own results.
_SQUEEZED_RESULTS = ("corrcoef", "cov")
# So many sizes may follow from one that becomes 1.
_MOST_FOLLOWING = 2


@dataclasses.dataclass(frozen=True)
class SizeQuestion:
    """A comparison of sizes in the code of a model.

    Attributes:
        relation: What holds for the example, over integer symbols of which nothing else is assumed; several relations
            may be joined.
        place: Where the comparison stands.
        is_guarded: Whether torch notes by itself where the answer differs at sizes of 2 and more.
        is_of_model: Whether the code of the model asks, and not torch by itself.
    """

    relation: sympy.logic.boolalg.Boolean
    place: str
    is_guarded: bool = True
    is_of_model: bool = True

    def holds(self, smallest: Mapping[sympy.Symbol, int], *sizes: int) -> bool:
        """Tell whether the answer is the same at these sizes, as far as they are allowed, and at large ones."""
        symbols = sorted(self.relation.free_symbols, key=str)
        if len(symbols) > _MOST_SYMBOLS:
            return False
        tried = (*sizes, LARGE, _EVEN)
        allowed = [[size for size in tried if size >= smallest.get(symbol, 0)] for symbol in symbols]
        points = (dict(zip(symbols, point, strict=True)) for point in itertools.product(*allowed))
        return all(at_sizes(self.relation, point) == sympy.true for point in points)

    @property
    def is_of_torch(self) -> bool:
        """Whether code of torch asks, as that of its modules does."""
        return self.place.startswith(str(_TORCH))

    @property
    def is_about_small_sizes(self) -> bool:
        """Whether it is about one size alone, and answered otherwise at 0 or 1 only."""
        return len(self.relation.free_symbols) == 1 and self.holds({}, 2, 3)


@contextlib.contextmanager
def noted_questions() -> Iterator[list[SizeQuestion]]:
    """Note the comparisons that Python code outside of torch's operators makes with symbolic sizes.

    What an operator asks to compute its result's shape leaves the graph as it is; what the model's code asks, and that
    of ``torch.nn``, decides which operators are called.
    """
    found: dict[SizeQuestion, None] = {}
    questions: list[SizeQuestion] = []

    def noting(name: str) -> Callable[[torch.SymInt, Any], Any]:
        compare = original(torch.SymInt, name)

        def compared(self: torch.SymInt, other: Any) -> Any:
            answer = compare(self, other)
            # The frame in between is that of the replacement.
            frame = _asker(sys._getframe(2))
            if frame is not None and (question := _question(name, self, other, answer, frame)) is not None:
                found.setdefault(question)
            return answer

        return compared

    # Looked up once: torch asks for strides thousands of times.
    usual_order, usual_strides = (original(torch.Tensor, name) for name in ("is_contiguous", "stride"))

    def is_contiguous(self: torch.Tensor, **options: Any) -> bool:
        answer = usual_order(self, **options)
        frame = _asker(sys._getframe(2))
        if frame is not None and isinstance(answer, bool):
            found.update(dict.fromkeys(_questions_of_order(self, answer, options, frame)))
        return bool(answer)

    def stride(self: torch.Tensor, *dim: Any, **named: Any) -> Any:
        answer = usual_strides(self, *dim, **named)
        frame = _asker(sys._getframe(2))
        # Also strides that are numbers may be others at size 1.
        if frame is not None and any(isinstance(n, torch.SymInt) for n in self.shape):
            found.update(dict.fromkeys(_questions_of_strides(self, frame)))
        return answer

    comparisons = [(torch.SymInt, name, noting(name)) for name in _RELATIONS]
    of_tensors = (torch.Tensor, "is_contiguous", is_contiguous), (torch.Tensor, "stride", stride)
    with replaced([*comparisons, *of_tensors]):
        yield questions
    questions.extend(found)


_TORCH = Path(torch.__file__).parent
# What lies between the code that compares sizes and the comparison.
_BETWEEN = (torch.__file__, inspect.unwrap(identities_of_numbers).__code__.co_filename)
_ABOVE_OPERATORS = (str(_TORCH / "nn"), str(_TORCH / "functional.py"), str(_TORCH / "_tensor.py"))


def _asker(frame: FrameType | None) -> FrameType | None:
    """Return the frame that compares sizes, or None if that is the machinery of torch or of this package."""
    while frame is not None:
        compares = _compares(frame.f_code.co_filename, frame.f_code.co_name)
        if compares is not None and not is_of_dynamo(frame):
            return frame if compares else None
        frame = frame.f_back
    return None


@functools.cache
def _compares(file: str, function: str) -> bool | None:
    """Tell whether a function compares sizes by itself; None for what lies in between."""
    if file in _BETWEEN or is_generated_code(file, function):
        return None
    return is_users_code(file, function) or file.startswith(_ABOVE_OPERATORS)


def _question(name: str, left: torch.SymInt, right: Any, answer: Any, frame: FrameType) -> SizeQuestion | None:
    holds = hint_of(answer) if isinstance(answer, torch.SymBool) else answer
    if not isinstance(right, int | torch.SymInt) or holds is None or holds is NotImplemented:
        return None
    sides = [plain(left), plain(right)]
    # What torch knows of its symbols would decide the relation; that they are 2 or more is what is in question.
    relation = _RELATIONS[name][0 if holds else 1](*sides)
    if not isinstance(relation, sympy.Rel):
        return None
    return SizeQuestion(relation, f"{frame.f_code.co_filename}:{frame.f_lineno}")


def _questions_of_order(
    tensor: torch.Tensor, answer: bool, options: Mapping[str, Any], frame: FrameType
) -> Iterator[SizeQuestion]:
    """Yield the sizes 0 and 1 at which ``is_contiguous`` answers otherwise: torch takes sizes for 2 or more."""
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    relations = order_relations([*map(plain, tensor.shape)], [*map(plain, tensor.stride())], answer, **options)
    if relations is None:
        # The order of the example is a special one.
        dimensions: list[Any] = [*tensor.shape]
        symbolic = [size for size in dimensions if isinstance(size, torch.SymInt)]
        hints = {symbol: hint_of(size) for size in symbolic if (symbol := plain(size)).is_Symbol}
        yield from (SizeQuestion(sympy.Eq(symbol, hint), place, is_guarded=False) for symbol, hint in hints.items())
        return
    for relation, size in relations:
        yield SizeQuestion(relation, place, is_guarded=size < 2)


def _questions_of_strides(tensor: torch.Tensor, frame: FrameType) -> Iterator[SizeQuestion]:
    """Yield sizes 0 and 1, for which torch lays tensors out in another way than for larger ones."""
    numbers = [plain(number) for number in (*tensor.shape, *tensor.stride())]
    for symbol in sorted(set().union(*(number.free_symbols for number in numbers)), key=str):
        for relation in (sympy.Ne(symbol, 1), sympy.Ge(symbol, 1)):
            yield SizeQuestion(relation, f"{frame.f_code.co_filename}:{frame.f_lineno}")


def squeezed(program: torch.export.ExportedProgram, *, used: bool = True) -> Iterator[SizeQuestion]:
    """Yield the dynamic dimensions that ``squeeze`` left because torch takes them for 2 or more.

    Args:
        program: The program.
        used: Whether those are wanted that the graph computes with, or the others, of which the code of the model may
            have asked the number of dimensions.
    """
    own = {node for node in program.graph.nodes if getattr(node.target, "_opname", "") in _SQUEEZED_RESULTS}
    squeezing = [node for node in program.graph.nodes if node.target in _SQUEEZES or node in own]
    needed = used_nodes(program.graph) if squeezing else set()
    for node in squeezing:
        if (node in needed) is not used:
            continue
        shape = (node if node in own else node.args[0]).meta["val"].shape
        chosen = node.args[1] if len(node.args) > 1 else range(len(shape))
        for axis in [chosen] if isinstance(chosen, int) else chosen:
            if shape and isinstance(shape[axis], torch.SymInt):
                yield SizeQuestion(sympy.Ne(plain(shape[axis]), 1), source_line(node) or str(node))


def warn_of_squeezed_data(program: torch.export.ExportedProgram) -> None:
    """Warn of dimensions whose size the data decides and that ``squeeze`` is asked to remove."""
    kept = [question for question in squeezed(program) if any(map(is_decided_by_data, question.relation.free_symbols))]
    for place in dict.fromkeys(question.place for question in kept):
        warn_user(
            f"A dimension whose size the data decides is squeezed at {place}. The model keeps it, even where its "
            "size is 1; name the dimensions that are always 1 in squeeze()."
        )


def sliced(program: torch.export.ExportedProgram) -> Iterator[SizeQuestion]:
    """Yield what torch takes for granted of the sizes that slices and ranges leave.

    ``x[:2]`` has 2 rows if ``x`` has 2 or more, and ``x[2 * n :]`` none if ``n`` is 2 or more and ``x`` has 3. The
    operators after it are exported for the sizes that torch says.
    """
    for node in program.graph.nodes:
        for size, needed in _ends(node):
            relation = sympy.Ge(size, needed)
            if isinstance(relation, sympy.Rel):
                place = source_line(node) or str(node)
                yield SizeQuestion(relation, place)
                yield SizeQuestion(sympy.Not(relation), place)


def _ends(node: torch.fx.Node) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
    """Yield the pairs of numbers of which the larger one decides how much a slice or range has."""

    def given(argument: Any) -> Any:
        return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument or 0

    if node.target is torch.ops.aten.slice.Tensor:
        axis = node.args[1] if len(node.args) > 1 else 0
        size = plain(node.args[0].meta["val"].shape[axis])  # type: ignore[union-attr]
        bounds = [plain(given(argument)) for argument in node.args[2:4]]
        yield from ((size, needed) for bound in bounds if bound != sys.maxsize for needed in (bound, -bound))
    elif node.target in (torch.ops.aten.arange.start, torch.ops.aten.arange.start_step):
        start, end = map(given, node.args[:2])
        if isinstance(start, int | torch.SymInt) and isinstance(end, int | torch.SymInt):
            yield plain(end), plain(start)


def answered(program: torch.export.ExportedProgram, questions: Iterable[SizeQuestion]) -> list[SizeQuestion]:
    """Return what the code of a model asked and went on by, without the comparisons that a graph computes itself."""
    values = (node.meta.get("val") for node in program.graph.nodes if node.users)
    kept = [as_plain(value.node.expr) for value in values if isinstance(value, torch.SymBool)]
    own = {getattr(each, "canonical", each) for relation in kept for each in (relation, sympy.Not(relation))}
    asked = (question for question in questions if question.is_of_model and question.is_guarded)
    return [question for question in asked if getattr(question.relation, "canonical", question.relation) not in own]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The symbols of a program, as plain ones.

    Attributes:
        smallest: The smallest declared size of each.
        hints: The size of each in the example.
        replaced: What became of symbols that capture found to equal others.
        guards: What capture found to hold between them.
    """

    smallest: Mapping[sympy.Symbol, int]
    hints: Mapping[sympy.Symbol, int]
    replaced: Mapping[sympy.Symbol, sympy.Expr]
    guards: Sequence[sympy.Basic]

    @classmethod
    def of(cls, program: torch.export.ExportedProgram, specs: Sequence[Mapping[int, Any]]) -> Sizes:
        """Return the dynamic sizes of a program's inputs: their bounds and the sizes of the example."""
        smallest: dict[sympy.Symbol, int] = {}
        hints: dict[sympy.Symbol, int] = {}
        replaced: dict[sympy.Symbol, sympy.Expr] = {}
        guards: list[sympy.Basic] = []
        for value, spec in zip(user_values(program), specs, strict=False):
            for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                if not isinstance(size, torch.SymInt):
                    continue
                replaced = replaced or {as_plain(s): as_plain(e) for s, e in replacements_of(size).items()}
                guards = guards or [as_plain(guard) for guard in dict.fromkeys(guards_of(size))]
                symbol = plain(size)
                if symbol.is_Symbol:
                    hints[symbol] = hint_of(size)
                    least = getattr(spec.get(axis), "min", None) or 0
                    smallest[symbol] = max(smallest.get(symbol, 0), int(least))
        return cls(smallest, hints, replaced, guards)

    def near(
        self, wanted: Mapping[sympy.Symbol, int], guards: Sequence[sympy.Basic]
    ) -> dict[sympy.Symbol, sympy.Integer] | None:
        """Return sizes near those of the example, some of them as wanted, that keep conditions; None if none are found.

        Where others follow from them, as the total of two lengths does, these change by the same amount.
        """
        at = {**self.hints, **wanted}
        others = [symbol for symbol in self.hints if symbol not in wanted]
        changes = [size - self.hints[symbol] for symbol, size in wanted.items()]
        shifts = {*changes, sum(dict.fromkeys(changes))}
        least = min(1, *wanted.values(), 1)
        for count in range(_MOST_FOLLOWING + 1):
            for following, shift in itertools.product(itertools.combinations(others, count), shifts):
                sizes = {s: sympy.Integer(n + shift * (s in following)) for s, n in at.items()}
                taken = (at_sizes(guard, sizes) not in (sympy.false, None) for guard in guards)
                if min(sizes.values()) >= least and all(taken):
                    return sizes
        return None

    def relations(self) -> list[sympy.Basic]:
        """Return the conditions that relate several sizes, and are not those that torch puts on computed ones."""
        return [g for g in dict.fromkeys(self.final_guards()) if len(g.free_symbols) > 1 and computed_one(g) is None]

    def final_guards(self) -> list[sympy.Basic]:
        """Return what capture took for granted, over the symbols that it kept."""
        return [self._final(guard) for guard in self.guards]

    def _final(self, expression: sympy.Basic) -> sympy.Basic:
        """Return an expression over the symbols that capture kept."""
        while expression.free_symbols & self.replaced.keys():
            expression = expression.xreplace(self.replaced)
        return expression

    def decisive(self, questions: Iterable[SizeQuestion]) -> list[SizeQuestion]:
        """Return the questions that have another answer at size 0 or 1, and at no larger one: those have guards."""
        known = self.known(questions)
        return [q for q in known if q.holds(self.smallest, 2, 3) and not q.holds(self.smallest, 0, 1)]

    def known(self, questions: Iterable[SizeQuestion]) -> list[SizeQuestion]:
        """Return the questions over the symbols that the program has, without those whose answer is fixed."""
        return [found for question in questions if (found := self._in_final_symbols(question)) is not None]

    def _in_final_symbols(self, question: SizeQuestion) -> SizeQuestion | None:
        """Return a question over the symbols that the program has, or None if its answer is fixed."""
        relation = self._final(question.relation)
        unknown = relation.free_symbols - self.hints.keys()
        is_known = not unknown and isinstance(relation, sympy.Rel)
        return dataclasses.replace(question, relation=relation) if is_known else None


def of_one_name(
    program: torch.export.ExportedProgram, specs: Sequence[Mapping[int, Any]]
) -> dict[tuple[sympy.Symbol, ...], Any]:
    """Return the symbols of the dimensions, those that the user gives one name together, and what is declared."""
    found: dict[Any, dict[sympy.Symbol, None]] = {}
    declared: dict[Any, Any] = {}
    for value, spec in zip(user_values(program), specs, strict=False):
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            symbol = plain(size)
            if symbol.is_Symbol:
                dim = spec.get(axis)
                name = dim if isinstance(dim, str) else getattr(dim, "__name__", symbol)
                found.setdefault(name, {}).setdefault(symbol)
                declared[name] = dim
    return {tuple(symbols): declared[name] for name, symbols in found.items()}
