"""Runs of a model and of what was captured of it at other sizes than the example's, to see whether they agree."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from onnx_fx_export.sizes.eager_runs import Around, EagerRuns, same_random_numbers
from onnx_fx_export.torch_private import WithoutEmptyBags, hint_of
from onnxops_core import onnx_export
from onnxops_decomp.exporting import (
    Example,
    are_close,
    fitted_lengths,
    is_without_data,
    resampled,
    written_inputs,
)

# What a run puts in place of a tensor of the example; None for random numbers among the floats.
Values = Callable[[torch.Tensor], torch.Tensor] | None
_BAG = "embedding_bag"

__all__ = [
    "TrialRuns",
    "TrialValues",
    "Values",
    "as_plain",
    "calls_at",
    "in_order",
    "plain",
    "used_nodes",
    "user_values",
]


def plain(size: int | torch.SymInt) -> sympy.Expr:
    """Return a size as an expression in symbols of which nothing is known but that they are integers."""
    return as_plain(size.node.expr) if isinstance(size, torch.SymInt) else sympy.Integer(size)


# The guards of a program are asked for again and again.
@functools.lru_cache(maxsize=4096)
def as_plain(expression: sympy.Basic) -> sympy.Basic:
    """Return an expression in symbols of which nothing is known but that they are integers."""
    return expression.xreplace({s: sympy.Symbol(str(s), integer=True) for s in expression.free_symbols})


@dataclasses.dataclass(frozen=True)
class TrialValues:
    """What a run is given: of floats and of integers; masks are ``mask``, or left as they are.

    Attributes:
        floats: Makes the floats of their random numbers.
        integers: Makes the integers of those of the example.
        mask: All elements of masks.
        seed: That of the random numbers.
    """

    floats: Callable[[torch.Tensor], torch.Tensor]
    integers: Callable[[torch.Tensor], torch.Tensor]
    mask: bool | None
    seed: int = 0

    def changes(self, leaf: torch.Tensor) -> bool:
        """Tell whether a run is given something else for a tensor of the example than a usual run."""
        if leaf.dtype == torch.bool:
            return self.mask is not None
        return leaf.is_floating_point() or self.integers is not _kept

    def __call__(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return a tensor in place of one of the example."""
        if leaf.dtype == torch.bool:
            return leaf if self.mask is None else torch.full_like(leaf, self.mask)
        if not leaf.is_floating_point():
            return self.integers(leaf) if not leaf.is_complex() else leaf
        generator = torch.Generator().manual_seed(self.seed)
        return self.floats(torch.randn(leaf.shape, generator=generator)).to(leaf)


def _wide(values: torch.Tensor) -> torch.Tensor:
    """Return numbers of very different size for random ones, more of them positive than negative."""
    return (values + 1) * 10 ** (2 * values).clamp(-4, 4)


def _with_nan(values: torch.Tensor) -> torch.Tensor:
    return values.masked_fill(values > 1, torch.nan)


def _kept(values: torch.Tensor) -> torch.Tensor:
    return values


# What code may treat apart although it makes no difference to usual numbers, as a bound on what is computed does.
_UNUSUAL: Sequence[TrialValues] = (
    TrialValues(_wide, _kept, True),
    TrialValues(lambda values: -_wide(values), torch.zeros_like, False),
    TrialValues(_with_nan, _kept, None),
)


class _RandomValues:
    """Gives random numbers in place of the floats of an example, other ones for each tensor."""

    def __init__(self) -> None:
        self._generator = torch.Generator("cpu").manual_seed(0)

    def __call__(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return a tensor in place of one of the example."""
        if not leaf.is_floating_point():
            return leaf
        return torch.randn(leaf.shape, generator=self._generator, device="cpu").to(leaf)


def _near_example(leaf: torch.Tensor) -> torch.Tensor:
    """Return numbers that are nearer to zero than those of the example, each by up to a hundredth.

    No two are equal that stand for one number of the example, and they lie within the bounds that the example keeps.
    """
    return leaf * (1 - _RandomValues()(leaf).sigmoid() / 100) if leaf.is_floating_point() else leaf


def _nudged(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose floats are other ones by a few units in the last place, each by another number of them."""
    if not tensor.is_floating_point():
        return tensor
    return tensor * (1 + 4 * torch.finfo(tensor.dtype).eps * _RandomValues()(tensor))


@dataclasses.dataclass(frozen=True)
class TrialRuns:
    """Runs a model and what was captured of it at other sizes than the example's, with random numbers for its floats.

    Attributes:
        program: What was captured.
        model: The model.
        example: The example arguments.
        wanted: Whether anything is to be run.
    """

    program: torch.export.ExportedProgram
    model: torch.nn.Module
    example: Example
    wanted: bool = True

    @functools.cached_property
    def runs(self) -> EagerRuns:
        """What runs the model."""
        return EagerRuns(self.model)

    @functools.cached_property
    def possible(self) -> bool:
        """Tell whether the model can be run: it has numbers in its weights."""
        return self.wanted and not any(
            map(is_without_data, itertools.chain(self.model.parameters(), self.model.buffers()))
        )

    @functools.cached_property
    def _graph(self) -> _CapturedGraph:
        return _CapturedGraph(self.program)

    def agree_on_example(self, around: Around = contextlib.nullcontext, values: Values = None) -> bool | None:
        """Tell whether both give the same at the sizes of the example; None where the model does not run.

        Args:
            around: Makes what is entered around each of both runs.
            values: What the run is given in place of a tensor of the example.
        """
        shapes: list[Sequence[Any]] = [x.shape for x in user_values(self.program) if isinstance(x, torch.Tensor)]
        symbolic = [size for shape in shapes for size in shape if isinstance(size, torch.SymInt)]
        sizes = {plain(size): sympy.Integer(hint_of(size)) for size in symbolic if plain(size).is_Symbol}
        expected, right = self.run(sizes, around, values)
        return None if expected is None else right

    def run(
        self,
        sizes: Mapping[sympy.Symbol, sympy.Integer],
        around: Around = contextlib.nullcontext,
        values: Values = None,
    ) -> tuple[list[Any] | None, bool]:
        """Run both.

        Args:
            sizes: The sizes by symbol.
            around: Makes what is entered around each of both runs.
            values: What the run is given in place of a tensor of the example.

        Returns:
            The leaves of what the model gives, None where it does not take these sizes, and whether the program gives
            the same.
        """
        found = self._compared_both_ways(sizes, around, values)
        if found[0] is None or found[1] or values is not None or not self._is_unstable(sizes, around, found[0]):
            return found
        # Random numbers may be far from what the model is for, as those of a matrix that it inverts.
        return self._compared_both_ways(sizes, around, _near_example)

    def _compared_both_ways(
        self, sizes: Mapping[sympy.Symbol, sympy.Integer], around: Around, values: Values
    ) -> tuple[list[Any] | None, bool]:
        """Run both, with the model as it is while it is exported, or as the user calls it."""
        # Caches drop nothing, and the model may ask whether it is exported.
        found = self._compared(sizes, around, values, onnx_export)
        if found[0] is None or found[1]:
            return found
        # What a library does otherwise in an export may not be what was captured, but what the user's calls give.
        usual = self._compared(sizes, around, values, contextlib.nullcontext)
        return usual if usual[1] else found

    def _is_unstable(
        self, sizes: Mapping[sympy.Symbol, sympy.Integer], around: Around, expected: Sequence[Any]
    ) -> bool:
        """Tell whether the model gives something else for random numbers that differ by what rounding makes of them."""
        random = _RandomValues()
        taken = self._taken(sizes, around, lambda leaf: _nudged(random(leaf)), onnx_export)
        return taken is not None and not all(map(are_close, taken[1][0], expected))

    def _compared(
        self, sizes: Mapping[sympy.Symbol, sympy.Integer], around: Around, values: Values, within: Around
    ) -> tuple[list[Any] | None, bool]:
        """Run the model within a context, and the program."""
        taken = self._taken(sizes, around, values, within)
        if taken is None:
            return None, False
        call, (expected, structure) = taken
        try:
            with around():
                actual = self._graph.results(call, sizes)
        except Exception:
            return expected, False
        is_alike = len(actual) == len(expected) and _is_alike(structure, self.program.call_spec.out_spec)
        return expected, is_alike and all(map(are_close, actual, expected))

    def _taken(
        self, sizes: Mapping[sympy.Symbol, sympy.Integer], around: Around, values: Values, within: Around
    ) -> tuple[Example, tuple[list[Any], pytree.TreeSpec]] | None:
        """Return a call at these sizes that the model takes, with what it gives; None if it takes none."""
        # Code that checks its arguments may take nothing but what is like the example.
        for each in (values, _near_example) if values is None else (values,):
            with contextlib.suppress(Exception), within():
                for call in calls_at(self.program, self.example, sizes, each):
                    # Where the model raises, whatever it is, the captured program is not right.
                    with contextlib.suppress(Exception):
                        return call, self._eager(call, around)
        return None

    def run_widely(self, sizes: Mapping[sympy.Symbol, sympy.Integer]) -> tuple[list[Any] | None, bool]:
        """Run both as :meth:`run` does, and with unusual values as well.

        Where the model takes another path than was captured, equal results for usual numbers show little: the other
        path may bound them, or replace what is no number.

        Args:
            sizes: The sizes by symbol.

        Returns:
            What the model gives for random numbers, and whether the program gives the same for all values.
        """
        expected, right = self.run(sizes)
        tensors = [leaf for leaf in pytree.tree_leaves(self.example) if isinstance(leaf, torch.Tensor)]
        unusual = [values for values in _UNUSUAL if any(map(values.changes, tensors))]
        return expected, right and not any(self._differ(sizes, values) for values in unusual)

    def _differ(self, sizes: Mapping[sympy.Symbol, sympy.Integer], values: Callable[..., torch.Tensor]) -> bool:
        """Tell whether both give different results by more than what rounding makes of the values."""
        expected, right = self.run(sizes, values=values)
        if expected is None or right:
            return False
        nearby, _ = self.run(sizes, values=lambda tensor: _nudged(values(tensor)))
        return nearby is not None and all(map(are_close, nearby, expected))

    @functools.cached_property
    def _has_bags(self) -> bool:
        """Whether the program, or the model at other sizes, may make calls that end the process."""
        graphs = (module.graph for module in self.program.graph_module.modules() if hasattr(module, "graph"))
        return (
            any(isinstance(module, torch.nn.EmbeddingBag) for module in self.model.modules())
            or any(_BAG in str(node.target) for graph in graphs for node in graph.nodes)
            or self.runs.calls(_BAG)
        )

    def _without_crashes(self) -> contextlib.AbstractContextManager[Any]:
        """Refuse calls that end the process, where any may be made: a mode makes each other operator much slower."""
        return WithoutEmptyBags() if self._has_bags else contextlib.nullcontext()

    def _eager(self, call: Example, around: Around) -> tuple[list[Any], pytree.TreeSpec]:
        """Return the leaves of what the model gives for a call, and its structure.

        Raises:
            Exception: Whatever the model raises.
        """
        leaves, structure = pytree.tree_flatten(self.runs.results(call, self._without_crashes, around))
        return [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in leaves], structure


def _is_alike(first: pytree.TreeSpec, second: pytree.TreeSpec) -> bool:
    """Tell whether two results have as many parts under the same names; torch makes a tuple of a ``torch.Size``."""
    if first.num_leaves != second.num_leaves or first.context != second.context:
        return False
    parts, others = first.children(), second.children()
    return len(parts) == len(others) and all(map(_is_alike, parts, others))


def calls_at(
    program: torch.export.ExportedProgram,
    example: Example,
    sizes: Mapping[sympy.Symbol, sympy.Integer],
    values: Values,
) -> Iterator[Example]:
    """Yield the example at other sizes, with random numbers for its floats, or other values.

    Where it has lengths, they follow their sizes in the second call.
    """
    present, structure = pytree.tree_flatten(in_order(program, example))
    leaves = list(present)
    values = values or _RandomValues()
    for index, (leaf, value) in enumerate(zip(present, user_values(program), strict=True)):
        if not isinstance(leaf, torch.Tensor):
            continue
        for axis, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                leaf = resampled(leaf, axis, int(plain(size).xreplace(sizes)))
        leaves[index] = values(leaf)
    yield pytree.tree_unflatten(leaves, structure)
    fitted = fitted_lengths(present, leaves)
    if fitted is not None:
        yield pytree.tree_unflatten(fitted, structure)


def in_order(program: torch.export.ExportedProgram, example: Example) -> Example:
    """Return an example whose keywords stand in the order of the captured call."""
    order = program.call_spec.in_spec.children()[1].context
    return tuple(example[0]), {name: example[1][name] for name in order}


def used_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes that what is returned, written or asserted of values depends on."""
    used = set[torch.fx.Node]()
    for node in reversed(graph.nodes):
        # torch notes the dtype of each tensor that is cast.
        is_effect = node.is_impure() and node.target is not torch.ops.aten._assert_tensor_metadata.default
        if node.op == "output" or is_effect or not used.isdisjoint(node.users):
            used.add(node)
    return used


def user_values(program: torch.export.ExportedProgram) -> list[Any]:
    """Return the captured values of the arguments, leaf by leaf."""
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = program.graph_signature.input_specs
    pairs = zip(placeholders, specs, strict=True)
    return [node.meta.get("val") for node, spec in pairs if spec.kind is InputKind.USER_INPUT]


@dataclasses.dataclass(frozen=True)
class _Step:
    """A node of a graph, and what is looked up of it once for all runs.

    Attributes:
        node: The node.
        noted: What was noted of its value at capture; None where the value is not used.
        shape: Its shape as noted, if it is one tensor: the place in what all nodes share.
        ends: The nodes whose values nothing reads after it.
    """

    node: torch.fx.Node
    noted: Any
    shape: int | None
    ends: Sequence[torch.fx.Node]


class _CapturedGraph:
    """Runs a captured graph without its guards, as long as values have the shapes that were noted at capture.

    Operators are exported for these. A graph runs several times, so that little is done for a node beside its call.

    Args:
        program: What was captured.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program, self._written = program, written_inputs(program.graph)
        used, read = used_nodes(program.graph), set[torch.fx.Node]()
        shapes: dict[_NotedShape, int] = {}
        self._steps: list[_Step] = []
        for node in reversed(program.graph.nodes):
            ends = [operand for operand in node.all_input_nodes if operand not in read]
            read.update(ends)
            noted = node.meta.get("val") if node in used else None
            shape = shapes.setdefault(_noted_shape(noted), len(shapes)) if isinstance(noted, torch.Tensor) else None
            self._steps.append(_Step(node, noted, shape, ends))
        self._steps.reverse()
        self._shapes = list(shapes)

    def results(self, call: Example, sizes: Mapping[sympy.Symbol, sympy.Integer]) -> list[Any]:
        """Return the leaves of what the graph gives for a call.

        Args:
            call: The arguments.
            sizes: Their sizes by symbol.

        Raises:
            Exception: Whatever the graph raises, and where one of its values has not the shape that was noted.
        """
        with torch.no_grad(), same_random_numbers():
            results = self._run(self._inputs(copy.deepcopy(call)), _NotedSizes(self._shapes, sizes))
        kinds = self._program.graph_signature.output_specs
        return [result for result, spec in zip(results, kinds, strict=True) if spec.kind is OutputKind.USER_OUTPUT]

    def _inputs(self, call: Example) -> Iterator[Any]:
        """Yield the values of the placeholders; copies of those that the graph writes to."""
        user = iter(pytree.tree_leaves(call))
        own = {**self._program.constants, **self._program.state_dict}
        places = self._program.graph.find_nodes(op="placeholder")
        for place, spec in zip(places, self._program.graph_signature.input_specs, strict=True):
            value = next(user) if spec.kind is InputKind.USER_INPUT else own[str(spec.target)]
            yield value.detach().clone() if place in self._written and isinstance(value, torch.Tensor) else value

    def _run(self, inputs: Iterator[Any], sizes: _NotedSizes) -> Any:
        values: dict[torch.fx.Node, Any] = {}
        for step in self._steps:
            node: Any = step.node
            if node.op == "output":
                break
            if node.op == "placeholder":
                value = next(inputs)
            elif node.op == "get_attr":
                value = operator.attrgetter(node.target)(self._program.graph_module)
            else:
                value = _called(node.target, *map_arg((node.args, node.kwargs), values.__getitem__))
            if step.noted is not None:
                sizes.check(step, value)
            values[node] = value
            for end in step.ends:
                del values[end]
        return map_arg(node.args[0], values.__getitem__)


def _called(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function; of a loop over no rows, which torch does not run, return what it begins with."""
    if target is torch.ops.higher_order.scan:
        body, initial, scanned, *_ = args
        (results,) = body.graph.find_nodes(op="output")
        if not len(scanned[0]) and len(results.args[0]) == len(initial):
            return tuple(value.clone() for value in initial)
    return target(*args, **kwargs)


# Sizes, and what those that are dynamic are in the symbols of the capture.
_NotedShape = tuple[int | sympy.Expr, ...]


def _noted_shape(noted: torch.Tensor) -> _NotedShape:
    return tuple(size if isinstance(size, int) else size.node.expr for size in noted.shape)


class _NotedSizes:
    """Compares shapes with those that were noted at capture.

    Args:
        shapes: The shapes that were noted.
        sizes: The sizes of the run by symbol.
    """

    def __init__(self, shapes: Sequence[_NotedShape], sizes: Mapping[sympy.Symbol, sympy.Integer]) -> None:
        self._sizes = sizes
        self._known: dict[sympy.Expr, int | None] = {}
        self._shapes = [self._here(shape) for shape in shapes]

    def check(self, step: _Step, value: Any) -> None:
        """Compare what a node gave.

        Raises:
            ValueError: If it has another shape than noted, or is no integer where one is noted.
        """
        # What one operator gives is mostly one tensor, and looking for leaves costs more than to run it.
        if step.shape is not None and isinstance(value, torch.Tensor):
            self._compare(step, value, self._shapes[step.shape])
            return
        if isinstance(step.noted, torch.SymInt) and isinstance(value, float):
            # Python makes a fraction of a power whose exponent is negative.
            raise ValueError(f"{step.node} is {value}, which is no integer")
        if step.node.op != "placeholder":
            for found, noted in zip(pytree.tree_leaves(value), pytree.tree_leaves(step.noted), strict=False):
                if isinstance(found, torch.Tensor) and isinstance(noted, torch.Tensor):
                    self._compare(step, found, self._here(_noted_shape(noted)))

    def _compare(self, step: _Step, found: torch.Tensor, shape: tuple[int | None, ...]) -> None:
        if found.shape == shape:
            return
        if any(size != actual for size, actual in zip(shape, found.shape, strict=True) if size is not None):
            raise ValueError(f"{step.node} has shape {found.shape}, not {shape}")

    def _here(self, shape: _NotedShape) -> tuple[int | None, ...]:
        return tuple(size if isinstance(size, int) else self._at(size) for size in shape)

    def _at(self, expression: sympy.Expr) -> int | None:
        """Return what a size is here; None if it is not known."""
        if expression not in self._known:
            value = as_plain(expression).xreplace(self._sizes)
            self._known[expression] = int(value) if value.is_Integer else None
        return self._known[expression]
