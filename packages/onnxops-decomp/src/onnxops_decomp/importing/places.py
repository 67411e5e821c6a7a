"""Where the weights and bodies of a file lie in a module: under their names, as far as these are free."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

from onnxops_decomp.importing.module import ImportedModule
from onnxops_decomp.importing.values import identifier

__all__ = ["free_place"]

_DEEPEST = 16


def free_place(owner: torch.nn.Module, name: str) -> tuple[str, torch.nn.Module, str]:
    """Return a place for what has a name in the file; modules are made for the parts of the name before the last.

    Args:
        owner: Module whose contents become those of an :class:`ImportedModule`.
        name: Name in the file.

    Returns:
        The path of the place, the module that holds it, and the name in that.
    """
    parts = [identifier(part) for part in name.split(".") if part] or ["constant"]
    if len(parts) > _DEEPEST or not _fits(owner, parts):
        parts = [identifier(name)]
    base, count = parts[-1], 0
    while not _fits(owner, parts):
        count += 1
        parts[-1] = f"{base}_{count}"
    holder = owner
    for folder in parts[:-1]:
        if not hasattr(holder, folder):
            holder.add_module(folder, torch.nn.Module())
        holder = getattr(holder, folder)
    return ".".join(parts), holder, parts[-1]


def _fits(owner: torch.nn.Module, parts: list[str]) -> bool:
    if parts[0] in _reserved_names():
        return False
    holder: Any = owner
    for part in parts[:-1]:
        if not hasattr(holder, part):
            return True
        holder = getattr(holder, part)
        if type(holder) is not torch.nn.Module:
            return False
    return not hasattr(holder, parts[-1])


@functools.cache
def _reserved_names() -> frozenset[str]:
    """Return the names that an imported module has for itself."""
    return frozenset(dir(ImportedModule(torch.nn.Module(), fx.Graph())))
