"""What the code of a model asks about dynamic sizes, and what follows for sizes 0 and 1.

torch.export takes a dynamic size for 2 or more: a comparison such as ``x.shape[0] == 1`` is answered at once and leaves
no guard. Here the comparisons are noted while the model is captured. One that has another answer at size 0 or 1 becomes
a condition of the exported model, unless the model gives the same there as what was captured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import sympy
import torch

from onnx_fx_export.origin import source_line
from onnx_fx_export.sizes.layout import gives_view, layout_guards, noticed_copies
from onnx_fx_export.sizes.size_one import computed_one
from onnx_fx_export.sizes.trial_runs import TrialRuns, as_plain, plain, used_nodes, user_values
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
    "SizeQuestion",
    "Sizes",
    "answered",
    "conditions_for_small_sizes",
    "noted_questions",
    "of_one_name",
    "sliced",
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
_LARGE = 1009
# A comparison of more sizes than this keeps its condition without a look at each combination.
_MOST_SYMBOLS = 4
_SQUEEZES = frozenset(
    getattr(packet, overload)
    for packet in (torch.ops.aten.squeeze, torch.ops.aten.squeeze_, torch.ops.aten.squeeze_copy)
    for overload in packet.overloads()
)
# Calls that squeeze their own results.
_SQUEEZED_RESULTS = ("corrcoef", "cov")
# Sizes below are tried where a copy may be a view.
_SMALL = 17
# Beside a small size, the others are so many times as large as in the example, and larger by so much.
_BESIDE = ((1, 1), (1, -1), (1, 2), (2, 1), (3, 8))
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
        allowed = [[size for size in (*sizes, _LARGE) if size >= smallest.get(symbol, 0)] for symbol in symbols]
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


def _squeezed(program: torch.export.ExportedProgram, *, used: bool = True) -> Iterator[SizeQuestion]:
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
    kept = [question for question in _squeezed(program) if any(map(is_decided_by_data, question.relation.free_symbols))]
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


def _recurrent(program: torch.export.ExportedProgram) -> Iterator[SizeQuestion]:
    """Yield that recurrent networks have sequences to read: ONNX Runtime ends the process where they have none."""
    for node in program.graph.nodes:
        if node.op == "call_function" and str(node.target).endswith((".lstm.input", ".gru.input")):
            for size in node.args[0].meta["val"].shape:
                if isinstance(size, torch.SymInt):
                    yield SizeQuestion(sympy.Ge(plain(size), 1), source_line(node) or str(node))


def _copied(program: torch.export.ExportedProgram, sizes: Sizes) -> Iterator[SizeQuestion]:
    """Yield the sizes at which what was captured as a copy is a view, where that makes a difference.

    A part of a tensor becomes a view of it where some size is 1, as ``length - 1`` is at length 2.
    """
    for node in noticed_copies(program):
        if not gives_view(node, sizes.hints):
            for symbol, size in itertools.product(sizes.hints, range(1, _SMALL)):
                if gives_view(node, {**sizes.hints, symbol: size}):
                    yield SizeQuestion(sympy.Ne(symbol, size), source_line(node) or str(node))


def conditions_for_small_sizes(
    trials: TrialRuns, specs: Sequence[Mapping[int, Any]], questions: Iterable[SizeQuestion]
) -> tuple[list[sympy.Rel], list[str]]:
    """Find the conditions under which a captured program is the model, sizes 0 and 1 considered.

    Where an answer differs at size 1 or 0, both run there; if they agree, the size is left in.

    Args:
        trials: Runs the model, and what was captured of it with an example of sizes 2 and more.
        specs: Declared dimensions of each leaf of the example.
        questions: What the model's code asked.

    Returns:
        The conditions, and the lines that treat size 1 of a dynamic dimension apart.

    Warns:
        UserWarning: If size 1 is left out.
    """
    program, sizes = trials.program, Sizes.of(trials.program, specs)
    about_layout = set(layout_guards(program).values())
    lasting = [guard for guard in sizes.final_guards() if guard not in about_layout]
    asked = [
        question
        for question in sizes.decisive((*questions, *_squeezed(program, used=False)))
        # What torch decides is of no matter at sizes that the program refuses.
        if question.is_of_model or any(sizes.near({symbol: 1}, lasting) for symbol in question.relation.free_symbols)
    ]
    unguarded = [question for question in sizes.known(questions) if not question.is_guarded]
    assumed = [
        *(question for question in unguarded if not _agrees_elsewhere(trials, sizes, question)),
        *sizes.decisive((*_squeezed(program), *sliced(program), *_recurrent(program))),
        *_copied(program, sizes),
    ]
    at_one = [question for question in asked if not question.holds(sizes.smallest, 1)]
    # That computed sizes differ is tried apart, unless the model's code asks.
    own = {question.relation.canonical for question in sizes.known(questions)}
    taken = [guard for guard in sizes.final_guards() if not isinstance(guard, sympy.Ne) or guard.canonical in own]
    possible = [guard for guard in taken if guard not in about_layout]
    dimensions = of_one_name(program, specs)
    if not at_one or _agrees_at_one(trials, sizes, at_one, dimensions, (taken, possible)):
        # What only 0 beside 1 answers otherwise stays as it is.
        mixed = [q for q in asked if q.holds(sizes.smallest, 1) and q.holds(sizes.smallest, 0)]
        at_zero = [question for question in asked if not question.holds(sizes.smallest, 0)]
        asked = mixed + _left_at_zero(trials, sizes, at_zero, dimensions)
        at_one = []
    at_one += [question for question in assumed if not question.holds(sizes.smallest, 1)]
    lines = list(dict.fromkeys(question.place for question in at_one))
    if lines:
        places = "\n".join(f"  {line}" for line in lines)
        warn_user(
            f"The model treats size 1 of a dynamic dimension differently, at\n{places}\nThe exported model is "
            "right for larger sizes only, and its program refuses size 1. Declare torch.export.Dim(..., min=2) if "
            "it does not occur; otherwise export the model a second time for size 1."
        )
    return [question.relation for question in (*asked, *assumed)], lines


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


def _left_at_zero(
    trials: TrialRuns,
    sizes: Sizes,
    questions: Sequence[SizeQuestion],
    dimensions: Collection[tuple[sympy.Symbol, ...]],
) -> list[SizeQuestion]:
    """Return what is left of questions with another answer at size 0, after a try of each dimension at 0.

    A question that no try answered otherwise, because it takes several sizes of 0 for that, is left as it is.
    """
    symbols = {symbol for question in questions for symbol in question.relation.free_symbols}
    points = {
        group: point
        for group in dimensions
        if {*group} & symbols and (point := _right_at_zero(trials, sizes, group)) is not None
    }
    allowed = {symbol for group in points for symbol in group}
    refused = [SizeQuestion(sympy.Ge(symbol, 1), "") for symbol in sorted(symbols - allowed, key=str)]
    return refused + [
        question
        for question in questions
        if question.relation.free_symbols & allowed
        and not any(at_sizes(question.relation, point) == sympy.false for point in points.values())
    ]


def _right_at_zero(
    trials: TrialRuns, sizes: Sizes, symbols: Collection[sympy.Symbol]
) -> Mapping[sympy.Symbol, int] | None:
    """Run both where sizes are 0, as those of an empty cache are, and return the sizes if they agree.

    Results that are empty themselves show nothing.
    """
    wanted = sizes.near(dict.fromkeys(symbols, 0), sizes.relations())
    if wanted is None or not trials.possible:
        return None
    expected, right = trials.run(wanted)
    shown = any(isinstance(leaf, torch.Tensor) and leaf.numel() for leaf in expected or ())
    right = right and shown and _agrees_beside(trials, sizes, dict.fromkeys(symbols, 0), sizes.relations())
    return {symbol: int(size) for symbol, size in wanted.items()} if right else None


def _agrees_elsewhere(trials: TrialRuns, sizes: Sizes, question: SizeQuestion) -> bool:
    """Run both at a size at which an answer differs, and compare; sizes that the program refuses need none."""
    wanted = next(
        ({symbol: size} for symbol in question.relation.free_symbols for size in (*range(2, _SMALL), _LARGE)
         if at_sizes(question.relation, {symbol: size}) == sympy.false),
        {},
    )  # fmt: skip
    point = sizes.near(wanted, sizes.final_guards())
    return point is None or (trials.possible and trials.run(point)[1])


def _of_several(
    sizes: Sizes, questions: Sequence[SizeQuestion], guards: Sequence[sympy.Basic]
) -> Iterator[Mapping[sympy.Symbol, sympy.Integer]]:
    """Yield the small sizes at which questions about two of them have another answer."""
    for relation in dict.fromkeys(each.relation for each in questions if len(each.relation.free_symbols) == 2):
        for pair in itertools.product((1, 2, 3), repeat=2):
            wanted = dict(zip(sorted(relation.free_symbols, key=str), pair, strict=True))
            point = sizes.near(wanted, guards)
            if point is not None and at_sizes(relation, point) == sympy.false:
                yield point


def _agrees_at_one(
    trials: TrialRuns,
    sizes: Sizes,
    questions: Sequence[SizeQuestion],
    dimensions: Collection[tuple[sympy.Symbol, ...]],
    guards: Sequence[Sequence[sympy.Basic]],
) -> bool:
    """Run both where each of the sizes is 1, one by one and all together, and compare.

    ``dimensions`` are the symbols of one name together, and ``guards`` what the program takes for granted, and that
    without what only lays tensors out.
    """
    if not trials.possible:
        return False
    run = trials.run if all(question.is_of_torch for question in questions) else trials.run_widely
    asked = {symbol for question in questions for symbol in question.relation.free_symbols}
    every = {symbol for symbol in sizes.hints if sizes.smallest[symbol] <= 1}
    together = sizes.near(dict.fromkeys(every, 1), guards[0])
    # Sizes that the program refuses need no comparison, but a size that was asked about needs one.
    if together is not None and not run(together)[1]:
        return False
    if not all(run(point)[1] for point in _of_several(sizes, questions, guards[0]) if point != together):
        return False
    for group in (group for group in dimensions if {*group} & asked & every):
        taken, possible = (sizes.near(dict.fromkeys(group, 1), each) for each in guards)
        point = taken or possible
        known = point is not None and point == together
        expected, right = (None, True) if known else run(point) if point else ([], False)
        # The model may refuse what the program does.
        if not right and (taken or expected is not None):
            return False
        if run == trials.run_widely and not _agrees_beside(trials, sizes, dict.fromkeys(group, 1), guards[0]):
            return False
    return True


def _agrees_beside(
    trials: TrialRuns, sizes: Sizes, small: Mapping[sympy.Symbol, int], guards: Sequence[sympy.Basic]
) -> bool:
    """Run both where some sizes are small and all others are not those of the example, and compare.

    What the model's code does at small sizes alone may make no difference at one size of another dimension.
    """
    others = {symbol: hint for symbol, hint in sizes.hints.items() if symbol not in small}
    for factor, more in _BESIDE if others else ():
        at = {symbol: max(1, factor * hint + more) for symbol, hint in others.items()}
        point = sizes.near({**at, **small}, guards)
        expected, right = (None, True) if point is None else trials.run(point)
        if expected is not None and not right:
            return False
    return True
