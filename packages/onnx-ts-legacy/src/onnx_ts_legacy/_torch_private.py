"""The places where the exporter needs something of torch that it does not offer publicly.

Each function names what it relies on; ``tests/test_torch_private.py`` notices when torch changes it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import sympy
import torch
from torch._C import (
    BoolType,
    FloatType,
    IntType,
    ListType,
    NoneType,
    ScriptObject,
    StringType,
    TensorType,
    parse_schema,
)
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
)
from torch.onnx.ops import _symbolic_impl

from onnx_ts_legacy.views_of_calls import einsum_axes, grid_views
from onnxops_core.exporting import Replacements, replaced, symbolic, symbolic_multi_out, without_replacement

__all__ = [
    "CHECK",
    "BoolType",
    "FakeTensor",
    "FakeTensorMode",
    "FloatType",
    "IntType",
    "ListType",
    "NoneType",
    "ScriptObject",
    "ShapeEnv",
    "StringType",
    "TensorType",
    "TracerWarning",
    "decided",
    "fake_mode",
    "forgetting",
    "hidden_deprecations",
    "inline_calls",
    "insert_casts",
    "is_any_traced",
    "is_data_dependent",
    "is_of_dynamo",
    "lacks_fake_kernel",
    "new_dimension",
    "overload_of_schema",
    "parse_schema",
    "python_kernels",
    "quiet_fake_tensors",
    "refuses_argument",
    "refuses_symbols",
    "registered_symbolics",
    "same_storage",
    "set_at_least_one",
    "shape_as_tensor",
    "shape_env",
    "split",
    "take_for_granted",
    "trace_graph",
    "traced_graph",
    "traced_value",
    "traces",
]


Function = Callable[..., Any]
# The name of the function in which all checks of conditions end, ``torch._check`` and its kind.
CHECK = "_check_with"
# The operator behind ``torch.split``, which itself makes a Python integer of the size of the parts.
split: Function = torch._VF.split  # type: ignore[attr-defined]
# A function that tracing records a shape by.
shape_as_tensor = torch._shape_as_tensor

TracerWarning: type[Warning] = torch.jit.TracerWarning  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class _InputDimension(Source):
    """Where a symbolic dimension comes from: an input of the model (``torch._guards.Source``)."""

    text: str

    @property
    def _name_template(self) -> str:
        return self.text

    @functools.cached_property
    def name(self) -> str:
        return self.text

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


@contextlib.contextmanager
def forgetting(shape_env: ShapeEnv) -> Iterator[set[sympy.Basic]]:
    """Let torch forget behind the body what it took for granted there; the set that is given then tells it.

    What it found out of symbols that are new in the body stays known. (``ShapeEnv.deferred_runtime_asserts``, and what
    torch concludes of it: ``replacements``, ``axioms``, ``divisible``, ``var_to_range``.)
    """
    taken, older = set[sympy.Basic](), dict(shape_env.var_to_range)
    concluded = {name: copy.copy(getattr(shape_env, name)) for name in ("replacements", "replacements_slocs", "axioms")}
    checks, divisible = shape_env.deferred_runtime_asserts, set(shape_env.divisible)
    count, version = shape_env.num_deferred_runtime_asserts, shape_env._replacements_version_counter
    shape_env.deferred_runtime_asserts = {symbol: list(found) for symbol, found in checks.items()}
    try:
        yield taken
    finally:
        new, shape_env.deferred_runtime_asserts = shape_env.deferred_runtime_asserts, checks
        ranges = {symbol: shape_env.var_to_range[symbol] for symbol in older}
        narrowed = {symbol: known for symbol, known in ranges.items() if known is not older[symbol]}
        if (shape_env.num_deferred_runtime_asserts, shape_env._replacements_version_counter) != (count, version):
            taken |= {check.expr for found in new.values() for check in found}
            taken -= {check.expr for found in checks.values() for check in found}
        if not taken:
            taken |= {sympy.Ge(symbol, known.lower) for symbol, known in narrowed.items()}
        if taken:
            shape_env.var_to_range.update({symbol: older[symbol] for symbol in narrowed})
            for name, known in concluded.items():
                found = getattr(shape_env, name).items()
                of_new = {fact: truth for fact, truth in found if not fact.free_symbols & older.keys()}
                setattr(shape_env, name, known | of_new)
            shape_env.divisible = divisible
            shape_env.num_deferred_runtime_asserts = count
            _forget_answers(shape_env)


def _forget_answers(shape_env: ShapeEnv) -> None:
    """Let a ``ShapeEnv`` answer anew what it remembers that it has answered."""
    shape_env._update_version_counter()
    shape_env._version_counter += 1
    shape_env._replacements_version_counter += 1
    for function in vars(ShapeEnv).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def take_for_granted(shape_env: ShapeEnv, relation: sympy.Basic) -> None:
    """Let torch know that a relation of sizes holds (``ShapeEnv.guard_or_defer_runtime_assert``)."""
    shape_env.guard_or_defer_runtime_assert(relation, "")


def set_at_least_one(size: torch.SymInt) -> None:
    """Let torch know that a size is not 0, at less cost than ``torch._check`` (``symbolic_shapes.constrain_range``)."""
    constrain_range(size, min=1)


def same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether two tensors share memory (``UntypedStorage._cdata``)."""
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def decided(condition: torch.SymBool) -> bool | None:
    """Return what a relation between sizes is whatever they are; None if that depends (``_maybe_evaluate_static``)."""
    try:
        result = condition.node.shape_env._maybe_evaluate_static(condition.node.expr)
    except Exception:
        # What SymPy cannot simplify is not decided, as in ``statically_known_true``.
        return None
    return None if result is None else bool(result)


def lacks_fake_kernel(error: BaseException) -> bool:
    """Tell whether an operator cannot be called on tensors without data (``UnsupportedOperatorException``)."""
    return isinstance(error, UnsupportedOperatorException | NotImplementedError)


def is_data_dependent(error: BaseException) -> bool:
    """Tell whether torch could not go on without the value of a symbol (``GuardOnDataDependentSymNode``)."""
    return isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException)


def refuses_symbols(error: BaseException) -> bool:
    """Tell whether a kernel in C++ wanted numbers where it got symbols (the text of ``c10::asIntArrayRefSlow``)."""
    return isinstance(error, RuntimeError) and "contain only concrete integers" in str(error)


def refuses_argument(error: BaseException) -> bool:
    """Tell whether the parser of arguments refused one, as it does symbols for numbers (``FunctionSchema``'s text)."""
    return isinstance(error, RuntimeError | TypeError) and "Expected a value of type" in str(error)


def is_of_dynamo(error: BaseException) -> bool:
    """Tell whether Dynamo raised an error, as it does where a trace calls what it compiles (``torch._dynamo``)."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("torch._dynamo")


def python_kernels() -> contextlib.AbstractContextManager[Any]:
    """Let torch take its kernels in Python, which know symbols (``torch._dispatch.python``)."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()  # type: ignore[no-any-return,no-untyped-call,unused-ignore]


def quiet_fake_tensors() -> contextlib.AbstractContextManager[None]:
    """Keep torch from printing what it cannot say about symbols; the caller deals with it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    return replaced([(logger, "disabled", True)])


def overload_of_schema(text: str) -> torch._ops.OpOverload | None:
    """Return the operator that a node's schema names (``torch._C.parse_schema``), or None if there is none.

    ``prim::PythonOp`` has a schema, but calling it by that ends the process.
    """
    if text.startswith(("(no schema)", "prim::PythonOp")):
        return None
    names = _names_in_schema(text)
    if names is None:
        return None
    namespace, name, overload = names
    try:
        # A library may define the operator later, or once more.
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)  # type: ignore[no-any-return]
    except AttributeError:
        return None


@functools.cache
def _names_in_schema(text: str) -> tuple[str, str, str] | None:
    """Return namespace, name and overload, which follow from the text alone."""
    try:
        schema = torch._C.parse_schema(text)
    except RuntimeError:
        return None
    namespace, name = schema.name.split("::")
    return namespace, name, schema.overload_name or "default"


def registered_symbolics() -> list[tuple[str, int, Function]]:
    """Return name, opset and function of what ``torch.onnx.register_custom_op_symbolic`` has registered.

    It is in the ``registration.registry`` of the module that has the function, beside those of torch, as an override.
    """
    registry = sys.modules[cast(Any, torch.onnx).register_custom_op_symbolic.__module__].registration.registry
    groups = {name: registry.get_function_group(name)._functions for name in registry.all_functions()}
    return [
        (name, opset, functions[opset])
        for name, functions in groups.items()
        for opset in functions
        if functions.overridden(opset)
    ]


def inline_calls(graph: Any) -> None:
    """Replace calls of methods, functions and forked tasks by what they do (``torch._C._jit_pass_inline``)."""
    torch._C._jit_pass_inline(graph)
    torch._C._jit_pass_inline_fork_wait(graph)
    torch._C._jit_pass_inline(graph)


def insert_casts(graph: Any) -> None:
    """Insert the casts of the regions in which a scripted program enters autocast (``torch._C._jit_pass_autocast``).

    It is what TorchScript does before it runs a program.
    """
    torch._C._jit_pass_autocast(graph)  # type: ignore[attr-defined]


# Operators that take a list of sizes by each name.
_TAKING_SIZES: dict[str, Any] = {
    "size": torch.ops.aten.zeros,
    "shape": torch.ops.aten.reshape,
    "dims": torch.ops.aten.permute,
    "dim": torch.ops.aten.sum,
    "repeats": torch.ops.aten.repeat,
    "split_sizes": torch.ops.aten.split_with_sizes,
    "shifts": torch.ops.aten.roll,
    "pad": torch.ops.aten.constant_pad_nd,
    "output_size": torch.ops.aten.adaptive_avg_pool2d,
}


def _forget_sizes(error: TypeError, operand: torch.Tensor) -> None:
    """Make tracing forget the sizes that a call was given which failed, as it would give them to the next one.

    Tracing keeps the traced elements of a list of sizes by the name of the argument (``ArgumentStash``) until an
    operator with such an argument takes them, whether that succeeds or not. It has to, while the trace goes on: what it
    keeps is part of its graph.
    """
    found = re.search(r"argument '(\w+)' failed to unpack", str(error))
    operator = None if found is None else _TAKING_SIZES.get(found[1])
    if operator is None:
        return
    for operands in ((), (operand,)):
        with contextlib.suppress(Exception):
            operator(*operands, [1] * 64)


def trace_graph(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], scopes: Mapping[torch.nn.Module, str]
) -> Any:
    """Record what ``function`` does to ``tensors`` (``torch._C._create_graph_by_tracing``).

    Args:
        function: Called with the first tensors; the others are weights that it reads by itself.
        tensors: Inputs of the graph.
        scopes: Names of modules, which the nodes of their calls carry (``torch.jit._trace._trace_module_map``).
    """
    operand = torch.zeros(1, device="cpu")

    def call(*given: torch.Tensor) -> Any:
        try:
            return function(*given)
        except TypeError as error:
            _forget_sizes(error, operand)
            raise

    with replaced([(torch.jit._trace, "_trace_module_map", dict(scopes))]):
        graph, _ = torch._C._create_graph_by_tracing(call, tuple(tensors), lambda variable: "", False, False)
    return graph


@contextlib.contextmanager
def recording(refused: Callable[[str], Exception]) -> Iterator[None]:
    """Let this thread record traces for an export in the body, other than those that a program makes for itself.

    They hold what tracing does not record otherwise. ``x.data`` and ``copy.deepcopy(x)`` would be constants of the
    trace, and what is written to ``torch.atleast_2d(x)``, ``torch.einsum("ij->ji", x)`` and grids, views whose schemas
    do not say so, would be taken out of it, all without a word. (``torch._VF`` is what ``torch.functional`` calls.)
    ``torch.onnx.ops.symbolic`` and ``symbolic_multi_out``, by whatever names they are called, call the operators of
    ``torch.onnx.ops._symbolic_impl``, which a trace cannot hold.

    Functions that are scripted meanwhile call torch's own functions, not what stands in for them. (The compiler looks
    them up by ``torch.jit._builtins._find_builtin`` and ``torch.jit._recursive.try_compile_fn``.)

    Args:
        refused: Makes the exception for what a trace cannot hold, given its name.
    """
    before, _recorder.is_this = getattr(_recorder, "is_this", False), True
    try:
        with replaced(_replacements(refused), in_all_threads=True):
            yield
    finally:
        _recorder.is_this = before


def _finding_original(usual: Function) -> Function:
    """Return how the compiler looks up a function, for which another one may stand in."""

    @functools.wraps(usual)
    def find(function: Any, *args: Any) -> Any:
        return usual(without_replacement(function), *args)

    return find


def _single(usual: Function) -> Function:
    @functools.wraps(usual)
    def single(inputs: Any, op_type: str, dtype: int, *, shape: Any, **given: Any) -> Any:
        if not _is_recorder():
            return usual(inputs, op_type, dtype, shape=shape, **given)
        return symbolic(*_described(inputs, op_type, given), dtype=dtype, shape=shape, **given)

    return single


def _several(usual: Function) -> Function:
    @functools.wraps(usual)
    def several(inputs: Any, op_type: str, dtypes: Sequence[int], *, shapes: Any, **given: Any) -> Any:
        if not _is_recorder():
            return usual(inputs, op_type, dtypes, shapes=shapes, **given)
        return symbolic_multi_out(*_described(inputs, op_type, given), dtypes=dtypes, shapes=shapes, **given)

    return several


def _described(inputs: Any, op_type: str, given: dict[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    """Return the operator, inputs and attributes of a call, and make the rest what our operators take."""
    encoded = {field.name: given.pop(field.name) for field in dataclasses.fields(_symbolic_impl.EncodedAttrs)}
    keys, values = given.pop("metadata_props_keys"), given.pop("metadata_props_values")
    given["metadata_props"] = dict(zip(keys, values, strict=True))
    domain = given.pop("domain")
    attributes = _symbolic_impl.EncodedAttrs(**encoded).to_dict()
    return f"{domain}::{op_type}" if domain else op_type, inputs, attributes


@functools.cache
def _replacements(refused: Callable[[str], Exception]) -> Replacements:
    # Each leaves threads alone that record no trace.
    return Replacements(
        [
            (torch.Tensor, "data", functools.partial(_traced_data, refused)),
            *((torch.Tensor, name, functools.partial(_left_out, refused, name)) for name in _LEFT_OUT),
            (torch.Tensor, "__deepcopy__", _traced_copy),
            *((torch._VF, f"atleast_{rank}d", functools.partial(_rising, rank)) for rank in _AT_LEAST),
            (torch._VF, "einsum", functools.partial(functools.partial, _einsum)),
            (torch._VF, "meshgrid", functools.partial(functools.partial, _meshgrid)),
            (_symbolic_impl, "_symbolic", _single),
            (_symbolic_impl, "_symbolic_multi_out", _several),
            (torch.jit._builtins, "_find_builtin", _finding_original),
            (torch.jit._recursive, "_find_builtin", _finding_original),
            (torch.jit._recursive, "try_compile_fn", _finding_original),
        ]
    )


_recorder = threading.local()


def _is_recorder() -> bool:
    return getattr(_recorder, "is_this", False)


def is_any_traced() -> bool:
    """Tell whether this thread records a trace at all, of which torch has one at a time (``_get_tracing_state``)."""
    return torch._C._get_tracing_state() is not None


def traces() -> bool:
    """Tell whether this thread records a trace for an export (``torch._C._get_tracing_state``)."""
    return torch._C._get_tracing_state() is not None and getattr(_recorder, "is_this", False)


def rank_of(tensor: torch.Tensor) -> int:
    """Return the number of dimensions, seen by no mode of torch (``torch._C.DisableTorchFunction``)."""
    with torch._C.DisableTorchFunction():
        return tensor.dim()


def traced_value(tensor: torch.Tensor) -> Any:
    """Return what stands for a tensor in the trace that is being recorded (``torch._C._get_value_trace``)."""
    return torch._C._get_value_trace(tensor)  # type: ignore[attr-defined]


def traced_graph() -> Any:
    """Return the trace that is being recorded (``torch._C._get_tracing_state().graph()``)."""
    return torch._C._get_tracing_state().graph()


def _traced_data(refused: Callable[[str], Exception], usual: Any) -> property:
    def read(self: torch.Tensor) -> torch.Tensor:
        return self.detach() if traces() else usual.__get__(self)

    def write(self: torch.Tensor, value: torch.Tensor) -> None:
        if traces():
            raise refused("an assignment to Tensor.data")
        usual.__set__(self, value)

    return property(read, write)


# What gives a tensor other memory, whose writes no trace would show.
_LEFT_OUT = ("set_", "resize_", "resize_as_")


def _left_out(refused: Callable[[str], Exception], name: str, usual: Callable[..., torch.Tensor]) -> Function:
    def moved(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if traces():
            raise refused(f"Tensor.{name}")
        return usual(self, *args, **kwargs)

    return moved


def _traced_copy(usual: Callable[..., torch.Tensor]) -> Function:
    def copied(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        return memo.setdefault(id(self), self.clone()) if traces() else usual(self, memo)

    return copied


# For each rank, the axes that a tensor of a lower rank gets.
_AT_LEAST: dict[int, tuple[tuple[int, ...], ...]] = {1: ((0,),), 2: ((0, 0), (0,)), 3: ((0, 0, 0), (0, 2), (2,))}


def _rising(rank: int, usual: Function) -> Function:
    def raised(tensors: Any) -> Any:
        return _at_least(rank, tensors) if traces() else usual(tensors)

    return raised


def _at_least(rank: int, tensors: Any) -> Any:
    if not isinstance(tensors, torch.Tensor):
        return tuple(_at_least(rank, tensor) for tensor in tensors)
    for axis in _AT_LEAST[rank][tensors.dim()] if tensors.dim() < rank else ():
        tensors = tensors.unsqueeze(axis)
    return tensors


def _einsum(usual: Function, equation: str, operands: Any, **options: Any) -> Any:
    tensors = operands if isinstance(operands, list | tuple) else ()
    axes = einsum_axes(equation, tensors[0].dim()) if len(tensors) == 1 and traces() else None
    if axes is None:
        return usual(equation, operands, **options)
    tensor, (diagonals, order) = tensors[0], axes
    for first, second in diagonals:
        tensor = tensor.diagonal(0, first, second)
    return tensor.permute(order)


def _meshgrid(usual: Function, tensors: Any, *, indexing: str = "ij") -> Any:
    given = list(tensors) if isinstance(tensors, list | tuple) else []
    if not given or not traces() or any(each.dim() > 1 for each in given):
        return usual(tensors, indexing=indexing)
    sizes = [each.shape[0] if each.dim() else 1 for each in given]
    return grid_views(given, sizes, indexing, torch.Tensor.view, torch.Tensor.expand)


@contextlib.contextmanager
def hidden_deprecations() -> Iterator[None]:
    """Keep torch from telling the user of this exporter that TorchScript is deprecated."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*torch\.jit\..*(deprecated|not supported).*")
        yield
