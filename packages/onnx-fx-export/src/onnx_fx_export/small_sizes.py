"""The least sizes that a captured program is right for, where torch took more for granted than it had to.

torch takes every size for 2 or more. Where code computes with sizes, as a shift by one place does with ``length - 1``,
this makes 3 the least length, though nothing in the graph depends on it. Here both the model and the graph run at the
sizes left out, and those at which they agree are left in.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from onnx_fx_export.examples import Example
from onnx_fx_export.size_questions import Sizes
from onnx_fx_export.torch_private import is_without_data
from onnx_fx_export.trial_runs import as_plain, call_at, eager, gives

__all__ = ["LEAST_SIZES", "MOST_LEFT_OUT", "keeps_declared_minimums", "least_sizes", "with_larger_minimums"]

# Key in the ``meta`` of a captured graph: the least size by symbol.
LEAST_SIZES = "onnx_fx_export.least_sizes"
# Larger sizes are not left out by torch's assumption alone.
MOST_LEFT_OUT = 3
# What torch takes for the least size by itself.
_ASSUMED = 2

_SUGGESTION = re.compile(r"(\w+) = Dim\('\w+'(?:, min=(\d+))?(?:, max=(\d+))?\)")


def with_larger_minimums(declared: Any, message: str) -> Any:
    """Return declared dimensions with the least sizes that torch asks for.

    Args:
        declared: Dimensions as torch.export takes them.
        message: What torch says of them. Anything but larger minimums that follow from its assumption is no matter of
            small sizes.

    Returns:
        The dimensions, or None if torch asks for something else.
    """
    lines = [line.strip() for line in message.partition("Suggested fixes:\n")[2].partition("\n\n")[0].splitlines()]
    found = [match for line in lines if (match := _SUGGESTION.fullmatch(line))]
    wanted = {match[1]: (int(match[2] or 0), match[3]) for match in found}
    leaves = [leaf for leaf in pytree.tree_leaves(declared) if hasattr(leaf, "__name__")]
    # The sizes of a derived dimension refer to the declaration that would be replaced.
    if not found or len(found) < len(lines) or any(hasattr(leaf, "root") for leaf in leaves):
        return None
    dims = {leaf.__name__: leaf for leaf in leaves}
    if not all(name in dims and _is_small_change(dims[name], *bounds) for name, bounds in wanted.items()):
        return None
    larger = {name: Dim(name, min=bounds[0], max=dims[name].max) for name, bounds in wanted.items()}
    return pytree.tree_map(lambda leaf: larger.get(getattr(leaf, "__name__", ""), leaf), declared)


def _is_small_change(dim: Any, least: int, most: str | None) -> bool:
    unbounded = most is None and not isinstance(dim.max, int)
    return _ASSUMED < least <= MOST_LEFT_OUT + 1 and (unbounded or str(dim.max) == most)


def least_sizes(
    program: torch.export.ExportedProgram, model: torch.nn.Module, example: Example, specs: Sequence[Mapping[int, Any]]
) -> dict[str, int]:
    """Return for each symbol of which small sizes were left out the least size that the program is right for.

    Args:
        program: What was captured.
        model: The model.
        example: The example arguments.
        specs: Declared dimensions of each of their leaves.

    Warns:
        UserWarning: If the model takes smaller sizes than the program.
    """
    sizes = Sizes.of(program, specs)
    lower = {as_plain(key): found.lower for key, found in program.range_constraints.items() if key.is_Symbol}
    bounds = {symbol: int(least) for symbol, least in lower.items() if symbol in sizes.hints and least.is_Integer}
    left_out = {symbol: least for symbol, least in bounds.items() if _ASSUMED < least <= MOST_LEFT_OUT + 1}
    if not left_out or any(map(is_without_data, (*model.parameters(), *model.buffers()))):
        return {}
    trial = _Trial(program, model, example, sizes)
    result: dict[sympy.Symbol, int] = {}
    for symbol, least in left_out.items():
        while least > max(1, sizes.smallest[symbol]) and trial.agrees({symbol: least - 1}):
            least -= 1
        result[symbol] = least
    if len(result) > 1 and not trial.agrees(result):
        return {}
    return {str(symbol): least for symbol, least in result.items()}


def keeps_declared_minimums(program: torch.export.ExportedProgram, specs: Sequence[Mapping[int, Any]]) -> bool:
    """Tell whether a program captured with larger minimums is right for those that the user gave."""
    least = program.graph_module.meta[LEAST_SIZES]
    declared = Sizes.of(program, specs).smallest
    lower = {str(key): found.lower for key, found in program.range_constraints.items()}
    return all(
        least.get(str(symbol), lower.get(str(symbol), 0)) <= given for symbol, given in declared.items() if given
    )


@dataclasses.dataclass(frozen=True)
class _Trial:
    """Runs a model and what was captured of it at sizes near those of the example."""

    program: torch.export.ExportedProgram
    model: torch.nn.Module
    example: Example
    sizes: Sizes

    def agrees(self, small: Mapping[sympy.Symbol, int]) -> bool:
        """Tell whether both give the same where some sizes are small.

        Warns:
            UserWarning: If the model takes the sizes and the program gives something else.
        """
        wanted = {symbol: sympy.Integer(small.get(symbol, hint)) for symbol, hint in self.sizes.hints.items()}
        try:
            call = call_at(self.program, self.example, wanted)
            expected = eager(self.model, call)
        except Exception:
            # The model itself does not take such sizes.
            return False
        try:
            right = gives(self.program, call, expected)
        except Exception:
            right = False
        if not right:
            warnings.warn(
                f"The model takes size {min(small.values())} of a dynamic dimension, and its capture is right for "
                "larger sizes only; the exported model's program refuses smaller ones. Export it once more for them, "
                "or declare torch.export.Dim(..., min=...) if they do not occur.",
                stacklevel=8,  # the caller of export
            )
        return right
