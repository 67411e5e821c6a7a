"""How an exported model is called in torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.errors import InvalidArgumentError

__all__ = ["CallStructure"]


@dataclasses.dataclass(frozen=True)
class CallStructure:
    """How the model is called in torch.

    Attributes:
        inputs: Structure of ``(args, kwargs)``.
        outputs: Structure of the result.
        parameters: Names of the model's positional parameters, as far as they are known, whether the exported call
            gave them by position or by keyword.
    """

    inputs: pytree.TreeSpec
    outputs: pytree.TreeSpec
    parameters: tuple[str, ...] = ()

    @classmethod
    def of(cls, program: torch.export.ExportedProgram, parameters: Sequence[str]) -> CallStructure:
        """Return the structure that a captured program was called with.

        Args:
            program: The captured program.
            parameters: Names of the model's positional parameters; one that collects others begins with an asterisk.
        """
        single = tuple(itertools.takewhile(lambda name: not name.startswith("*"), parameters))
        return cls(program.call_spec.in_spec, program.call_spec.out_spec, single)

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the leaves of a call in the order of the exported one.

        Arguments may be given by position or by keyword, as in a call of the model itself.

        Raises:
            InvalidArgumentError: If the call has another structure.
        """
        arranged = self._arranged(tuple(args), dict(kwargs))
        leaves, structure = pytree.tree_flatten(arranged)
        if structure != self.inputs:
            raise InvalidArgumentError(self._difference(arranged))
        return leaves

    def _arranged(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call by position or keyword as the exported call gave them, where that can be."""
        count, order = self._form()
        given = dict(zip(self.parameters, args, strict=False))
        if len(args) > len(self.parameters) or given.keys() & kwargs.keys():
            return args, kwargs
        given |= kwargs
        names = self.parameters[:count]
        if len(names) < count or given.keys() != {*names, *order}:
            return args, kwargs
        return tuple(given[name] for name in names), {name: given[name] for name in order}

    def _form(self) -> tuple[int, list[str]]:
        """Return how many arguments the exported call gave by position, and the names of the others."""
        positional, keyword = self.inputs.children()
        return positional.num_children, list(keyword.context)

    def _difference(self, arranged: tuple[tuple[Any, ...], dict[str, Any]]) -> str:
        """Tell what an argument should have been."""
        (args, kwargs), (count, order) = arranged, self._form()
        if len(args) != count or kwargs.keys() != set(order):
            given = _listed(len(args), self.parameters, list(kwargs))
            return f"The model was exported for the arguments {_listed(count, self.parameters, order)}, not {given}."
        positional, keyword = self.inputs.children()
        expected = [*positional.children(), *keyword.children()]
        names = [*self._names(count), *order]
        values = [*args, *(kwargs[name] for name in order)]
        name, value, wanted = next(
            (name, value, wanted)
            for name, value, wanted in zip(names, values, expected, strict=True)
            if pytree.tree_structure(value) != wanted
        )
        other = _shown(pytree.tree_structure(value))
        return f"The argument {name} was exported as {_shown(wanted)}, this call has {other}."

    def _names(self, count: int) -> list[str]:
        return [*self.parameters[:count], *(str(index) for index in range(len(self.parameters), count))]


def _listed(count: int, parameters: Sequence[str], keywords: Sequence[str]) -> str:
    """Return the arguments of a call as a reader knows them."""
    positional = [*parameters[:count], *("*" for _ in range(count - len(parameters)))]
    return f"({', '.join([*positional, *(f'{name}=' for name in keywords)])})"


def _shown(structure: pytree.TreeSpec) -> str:
    return "one value" if structure.is_leaf() else str(structure)
