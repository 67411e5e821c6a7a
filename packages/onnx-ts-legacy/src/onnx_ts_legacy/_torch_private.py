"""The places where the exporter needs something of torch that it does not offer publicly.

Each function names what it relies on; ``tests/test_torch_private.py`` notices when torch changes it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch._guards import Source
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    constrain_range,
    statically_known_true,
)

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "ShapeEnv",
    "fake_mode",
    "hidden_deprecations",
    "inline_calls",
    "is_data_dependent",
    "lacks_fake_kernel",
    "new_dimension",
    "overload_of_schema",
    "plain_fake",
    "python_kernels",
    "quiet_fake_tensors",
    "refuses_symbols",
    "same_storage",
    "set_at_least_one",
    "shape_env",
    "statically_known_true",
    "trace_graph",
]


class _InputDimension(Source):
    """Where a symbolic dimension comes from: an input of the model (``torch._guards.Source``)."""

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "_text", text)

    @property
    def _name_template(self) -> str:
        return str(self.__dict__["_text"])

    @functools.cached_property
    def name(self) -> str:
        return str(self.__dict__["_text"])

    @property
    def guard_source(self) -> Any:
        from torch._guards import GuardSource

        return GuardSource.CONSTANT


def shape_env() -> ShapeEnv:
    """Return what makes symbolic sizes, each one different from the others."""
    return ShapeEnv(duck_shape=False)


def fake_mode(shape_env: ShapeEnv) -> FakeTensorMode:
    """Return a mode for tensors without data whose sizes may be symbols of ``shape_env``."""
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    # Equal calls are remembered by the metadata itself, at less cost.
    mode.cache_enabled = False
    return mode


def new_dimension(mode: FakeTensorMode, name: str, hint: int) -> torch.SymInt:
    """Return a new symbolic size with an example value (``ShapeEnv.create_symbol``, ``ShapeEnv.create_symintnode``)."""
    source = _InputDimension(name)
    shape_env: Any = mode.shape_env
    symbol = shape_env.create_symbol(hint, source, DimDynamic.DYNAMIC, constraint_dim=None)
    return cast(torch.SymInt, shape_env.create_symintnode(symbol, hint=hint, source=source))


def set_at_least_one(size: torch.SymInt) -> None:
    """Let torch know that a size is not 0, at less cost than ``torch._check`` (``symbolic_shapes.constrain_range``)."""
    constrain_range(size, min=1)


def same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors share memory (``UntypedStorage._cdata``)."""
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def lacks_fake_kernel(error: BaseException) -> bool:
    """Tell whether an operator cannot be called on tensors without data (``UnsupportedOperatorException``)."""
    return isinstance(error, UnsupportedOperatorException | NotImplementedError)


def is_data_dependent(error: BaseException) -> bool:
    """Tell whether torch could not go on without the value of a symbol (``GuardOnDataDependentSymNode``)."""
    return isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException)


def refuses_symbols(error: BaseException) -> bool:
    """Tell whether a kernel in C++ wanted numbers where it got symbols (the text of ``c10::asIntArrayRefSlow``)."""
    return isinstance(error, RuntimeError) and "contain only concrete integers" in str(error)


def python_kernels() -> contextlib.AbstractContextManager[Any]:
    """Let torch take its kernels in Python, which know symbols (``torch._dispatch.python``)."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


@contextlib.contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Keep torch from printing what it cannot tell of symbols; the caller deals with it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@functools.cache
def overload_of_schema(text: str) -> torch._ops.OpOverload | None:
    """Return the operator that a node's schema names (``torch._C.parse_schema``), or None if there is none.

    ``prim::PythonOp`` has a schema, but calling it by that ends the process.
    """
    if text.startswith(("(no schema)", "prim::PythonOp")):
        return None
    try:
        schema = torch._C.parse_schema(text)
    except RuntimeError:
        return None
    namespace, name = schema.name.split("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), name)
        return getattr(packet, schema.overload_name or "default")  # type: ignore[no-any-return]
    except AttributeError:
        return None


def inline_calls(graph: Any) -> None:
    """Replace calls of methods, functions and forked tasks by what they do (``torch._C._jit_pass_inline``)."""
    torch._C._jit_pass_inline(graph)
    torch._C._jit_pass_inline_fork_wait(graph)
    torch._C._jit_pass_inline(graph)


def trace_graph(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], scopes: Mapping[torch.nn.Module, str]
) -> Any:
    """Record what ``function`` does to ``tensors`` (``torch._C._create_graph_by_tracing``).

    Args:
        function: Called with the first tensors; the others are weights that it reads by itself.
        tensors: Inputs of the graph.
        scopes: Names of modules, which the nodes of their calls carry (``torch.jit._trace._trace_module_map``).
    """
    before = torch.jit._trace._trace_module_map
    torch.jit._trace._trace_module_map = dict(scopes)
    try:
        graph, _ = torch._C._create_graph_by_tracing(function, tuple(tensors), lambda variable: "", False, False)
    finally:
        torch.jit._trace._trace_module_map = before
    return graph


def plain_fake(mode: FakeTensorMode, sizes: Sequence[Any], strides: Sequence[Any], dtype: torch.dtype) -> FakeTensor:
    """Return a fake tensor without asking the dispatcher (constructor of ``FakeTensor``)."""
    meta = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    return FakeTensor(mode, meta, torch.device("cpu"))


@contextlib.contextmanager
def hidden_deprecations() -> Iterator[None]:
    """Keep torch from telling the user of this exporter that TorchScript is deprecated."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit\..*(deprecated|not supported).*")
        yield


Function = Callable[..., Any]
