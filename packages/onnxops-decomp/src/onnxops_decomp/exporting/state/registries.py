"""Parameters and buffers that a call of a model binds anew: ``self.last = x`` where ``last`` is a buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from onnxops_decomp.exporting.state.containers import MISSING, Items
from onnxops_decomp.exporting.state.inventory import Change
from onnxops_decomp.exporting.state.memory import with_line

__all__ = ["Rebound", "Registries"]

_APART = "The values of an ONNX model are apart from each other: bind a clone, or write to both of them."


@dataclasses.dataclass(frozen=True, eq=False)
class Rebound:
    """An entry of a registry that is another one than before.

    Attributes:
        slot: The registry.
        name: Name of the entry.
        before: What it was, or ``MISSING``.
        after: What it is, or ``MISSING``.
    """

    slot: _Slot
    name: str
    before: Any
    after: Any

    @property
    def target(self) -> str:
        """The qualified name of the entry."""
        return self.slot.target(self.name)

    @property
    def of_tensors(self) -> bool:
        """Whether a tensor took the place of another one."""
        return isinstance(self.before, torch.Tensor) and isinstance(self.after, torch.Tensor)

    @property
    def fits(self) -> bool:
        """Whether that tensor has the dtype of the other one, and its shape, which is constant."""
        if not self.of_tensors or self.before.dtype != self.after.dtype:
            return False
        return all(isinstance(size, int) for size in self.after.shape) and self.before.shape == self.after.shape

    def change(self) -> Change:
        """Return it as a change of the module, which has its own entries again."""
        record = Items(self.slot.path, self.slot.registry, self.slot.module)
        return Change(self.target, record, self.name, self.before, self.after)


@dataclasses.dataclass(frozen=True, eq=False)
class _Slot:
    """The parameters or the buffers of a module."""

    path: str
    module: torch.nn.Module
    attribute: str
    registry: dict[str, Any]
    before: dict[str, Any]

    def now(self) -> dict[str, Any]:
        registry: dict[str, Any] = vars(self.module)[self.attribute]
        return registry

    def target(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


class Registries:
    """The parameters and buffers of the modules of a model.

    Args:
        model: The model; a function has none.
    """

    def __init__(self, model: Any) -> None:
        modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
        # Scripted modules record what they do by themselves; other classes of registries watch who reads them.
        self._slots = [
            _Slot(path, module, attribute, registry, dict(registry))
            for path, module in modules
            if not isinstance(module, torch.jit.ScriptModule)
            for attribute in ("_parameters", "_buffers")
            if type(registry := vars(module)[attribute]) is dict
        ]

    def rebound(self) -> list[Rebound]:
        """Return the entries that are others than before."""
        return [
            Rebound(slot, name, slot.before.get(name, MISSING), now.get(name, MISSING))
            for slot in self._slots
            for now in (slot.now(),)
            for name in {**slot.before, **now}
            if slot.before.get(name, MISSING) is not now.get(name, MISSING)
        ]

    def owner(self, target: str) -> torch.nn.Module | None:
        """Return the module whose entry a qualified name is."""
        return next((slot.module for slot in self._slots if slot.path == target.rpartition(".")[0]), None)

    def restore(self) -> None:
        """Give the modules their entries back."""
        for slot in self._slots:
            vars(slot.module)[slot.attribute] = slot.registry
            before = slot.before
            if list(slot.registry) != list(before) or any(slot.registry[name] is not before[name] for name in before):
                slot.registry.clear()
                slot.registry.update(before)

    def check_tied(
        self, rebound: Sequence[Rebound], line: Callable[[str], str], refuse: Callable[[str], Exception]
    ) -> None:
        """Refuse entries that were the same tensor as others, which they are no more.

        Args:
            rebound: The entries that are others than before.
            line: Returns the line that changes an entry, by its qualified name.
            refuse: Makes the exception.
        """
        for each in rebound:
            for target, before in self._entries():
                if target != each.target and _share(before, each.before):
                    raise refuse(
                        f"The model binds {with_line(each.target, line(each.target))} anew, which shared its memory "
                        f"with {target}. {_APART}"
                    )

    def _entries(self) -> Iterator[tuple[str, Any]]:
        for slot in self._slots:
            for name in slot.now():
                yield slot.target(name), slot.before.get(name)


def _share(first: Any, second: Any) -> bool:
    tensors = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    return tensors and first.untyped_storage() is second.untyped_storage()
