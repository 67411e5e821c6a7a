"""What a run of a model binds anew in its modules, of which tracing records nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["ModuleAttributes", "kept_attributes"]

# Their contents are looked at one by one, or never change what a call computes.
_REGISTRIES = ("_parameters", "_buffers", "_modules", "training")


class ModuleAttributes:
    """The attributes of all modules of a model, as they were when this was made."""

    def __init__(self, model: Any) -> None:
        modules = list(model.named_modules()) if isinstance(model, torch.nn.Module) else []
        # Scripted modules record what they do by themselves.
        self._before = [
            (path, module, dict(vars(module)), dict(module._buffers), _contents(module))
            for path, module in modules
            if not isinstance(module, torch.jit.ScriptModule)
        ]
        self._data = [(buffer, buffer.detach().clone()) for buffer in (model.buffers() if modules else ())]

    def rebound_buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that take the place of buffers now, by qualified name."""
        return {
            _joined(path, name): after
            for path, module, _, buffers, _ in self._before
            for name, before in buffers.items()
            if (after := module._buffers.get(name)) is not before and isinstance(after, torch.Tensor)
        }

    def changed(self) -> list[tuple[str, torch.nn.Module, str]]:
        """Return the other attributes that hold something else now: qualified name, module and name."""
        found: list[tuple[str, torch.nn.Module, str]] = []
        for path, module, before, _, contents in self._before:
            now = vars(module)
            for name, value in before.items():
                if name not in _REGISTRIES and (
                    not _same(value, now.get(name)) or (name in contents and not _same_items(contents[name], value))
                ):
                    found.append((_joined(path, name), module, name))
        return found

    def restore(self) -> None:
        """Give the modules their attributes back, and the buffers their contents."""
        for _, module, before, buffers, contents in self._before:
            now = vars(module)
            for name in [name for name in now if name not in before]:
                del now[name]
            now.update(before)
            module._buffers.clear()
            module._buffers.update(buffers)
            for name, items in contents.items():
                if not _same_items(items, before[name]):
                    before[name].clear()
                    (before[name].update if isinstance(items, dict) else before[name].extend)(items)
        with torch.no_grad():
            for buffer, data in self._data:
                buffer.copy_(data)


@contextmanager
def kept_attributes(model: Any) -> Iterator[ModuleAttributes]:
    """Undo what a run of the model does to its modules."""
    attributes = ModuleAttributes(model)
    try:
        yield attributes
    finally:
        attributes.restore()


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _contents(module: torch.nn.Module) -> dict[str, Any]:
    """Return copies of the user's lists and dicts among the attributes of a module; torch's own begin with ``_``."""
    return {
        name: value.copy()
        for name, value in vars(module).items()
        if type(value) in (list, dict) and not name.startswith("_")
    }


def _same(before: Any, after: Any) -> bool:
    return before is after or (isinstance(before, bool | int | float | str) and before == after)


def _same_items(before: Any, after: Any) -> bool:
    if len(before) != len(after):
        return False
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_same(before[key], after[key]) for key in before)
    return all(map(_same, before, after))
