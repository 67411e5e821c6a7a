"""What captures need of torch that it does not offer publicly: other kernels, and less work for the same result.

``tests/test_torch_private.py`` notices when torch changes one of them.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import importlib
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.export._trace as export_trace
from torch._dynamo import config as dynamo_config
from torch._subclasses import fake_tensor
from torch._subclasses.fake_impls import get_fast_op_impls
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.fx import _lazy_graph_module
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimConstraints, GuardOnDataDependentSymNode
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.utils import _pytree as pytree
from torch.utils import _traceback

from onnxops_core.exporting import original, replaced
from onnxops_decomp.exporting import real_tensors

__all__ = [
    "aliases_without_conditions",
    "code_written_late",
    "equations_left_unsolved",
    "formats_without_conditions",
    "operator_without_kernel",
    "replaced_kernels",
    "scans_over_no_rows",
    "shared_memory_formats",
    "shared_stack_frames",
    "unassigned_buffers",
    "values_noted_without_modes",
    "without_cache_of_calls",
]


def without_cache_of_calls() -> contextlib.AbstractContextManager[None]:
    """Let torch run each call on tensors without data anew (``torch._dynamo.config.fake_tensor_cache_enabled``).

    To make an entry of its cache takes longer than the call where sizes are expressions in several symbols.
    """
    return dynamo_config.patch(fake_tensor_cache_enabled=False)  # type: ignore[no-any-return]


def shared_stack_frames() -> contextlib.AbstractContextManager[None]:
    """Look each line of a stack up once (``torch.utils._traceback._extract_symbolized_tb``).

    Each node of a graph is given the stack of its call, and most of the hundred frames of one are those of the others.
    """
    frame = functools.cache(traceback.FrameSummary)

    def extract(tb: Sequence[Mapping[str, Any]], skip: int) -> traceback.StackSummary:
        return traceback.StackSummary(frame(f["filename"], f["line"], f["name"]) for f in reversed(tb[skip:]))

    return replaced([(_traceback, "_extract_symbolized_tb", extract)])


def code_written_late() -> contextlib.AbstractContextManager[None]:
    """Let the code of graphs be written when it runs (``torch.fx._lazy_graph_module._use_lazy_graph_module``).

    torch.export changes a graph in five passes, each of which has the code of the whole graph written and compiled.
    """
    return _lazy_graph_module._use_lazy_graph_module(True)


def equations_left_unsolved() -> contextlib.AbstractContextManager[None]:
    """Let equations of sizes that SymPy cannot solve be conditions of the program (``DimConstraints.solve``).

    torch looks for the one size that solves each, and an equation such as ``8 * (n // 4 // 8) == n // 4`` holds for
    many: it is a guard as it is. Of one that holds for all, torch expects an equation and finds a bound. What could not
    be solved is no longer among what is to be when it fails.
    """
    solve = original(DimConstraints, "solve")

    def solved(self: DimConstraints) -> None:
        for _ in range(len(self._symbols_with_equalities)):
            with contextlib.suppress(NotImplementedError, AssertionError):
                solve(self)
                return
        solve(self)

    return replaced([(DimConstraints, "solve", solved)])


def shared_memory_formats() -> contextlib.AbstractContextManager[None]:
    """Find the memory format of tensors of the same sizes and strides once (``_extract_tensor_metadata`` of make_fx).

    Each question about symbolic strides is one about products of sizes, and those of a graph take a tenth of a capture.
    """
    formats: dict[Any, torch.memory_format | None] = {}

    def extract(result: torch.Tensor) -> Any:
        found = _extract_tensor_metadata(result, include_contiguity=False)
        key = (result.layout, tuple(map(_as_key, found.shape)), tuple(map(_as_key, found.stride)))
        if key not in formats:
            sizes: list[Any] = [size for size in found.shape if isinstance(size, torch.SymInt)]
            env = getattr(sizes[0].node, "shape_env", None) if sizes and _UNNOTED.get() else None
            with contextlib.nullcontext() if env is None else env.suppress_guards():
                formats[key] = _extract_tensor_metadata(result).memory_format
        return found._replace(memory_format=formats[key])

    return replaced([(proxy_tensor, "_extract_tensor_metadata", extract)])


@contextlib.contextmanager
def formats_without_conditions() -> Iterator[None]:
    """Let the answers about the memory format of tensors be no conditions on sizes (``ShapeEnv.suppress_guards``).

    Nothing that is computed depends on them.
    """
    token = _UNNOTED.set(True)
    try:
        yield
    finally:
        _UNNOTED.reset(token)


def aliases_without_conditions() -> contextlib.AbstractContextManager[None]:
    """Let the question whether a result is the whole of another tensor be no condition on sizes.

    Functionalization asks whether a result has the sizes and strides of what it is a view of (``has_same_metadata`` in
    newer releases of torch), and notes that those of the example differ: a transposed result would be refused where it
    is square. What it answers is about the memory of results alone.
    """
    module: Any = importlib.import_module("torch._functorch._aot_autograd.collect_metadata_analysis")
    usual = getattr(module, "has_same_metadata", None)
    if usual is None:
        return contextlib.nullcontext()

    def has_same_metadata(one: torch.Tensor, other: torch.Tensor) -> bool:
        return [*map(_as_key, one.shape)] == [*map(_as_key, other.shape)] and bool(usual(one, other))

    return replaced([(module, "has_same_metadata", has_same_metadata)])


_UNNOTED: contextvars.ContextVar[bool] = contextvars.ContextVar("unnoted", default=False)


def _as_key(size: int | torch.SymInt) -> Any:
    if not isinstance(size, torch.SymInt):
        return size
    # The lengths of nested tensors are nodes without expressions.
    return (size.node.shape_env, size.node.expr) if isinstance(size.node, SymNode) else size.node


def values_noted_without_modes() -> contextlib.AbstractContextManager[None]:
    """Let no mode hear what make_fx reads of a value to note it in the graph (``track_tensor_tree``).

    Each weight and result is asked for its layout, strides and a view of it, and modes are about the calls of a model.
    Of a subclass of Tensor torch.export itself has to hear what is read.
    """
    plain = (fake_tensor.FakeTensor, torch.Tensor, torch.nn.Parameter)

    def tracked(values: Any, *args: Any, **options: Any) -> Any:
        tensors = (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))
        silent = all(type(tensor) in plain for tensor in tensors)
        with torch._C.DisableTorchFunction() if silent else contextlib.nullcontext():
            return original(proxy_tensor, "track_tensor_tree")(values, *args, **options)

    return replaced([(proxy_tensor, "track_tensor_tree", tracked)])


def scans_over_no_rows() -> contextlib.AbstractContextManager[None]:
    """Let torch rewrite a ``scan`` over rows of which there may be none (``first_slice_copy`` in its module).

    It runs the body on the first row to see what that does to tensors; any tensor like a row says the same.
    """

    def row(rows: torch.Tensor, dim: int = 0) -> torch.Tensor:
        return rows.new_empty([size for axis, size in enumerate(rows.shape) if axis != dim])

    return replaced([(importlib.import_module("torch._higher_order_ops.scan"), "first_slice_copy", row)])


def unassigned_buffers() -> contextlib.AbstractContextManager[None]:
    """Let torch write nothing to the buffers of a model that are bound anew (``register_buffer_assignment_hook``).

    It would write to those of the outermost module alone, one after the other, also where one has the value of another.
    """

    def register(model: torch.nn.Module, assigned: dict[str, str]) -> Any:
        return torch.utils.hooks.RemovableHandle(collections.OrderedDict())

    return replaced([(export_trace, "register_buffer_assignment_hook", register)])


@contextlib.contextmanager
def noted_refusals() -> Iterator[list[Exception]]:
    """Give the exceptions that torch makes in the body where a capture does not know what eager code would."""
    found: list[Exception] = []

    def noting(kind: type[Exception]) -> Callable[..., None]:
        def note(self: Exception, *args: Any, **kwargs: Any) -> None:
            original(kind, "__init__")(self, *args, **kwargs)
            found.append(self)

        return note

    with replaced([(kind, "__init__", noting(kind)) for kind in _REFUSALS]):
        yield found


_REFUSALS = (
    GuardOnDataDependentSymNode,
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
)


def note_value(stand_in: torch.Tensor, value: torch.Tensor) -> None:
    """Let what stands for a tensor during a capture be the one of a value, until it is written (``constant``)."""
    if isinstance(stand_in, fake_tensor.FakeTensor):
        stand_in.constant = value


def operator_without_kernel(error: BaseException | None) -> torch._ops.OpOverload | None:
    """Return the operator that torch cannot run without data (``UnsupportedOperatorException``), else None."""
    return error.func if isinstance(error, UnsupportedOperatorException) else None


@contextlib.contextmanager
def replaced_kernels(
    kernels: Mapping[torch._ops.OpOverload, Callable[[Callable[..., Any]], Callable[..., Any]]],
) -> Iterator[None]:
    """Let operators have other kernels for tensors without data, in the body; torch logs nothing of their failures.

    A composite operator (``CompositeImplicitAutograd``) has one kernel for all tensors. An operator whose kernel is in
    Python, and not one of torch's, keeps it: it could not be put back.

    Args:
        kernels: For each operator a function that is given the kernel it has, and returns the new one.
    """
    kernels = {operator: make for operator, make in kernels.items() if not _is_lost(operator)}
    libraries: dict[str, torch.library.Library] = {}
    in_python: list[tuple[torch._ops.OpOverload, Callable[..., Any]]] = []
    meta = torch._C.DispatchKey.Meta
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for operator, make in kernels.items():
                if operator.namespace not in libraries:
                    libraries[operator.namespace] = torch.library.Library(operator.namespace, "IMPL")
                key = _replaced_key(operator)
                kernel = make(_kernel_of(operator, key))
                libraries[operator.namespace].impl(operator, kernel, key, allow_override=True)
                # The dispatcher in Python, under which torch.export runs, has kernels of its own.
                if meta in operator.py_kernels:
                    in_python.append((operator, operator.py_kernels[meta]))
                    _set_kernel_in_python(operator, kernel)
        quiet = (logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)
        # What was computed with other kernels is no answer in the body, nor is what these compute one behind it.
        with replaced([quiet, *_ways_around(kernels)]), without_cache_of_calls():
            yield
    finally:
        for operator, kernel in in_python:
            # Kernels of the dispatcher that are in Python are called by name, and the last one of a name stays.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                libraries[operator.namespace].impl(operator, kernel, "Meta", allow_override=True)
            _set_kernel_in_python(operator, kernel)
        for library in libraries.values():
            library._destroy()


def _replaced_key(operator: torch._ops.OpOverload) -> str:
    return "CompositeImplicitAutograd" if _is_composite(operator) else "Meta"


def _is_lost(operator: torch._ops.OpOverload) -> bool:
    """Tell whether another kernel would take the place of one in Python for good.

    The dispatcher calls those by the names of operators (``python_op_registration_trampoline``), and keeps the last one
    of a name. What it prints of kernels in Python has no signature; torch's own are in ``py_kernels``.
    """
    key = _replaced_key(operator)
    kernels = torch._C._dispatch_dump(operator.name()).splitlines()
    active = (f"{key}: ", f"{key}[alias]: ")
    is_in_python = any(line.startswith(active) and line.endswith(":: (none) [ boxed ]") for line in kernels)
    return is_in_python and not (key == "Meta" and torch._C.DispatchKey.Meta in operator.py_kernels)


def _set_kernel_in_python(operator: torch._ops.OpOverload, kernel: Callable[..., Any]) -> None:
    """Set the Meta kernel in ``py_kernels``; ``_dispatch_cache`` would still have the one before."""
    operator.py_kernels[torch._C.DispatchKey.Meta] = kernel
    operator._dispatch_cache.clear()


def _ways_around(kernels: Mapping[torch._ops.OpOverload, Any]) -> list[tuple[Any, str, Any]]:
    """Return the replacement of what ``FakeTensorMode`` does before it looks at kernels.

    Those are ``get_fast_op_impls``, and decompositions, which operators in ``torch._decomp.meta_table`` do without.
    """
    fast = {operator: run for operator, run in get_fast_op_impls().items() if operator not in kernels}
    known: dict[Any, Any] = {**torch._decomp.meta_table, **kernels}
    return [(fake_tensor, "get_fast_op_impls", lambda: fast), (torch._decomp, "meta_table", known)]


def _is_composite(operator: torch._ops.OpOverload) -> bool:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key))


def _kernel_of(operator: torch._ops.OpOverload, key: str) -> Callable[..., Any]:
    """Return a function that runs an operator as it is now, outside of all modes; it may want tensors with data."""
    has_one = key != "Meta" or torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key)
    kernel = torch.library.get_kernel(operator, "Meta") if has_one else None
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)

    def run(*args: Any, **kwargs: Any) -> Any:
        with real_tensors():
            if kernel is not None:
                return kernel.call_boxed(keys, *args, **kwargs)
            if any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in pytree.tree_leaves((args, kwargs))):
                raise NotImplementedError(f"{operator} has no kernel for tensors without data")
            return operator(*args, **kwargs)

    return run
