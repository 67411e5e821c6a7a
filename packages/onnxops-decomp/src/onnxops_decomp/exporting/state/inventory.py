"""What a forward can reach beside its arguments: taken stock of before a capture, compared at its end, and put back.

The stock is taken of containers: the attributes of modules and of helper objects, lists, dicts, sets and deques, cells
of closures, and the globals that the code names. Tensors are not copied.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import operator
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnxops_decomp.exporting.state.code import code_names, is_read, line_of, plain_functions
from onnxops_decomp.exporting.state.library_objects import (
    GLOBAL_GENERATORS,
    Replayed,
    contents_of,
    is_iterator,
    is_restorable,
    restore_contents,
)

__all__ = ["MISSING", "Change", "Inventory", "kept_inventory", "same", "with_replaced"]

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()

_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
_OWN_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
_REGISTRIES = ("_parameters", "_buffers", "_modules")
_LIBRARIES = frozenset(("torch", "numpy", "onnxops_core", "onnxops_decomp", "onnx_fx_export", "onnx_ts_legacy")) | (
    sys.stdlib_module_names - {"__main__"}
)
_BUILTIN_METHODS = (types.MethodWrapperType, types.BuiltinMethodType)
_METHODS = (*_BUILTIN_METHODS, types.MethodType)
_CACHED = type(functools.cache(id))
# Of the objects of libraries that are written in Python only these hold what a user puts there.
_HOLDERS = (
    types.SimpleNamespace,
    threading.local,
    queue.Queue,
    collections.UserDict,
    collections.UserList,
    collections.ChainMap,
    weakref.WeakKeyDictionary,
)


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
        if list(now) != list(items) or any(now[key] is not value for key, value in items.items()):
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
        self._iterators: dict[int, Replayed] = {}
        self._waiting: list[tuple[str, Any, Any]] = [
            ("", model, None),
            *((*g, None) for g in GLOBAL_GENERATORS.items()),
        ]
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
            if isinstance(record.target, dict) and record.names is None and before.keys() == now.keys():
                moved = next((key for key, other in zip(before, now, strict=True) if key != other), MISSING)
                if moved is not MISSING:
                    found.append(Change(record.path_of(moved), record, moved, list(before), list(now)))
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

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Let the model read its iterators through others, which :meth:`restore` sets back."""
        iterators = list(self._iterators.values())
        self._replace(self._iterators)
        try:
            yield
        finally:
            self._replace({id(iterator): iterator.unread() for iterator in iterators})
            self._iterators = {id(iterator.unread()): iterator for iterator in iterators}

    def line(self, path: str, owner: Any = None) -> str:
        """Return ``file:line`` of the code that sets an item, or that names it first."""
        return line_of(path, self.functions, owner)

    def is_read(self, change: Change) -> bool:
        """Tell whether the code uses what changed otherwise than to change it."""
        owner = next((r.path for r in self._records if r.target is change.record.owner), "")
        return is_read(change.path.removeprefix(f"{owner}."), self.functions)

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
            if hasattr(value, "__dict__"):
                self._enter(path, vars(value), value)
                self._class(type(value))
        elif isinstance(value, tuple):
            self._push(path, dict(enumerate(value)), owner)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.CellType):
            self._enter(path, value, owner)
        elif isinstance(value, types.ModuleType):
            if not _is_library(value.__name__):
                self._enter(path, vars(value), value, tuple(name for name in vars(value) if not name.startswith("__")))
        elif isinstance(value, _CACHED):
            self._kept.append(value)
            self._caches.append((path, value, value.cache_info().currsize))
            self._push(path, {"__wrapped__": getattr(value, "__wrapped__", None)}, owner)
        elif isinstance(value, functools.partial):
            self._enter(path, value, owner)
        elif isinstance(value, _BUILTIN_METHODS):
            self._waiting.append((path, value.__self__, owner))
        elif is_iterator(value):
            iterator = self._iterators[id(value)] = Replayed(value)
            self._kept.append(value)
            self._enter(path, iterator, owner)
        elif is_restorable(value):
            self._enter(path, value, owner, is_own=isinstance(value, torch.Generator))
        elif functions := plain_functions(value):
            self._kept.append(value)
            bound = getattr(value, "__self__", owner)
            self._waiting.append((path, bound, owner))
            for function in functions:
                self._function(function, bound)
        elif _is_users(type(value)) or isinstance(value, _HOLDERS):
            self._enter(path, value, value)
            self._class(type(value))

    def _enter(
        self, path: str, target: Any, owner: Any, names: tuple[str, ...] | None = None, is_own: bool = False
    ) -> None:
        before = _contents(target, names)
        self._records.append(Record(path, target, names, owner, before, is_own))
        if not is_restorable(target):
            self._push(path, before, owner)

    def _replace(self, given: dict[int, Any]) -> None:
        """Let the containers hold other objects, given by what they stand for."""
        for record in self._records if given else ():
            items = {key: with_replaced(value, given) for key, value in record.before.items()}
            if any(items[key] is not value for key, value in record.before.items()):
                record.before = items
                record.put(items)

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
            for name, value in vars(each).items():
                if functions := plain_functions(value):
                    for function in functions:
                        self._function(function, each)
                elif isinstance(value, _CACHED):
                    self._waiting.append((f"{each.__name__}.{name}", value, each))
            self._enter(each.__name__, each, each)

    def _function(self, function: types.FunctionType, owner: Any) -> None:
        if function in self.functions or _is_library(function.__module__):
            return
        self.functions[function] = owner
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            if name != "__class__":
                self._waiting.append((name, cell, owner))
        self._enter("", function, owner)
        self._enter(function.__name__, vars(function), owner)
        self._namespace(function.__globals__, code_names(function.__code__), owner)

    def _namespace(self, namespace: dict[str, Any], names: frozenset[str], owner: Any) -> None:
        """Visit what code finds under its names, also in the modules that it names."""
        own: list[str] = []
        for name in names:
            value = namespace.get(name, MISSING)
            if isinstance(value, type):
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
    with inventory.replayed():
        try:
            yield inventory
        finally:
            inventory.restore()


def with_replaced(value: Any, given: Mapping[int, Any]) -> Any:
    """Return what stands for an object, and a tuple or method with what stands for its parts.

    Other containers are entered by records of their own.
    """
    if isinstance(value, tuple):
        items = [with_replaced(item, given) for item in value]
        if all(map(operator.is_, items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, _METHODS) and id(value.__self__) in given:
        return getattr(given[id(value.__self__)], value.__name__)
    return given.get(id(value), value)


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
        return {name: target[name] for name in names if name in target}
    if isinstance(target, type):
        return {name: x for name, x in vars(target).items() if not name.startswith("__") and not hasattr(x, "__get__")}
    if isinstance(target, types.FunctionType):
        code, defaults = target.__code__, target.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        return {**dict(zip(names, defaults, strict=True)), **(target.__kwdefaults__ or {})}
    if isinstance(target, functools.partial):
        return {"func": target.func, "args": target.args, "keywords": target.keywords}
    if is_restorable(target):
        return {"": contents_of(target)}
    if isinstance(target, dict):
        # Subclasses may make something else of what they hold when they are asked for it.
        base = collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict
        return dict(base.items(target))
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
    if isinstance(target, types.FunctionType):
        keywords = target.__kwdefaults__ or {}
        target.__defaults__ = tuple(value for name, value in items.items() if name not in keywords) or None
        keywords.update({name: items[name] for name in keywords})
    elif isinstance(target, functools.partial):
        target.__setstate__((*items.values(), vars(target)))  # type: ignore[attr-defined]
    elif is_restorable(target):
        restore_contents(target, items[""])
    elif isinstance(target, dict) and names is None:
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
