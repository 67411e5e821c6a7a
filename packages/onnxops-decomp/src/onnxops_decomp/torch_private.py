"""The places where the tables need something of torch that it does not offer publicly.

Each function names what it relies on; ``tests/test_torch_private.py`` notices when torch changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sympy
import torch
from torch._higher_order_ops import scan
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_symbols, has_free_unbacked_symbols
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    is_traceable_wrapper_subclass,
)

from onnxops_core.exporting import without_collection

__all__ = [
    "PACK_PADDED_SEQUENCE",
    "PAD_PACKED_SEQUENCE",
    "PAD_SEQUENCE",
    "Computations",
    "fake_mode_of",
    "flattened_subclass",
    "grad_mode_switch",
    "has_autocast_kernel",
    "is_composite",
    "is_open",
    "is_unbacked",
    "is_without_data",
    "memory_of_tensor",
    "overload_of_custom_op",
    "plain_fake",
    "real_tensors",
    "recorded_guards",
    "scan",
    "table_decomposition",
    "taken_over_node",
    "trace_call",
    "trace_graph",
    "uncompiled",
    "unwatched",
]


def is_unbacked(size: torch.SymInt) -> bool:
    """Tell whether data decide a size, so that nothing may be asked of it (``has_free_unbacked_symbols``)."""
    return has_free_unbacked_symbols(size)


def is_open(condition: torch.SymBool) -> bool:
    """Tell whether a condition holds for some sizes and not for others, as far as one can see (``free_symbols``)."""
    return bool(free_symbols(condition))


# Stands in graphs recorded before dispatch wherever the code enters or leaves ``torch.no_grad``.
grad_mode_switch: Callable[..., Any] = torch._C._set_grad_enabled
# What the functions of ``torch.nn.utils.rnn`` call.
PACK_PADDED_SEQUENCE: Callable[..., Any] = torch._VF._pack_padded_sequence
PAD_PACKED_SEQUENCE: Callable[..., Any] = torch._VF._pad_packed_sequence
PAD_SEQUENCE: Callable[..., Any] = torch._C._nn.pad_sequence


def uncompiled(model: Any) -> Any:
    """Return what ``torch.compile`` was given (``_orig_mod``, or ``_torchdynamo_orig_callable`` of a function)."""
    name = "_orig_mod" if isinstance(model, torch.nn.Module) else "_torchdynamo_orig_callable"
    return getattr(model, name, model)


def taken_over_node(kind: type) -> Callable[[Any, Any], Any] | None:
    """Make way for another registration of a class (``_deregister_pytree_node``, ``SUPPORTED_NODES``).

    Returns:
        What undoes the flattening of the earlier registration, from leaves and context; None if there was none.
    """
    node = pytree.SUPPORTED_NODES.get(kind)
    if node is None:
        return None
    pytree._deregister_pytree_node(kind)
    unflatten: Callable[[Any, Any], Any] = node.unflatten_fn
    return unflatten


def table_decomposition(overload: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """Return torch's own decomposition of an operator, or None (``torch._decomp.decomposition_table``)."""
    from torch._decomp import get_decompositions

    found: dict[torch._ops.OperatorBase, Callable[..., Any]] = get_decompositions([overload])
    return found.get(overload)


@contextmanager
def recorded_guards(fake_mode: Any) -> Iterator[list[sympy.Basic]]:
    """Collect what is assumed about symbolic sizes inside (``ShapeEnv.guards`` and ``ShapeEnv.frozen``).

    torch.export freezes its ShapeEnv, after which further assumptions are dropped; here they are caught instead.
    """
    shape_env = getattr(fake_mode, "shape_env", None)
    found: list[sympy.Basic] = []
    if shape_env is None:
        yield found
        return
    frozen, count = shape_env.frozen, len(shape_env.guards)
    shape_env.frozen = False
    try:
        yield found
    finally:
        found.extend(guard.expr for guard in shape_env.guards[count:])
        del shape_env.guards[count:]
        shape_env.frozen = frozen


def fake_mode_of(value: object) -> Any:
    """Return the fake mode of a fake tensor, else None (``FakeTensor.fake_mode``)."""
    return getattr(value, "fake_mode", None)


def plain_fake(
    mode: Any, sizes: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return a fake tensor with memory of its own, without asking the dispatcher (constructor of ``FakeTensor``)."""
    return FakeTensor(mode, torch.empty_strided(sizes, strides, dtype=dtype, device="meta"), torch.device(device))


class Computations(TorchDispatchMode):
    """Numbers tensors by what they are computed from, also those without data (``TorchDispatchMode``).

    Tensors have one number if the same operators made them of the same things. What an operator writes to a tensor
    counts for all that share its memory, until the mode is left.

    Args:
        unread: Tensors with data that is not looked at: nothing is computed of them but shapes, and code that asks
            for their numbers fails.
    """

    def __init__(self, unread: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers: dict[Any, int] = {}
        self._known: dict[int, tuple[torch.Tensor, int]] = {}
        self._writes: dict[int, int] = {}
        self._draws = 0
        # The memory of what was computed here.
        self._made: set[int] = set()
        self._layouts: dict[Any, tuple[torch.Size, tuple[int, ...], torch.dtype]] = {}
        self._shapes = {id(tensor): (tensor, _shape_of(tensor)) for tensor in unread}
        self._memory = {memory_of_tensor(shape): memory_of_tensor(tensor) for tensor, shape in self._shapes.values()}

    def __exit__(self, *exception: Any) -> None:
        """Forget what was written and drawn."""
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._writes.clear()
        self._draws = 0

    def note(self, tensor: torch.Tensor, origin: object) -> None:
        """Let a tensor come from somewhere."""
        self._known[id(tensor)] = (tensor, self._numbered(origin))

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor; one that is not known comes from itself."""
        if id(tensor) not in self._known:
            self.note(tensor, id(tensor))
        number, written = self._known[id(tensor)][1], self._writes.get(self._place(tensor))
        return number if written is None else self._numbered((number, written))

    def _numbered(self, origin: object) -> int:
        return self._numbers.setdefault(origin, len(self._numbers))

    def _place(self, tensor: torch.Tensor) -> int:
        memory = memory_of_tensor(tensor)
        return self._memory.get(memory, memory)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator, and number its results."""
        leaves, structure = pytree.tree_flatten((args, kwargs or {}))
        given = [self.number(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves]
        call: Any = (func, structure, *given)
        if torch.Tag.nondeterministic_seeded in func.tags:
            # What is drawn depends on all that was drawn before.
            self._draws = call = self._numbered((call, self._draws))
        written = _written(func, args, kwargs or {})
        if self._shapes:
            result = self._result(func, self._without_data(func, leaves, written), structure)
        else:
            result = func(*args, **(kwargs or {}))
        for tensor in written:
            self._writes[self._place(tensor)] = self._numbered((call, self._writes.get(self._place(tensor))))
        if written and any(returned.alias_info is not None for returned in func._schema.returns):
            return written[0] if isinstance(result, torch.Tensor) else result
        for index, leaf in enumerate(pytree.tree_leaves(result)):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf, (call, index))
                if not any(returned.alias_info for returned in func._schema.returns):
                    self._made.add(memory_of_tensor(leaf))
        return result

    def _result(self, func: Any, leaves: Sequence[Any], structure: Any) -> Any:
        """Call an operator; a new tensor without data is like the one that it gave for operands like these before."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        key = None
        if tensors and all(x.is_meta for x in tensors) and not any(r.alias_info for r in func._schema.returns):
            key = func, structure, *(_layout(x) if isinstance(x, torch.Tensor) else repr(x) for x in leaves)
            if (known := self._layouts.get(key)) is not None:
                return torch.empty_strided(known[0], known[1], dtype=known[2], device="meta")
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        result = func(*args, **kwargs)
        if key is not None and isinstance(result, torch.Tensor):
            self._layouts[key] = _layout(result)
        return result

    def _without_data(self, func: Any, leaves: Sequence[Any], written: Sequence[torch.Tensor]) -> list[Any]:
        """Return the arguments of a call, with shapes alone where one of them is no more than that.

        Raises:
            RuntimeError: If the call gives a tensor with data another shape, or contents that are not known, or writes
                to one that it did not compute itself.
        """
        shapes = [self._shapes[id(leaf)][1] if id(leaf) in self._shapes else leaf for leaf in leaves]
        if torch.Tag.inplace_view in func.tags and any(id(tensor) in self._shapes for tensor in written):
            raise RuntimeError(f"{func} gives a tensor another shape")
        if not any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in shapes):
            if any(id(tensor) not in self._known or self._place(tensor) not in self._made for tensor in written):
                raise RuntimeError(f"{func} writes to a tensor that existed before")
            return shapes
        if any(not tensor.is_meta and id(tensor) not in self._shapes for tensor in written):
            raise RuntimeError(f"{func} writes what is not known")
        return [_shape_of(leaf) if isinstance(leaf, torch.Tensor) and not leaf.is_meta else leaf for leaf in shapes]


def _layout(tensor: torch.Tensor) -> tuple[torch.Size, tuple[int, ...], torch.dtype]:
    return tensor.shape, tensor.stride(), tensor.dtype


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without data like another one, which has to be a plain one."""
    if tensor.layout is not torch.strided or type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise RuntimeError(f"{type(tensor).__name__} is no plain tensor")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def memory_of_tensor(tensor: torch.Tensor) -> int:
    """Return what tensors that share their memory have in common; modes of torch don't see it.

    ``UntypedStorage._cdata`` and ``torch._C.DisableTorchFunction``.
    """
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)


def unwatched() -> AbstractContextManager[None]:
    """Let no mode of torch see the calls of the body (``torch._C.DisableTorchFunction``).

    Modes that see all calls of a model cost more than most of the calls that our own bookkeeping makes.
    """
    return torch._C.DisableTorchFunction()


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a call writes to."""
    if not func._schema.is_mutable:
        return []
    given = {**kwargs, **{argument.name: arg for argument, arg in zip(func._schema.arguments, args, strict=False)}}
    names = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [x for x in pytree.tree_leaves([given.get(name) for name in names]) if isinstance(x, torch.Tensor)]


def overload_of_custom_op(definition: object) -> torch._ops.OpOverload | None:
    """Return the operator that ``torch.library.custom_op`` defined (``CustomOpDef._opoverload``), else None."""
    from torch._library.custom_ops import CustomOpDef

    return definition._opoverload if isinstance(definition, CustomOpDef) else None


def trace_graph(function: Callable[..., Any], args: Sequence[Any], *, whole: bool) -> torch.fx.GraphModule:
    """Record the ATen calls that ``function`` makes on fake tensors (``make_fx``).

    Args:
        function: What is traced.
        args: Its arguments.
        whole: Whether composite operators are recorded as they are called, rather than taken apart.
    """
    with without_collection(), torch.no_grad():
        traced: torch.fx.GraphModule = make_fx(function, pre_dispatch=whole)(*args)
    return traced


def trace_call(overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
    """Record one call as a graph whose placeholders are its tensors (``make_fx`` on copies without data)."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def call(*operands: torch.Tensor) -> Any:
        given = iter(operands)
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        positional, named = pytree.tree_unflatten(filled, structure)
        return overload(*positional, **named)

    with without_collection(), torch.no_grad():
        traced: torch.fx.GraphModule = make_fx(call, tracing_mode="fake", pre_dispatch=True)(*tensors)
    return traced


def is_composite(overload: torch._ops.OpOverload) -> bool:
    """Tell whether an operator is defined by other operators (CompositeImplicitAutograd)."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if key in overload.py_kernels:
        return True
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key))
    except RuntimeError:
        # Operators of TorchScript alone, such as aten::stride, are not in the dispatcher.
        return False


def has_autocast_kernel(overload: torch._ops.OpOverload, device: str) -> bool:
    """Tell whether autocast has a rule for an operator (a kernel for the key ``AutocastCPU`` and its like)."""
    key = f"Autocast{device.upper()}"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key))


def is_without_data(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has a shape and no contents (``FakeTensor``, or on the meta device)."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def flattened_subclass(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return by attribute the tensors that a subclass is made of; nothing for any other tensor.

    The protocol is that of ``torch.utils._python_dispatch.is_traceable_wrapper_subclass``.
    """
    if not is_traceable_wrapper_subclass(tensor):
        return {}
    names, _ = tensor.__tensor_flatten__()
    return {name: getattr(tensor, name) for name in names}


@contextmanager
def real_tensors() -> Iterator[None]:
    """Let operators compute in the body, also inside a kernel that is called for tensors without data.

    Relies on ``_disable_current_modes``, and on ``_meta_in_tls_dispatch_include`` for what ``FakeTensorMode`` sets.
    """
    inside = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(False)
    try:
        with _disable_current_modes():
            yield
    finally:
        torch._C._set_meta_in_tls_dispatch_include(inside)
