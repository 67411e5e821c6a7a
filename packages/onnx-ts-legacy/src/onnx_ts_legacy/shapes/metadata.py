"""Dtypes, ranks and sizes: every call is made on tensors without data, whose dynamic sizes are symbols.

The symbols have no values ("unbacked"): what a call returns holds for every size, or torch says that it cannot tell.
Then the call is tried with several sizes, and what came out the same every time is kept.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.errors import DynamicDimensionError, ScriptValueError
from onnx_ts_legacy.shapes.keys import call_key, form_key, key_of
from onnx_ts_legacy.shapes.relations import equations
from onnx_ts_legacy.shapes.simple_calls import known_form, known_view, with_ones
from onnx_ts_legacy.shapes.size_rules import ruled_sizes
from onnx_ts_legacy.shapes.tensor_forms import (
    TensorForm,
    contiguous_strides,
    forget_fakes,
    free_symbols,
    is_tensor,
    size_at,
)
from onnxops_decomp import OpBuilder
from onnxops_decomp.exporting import SymbolNames, at_sizes, plain_fake

__all__ = ["Metadata", "viewed_argument"]

# Values for symbols without an example, tried in this order until a call accepts one.
_UNKNOWN = (2, 1, 0, 4, 8)
_TRIES = 3
# How many times larger a size is in one trial than in the one before. What small sizes have in common, such as that
# they are 1 after some halving, is no fact; only operators that are run on data get small ones.
_FAR, _NEAR = 400, 3
# Sizes below are not used as examples, but this one in their place.
_LEAST_EXAMPLE, _SUBSTITUTE = 2, 5
# As many operations to compute a size cost no more than to read it from a tensor.
_COMPUTED = 2


class Metadata:
    """Works out what calls return, and names the symbolic sizes on the way.

    Args:
        op: Builder of the main graph.

    Attributes:
        taken: What the calls take for granted of sizes, since it was last cleared.
        followed: What sizes follow from that are read at run time nevertheless.
    """

    def __init__(self, op: OpBuilder) -> None:
        self.shape_env: Any = private.shape_env()
        self.symbols = SymbolNames(op)
        self._op = op
        self._declared: dict[str, tuple[torch.SymInt, int]] = {}
        self._hints: dict[str, int] = {}
        self._canonical: dict[Any, TensorForm] = {}
        self._at_least_one: list[torch.SymInt] = []
        self._known: dict[Any, tuple[Any, int | None, Set[sympy.Basic]]] = {}
        self.taken: set[sympy.Basic] = set()
        self._contiguous: dict[int, tuple[bool, TensorForm]] = {}
        self._assumed: dict[sympy.Basic, sympy.Basic] = {}
        self.followed: dict[sympy.Symbol, sympy.Expr] = {}

    @functools.cached_property
    def _mode(self) -> private.FakeTensorMode:
        return private.fake_mode(self.shape_env)

    @functools.cached_property
    def _plain_mode(self) -> private.FakeTensorMode:
        return private.FakeTensorMode(allow_non_fake_inputs=True)

    # ---- tensors

    def declared_size(self, name: str, example: int) -> torch.SymInt:
        """Return the symbolic size that is called ``name``; one name is one size.

        Raises:
            DynamicDimensionError: If the examples contradict each other.
        """
        known = self._declared.get(name)
        if known is not None:
            if known[1] != example:
                raise DynamicDimensionError(
                    f"Dimension {name!r} is {known[1]} in one example input and {example} in another; give "
                    "different names to dimensions that differ."
                )
            return known[0]
        size = self.unknown_size(hint=self._hint_for(example))
        self._at_least_one.append(size)
        self.symbols.rename(size.node.expr, name)
        self._declared[name] = (size, example)
        return size

    def _hint_for(self, example: int) -> int:
        """Return the size that stands for a declared one in trials.

        0 and 1 are special cases to many operators, so they do not serve as examples. What is the sum of two sizes, as
        the length of a mask is that of a cache and of what is new, stays the sum if they grow.
        """
        for (first, a), (second, b) in itertools.combinations(self._declared.values(), 2):
            if a + b == example and min(a, b) < _LEAST_EXAMPLE:
                return self.hint(first) + self.hint(second)
        return example if example >= _LEAST_EXAMPLE else _SUBSTITUTE

    def input(self, example: torch.Tensor, names: dict[int, str]) -> TensorForm:
        """Return the form of an input whose dimensions ``names`` are dynamic."""
        if not names:
            return self.constant(example)
        sizes: list[int | torch.SymInt] = list(example.shape)
        for axis, name in names.items():
            sizes[axis] = self.declared_size(name, example.shape[axis])
        last = torch.channels_last
        if example.dim() == 4 and not example.is_contiguous() and example.is_contiguous(memory_format=last):
            with self._mode:
                return self.canonical(torch.empty(sizes, dtype=example.dtype, memory_format=last))
        return self.empty(example.dtype, sizes)

    def constant(self, tensor: torch.Tensor) -> TensorForm:
        """Return the form of a tensor."""
        return self.strided(tensor.dtype, tensor.shape, tensor.stride())

    def empty(self, dtype: torch.dtype, sizes: Sequence[int | torch.SymInt]) -> TensorForm:
        """Return the form of a contiguous tensor."""
        form = self.strided(dtype, sizes, contiguous_strides(sizes))
        self._contiguous[id(form)] = True, form
        return form

    # ---- numbers

    def unknown_size(self, hint: int | None = None) -> torch.SymInt:
        """Return a new symbol for an integer of which nothing is known."""
        with self.shape_env.ignore_fresh_unbacked_symbols():
            size: torch.SymInt = self.shape_env.create_unbacked_symint()
        if hint is not None:
            self._hints[size.node.expr.name] = hint
        return size

    def following_size(self, size: torch.SymInt, hint: int) -> torch.SymInt:
        """Return a size that is read at run time where computing it would take longer; what it follows from is kept."""
        expression = size.node.expr
        if expression.count_ops() <= _COMPUTED:
            return size
        symbol = self.unknown_size(hint)
        self.followed[symbol.node.expr] = expression.xreplace(self.followed)
        return symbol

    def resolved(self, expression: sympy.Basic) -> sympy.Basic:
        """Return an expression in the model's symbols with what sizes follow from in their place."""
        return expression.xreplace({symbol: self.symbols.renamed(size) for symbol, size in self.followed.items()})

    def runtime_int(self, value: ir.Value) -> torch.SymInt:
        """Return a symbol for the integer that ``value``, of one element, holds at run time."""
        size = self.unknown_size()
        self._op.context.symbols[size.node.expr.name] = lambda op: op.Reshape(op.cast(value, ir.DataType.INT64), [1])
        return size

    def unknown_float(self) -> torch.SymFloat:
        """Return a new symbol for a float of which nothing is known."""
        with self.shape_env.ignore_fresh_unbacked_symbols():
            created: torch.SymFloat = self.shape_env.create_unbacked_symfloat()
        return created

    def _tell_ranges(self) -> None:
        """Let torch know that declared sizes are not 0, as soon as it is asked anything."""
        for size in self._at_least_one:
            private.set_at_least_one(size)
        self._at_least_one.clear()

    def decided(self, condition: torch.SymBool) -> bool | None:
        """Return what a relation between sizes is whatever the sizes are, 0 included; None if it depends on them."""
        self._tell_ranges()
        result = private.decided(condition)
        if result is None:
            return None
        # Calls are made on the assumption that declared sizes are not 0; decisions of the program are not.
        relation = condition.node.expr
        declared = [size.node.expr for size, _ in self._declared.values()]
        zeros = [{symbol: 0} for symbol in declared if symbol in relation.free_symbols]
        both = {symbol: 0 for found in zeros for symbol in found}
        same = sympy.true if result else sympy.false
        return result if not zeros or all(at_sizes(relation, v) == same for v in (*zeros, both)) else None

    def symbol_count(self) -> int:
        """Return how many symbols there are; later ones have higher numbers."""
        return int(self.unknown_size().node.expr.name.removeprefix("u"))

    def is_older(self, size: int | torch.SymInt, count: int) -> bool:
        """Tell whether a size is made of symbols that existed when :meth:`symbol_count` returned ``count``."""
        if isinstance(size, int):
            return True
        names = (symbol.name for symbol in size.node.expr.free_symbols)
        return all(not name.startswith("u") or int(name[1:]) < count for name in names)

    def hint(self, size: int | torch.SymInt, unknown: int = 2) -> int:
        """Return an example value of a size."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        return int(expression.xreplace({s: self._hints.get(str(s), unknown) for s in expression.free_symbols}))

    def in_example(self, expression: sympy.Basic) -> sympy.Basic | None:
        """Return what something that follows from declared sizes is in the example; None if it does not."""
        examples = {declared.node.expr: example for declared, example in self._declared.values()}
        return at_sizes(expression, examples)

    def _is_one(self, size: int | torch.SymInt) -> bool:
        return size == 1 if isinstance(size, int) else self.in_example(size.node.expr) == 1

    # ---- calls

    def canonical(self, fake: torch.Tensor) -> TensorForm:
        """Return the form of a fake tensor, the same one for equal forms: equal calls then have equal operands."""
        if fake.layout != torch.strided:
            return TensorForm.of(fake)
        key = form_key(fake.dtype, (*fake.shape, *fake.stride(), fake.storage_offset()))
        if key not in self._canonical:
            self._canonical[key] = TensorForm.of(fake)
        return self._canonical[key]

    def fake(self, value: Any) -> Any:
        """Return the fake tensor of a form; anything else as it is."""
        if not isinstance(value, TensorForm):
            return value
        if value.fake is None:
            self._tell_ranges()
            value.fake = plain_fake(self._mode, value.shape, value.stride(), value.dtype)
        return value.fake

    def strided(self, dtype: torch.dtype, sizes: Sequence[Any], strides: Sequence[Any]) -> TensorForm:
        """Return the form of a tensor with these strides."""
        key = form_key(dtype, (*sizes, *strides, 0))
        if key not in self._canonical:
            self._canonical[key] = TensorForm(dtype, sizes, strides)
        return self._canonical[key]

    def is_contiguous(self, form: TensorForm) -> bool:
        """Tell whether a tensor has the strides and offset of a new one."""
        known = self._contiguous.get(id(form))
        if known is None:
            offset = form.storage_offset()
            strides = tuple(map(key_of, contiguous_strides(form.shape)))
            same = isinstance(offset, int) and offset == 0 and strides == tuple(map(key_of, form.stride()))
            known = self._contiguous[id(form)] = (same, form)
        return known[0]

    def call(self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, int | None]:
        """Call an operator on tensors without data, or remember what an equal call gave.

        Returns:
            The results, tensors as their forms, and the position of the argument whose memory they show, or None.

        Raises:
            ScriptValueError: If torch refuses the call, or sizes may decide a truth value that it gives.
            DynamicDimensionError: If it fixes a declared size.
        """
        if self._assumed:
            args, kwargs = pytree.tree_map(self._with_assumed, (args, kwargs))
        key = call_key(function, args, kwargs)
        if key in self._known:
            result, position, taken = self._known[key]
            self.taken |= taken
            return result, position
        known = self._by_rule(function, args, kwargs)
        if known is not None:
            self._known[key] = *known, frozenset()
            return known
        self._tell_ranges()
        args = with_ones(function, args, self._is_one, self.strided)
        with self.forgetting((args, kwargs)) as taken:
            result, position = self._run(function, args, kwargs)
        if isinstance(result, bool) and free_symbols((args, kwargs)):
            raise ScriptValueError("dynamic sizes may decide the truth value that it gives, which has no ONNX form.")
        if free_symbols(result) <= free_symbols((args, kwargs)):
            self._known[key] = result, position, taken
        else:
            forget_fakes((args, kwargs))
        return result, position

    @contextlib.contextmanager
    def forgetting(self, operands: Any) -> Iterator[Set[sympy.Basic]]:
        """Let calls in the body decide nothing for later ones, which may be made at other sizes.

        A branch may be left out, and of sizes that are broadcast one may be 1.

        Args:
            operands: What is called with tensors without data.

        Yields:
            Behind the body, what was taken for granted in it.
        """
        with private.forgetting(self.shape_env) as taken:
            yield taken
        if taken:
            self.taken |= taken
            forget_fakes(operands)

    @contextlib.contextmanager
    def assuming(self, relation: sympy.Basic | None, truth: bool) -> Iterator[None]:
        """Take sizes for the numbers that a relation makes them, if it is of this truth, in the calls of the body."""
        before, found = self._assumed, equations(relation, truth)
        self._assumed = {**before, **found}
        try:
            yield
        finally:
            self._assumed = before

    def _with_assumed(self, value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            number = self.symbols.expression(value).xreplace(self._assumed)
            return int(number) if number.is_Integer else value
        if not isinstance(value, TensorForm) or value.layout != torch.strided:
            return value
        sizes, strides = ([self._with_assumed(each) for each in part] for part in (value.shape, value.stride()))
        if all(size is before for size, before in zip(sizes, value.shape, strict=True)):
            return value
        is_plain = self.is_contiguous(value)
        return self.empty(value.dtype, sizes) if is_plain else self.strided(value.dtype, sizes, strides)

    def _by_rule(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, int | None] | None:
        view = known_view(function, args, kwargs)
        if view is not None:
            return self.strided(args[0].dtype, *view), 0
        form = known_form(function, args, kwargs, self.is_contiguous, self._is_one)
        return None if form is None else (self.empty(*form), None)

    def _run(self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, int | None]:
        """Call an operator on fake tensors; see :meth:`call`.

        Returns:
            What it gives, and the position of the argument whose memory that shows, or None.

        Raises:
            ScriptValueError: If torch refuses the call.
            DynamicDimensionError: If it fixes a declared size.
        """
        known = len(self.shape_env.replacements)
        try:
            result, position = self._run_symbolic(function, args, kwargs)
        except Exception as error:
            result, position = self._run_in_python(function, args, kwargs, error)
        if len(self.shape_env.replacements) != known:
            self._check_declared()
        return result, position

    def _run_symbolic(self, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, int | None]:
        fakes, named = pytree.tree_map(self.fake, (args, kwargs))
        with (
            self._mode,
            torch.no_grad(),
            self.shape_env.ignore_fresh_unbacked_symbols(),
            private.quiet_fake_tensors(),
        ):
            result = function(*fakes, **named)
        return pytree.tree_map_only(torch.Tensor, self.canonical, result), viewed_argument(fakes, result)

    def _run_in_python(
        self, function: Callable[..., Any], args: Any, kwargs: Any, error: Exception
    ) -> tuple[Any, int | None]:
        """Call an operator that failed once more: some C++ kernels refuse symbols that torch's Python kernels take."""
        if not private.refuses_symbols(error):
            return _Trials(self, function, args, kwargs).result(error)
        try:
            with private.python_kernels():
                return self._run_symbolic(function, args, kwargs)
        except Exception as again:
            return _Trials(self, function, args, kwargs).result(again)

    def _check_declared(self) -> None:
        for name, (size, _) in self._declared.items():
            expression = size.node.expr
            if expression.is_Integer:
                raise DynamicDimensionError(
                    f"Dimension {name!r} was declared dynamic, but the program fixes it to {expression}."
                )

    @property
    def declared_names(self) -> list[str]:
        """Names of the declared sizes."""
        return list(self._declared)

    def declared_symbols(self) -> set[sympy.Symbol]:
        """Return the symbols of the declared sizes."""
        return {symbol for size, _ in self._declared.values() for symbol in size.node.expr.free_symbols}

    def is_declared(self, expression: sympy.Basic) -> bool:
        """Tell whether an expression in the model's symbols follows from declared sizes alone."""
        return {str(symbol) for symbol in expression.free_symbols} <= self._declared.keys()

    def hinted(self, values: Mapping[str, int]) -> Mapping[str, int]:
        """Return example values of symbols by name, those of ``values`` first."""
        return {**self._hints, **values}

    def plain(self, leaf: Any, values: Mapping[str, int], unknown: int) -> Any:
        """Return an argument with values for all symbols."""
        if isinstance(leaf, TensorForm):
            sizes = [size_at(size, values, unknown) for size in leaf.shape]
            with self._plain_mode:
                if leaf.layout != torch.strided:
                    return torch.empty(sizes, dtype=leaf.dtype)
                strides = [size_at(stride, values, unknown) for stride in leaf.stride()]
                return torch.empty_strided(sizes, strides, dtype=leaf.dtype)
        if isinstance(leaf, torch.SymInt):
            return size_at(leaf, values, unknown)
        return 1.0 if isinstance(leaf, torch.SymFloat) else leaf

    def run_plain(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call an operator on fake tensors without symbols."""
        try:
            with self._plain_mode, torch.no_grad(), private.quiet_fake_tensors():
                return function(*args, **kwargs)
        except Exception as error:
            if not private.lacks_fake_kernel(error):
                raise
        filled = pytree.tree_map(_filled, (tuple(args), dict(kwargs)))
        with torch.no_grad():
            return function(*filled[0], **filled[1])


class _Trials:
    """Finds what a call returns by trying it with several values for its symbols."""

    def __init__(self, metadata: Metadata, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._metadata, self._function = metadata, function
        self._leaves, self._structure = pytree.tree_flatten((args, kwargs))
        sizes = [s for leaf in self._leaves for s in (leaf.shape if is_tensor(leaf) else [leaf])]
        self._sizes: list[Any] = [size for size in sizes if isinstance(size, torch.SymInt)]
        free = {symbol for size in self._sizes for symbol in size.node.expr.free_symbols}
        self._followed = {symbol: metadata.followed[symbol] for symbol in free & metadata.followed.keys()}
        self._free = free.union(*(size.free_symbols for size in self._followed.values()))
        self._symbols = sorted(map(str, self._free))
        self._floats = any(isinstance(leaf, torch.SymFloat) for leaf in self._leaves)
        self._viewed: int | None = None
        self._step = _FAR

    def result(self, error: Exception) -> tuple[Any, int | None]:
        """Return fake results with the sizes that were the same in all trials, and which argument they show.

        Raises:
            ScriptValueError: If no trial succeeds; ``error`` says why.
        """
        unsupported = private.lacks_fake_kernel(error)
        undecided = (
            unsupported
            or isinstance(error, TypeError)
            or private.is_data_dependent(error)
            or private.refuses_symbols(error)
        )
        if (self._symbols or self._floats or unsupported) and undecided:
            self._step = _NEAR if unsupported else _FAR
            trials = self._trials()
            if trials:
                return self._common(trials), self._viewed
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if private.refuses_argument(error) and (self._symbols or self._floats):
            text = self._unknown_number()
        if self._symbols and self._metadata.declared_names:
            names = self._metadata.declared_names
            advice = " Dimensions that are always equal need the same name in dynamic_axes." if len(names) > 1 else ""
            raise DynamicDimensionError(
                f"The program does not work for other sizes of {', '.join(names)}: {text}.{advice}"
            ) from error
        raise ScriptValueError(f"torch refuses this call: {text}") from error

    def _unknown_number(self) -> str:
        """Say why a call does not take a number known only at run time."""
        text = "it takes a number that has to be known at export, and here that number follows from "
        if not self._metadata.hinted({}).keys().isdisjoint(self._symbols):
            return text + "a dynamic size"
        return text + "the data: choose between calls with fixed numbers, by an if in a scripted model or by torch.cond"

    def _trials(self) -> list[tuple[dict[str, int], Any]]:
        """Try the call with several sizes until it accepts two choices of them, or else one."""
        single: list[tuple[dict[str, int], Any]] = []
        for unknown in _UNKNOWN:
            # A call may want sizes to be equal that are different symbols.
            for apart in (2, 0):
                choices = [self._values(step, unknown, apart) for step in range(_TRIES)]
                different = [values for index, values in enumerate(choices) if values not in choices[:index]]
                trials = [trial for values in different if (trial := self._trial(values, unknown)) is not None]
                if len(trials) > 1:
                    return trials
                single = single or trials
        return single

    def _values(self, step: int, unknown: int, apart: int) -> dict[str, int]:
        """Return sizes for the symbols, multiples of their example or of ``unknown``: calls may want them divisible."""
        known = self._metadata.hinted({})
        values = {
            name: known.get(name, unknown) * (1 + step * (self._step + apart * index))
            for index, name in enumerate(self._symbols)
        }
        of_symbols = {symbol: values[str(symbol)] for symbol in self._free}
        return values | {str(symbol): int(size.xreplace(of_symbols)) for symbol, size in self._followed.items()}

    def _trial(self, values: dict[str, int], unknown: int) -> tuple[dict[str, int], Any] | None:
        try:
            plain = [self._metadata.plain(leaf, values, unknown) for leaf in self._leaves]
            args, kwargs = pytree.tree_unflatten(plain, self._structure)
            result = self._metadata.run_plain(self._function, args, kwargs)
            self._viewed = viewed_argument(args, result)
            return values, result
        except Exception:
            return None

    def _common(self, trials: list[tuple[dict[str, int], Any]]) -> Any:
        results = [pytree.tree_flatten(result) for _, result in trials]
        if len({len(flat) for flat, _ in results}) > 1:
            raise ScriptValueError(
                "a number known only at run time decides how many tensors it returns, and here they are taken one "
                "by one: loop over them in a scripted model"
            )
        per_result = zip(*(flat for flat, _ in results), self._ruled(results[0][0]), strict=True)
        leaves = [self._joined(trials, list(found), sizes) for *found, sizes in per_result]
        return pytree.tree_unflatten(leaves, results[0][1])

    def _ruled(self, found: list[Any]) -> list[Any]:
        """Return the sizes that a rule gives each result; None for one of which it says nothing."""
        args, kwargs = pytree.tree_unflatten(self._leaves, self._structure)
        ruled = ruled_sizes(self._function, args, kwargs) or [[]] * len(found)
        pairs = zip(found, ruled, strict=True)
        return [sizes if is_tensor(leaf) and len(sizes) == leaf.dim() else None for leaf, sizes in pairs]

    def _joined(self, trials: list[tuple[dict[str, int], Any]], found: list[Any], ruled: Any) -> Any:
        if not isinstance(found[0], torch.Tensor):
            return found[0]
        if len({leaf.dim() for leaf in found}) > 1:
            raise ScriptValueError("The rank of the result depends on sizes known only at run time.")
        of_rule = ruled or [None] * found[0].dim()
        sizes = [self._size(trials, [leaf.shape[axis] for leaf in found], rule) for axis, rule in enumerate(of_rule)]
        strides = self._strides(trials, found)
        if strides is None:
            return self._metadata.empty(found[0].dtype, sizes)
        return self._metadata.strided(found[0].dtype, sizes, strides)

    def _strides(self, trials: list[tuple[dict[str, int], Any]], found: list[torch.Tensor]) -> list[Any] | None:
        """Return the strides of a view, each a number or one of what it shows; None if they are something else."""
        if self._viewed is None or len(trials) < 2:
            return None
        (args, _) = pytree.tree_unflatten(self._leaves, self._structure)
        strides: list[Any] = []
        for axis in range(found[0].dim()):
            now = [leaf.stride(axis) for leaf in found]
            same = (
                stride
                for stride in (now[0], *args[self._viewed].stride())
                if [size_at(stride, values, 2) for values, _ in trials] == now
            )
            strides.append(next(same, None))
        return None if None in strides else strides

    def _size(self, trials: list[tuple[dict[str, int], Any]], found: list[int], ruled: Any) -> Any:
        if len(trials) > 1:
            if len(set(found)) == 1:
                return found[0]
            for candidates in ([ruled] if isinstance(ruled, torch.SymInt) else [], self._sizes):
                same = {
                    size.node.expr: size
                    for size in candidates
                    if all(size_at(size, values, 2) == now for (values, _), now in zip(trials, found, strict=True))
                }
                # Where the trials do not tell which one it is, it is a size of its own.
                if len(same) == 1:
                    (size,) = same.values()
                    return size if candidates is self._sizes else self._metadata.following_size(size, found[0])
        return self._metadata.unknown_size(hint=found[0])


def _filled(leaf: Any) -> Any:
    """Return a tensor of zeros for a fake one, for operators that need data."""
    return torch.zeros(leaf.shape, dtype=leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


def viewed_argument(args: Sequence[Any], result: Any) -> int | None:
    """Return the position of the tensor whose memory the result shows, or None."""
    first = result[0] if isinstance(result, list | tuple) and result else result
    if not isinstance(first, torch.Tensor):
        return None
    for position, arg in enumerate(args):
        if isinstance(arg, torch.Tensor) and private.same_storage(arg, first):
            return position
    return None
