"""What a forward can reach beside its arguments: taken stock of before a capture, compared at its end, and put back.

The stock is taken of containers: the attributes of modules and of helper objects, lists, dicts, sets and deques, cells
of closures, and the globals that the code names. Tensors are not copied.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.state.code import code_names, line_of, plain_functions

__all__ = ["MISSING", "Change", "Inventory", "kept_inventory"]

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()

_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
_OWN_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
_REGISTRIES = ("_parameters", "_buffers", "_modules")
_LIBRARIES = frozenset(("torch", "numpy", "onnxops_core", "onnxops_decomp", "onnx_fx_export", "onnx_ts_legacy")) | (
    sys.stdlib_module_names - {"__main__"}
)
_CACHED = type(functools.cache(id))
# Of the objects of libraries only these hold what a user puts there.
_HOLDERS = (types.SimpleNamespace, collections.UserDict, collections.UserList)


@dataclasses.dataclass(slots=True, eq=False)
class Record:
    """A container and what it held.

    Attributes:
        path: What leads to it from the model, in dotted form; empty for the model itself.
        target: The container.
        names: For namespaces, the names that the code uses; None for all.
        owner: The module or object by whose attribute it is reached.
        before: Its contents by attribute, key or index.
        is_own: Whether torch keeps it for itself: it is put back and not compared.
    """

    path: str
    target: Any
    names: tuple[str, ...] | None
    owner: Any
    before: dict[Any, Any]
    is_own: bool = False

    def now(self) -> dict[Any, Any]:
        """Return what the container holds now."""
        return _contents(self.target, self.names)

    def put(self, items: dict[Any, Any]) -> None:
        """Let the container hold these items."""
        now = self.now()
        if len(now) != len(items) or any(now.get(key, MISSING) is not value for key, value in items.items()):
            _write(self.target, self.names, items, now)

    def path_of(self, key: Any) -> str:
        """Return the path of an item."""
        return ".".join(part for part in (self.path, str(key)) if part)


@dataclasses.dataclass(frozen=True, eq=False)
class Change:
    """An item that a run of the model replaced.

    Attributes:
        path: What leads to it, such as ``block.cache.l0``.
        record: The container.
        key: Attribute, key or index.
        before: What it held, or ``MISSING``.
        after: What it holds afterwards, or ``MISSING``.
    """

    path: str
    record: Record
    key: Any
    before: Any
    after: Any


class Inventory:
    """What a model can reach.

    Args:
        model: A module, or a function.

    Attributes:
        tensors: The tensors that are neither parameters nor buffers, by path.
        weights: Parameters and buffers, by path.
        functions: The functions that may run, with the objects whose methods they are.
    """

    def __init__(self, model: Any) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self.functions: dict[Callable[..., Any], Any] = {}
        self._records: list[Record] = []
        self._caches: list[tuple[str, Any, int]] = []
        self._flags: list[tuple[torch.Tensor, bool, Any]] = []
        self._seen: set[int] = set()
        self._kept: list[Any] = []
        self._waiting: list[tuple[str, Any, Any]] = [("", model, None)]
        while self._waiting:
            self._visit(*self._waiting.pop())

    def changes(self) -> list[Change]:
        """Return what is another object, number or text than before. To be called while the capture still runs."""
        found: list[Change] = []
        for record in self._records:
            if record.is_own:
                continue
            now, before = record.now(), record.before
            for key in {**before, **now} if len(before) != len(now) else before:
                old, new = before.get(key, MISSING), now.get(key, MISSING)
                if old is not new and not _is_internal(record.target, key) and not same(old, new):
                    found.append(Change(record.path_of(key), record, key, old, new))
        for path, cache, size in self._caches:
            if cache.cache_info().currsize > size and _holds_tensors(cache):
                found.append(Change(path, Record(path, cache, None, None, {}), "", MISSING, cache))
        return found

    def holding(self, tensor: torch.Tensor) -> list[tuple[Record, Any]]:
        """Return the containers that hold a tensor, itself or in a tuple, each with its attribute, key or index."""
        return [
            (record, key)
            for record in self._records
            for key, value in record.before.items()
            if value is tensor or (isinstance(value, tuple) and any(x is tensor for x in pytree.tree_leaves(value)))
        ]

    def restore(self, *, registries: bool = True, caches: bool = True) -> None:
        """Give the containers their contents back, and parameters their flags.

        Args:
            registries: Whether what torch keeps for itself is put back as well.
            caches: Whether caches of functions that were given tensors are emptied.
        """
        for record in self._records:
            if registries or not record.is_own:
                record.put(record.before)
        for _, cache, size in self._caches if caches else ():
            if cache.cache_info().currsize > size and _holds_tensors(cache):
                cache.cache_clear()
        if registries:
            for tensor, requires_grad, grad in self._flags:
                if tensor.requires_grad != requires_grad and tensor.is_leaf:
                    tensor.requires_grad_(requires_grad)
                if tensor.grad is not grad:
                    tensor.grad = grad

    def line(self, path: str, owner: Any = None) -> str:
        """Return ``file:line`` of the code that sets an item, or that names it first."""
        return line_of(path, self.functions, owner)

    # ---- the walk

    def _visit(self, path: str, value: Any, owner: Any) -> None:
        if isinstance(value, _ATOMS) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if not isinstance(value, torch.nn.Parameter):
                self.tensors[path] = value
        elif isinstance(value, torch.nn.Module):
            self._module(path, value)
        elif isinstance(value, list | dict | set | collections.deque):
            self._enter(path, value, owner)
        elif isinstance(value, tuple):
            self._push(path, dict(enumerate(value)), owner)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.CellType):
            self._enter(path, value, owner)
        elif isinstance(value, _CACHED):
            self._kept.append(value)
            self._caches.append((path, value, value.cache_info().currsize))
            self._push(path, {"__wrapped__": getattr(value, "__wrapped__", None)}, owner)
        elif isinstance(value, functools.partial):
            self._push(path, {"func": value.func, "args": value.args, "keywords": value.keywords}, owner)
        elif functions := plain_functions(value):
            self._kept.append(value)
            bound = getattr(value, "__self__", owner)
            self._waiting.append((path, bound, owner))
            for function in functions:
                self._function(function, bound)
        elif _is_users(type(value)):
            self._enter(path, value, value)
            self._class(type(value))

    def _enter(self, path: str, target: Any, owner: Any, names: tuple[str, ...] | None = None) -> None:
        before = _contents(target, names)
        self._records.append(Record(path, target, names, owner, before))
        self._push(path, before, owner)

    def _push(self, path: str, items: dict[Any, Any], owner: Any) -> None:
        parts = [
            (f"{path}.{key}" if path else str(key), v, owner) for key, v in items.items() if not isinstance(v, _ATOMS)
        ]
        # The last one comes first.
        self._waiting.extend(reversed(parts))

    def _module(self, path: str, module: torch.nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            return
        before = dict(vars(module))
        self._records.append(Record(path, module, None, module, before))
        # Exporters register hooks of their own after the stock was taken, which have to stay as long as they need them.
        hooks = [name for name in sorted(_OWN_OF_MODULES) if "hooks" in name and not name.endswith("_with_kwargs")]
        for name in (*_REGISTRIES, *hooks):
            registry = before.get(name)
            if registry:
                self._records.append(Record(path, registry, None, module, dict(registry), is_own=True))
        self._flags.extend((p, p.requires_grad, p.grad) for p in module._parameters.values() if p is not None)
        for name, weight in (*module._parameters.items(), *module._buffers.items()):
            if weight is not None:
                self._seen.add(id(weight))
                self.weights[f"{path}.{name}" if path else name] = weight
        for name in hooks:
            self._push(path, dict(before.get(name) or {}), module)
        self._push(path, {k: v for k, v in before.items() if k not in _OWN_OF_MODULES} | module._modules, module)
        self._class(type(module))

    def _class(self, kind: type) -> None:
        for each in kind.__mro__:
            if (id(each) in self._seen and each is not kind) or not _is_users(each):
                continue
            self._seen.add(id(each))
            data: list[str] = []
            for name, value in vars(each).items():
                if functions := plain_functions(value):
                    for function in functions:
                        self._function(function, each)
                elif isinstance(value, _CACHED):
                    self._waiting.append((f"{each.__name__}.{name}", value, each))
                elif not name.startswith("__") and not hasattr(value, "__get__"):
                    data.append(name)
            if data:
                self._enter(each.__name__, each, each, tuple(data))

    def _function(self, function: types.FunctionType, owner: Any) -> None:
        if function in self.functions or _is_library(function.__module__):
            return
        self.functions[function] = owner
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            if name != "__class__":
                self._waiting.append((name, cell, owner))
        defaults, code = function.__defaults__ or (), function.__code__
        named = zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
        self._push("", {**dict(named), **(function.__kwdefaults__ or {})}, owner)
        self._namespace(function.__globals__, code_names(function.__code__), owner)

    def _namespace(self, namespace: dict[str, Any], names: frozenset[str], owner: Any) -> None:
        """Visit what code finds under its names, also in the modules that it names."""
        own: list[str] = []
        for name in names:
            value = namespace.get(name, MISSING)
            if value is MISSING or isinstance(value, type):
                continue
            if isinstance(value, types.ModuleType):
                if not _is_library(value.__name__) and id(value) not in self._seen:
                    self._seen.add(id(value))
                    self._namespace(vars(value), names, owner)
            elif functions := plain_functions(value):
                if _is_near(functions[0], namespace):
                    self._waiting.append((name, value, None))
            else:
                own.append(name)
        if own:
            self._enter("", namespace, owner, tuple(own))


@contextmanager
def kept_inventory(model: Any) -> Iterator[Inventory]:
    """Take stock of a model, and give it back what it had in the end, whatever happens."""
    inventory = Inventory(model)
    try:
        yield inventory
    finally:
        inventory.restore()


def same(before: Any, after: Any) -> bool:
    """Tell whether two values are the same to a program that does not change them in place."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(before, _ATOMS):
        return bool(before == after) or before != before
    if isinstance(before, types.MethodType | torch.Size | range | slice):
        return bool(before == after)
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(same(before[key], after[key]) for key in before)
    if isinstance(before, list | tuple | collections.deque):
        return len(before) == len(after) and all(map(same, before, after))
    return bool(before == after) if isinstance(before, set | frozenset) else False


def _contents(target: Any, names: tuple[str, ...] | None) -> dict[Any, Any]:
    if names is not None:
        namespace = vars(target) if isinstance(target, type) else target
        return {name: namespace[name] for name in names if name in namespace}
    if isinstance(target, dict):
        # Subclasses may make something else of what they hold when they are asked for it.
        return dict(dict.items(target))
    if isinstance(target, list | collections.deque):
        return dict(enumerate(target))
    if isinstance(target, set):
        return {repr(item) if isinstance(item, torch.Tensor) else item: item for item in target}
    if isinstance(target, types.CellType):
        try:
            return {"": target.cell_contents}
        except ValueError:
            return {}
    slots = {name for kind in type(target).__mro__ for name in _slots(kind)}
    found = {name: getattr(target, name) for name in slots if hasattr(target, name)}
    return {**found, **getattr(target, "__dict__", {})}


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return tuple(name for name in ((slots,) if isinstance(slots, str) else slots) if not name.startswith("__"))


def _write(target: Any, names: tuple[str, ...] | None, items: dict[Any, Any], now: dict[Any, Any]) -> None:
    if isinstance(target, dict) and names is None:
        base = collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict
        base.clear(target)
        base.update(target, items)
    elif isinstance(target, list):
        target[:] = items.values()
    elif isinstance(target, set):
        target.clear()
        target.update(items.values())
    elif isinstance(target, collections.deque):
        target.clear()
        target.extend(items.values())
    elif isinstance(target, types.CellType):
        for value in items.values():
            target.cell_contents = value
    else:
        _write_names(target, items, now)


def _write_names(target: Any, items: dict[Any, Any], now: dict[Any, Any]) -> None:
    namespace = target if isinstance(target, dict) else None
    attributes = None if isinstance(target, type) else getattr(target, "__dict__", None)
    place = namespace if namespace is not None else attributes
    for name in [name for name in now if name not in items]:
        if place is not None and name in place:
            del place[name]
        else:
            (type.__delattr__ if isinstance(target, type) else object.__delattr__)(target, name)
    for name, value in items.items():
        if now.get(name, MISSING) is value:
            continue
        if place is not None and (name in place or not hasattr(type(target), name)):
            place[name] = value
        elif isinstance(target, type):
            setattr(target, name, value)
        else:
            object.__setattr__(target, name, value)


def _holds_tensors(cache: Any) -> bool:
    """Tell whether a cache of functools holds tensors; its entries are reached through the garbage collector only."""
    found = [item for held in gc.get_referents(cache) if isinstance(held, dict) for item in held.values()]
    entries = [part for item in found for part in (item, *gc.get_referents(item))]
    return any(isinstance(part, torch.Tensor) for part in entries)


def _is_internal(target: Any, name: Any) -> bool:
    """Tell whether an attribute is what torch keeps in a module for itself."""
    if not isinstance(target, torch.nn.Module):
        return False
    return name in _OWN_OF_MODULES or (str(name).startswith("_") and type(target).__module__.startswith("torch."))


def _is_users(kind: type) -> bool:
    return not _is_library(kind.__module__) or kind in _HOLDERS


@functools.cache
def _is_library(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in _LIBRARIES


def _is_near(function: types.FunctionType, namespace: dict[str, Any]) -> bool:
    """Tell whether the walk follows a function that code names: of installed packages only those of the same file."""
    return "site-packages" not in function.__code__.co_filename or function.__globals__ is namespace
