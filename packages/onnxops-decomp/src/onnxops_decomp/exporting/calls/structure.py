"""How an exported model is called in torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.calls.containers import register_containers
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
        defaults: Values of the parameters that a call may leave out.
    """

    inputs: pytree.TreeSpec
    outputs: pytree.TreeSpec
    parameters: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        program: torch.export.ExportedProgram,
        parameters: Sequence[str],
        defaults: Mapping[str, Any],
    ) -> CallStructure:
        """Return the structure that a captured program was called with.

        Args:
            program: The captured program.
            parameters: Names of the model's positional parameters; one that collects others begins with an asterisk.
            defaults: Values of the parameters that a call may leave out.
        """
        single = tuple(itertools.takewhile(lambda name: not name.startswith("*"), parameters))
        return cls(program.call_spec.in_spec, program.call_spec.out_spec, single, defaults)

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the leaves of a call in the order of the exported one.

        Arguments may be given by position or by keyword, as in a call of the model itself.

        Raises:
            InvalidArgumentError: If the call has another structure.
        """
        register_containers([*args, *kwargs.values()])
        arranged = self._arranged(tuple(args), dict(kwargs))
        leaves = _leaves(arranged, self.inputs)
        if leaves is None:
            raise InvalidArgumentError(self._difference(arranged))
        return leaves

    def keywords(self) -> set[str]:
        """Return the names that a call may use for its arguments."""
        return {*self.parameters, *self._form()[1]}

    def _arranged(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call by position or keyword as the exported call gave them, where that can be."""
        count, order = self._form()
        given = dict(zip(self.parameters, args, strict=False))
        names = self.parameters[:count]
        if len(args) > len(self.parameters) or len(names) < count or given.keys() & kwargs.keys():
            return args, {name: kwargs[name] for name in order} if kwargs.keys() == {*order} else kwargs
        given |= kwargs
        exported = {*names, *order}
        given = {name: value for name, value in given.items() if name in exported or not self._is_default(name, value)}
        given |= {name: value for name, value in self.defaults.items() if name in exported - given.keys()}
        if given.keys() != exported:
            return args, kwargs
        return tuple(given[name] for name in names), {name: given[name] for name in order}

    def _is_default(self, name: str, value: Any) -> bool:
        """Tell whether a call passes what the model would take without it."""
        if name not in self.defaults:
            return False
        default = self.defaults[name]
        return value is default or (type(value) is type(default) and _is_plain(value) and value == default)

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
            if _leaves(value, wanted) is None
        )
        other = _shown(pytree.tree_structure(value))
        return f"The argument {name} was exported as {_shown(wanted)}, this call has {other}."

    def _names(self, count: int) -> list[str]:
        return [*self.parameters[:count], *(str(index) for index in range(len(self.parameters), count))]


def _is_plain(value: Any) -> bool:
    """Tell whether a value is a number or text of Python, which can be compared."""
    return isinstance(value, bool | int | float | complex | str)


def _leaves(value: Any, structure: pytree.TreeSpec) -> list[Any] | None:
    """Return the leaves of a value in the order of a structure, whatever the order of its dicts; None if it differs."""
    try:
        leaves = structure.flatten_up_to(value)
    except (ValueError, KeyError):  # of a class that is a container during a capture alone, as modules are
        return None
    return leaves if all(pytree.tree_structure(leaf).is_leaf() for leaf in leaves) else None


def _listed(count: int, parameters: Sequence[str], keywords: Sequence[str]) -> str:
    """Return the arguments of a call as a reader knows them."""
    positional = [*parameters[:count], *("*" for _ in range(count - len(parameters)))]
    return f"({', '.join([*positional, *(f'{name}=' for name in keywords)])})"


def _shown(structure: pytree.TreeSpec) -> str:
    return "one value" if structure.is_leaf() else str(structure)
