"""Captures of a model at other sizes than the example's, over the names of the first capture's dimensions."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

import sympy
import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.capture.exported_program import capture_example
from onnx_fx_export.capture.request import CapturedProgram, CaptureRequest
from onnx_fx_export.capture.strategies import NON_STRICT
from onnx_fx_export.size_ways.points import Point, meet, unlike
from onnx_fx_export.sizes.questions import Sizes, answered, sliced
from onnx_fx_export.sizes.trial_runs import TrialRuns, calls_at, in_order, plain, user_values
from onnx_fx_export.torch_private import hint_of
from onnxops_decomp.exporting import Example, ONNXProgram, Way, at_sizes

__all__ = ["WAYS_OF_SIZES", "CapturedWay", "Captures", "Convert", "WayOf", "count_nodes"]

#: The stage in which the model is captured at sizes of other answers.
WAYS_OF_SIZES = "ways of sizes"
#: Makes the ONNX program of a captured one.
Convert = Callable[[CapturedProgram], ONNXProgram]
#: Returns a program as a way beside another one; None if it is none.
WayOf = Callable[[ONNXProgram, ONNXProgram], Way | None]


def count_nodes(program: torch.export.ExportedProgram) -> int:
    """Return how many nodes a captured program has."""
    modules = (module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule))
    return sum(len(module.graph.nodes) for module in modules)


@dataclasses.dataclass(frozen=True)
class CapturedWay:
    """A way that was captured.

    Attributes:
        request: What was captured, with its example.
        captured: The captured program.
        way: Its ONNX program, with its conditions.
    """

    request: CaptureRequest
    captured: CapturedProgram
    way: Way

    @property
    def trials(self) -> TrialRuns:
        """Runs the model and what was captured of it."""
        return TrialRuns(self.captured.program, self.request.model, self.request.example)


class Captures:
    """Captures a model again at sizes that are called as those of a first capture.

    Args:
        convert: Makes the ONNX program of a captured one.
        first: The first capture.

    Attributes:
        first: The first capture.
        present: The sizes that it was captured with.
        wanted: The sizes of the user's example, which may be others.
        bounds: The least and the largest declared size of each dimension.
        asked: The answers that the code of the model was given in it, over symbols that are called as the dimensions.
    """

    def __init__(self, convert: Convert, first: CapturedWay) -> None:
        self.convert, self.first = convert, first
        self._dimensions = first.way.dimensions()
        values = user_values(first.captured.program)
        places = {name: several[0] for name, several in self._dimensions.items()}
        self.present: Point = {name: hint_of(values[leaf].shape[axis]) for name, (leaf, axis) in places.items()}
        leaves = pytree.tree_leaves(in_order(first.captured.program, first.request.example))
        self.wanted: Point = {name: leaves[leaf].shape[axis] for name, (leaf, axis) in places.items()}
        self.bounds = {name: _declared(first.request, several) for name, several in self._dimensions.items()}
        self.asked = self.relations([first], cuts=False)
        self._fitting = [sympy.Eq(*each.args) for each in self.asked if meet(each, self.present)]

    def fits(self, point: Point) -> bool:
        """Tell whether dimensions fit each other that do in the example, as a mask and what it masks are meant to."""
        return not unlike(self._fitting, point)

    def captured(self, example: Example, way_of: WayOf, fixed: Sequence[str] = ()) -> CapturedWay | None:
        """Return a capture with another example; None if it is no way beside the first one.

        Args:
            example: The example.
            way_of: Returns a program as a way beside the first one.
            fixed: Dimensions that become static.

        Raises:
            OnnxExporterError: If the model cannot be captured, or not be converted.
        """
        places = {place for name in fixed for place in self._dimensions[name]}
        request = self.first.request.at(example, places)
        captured = capture_example(request, self.first.captured.strategy or NON_STRICT.name)
        way = way_of(self.convert(captured), self.first.way.program)
        return None if way is None else CapturedWay(request, captured, way)

    def example(self, point: Point) -> Example | None:
        """Return the example at other sizes; None if the model does not take it."""
        first = self.first
        sizes = self.symbols(first, point)
        expected, _ = first.trials.run(sizes, values=_kept)
        return None if expected is None else next(calls_at(first.captured.program, first.request.example, sizes, _kept))

    def symbols(self, chosen: CapturedWay, point: Point) -> Mapping[sympy.Symbol, sympy.Integer]:
        """Return sizes by the symbols of a captured program."""
        names = self._names(chosen.captured)
        return {symbol: sympy.Integer(point[name]) for symbol, name in names.items()}

    def relations(self, ways: Collection[CapturedWay], *, cuts: bool = True) -> list[sympy.Basic]:
        """Return the answers that the code of the model was given, over symbols that are called as the dimensions.

        Args:
            ways: The ways of which they are wanted.
            cuts: Whether what slices took for granted counts as well.
        """
        found: dict[sympy.Basic, None] = {}
        for captured in (each.captured for each in ways):
            sizes = Sizes.of(captured.program, [{} for _ in user_values(captured.program)])
            called = {symbol: sympy.Symbol(name, integer=True) for symbol, name in self._names(captured).items()}
            asked = answered(captured.program, captured.questions or ())
            if cuts:
                cut = sliced(captured.program)
                asked += [each for each in cut if at_sizes(each.relation, sizes.hints) == sympy.true]
            known = (each.relation for each in sizes.known(asked))
            found |= dict.fromkeys(each.xreplace(called) for each in known if each.free_symbols <= called.keys())
        return [*found]

    def sizes_in(self, way: CapturedWay) -> set[sympy.Basic]:
        """Return the sizes that a program computes, over symbols that are called as the dimensions.

        Args:
            way: The program.
        """
        called = {symbol: sympy.Symbol(name, integer=True) for symbol, name in self._names(way.captured).items()}
        nodes = way.captured.program.graph.nodes
        values = (value for node in nodes for value in pytree.tree_leaves(node.meta.get("val")))
        sizes = (size for each in values for size in (each.shape if isinstance(each, torch.Tensor) else (each,)))
        found = {plain(size) for size in sizes if isinstance(size, torch.SymInt)}
        return {each.xreplace(called) for each in found if each.free_symbols and each.free_symbols <= called.keys()}

    def _names(self, captured: CapturedProgram) -> dict[sympy.Symbol, str]:
        """Return what the first way calls the symbols of a captured program."""
        values = user_values(captured.program)
        places = ((name, place) for name, several in self._dimensions.items() for place in several)
        found = {plain(values[leaf].shape[axis]): name for name, (leaf, axis) in places}
        return {symbol: name for symbol, name in found.items() if symbol.is_Symbol}


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _declared(request: CaptureRequest, places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the least and the largest size that is declared of a dimension."""
    dims = [request.specs[leaf].get(axis) for leaf, axis in places]
    largest = (getattr(dim, "max", None) for dim in dims)
    return (
        max(int(getattr(dim, "min", None) or 0) for dim in dims),
        min(int(most) if isinstance(most, int) else sys.maxsize for most in largest),
    )
