"""Runs of a model that take each way that data chooses between, to compare what was captured of it."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterator

import torch

from onnx_fx_export.capture.conditions.answers import noted_ways, way_mark
from onnx_fx_export.capture.torch_export import Recorded, Run
from onnx_fx_export.errors import CaptureError
from onnx_fx_export.sizes.trial_runs import TrialRuns, TrialValues
from onnxops_core.exporting import warn_user

__all__ = ["compare_each_way"]

# How many operators before a condition are searched for numbers that it compares with.
_SEARCHED, _MOST_BOUNDS = 12, 4
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
# A place in the code, how often it was passed before in the same run, and the answer there.
_Way = tuple[str, int, bool]


def compare_each_way(recorded: Recorded, run: Run) -> None:
    """Compare model and program on inputs that take each way, as far as some are found, and take the marks away.

    Raises:
        CaptureError: If they differ.
    """
    modules = [each for each in recorded.program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]
    marks = [mark for each in modules for mark in each.graph.find_nodes(op="call_function", target=way_mark())]
    if not marks:
        return
    places = {str(mark.args[1]) for mark in marks}
    trials = TrialRuns(recorded.program, run.request.model, run.example, run.request.trial_runs)
    taken: set[_Way] = set()
    for values in (None, *_inputs(_bounds(marks))):
        with noted_ways() as passed:
            right = trials.agree_on_example(values=values)
        if right is False:
            raise CaptureError("The captured program differs from the model where the data takes another path.")
        if right:
            taken.update(_numbered(passed))
        if not (left := _left(places, taken)):
            break
    else:
        _warn(left)
    for mark in marks:
        mark.graph.erase_node(mark)
    for each in modules:
        each.recompile()


def _numbered(passed: list[tuple[str, bool]]) -> Iterator[_Way]:
    counts = collections.Counter[str]()
    for place, answer in passed:
        yield place, counts[place], answer
        counts[place] += 1


def _left(places: set[str], taken: set[_Way]) -> list[tuple[str, bool]]:
    """Return places and answers that no run had there; a place that is passed more than once has each of them."""
    passed = {(place, count) for place, count, _ in taken} | {(place, 0) for place in places}
    ways = ((*where, answer) for where in passed for answer in (True, False))
    return sorted({(place, answer) for place, count, answer in ways if (place, count, answer) not in taken})


def _warn(left: list[tuple[str, bool]]) -> None:
    lines = "\n".join(f"  {place}: {'true' if answer else 'false'}" for place, answer in left)
    warn_user(
        "The model was captured with both answers to each condition, but no inputs were found that reach these "
        f"answers, so that the graph could not be compared with the model there:\n{lines}\nVerify the program with "
        "inputs of your own that reach them."
    )


# ---- inputs


def _same(values: torch.Tensor) -> torch.Tensor:
    return values


def _inputs(bounds: list[float]) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Yield what inputs may be: the likeliest to take another way first.

    Args:
        bounds: Numbers that conditions compare with.
    """
    yield _same
    yield TrialValues(torch.neg, torch.zeros_like, False)
    yield TrialValues(lambda x: x.abs() + 1, torch.ones_like, True)
    # A mask may have more marks than those of the example.
    yield TrialValues(_same, lambda x: x + 1, None)
    yield TrialValues(lambda x: -x.abs() - 1, _reversed, None)
    yield TrialValues(lambda x: _first(x.abs(), -x.abs()), lambda x: _first(x, torch.zeros_like(x)), None)
    yield TrialValues(lambda x: _first(-x.abs(), x.abs()), lambda x: _first(torch.zeros_like(x), x), None)
    yield TrialValues(torch.zeros_like, _same, None)
    yield TrialValues(torch.ones_like, _largest, True)
    yield TrialValues(lambda x: x * 1000, _same, False)
    yield TrialValues(lambda x: x / 1000, _same, True)
    yield TrialValues(_constant(1e4), _same, None)
    yield TrialValues(_constant(-1e4), _same, None)
    for bound, change in itertools.product(bounds, (1, -1, 0)):
        yield TrialValues(_constant(bound + change), _constant(int(bound) + change), None)
    for seed, scale in itertools.product(range(1, 5), (1.0, 3.0)):
        yield TrialValues(functools.partial(torch.mul, scale), _same, None, seed)


def _constant(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda values: torch.full_like(values, value)


def _first(first: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose first part is that of another one."""
    return torch.cat([first[:1], others[1:]]) if first.dim() else first


def _reversed(values: torch.Tensor) -> torch.Tensor:
    return values.flip([*range(values.dim())])


def _largest(values: torch.Tensor) -> torch.Tensor:
    return torch.full_like(values, int(values.max())) if values.numel() else values


def _bounds(marks: list[torch.fx.Node]) -> list[float]:
    """Return the numbers that conditions compare with."""
    found: dict[float, None] = {}
    for mark in marks:
        searched = dict.fromkeys(mark.all_input_nodes)
        for node in itertools.islice(_growing(searched), _SEARCHED):
            name = str(node.target).split(".")
            if len(name) > 1 and name[1] in _COMPARISONS:
                numbers = [each for each in node.args if isinstance(each, int | float) and each not in (0, 1)]
                found |= dict.fromkeys(map(float, numbers))
    return [*found][:_MOST_BOUNDS]


def _growing(nodes: dict[torch.fx.Node, None]) -> Iterator[torch.fx.Node]:
    """Yield nodes and what they are computed from, the nearest first."""
    seen = [*nodes]
    for node in seen:
        yield node
        for used in node.all_input_nodes:
            if used not in nodes:
                nodes[used] = None
                seen.append(used)
