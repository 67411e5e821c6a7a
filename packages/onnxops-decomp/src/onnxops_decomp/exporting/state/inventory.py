"""What a forward can reach beside its arguments: taken stock of before a capture, compared at its end, and put back.

The stock is taken of containers: the attributes of modules and of helper objects, lists, dicts, sets and deques, cells
of closures, and the globals that the code names. Tensors are not copied.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from onnxops_core.exporting import without_collection
from onnxops_decomp.exporting.errors import InvalidArgumentError
from onnxops_decomp.exporting.state.code import (
    FUNCTIONS,
    code_names,
    imported_modules,
    is_read,
    line_of,
    parts_of,
    plain_functions,
)
from onnxops_decomp.exporting.state.containers import (
    ATOM_KINDS,
    ATOMS,
    MISSING,
    Attributes,
    Cache,
    Cell,
    Class,
    Contents,
    Defaults,
    Globals,
    Items,
    Members,
    Partial,
    Record,
    Sequential,
    key_text,
    mutable_results,
    same,
)
from onnxops_decomp.exporting.state.library_objects import GLOBAL_GENERATORS, RESTORABLE, Replayed, is_iterator
from onnxops_decomp.exporting.state.reached_code import reached_functions

__all__ = ["Change", "Inventory", "is_library", "kept_inventory"]

_OWN_OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
_REGISTRIES = ("_parameters", "_buffers")
_HOOKS = [name for name in sorted(_OWN_OF_MODULES) if "hooks" in name and not name.endswith("_with_kwargs")]
# SymPy, on mpmath, is how torch computes with symbolic sizes.
_LIBRARIES = frozenset(
    ("torch", "numpy", "sympy", "mpmath", "onnxops_core", "onnxops_decomp", "onnx_fx_export", "onnx_ts_legacy")
) | (sys.stdlib_module_names - {"__main__"})
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
    weakref.WeakSet,
    weakref.WeakValueDictionary,
)


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
        unread: Objects that were met and that only their libraries can look into.
    """

    def __init__(self, model: Any) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self.functions: dict[Callable[..., Any], Any] = {}
        self.unread: list[Any] = []
        self._named: dict[Callable[..., Any], set[str]] = {}
        # What the model holds runs under any name.
        self._held: set[Callable[..., Any]] = set()
        self._records: list[Record] = []
        # What torch keeps for itself is put back and not compared.
        self._own: list[Record] = []
        self._unused: list[dict[Any, Any]] = []
        self._caches: list[Cache] = []
        # Functions without attributes; those are recorded that a run gives some.
        self._bare: list[types.FunctionType] = []
        self._flags: list[tuple[torch.Tensor, bool, Any]] = []
        self._seen: set[int] = set()
        self._classes: set[type] = set()
        # Classes of which all bases were seen.
        self._known: set[type] = set()
        self._kept: list[Any] = []
        self._namespaces: dict[int, _Namespace] = {}
        self._iterators: dict[int, Replayed] = {}
        self._ways = dict(_KNOWN_WAYS)
        self._waiting: list[tuple[str, Any, Any]] = [
            ("", model, None),
            *((*g, None) for g in GLOBAL_GENERATORS.items()),
        ]
        self._walk()

    def add_code(self, code: types.CodeType, namespace: dict[str, Any]) -> None:
        """Take stock also of what code finds under its names.

        Args:
            code: Of a function, which the walk may not have met.
            namespace: Its globals.
        """
        self._code(code, namespace, None)
        self._walk()

    @property
    def records(self) -> Sequence[Record]:
        """The containers that the model can reach, with what they held."""
        return self._records

    @property
    def all_records(self) -> Sequence[Record]:
        """Those, and the registries of modules, which torch keeps for itself."""
        return [*self._records, *self._own]

    @property
    def has_iterators(self) -> bool:
        """Whether the model keeps an iterator."""
        return bool(self._iterators) or any(isinstance(value, Replayed) for value in self.unread)

    def changes(self, changed: Iterable[Record] | None = None) -> list[Change]:
        """Return what is another object, number or text than before. To be called while the capture still runs.

        Args:
            changed: What :meth:`changed` gives, if it was asked already.
        """
        found: list[Change] = []
        for record in self.changed() if changed is None else changed:
            now, before = record.now(), record.before
            for key in {**before, **now}:
                old, new = before.get(key, MISSING), now.get(key, MISSING)
                if old is not new and not _is_internal(record.target, key) and not same(old, new):
                    found.append(Change(record.path_of(key), record, key, old, new))
            if isinstance(record, Items) and before.keys() == now.keys():
                moved = next((key for key, other in zip(before, now, strict=True) if key != other), MISSING)
                if moved is not MISSING:
                    found.append(Change(record.path_of(moved), record, moved, list(before), list(now)))
        return found

    def holding(self, tensor: torch.Tensor) -> list[tuple[Record, Any]]:
        """Return the containers that hold a tensor, itself or in a tuple, each with its attribute, key or index."""

        def holds(value: Any) -> bool:
            return value is tensor or (isinstance(value, tuple) and any(x is tensor for x in pytree.tree_leaves(value)))

        records = [record for record in self._records if any(map(holds, record.parts))]
        return [(record, key) for record in records for key, value in record.before.items() if holds(value)]

    def under_other_names(self) -> list[torch.Tensor]:
        """Return the parameters and buffers that the model keeps somewhere else as well, as in a list."""
        weights = {id(weight): weight for weight in self.weights.values()}
        found: dict[int, torch.Tensor] = {}
        for record in self._records:
            for value in record.parts:
                # Most tuples are strides and their like.
                whole = not isinstance(value, tuple) or all(type(part) in ATOM_KINDS for part in value)
                for leaf in (value,) if whole else pytree.tree_leaves(value):
                    if id(leaf) in weights:
                        found[id(leaf)] = weights[id(leaf)]
        return list(found.values())

    def restore(self, *, registries: bool = True, caches: bool = True) -> None:
        """Give the containers their contents back, and parameters their flags.

        Args:
            registries: Whether what torch keeps for itself is put back as well.
            caches: Whether caches of functions that were given tensors are emptied.
        """
        for record in self.changed(caches=caches):
            record.put(record.before)
        if registries:
            self._restore_own()

    def accept(self) -> None:
        """Take what the containers hold now for what they held.

        To be called where an exporter took the stock while it lent the model hooks or a forward, and has them back.
        """
        for record in (*self._records, *self._own):
            if not record.is_unchanged():
                record.parts = record.read()

    def changed(self, *, caches: bool = True) -> list[Record]:
        """Return the containers that do not hold what they held, one by one.

        Args:
            caches: Whether caches of functions that were given tensors are among them.
        """
        for function in filter(vars, self._bare):
            record = Items(function.__name__, vars(function), self.functions[function])
            record.parts = ()
            self._records.append(record)
        self._bare = [function for function in self._bare if not vars(function)]
        return [record for record in (*self._records, *(self._caches * caches)) if not record.is_unchanged()]

    def _restore_own(self) -> None:
        for record in self._own:
            if not record.is_unchanged():
                record.put(record.before)
        for registry in self._unused if any(self._unused) else ():
            registry.clear()
        for tensor, requires_grad, grad in self._flags:
            if tensor.requires_grad != requires_grad:
                # What was computed with gradients was written to a tensor that is no leaf any more.
                tensor.detach_()
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

    def running_functions(self) -> list[Callable[..., Any]]:
        """Return those of :attr:`functions` that a call may run; all of them that no package was installed with."""
        named = {each: names for each, names in self._named.items() if each not in self._held}
        return reached_functions(self.functions, named, lambda each: not _is_installed(each.__module__))

    # ---- the walk

    def _walk(self) -> None:
        while self._waiting:
            self._visit(*self._waiting.pop())

    def _visit(self, path: str, value: Any, owner: Any) -> None:
        kind = type(value)
        if kind not in self._ways:
            self._ways[kind] = _way_of(kind)
        way = self._ways[kind]
        if way is not None and id(value) not in self._seen:
            self._seen.add(id(value))
            way(self, path, value, owner)
        elif way is None and kind not in ATOM_KINDS:
            self.unread.append(value)

    def _tensor(self, path: str, tensor: torch.Tensor, owner: Any) -> None:
        self._flag(tensor)
        if not isinstance(tensor, torch.nn.Parameter):
            self.tensors[path] = tensor

    def _weight(self, path: str, weight: torch.Tensor) -> None:
        if is_lazy(weight):
            raise InvalidArgumentError(
                f"{path} has no shape yet: call the model once on an example, and export it then."
            )
        self._seen.add(id(weight))
        self._flag(weight)
        self.weights[path] = weight

    def _flag(self, tensor: torch.Tensor) -> None:
        if tensor.is_leaf:
            self._flags.append((tensor, tensor.requires_grad, tensor.grad))

    def _tuple(self, path: str, value: Iterable[Any], owner: Any) -> None:
        self._push(path, dict(enumerate(value)), owner)

    def _type(self, path: str, kind: type, owner: Any) -> None:
        self._class(kind)

    def _cell(self, path: str, cell: types.CellType, owner: Any) -> None:
        self._enter(Cell(path, cell, owner))

    def _library(self, path: str, module: types.ModuleType, owner: Any) -> None:
        if not is_library(module.__name__):
            names = frozenset(name for name in vars(module) if not name.startswith("__"))
            self._globals(vars(module), names, module)

    def _cache(self, path: str, cache: Any, owner: Any) -> None:
        self._caches.append(Cache(path, cache, None))
        self._push(
            path, {"__wrapped__": getattr(cache, "__wrapped__", None), **dict(enumerate(mutable_results(cache)))}, owner
        )

    def _partial(self, path: str, value: functools.partial[Any], owner: Any) -> None:
        self._enter(Partial(path, value, owner))

    def _method(self, path: str, value: Any, owner: Any) -> None:
        self._waiting.append((path, value.__self__, owner))

    def _reference(self, path: str, value: weakref.ref[Any], owner: Any) -> None:
        self._waiting.append((path, value(), owner))

    def _proxy(self, path: str, value: Any, owner: Any) -> None:
        # A proxy answers for its object in everything but its bound methods.
        self._waiting.append((path, value.__repr__.__self__, owner))

    def _iterator(self, path: str, value: Iterator[Any], owner: Any) -> None:
        iterator = self._iterators[id(value)] = Replayed(value)
        self._kept.append(value)
        self._records.append(Contents(path, iterator, owner))

    def _restorable(self, path: str, value: Any, owner: Any) -> None:
        (self._own if isinstance(value, torch.Generator) else self._records).append(Contents(path, value, owner))

    def _functions(self, path: str, value: Any, owner: Any) -> None:
        self._kept.append(value)
        bound = getattr(value, "__self__", owner)
        self._waiting.append((path, bound, owner))
        self._all_functions(plain_functions(value), bound)

    def _object(self, path: str, value: Any, owner: Any) -> None:
        self._enter(Attributes(path, value, value))
        self._class(type(value))

    def _container(self, path: str, value: Any, owner: Any) -> None:
        kind = Items if isinstance(value, dict) else Members if isinstance(value, set) else Sequential
        self._enter(kind(path, value, owner))
        if hasattr(value, "__dict__"):
            self._enter(Items(path, vars(value), value))
            self._class(type(value))

    def _enter(self, record: Record) -> None:
        self._records.append(record)
        if record.parts:
            self._push(record.path, record.before, record.owner)

    def _replace(self, given: dict[int, Any]) -> None:
        """Let the containers hold other objects, given by what they stand for."""
        for record in self._records if given else ():
            record.replace(given)

    def _push(self, path: str, items: dict[Any, Any], owner: Any) -> None:
        parts = [
            (f"{path}.{key_text(key)}" if path else key_text(key), value, owner)
            for key, value in items.items()
            if type(value) not in ATOM_KINDS
        ]
        for _, value, _ in parts:
            if isinstance(value, FUNCTIONS):
                self._held.update(plain_functions(value))
        # The last one comes first.
        self._waiting.extend(reversed(parts))

    def _module(self, path: str, module: torch.nn.Module, owner: Any) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            return
        record = Attributes(path, module, module)
        self._records.append(record)
        before = record.before
        if before["_modules"] or not type(module).__module__.startswith("torch.nn."):
            self._records.append(Items(path, before["_modules"], module))
        # Exporters register hooks of their own after the stock was taken, which have to stay as long as they need them.
        own = {name: before[name] for name in (*_REGISTRIES, *_HOOKS) if name in before}
        self._own.extend([Items(path, registry, module) for registry in own.values() if registry])
        self._unused += [registry for registry in own.values() if not registry and registry is not None]
        for name, weight in (*module._parameters.items(), *module._buffers.items()):
            if weight is not None:
                self._weight(f"{path}.{name}" if path else name, weight)
        for name in _HOOKS:
            if own.get(name):
                self._push(path, dict(own[name]), module)
        self._push(path, {k: v for k, v in before.items() if k not in _OWN_OF_MODULES} | module._modules, module)
        self._class(type(module))

    def _class(self, kind: type) -> None:
        if kind in self._known:
            return
        self._known.add(kind)
        for each in kind.__mro__:
            if each in self._classes or not is_users(each):
                continue
            self._classes.add(each)
            for name, value in vars(each).items():
                if isinstance(value, FUNCTIONS):
                    self._name(name, value)
                    self._all_functions(plain_functions(value), each)
                    caches = (part for part in parts_of(value) if isinstance(part, _CACHED))
                    self._waiting.extend((f"{each.__name__}.{name}", cache, each) for cache in caches)
                elif isinstance(value, _CACHED) or (hasattr(value, "__get__") and is_users(type(value))):
                    self._waiting.append((f"{each.__name__}.{name}", value, each))
            self._enter(Class(each.__name__, each, each))

    def _name(self, name: str, value: Any) -> None:
        for function in plain_functions(value):
            self._named.setdefault(function, set()).add(name)

    def _all_functions(self, functions: Iterable[types.FunctionType], owner: Any) -> None:
        for function in functions:
            if function not in self.functions and not is_library(function.__module__):
                self.functions[function] = owner
                self._function(function, owner)

    def _function(self, function: types.FunctionType, owner: Any) -> None:
        code = function.__code__
        if function.__closure__:
            cells = zip(code.co_freevars, function.__closure__, strict=True)
            self._waiting.extend((name, cell, owner) for name, cell in cells if name != "__class__")
        if function.__defaults__ or function.__kwdefaults__:
            self._enter(Defaults("", function, owner))
        if vars(function):
            self._enter(Items(function.__name__, vars(function), owner))
        else:
            self._bare.append(function)
        self._code(code, function.__globals__, owner)

    def _code(self, code: types.CodeType, namespace: dict[str, Any], owner: Any) -> None:
        names = code_names(code)
        self._globals(namespace, names, owner)
        for module in imported_modules(code, namespace):
            if not is_library(module.__name__):
                self._globals(vars(module), names, owner)

    def _globals(self, namespace: dict[str, Any], names: frozenset[str], owner: Any) -> None:
        """Visit what code finds under its names, also in the modules that it names."""
        known = self._namespaces.get(id(namespace))
        if known is None:
            known = self._namespaces[id(namespace)] = _Namespace(Globals("", namespace, owner))
            self._records.append(known.record)
        if names in known.asked:
            return
        known.asked.add(names)
        new = names - known.names
        known.names |= new
        found = sorted(new & namespace.keys())
        known.record.absent |= new.difference(found)
        for name in found:
            self._global(known, name, namespace[name], owner)
        for name in known.modules.keys() & names:
            self._globals(vars(known.modules[name]), names, owner)

    def _global(self, known: _Namespace, name: str, value: Any, owner: Any) -> None:
        if isinstance(value, types.ModuleType):
            if not is_library(value.__name__):
                known.modules[name] = value
        elif isinstance(value, type) or plain_functions(value):
            if _is_near(value, known.record.target):
                self._name(name, value)
                self._waiting.append((name, value, None))
        else:
            known.record.add(name)
            self._push("", {name: value}, owner)


@dataclasses.dataclass(slots=True, eq=False)
class _Namespace:
    """What code names in one namespace: the variables, all names that were looked up, and the modules among them."""

    record: Globals
    names: set[str] = dataclasses.field(default_factory=set)
    modules: dict[str, types.ModuleType] = dataclasses.field(default_factory=dict)
    asked: set[frozenset[str]] = dataclasses.field(default_factory=set)


_Way = Callable[[Inventory, str, Any, Any], None]
_WAYS: tuple[tuple[Any, _Way | None], ...] = (
    (ATOMS, None),
    (torch.Tensor, Inventory._tensor),
    (torch.nn.Module, Inventory._module),
    ((list, dict, set, collections.deque), Inventory._container),
    ((tuple, frozenset), Inventory._tuple),
    (type, Inventory._type),
    (types.CellType, Inventory._cell),
    (types.ModuleType, Inventory._library),
    (_CACHED, Inventory._cache),
    (functools.partial, Inventory._partial),
    ((types.MethodWrapperType, types.BuiltinMethodType), Inventory._method),
    (weakref.ref, Inventory._reference),
    (weakref.ProxyTypes, Inventory._proxy),
    (RESTORABLE, Inventory._restorable),
    (FUNCTIONS, Inventory._functions),
)


def _way_of(kind: type) -> _Way | None:
    """Return what takes stock of the objects of a class; None where nothing is to be taken."""
    if is_iterator(kind):
        return Inventory._iterator
    usual = Inventory._object if is_users(kind) else None
    return next((way for kinds, way in _WAYS if issubclass(kind, kinds)), usual)


@contextmanager
def kept_inventory(model: Any, inventory: Inventory | None = None) -> Iterator[Inventory]:
    """Take stock of a model, and give it back what it had in the end, whatever happens.

    Args:
        model: The model.
        inventory: That of the model from a context before, if nothing but such contexts has changed the model since.
    """
    if inventory is None:
        with without_collection():
            inventory = Inventory(model)
    with inventory.replayed():
        try:
            yield inventory
        finally:
            inventory.restore()


def _is_internal(target: Any, name: Any) -> bool:
    """Tell whether an attribute is what torch keeps in a module for itself."""
    if not isinstance(target, torch.nn.Module):
        return False
    return name in _OWN_OF_MODULES or (str(name).startswith("_") and type(target).__module__.startswith("torch."))


def is_users(kind: type) -> bool:
    return not is_library(kind.__module__) or kind in _HOLDERS


@functools.cache
def is_library(module: Any) -> bool:
    """Tell whether a module is part of torch, Python or an exporter, or, in compiled code, none at all."""
    return not isinstance(module, str) or module.partition(".")[0] in _LIBRARIES


def _is_near(value: Any, namespace: dict[str, Any]) -> bool:
    """Tell whether the walk follows what code names: of installed packages only functions of the same file."""
    module = getattr(value, "__module__", None)
    same_file = module == namespace.get("__name__") and not isinstance(value, type)
    return same_file or not _is_installed(module)


def _is_installed(module: str | None) -> bool:
    # Not kept by name: another file may have been imported under it since.
    return "site-packages" in (getattr(sys.modules.get(module or ""), "__file__", None) or "")


# Nearly all that models hold are of these classes.
_KNOWN_WAYS = {
    kind: _way_of(kind)
    for kind in (*(set, list, dict, tuple, type), *(torch.Tensor, torch.nn.Parameter), *FUNCTIONS, *RESTORABLE)
}
