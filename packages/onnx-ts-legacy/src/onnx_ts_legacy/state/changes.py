"""Whether a later call depends on what a scripted program changes beside tensors, and where it does so."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy.graph.sources import source_line
from onnx_ts_legacy.state.values import DictRef, ListRef, Maybe, Poison, Storage, Tensor, is_runtime
from onnxops_decomp.exporting import AtenTrait, differs_apart_in_copies, has_aten_trait, lasting_in_copies

__all__ = ["changing_line", "differs_apart", "is_fixed", "is_read", "lasting", "meetings"]

_FILLED = ("append", "extend", "insert", "clear", "pop", "remove", "Delete", "_set_item", "update")
_FILLING = frozenset(f"aten::{name}" for name in _FILLED)


def is_read(graph: Any, name: str) -> bool:
    """Tell whether a program uses an attribute otherwise than to change it.

    Args:
        graph: The program.
        name: Name of the attribute in its module.
    """
    waiting = [node.output() for node in _accesses(graph, "prim::GetAttr", name)]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        for use in value.uses() if value.unique() not in seen else ():
            node, kind = use.user, use.user.kind()
            if kind == "prim::SetAttr" and node.s("name") == name:
                continue
            if not has_aten_trait(kind, AtenTrait.ARITHMETIC) and not (kind in _FILLING and use.offset == 0):
                return True
            waiting.extend(node.outputs())
        seen.add(value.unique())
    return False


def changing_line(graph: Any, name: str) -> str:
    """Return ``file:line`` of what sets or fills an attribute, or uses it; an empty string if it is not known."""
    uses = [use for node in _accesses(graph, "prim::GetAttr", name) for use in node.output().uses()]
    filling = [use.user for use in uses if use.user.kind() in _FILLING and use.offset == 0]
    # A node that sets an attribute has no line of its own.
    waiting = [*(node.inputsAt(1).node() for node in _accesses(graph, "prim::SetAttr", name)), *filling]
    found: list[Any] = []
    for node in waiting:
        found.append(node)
        waiting.extend(value.node() for value in node.inputs() if value.node() not in found)
    nodes = (*found, *(use.user for use in uses))
    return next((line for node in nodes if (line := source_line(node))), "")


def _accesses(graph: Any, kind: str, name: str) -> Iterable[Any]:
    return (node for node in graph.findAllNodes(kind) if node.s("name") == name)


def is_fixed(value: Any) -> bool:
    """Tell whether a variable of the program is the same sort of thing whatever the data is."""
    if isinstance(value, ListRef | DictRef):
        value = value.state
    if isinstance(value, tuple | dict):
        return all(map(is_fixed, value.values() if isinstance(value, dict) else value))
    return not is_runtime(value) and not isinstance(value, Maybe | Poison)


def lasting(root: Any, paths: Collection[str], inputs: Sequence[Any]) -> set[str]:
    """Return those of the attributes of a program whose changes make a difference to a later call, or may make one.

    Args:
        root: The module, of which copies are run.
        paths: Paths of the attributes.
        inputs: Example arguments.
    """
    call, leaves = _caller(inputs)

    def held(module: Any) -> dict[str, Any]:
        return {path: functools.reduce(_attribute, path.split("."), module) for path in paths}

    return lasting_in_copies(root, call, held, leaves) if paths else set()


@dataclasses.dataclass(frozen=True)
class Meeting:
    """An attribute that shows the memory of another one in the end.

    Attributes:
        path: Path of the attribute, which the program set.
        other: That of the other one.
        is_certain: Whether it does so on all paths of the program; else something is written to one of them.
    """

    path: str
    other: str
    is_certain: bool


def meetings(first: Mapping[str, Tensor], changed: Mapping[str, Any]) -> list[Meeting]:
    """Return where attributes meet, the uncertain ones first.

    Args:
        first: What the attributes of tensors held before, by path.
        changed: What those hold in the end that the program changed.
    """
    variables = {**first, **changed}
    holders: dict[Storage, list[str]] = collections.defaultdict(list)
    for path, value in variables.items():
        for tensor in _tensors(value):
            holders[tensor.storage].append(path)
    found: list[Meeting] = []
    for path in changed:
        for own in (tensor.storage for tensor in _tensors(variables[path])):
            for storage in own.shown:
                others = [other for other in holders.get(storage, ()) if other != path]
                before = [first[name].storage for name in (path, *others) if name in first]
                is_written = any(each.is_changed for each in (*own.shown, *storage.shown, *before))
                if others and (storage is own or is_written):
                    found.append(Meeting(path, others[0], storage is own))
    return sorted(found, key=lambda each: each.is_certain)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    items = value.items if isinstance(value, ListRef | DictRef) else value
    if isinstance(items, tuple | dict):
        for part in items.values() if isinstance(items, dict) else items:
            yield from _tensors(part)


def differs_apart(root: Any, paths: Collection[str], inputs: Sequence[Any]) -> bool:
    """Tell whether it makes a difference to a later call that attributes show the same memory, or may make one.

    Args:
        root: The module, of which copies are run.
        paths: Paths of the attributes.
        inputs: Example arguments.
    """
    call, leaves = _caller(inputs)

    def owners(module: Any) -> Iterable[tuple[Any, str]]:
        found = {place: owner for path in paths for owner, place in (_place(module, path),)}
        return [(owner, place.rpartition(".")[2]) for place, owner in found.items()]

    def take_apart(module: Any) -> None:
        for owner, name in owners(module):
            owner.setattr(name, pytree.tree_map_only(torch.Tensor, torch.clone, owner.getattr(name)))

    def held(module: Any) -> list[Any]:
        return [owner.getattr(name) for owner, name in owners(module)]

    return differs_apart_in_copies(root, call, held, take_apart, leaves)


def _caller(inputs: Sequence[Any]) -> tuple[Callable[[Any, Sequence[Any]], Any], list[Any]]:
    """Return what calls a module on flat leaves, and those of the example."""
    leaves, structure = pytree.tree_flatten(list(inputs))

    def call(module: Any, given: Sequence[Any]) -> Any:
        return module._get_method("forward")(*pytree.tree_unflatten(list(given), structure))

    return call, leaves


def _place(module: Any, path: str) -> tuple[Any, str]:
    """Return the module that has an attribute, and the path of that; the path of an item goes on behind it."""
    owner, known = module, list[str]()
    for name in path.split("."):
        value = owner.getattr(name)
        known.append(name)
        if not isinstance(value, torch.ScriptObject):
            break
        owner = value
    return owner, ".".join(known)


def _attribute(owner: Any, name: str) -> Any:
    return owner.getattr(name)
