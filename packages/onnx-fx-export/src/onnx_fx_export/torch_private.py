"""The places where the exporter needs something of torch that it does not offer publicly.

``tests/test_torch_private.py`` notices when torch changes one of them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import logging
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import sympy
import torch
from torch._dynamo.exc import UserError, UserErrorType
from torch._export.non_strict_utils import make_constraints
from torch._higher_order_ops import scan
from torch._library.fake_impl import FakeImplCtx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import _trace
from torch.export._trace import _export
from torch.fx.experimental import _config as symbolic_config
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    ConstraintViolationError,
    DimConstraints,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    free_unbacked_symbols,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils._sympy.functions import CeilToInt, FloorDiv, FloorToInt, RoundToInt, ToFloat, TruncToFloat, TruncToInt
from torch.utils._sympy.printers import PythonPrinter

import onnxops_core
import onnxops_decomp
from onnxops_core.exporting import original, replaced
from onnxops_decomp.exporting import is_generated_code

__all__ = [
    "ACCESS",
    "FakeTensor",
    "FloorDiv",
    "SymNode",
    "TorchDispatchMode",
    "WithoutEmptyBags",
    "Writes",
    "add_guards",
    "answer_for_rows",
    "causal_mask_detection",
    "dimension_facts",
    "dynamic_associative_scan",
    "exported",
    "fake_like",
    "followed_scalars",
    "guard_texts",
    "guards_of",
    "guards_on_layout",
    "hint_of",
    "interpreted_nodes",
    "is_decided_by_data",
    "is_dimension_error",
    "is_of_dynamo",
    "is_of_fractions",
    "is_users_code",
    "known_scalar",
    "not_the_users",
    "possibly_empty_results",
    "recorded_apart",
    "records_modes",
    "replacements_of",
    "scan",
    "size_of_inputs",
    "sizes_unlike_0_and_1",
    "transforms_left",
    "undecided_condition",
    "without_partial_graphs",
]

_GUARDS = str(Path(torch.__file__).parent / "_dynamo" / "guards.py")
# What a captured graph reads an attribute of a weight with that is a subclass of Tensor.
ACCESS = torch.ops.export.access_subclass_inner_tensor.default


def guard_texts(program: torch.export.ExportedProgram) -> list[str]:
    """Return the guards on input sizes as Python text over ``L['x'].size()[0]`` (``_guards_code``).

    torch 2.15 calls the smaller of two sizes ``torch.sym_min``, earlier releases ``min``.
    """
    texts = getattr(program, "_guards_code", None) or ()
    return [re.sub(r"\btorch\.sym_(min|max)\(", r"\1(", text) for text in texts]


def size_of_inputs(program: torch.export.ExportedProgram) -> torch.SymInt | None:
    """Return a symbolic size of an input, None if there is none."""
    values = (node.meta.get("val") for node in program.graph.find_nodes(op="placeholder"))
    sizes: Iterator[Any] = (size for value in values if isinstance(value, torch.Tensor) for size in value.shape)
    return next((size for size in sizes if isinstance(size, torch.SymInt)), None)


def add_guards(program: torch.export.ExportedProgram, other: torch.export.ExportedProgram) -> None:
    """Let a program have the guards of another one, over the same symbols, too (``ShapeEnv.guards``, ``_guards_code``).

    Bounds of symbols are guards as well.
    """
    ours, theirs = size_of_inputs(program), size_of_inputs(other)
    if ours is None or theirs is None:
        return
    env, known = ours.node.shape_env, set(guards_of(ours))
    env.guards.extend(guard for guard in theirs.node.shape_env.guards if guard.expr not in known)
    texts = [getattr(each, "_guards_code", None) or [] for each in (program, other)]
    program._guards_code = [*dict.fromkeys(itertools.chain(*texts))]
    ranges = program.range_constraints
    common = [symbol for symbol in other.range_constraints if symbol in ranges]
    ranges.update({symbol: ranges[symbol] & other.range_constraints[symbol] for symbol in common})


def hint_of(number: torch.SymBool | torch.SymInt | torch.SymFloat) -> Any:
    """Return what a symbolic number is for the example, or None where data decides it (``SymNode.hint``)."""
    return number.node.hint if number.node.has_hint() else None


_OF_OPERATORS = tuple(str(Path(torch.__file__).parent / name) for name in ("_prims", "_prims_common", "_refs"))
# Functions of torch that choose between ways to compose a view, or an order in memory; the elements are the same.
_ABOUT_LAYOUT = (
    "__lt__",  # of strides, which are sorted
    "_collapse_view_helper",
    "_reshape_view_helper_core_alg",
    "are_strides_like_channels_last_or_false",
    "check_contiguous_sizes_strides",
    "is_channels_last_contiguous_2d",
    "is_channels_last_contiguous_3d",
    "is_contiguous",
    "is_non_overlapping_and_dense_or_false",
    "should_swap",
)


def guards_on_layout(size: torch.SymInt) -> dict[Any, str]:
    """Return what was taken for granted only to lay tensors out in memory, each with its text (``SLoc``)."""
    env, printer = size.node.shape_env, PythonPrinter()
    places = ((guard.expr, guard.sloc.framework_loc) for guard in env.guards)
    return {guard: printer.doprint(env.simplify(guard)) for guard, place in places if _is_about_layout(place)}


def _is_about_layout(place: Any) -> bool:
    """Tell whether a frame is that of a function that only lays tensors out (``traceback.FrameSummary``)."""
    inside = str(getattr(place, "filename", "")).startswith(_OF_OPERATORS)
    return inside and place.name in _ABOUT_LAYOUT


def is_decided_by_data(expression: Any) -> bool:
    """Tell whether an expression has a symbol in it that is not a size of an input (``free_unbacked_symbols``)."""
    return bool(free_unbacked_symbols(expression))


def is_of_fractions(expression: Any) -> bool:
    """Tell whether a number was a float, or is what became of one."""
    return isinstance(expression, ToFloat | TruncToFloat | TruncToInt | CeilToInt | FloorToInt | RoundToInt)


def replacements_of(size: torch.SymInt) -> dict[Any, Any]:
    """Return what symbols were found to equal while a size was captured (``ShapeEnv.replacements``)."""
    return dict(size.node.shape_env.replacements)


def guards_of(size: torch.SymInt) -> list[Any]:
    """Return what was taken for granted of the sizes while a size was captured (``ShapeEnv.guards``)."""
    return [guard.expr for guard in size.node.shape_env.guards]


def records_modes(graph_module: torch.fx.GraphModule) -> bool:
    """Tell whether a captured graph switches to ``vmap`` or autocast instead of holding what is computed there."""
    modules = [module for module in graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = {node.target for module in modules for node in module.graph.nodes if node.op == "call_function"}
    autocast = torch.ops.higher_order.wrap_with_autocast in targets
    return autocast or any(getattr(target, "__module__", "") == "torch._functorch.predispatch" for target in targets)


def recorded_apart(around: Callable[[], AbstractContextManager[object]]) -> AbstractContextManager[None]:
    """Enter a context around what torch does where it records a call of one of its own operators.

    (``ProxyTorchDispatchMode.__torch_dispatch__``.) Classes of tensors and modes of others, which may run code of their
    own there, stay outside.
    """
    record = original(ProxyTorchDispatchMode, "__torch_dispatch__")

    def recorded(self: Any, function: Any, kinds: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "namespace", None) != "aten" or not all(map(_is_torchs, kinds)):
            return record(self, function, kinds, args, kwargs)
        with around():
            return record(self, function, kinds, args, kwargs)

    if not all(_is_torchs(type(mode)) for mode in _get_current_dispatch_mode_stack()):
        return contextlib.nullcontext()
    return replaced([(ProxyTorchDispatchMode, "__torch_dispatch__", recorded)])


def _is_torchs(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def is_dimension_error(error: Exception) -> bool:
    """Tell whether torch.export found a dimension other than it was declared.

    (``UserErrorType``; ranges of ``Dim.DYNAMIC`` are compared by ``make_constraints``, which raises a ValueError, and
    an equation of sizes that SymPy cannot solve ends ``DimConstraints.solve`` with a NotImplementedError.)
    """
    if isinstance(error, UserError):
        return error.error_type is UserErrorType.CONSTRAINT_VIOLATION
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return (
        isinstance(error, ConstraintViolationError)
        or (isinstance(error, ValueError) and codes[-1:] == [make_constraints.__code__])
        or (isinstance(error, NotImplementedError) and DimConstraints.solve.__code__ in codes)
    )


def dimension_facts(error: Exception) -> tuple[list[str], list[str], bool]:
    """Return what torch found of dimensions, the declarations that it suggests, and whether all are conditions.

    torch offers them as text only: an item of a list for each finding, whose first sentence is the fact and starts
    with "Not all values" where a size is not fixed, and assignments of ``Dim(...)``.
    """
    text = str(error)
    items = re.findall(r"^\s*- (.*)$", text, re.MULTILINE) or text.strip().splitlines()[:1]
    suggested = re.findall(r"^\s*(\w+ = .*\bDim\(.*?)\s*$", text, re.MULTILINE)
    facts = list(dict.fromkeys(re.split(r"(?<=\.)\s", item)[0] for item in items))
    return facts, suggested, all(fact.startswith("Not all values of ") for fact in facts)


def undecided_condition(error: BaseException) -> sympy.Basic | None:
    """Return the expression over data that torch had to know, or None (``GuardOnDataDependentSymNode.cond``)."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, GuardOnDataDependentSymNode):
        seen = seen.__cause__ or seen.__context__
    return None if seen is None else seen.cond


def answer_for_rows(condition: torch.SymBool, *, few: bool = False) -> bool | None:
    """Return whether a condition holds where data lets many rows through, or one; None if it is about something else.

    (``ShapeEnv.size_like`` has the sizes that data decides, in contrast to numbers that are read from data.)
    """
    env = condition.node.shape_env
    expression = env.replace(condition.node.expr)
    symbols = sorted(expression.free_symbols, key=str)
    if not symbols or not all(symbol in env.size_like for symbol in symbols):
        return None
    rows = {s: sympy.Integer(min(1 if few else _MANY + n, env.var_to_range[s].upper)) for n, s in enumerate(symbols)}
    answer = expression.xreplace(rows)
    return bool(answer) if answer in (sympy.true, sympy.false) else None


def number_symbols_from(condition: torch.SymBool, least: int) -> None:
    """Name what data decides from now on with numbers from ``least`` on (``ShapeEnv.unbacked_symint_counter``)."""
    env = condition.node.shape_env
    env.unbacked_symint_counter = max(env.unbacked_symint_counter, least)
    env.unbacked_symfloat_counter = max(env.unbacked_symfloat_counter, least)


def fake_beside(nodes: Iterable[torch.fx.Node], value: torch.Tensor) -> torch.Tensor:
    """Return what stands for a tensor beside the values of nodes (``FakeTensor.fake_mode``)."""
    fakes = (node.meta.get("val") for node in nodes)
    mode = next(fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor))
    return mode.from_tensor(value)


# A number of rows that no code treats apart.
_MANY = 100_003


def interpreted_nodes(error: BaseException) -> list[torch.fx.Node]:
    """Return the nodes that interpreters were at when an error was raised, the innermost first.

    (``torch.fx.Interpreter.run`` keeps it in ``node``.)
    """
    running = torch.fx.Interpreter.run.__code__
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code is running]
    return [node for frame in reversed(frames) if isinstance(node := frame.f_locals.get("node"), torch.fx.Node)]


class Writes(TorchDispatchMode):
    """Notes the memory that operators write to meanwhile, also of tensors without data (``TorchDispatchMode``)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and note the operands that its schema says are written."""
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[index] if index < len(args) else (kwargs or {}).get(argument.name)
                tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
                self._storages.update(tensor.untyped_storage()._cdata for tensor in tensors)
        return func(*args, **(kwargs or {}))

    def reached(self, tensor: torch.Tensor) -> bool:
        """Tell whether the memory of a tensor was written to (``UntypedStorage._cdata``)."""
        return tensor.untyped_storage()._cdata in self._storages


def dynamic_associative_scan() -> AbstractContextManager[None]:
    """Record ``associative_scan`` over a dynamic dimension as ``scan``.

    Its generic mode is a recursion in Python that ends at a length that it knows (``generic_associative_scan``).
    """
    module: Any = importlib.import_module("torch._higher_order_ops.associative_scan")
    generic: Callable[..., Any] = module.generic_associative_scan

    def through_scan(operator: Any, leaves: Sequence[torch.Tensor], **arguments: Any) -> Any:
        if isinstance(leaves[0].shape[0], int):
            return generic(operator, leaves, **arguments)
        # The operator is the user's under vmap, which steps do not need.
        own = inspect.getclosurevars(operator.keywords["combine_fn"]).nonlocals["func"]
        combine = functools.partial(operator.func, **{**operator.keywords, "combine_fn": own})

        def step(carried: list[torch.Tensor], slices: list[torch.Tensor]) -> Any:
            started, *before = carried
            combined = pytree.tree_leaves(combine(*before, *slices))
            results = [torch.where(started, new, first) for new, first in zip(combined, slices, strict=True)]
            return [torch.ones_like(started), *results], [result.clone() for result in results]

        # A flag tells the first step, so that the scan runs over everything, whatever the length is.
        started = torch.zeros((), dtype=torch.bool, device=leaves[0].device)
        before = [leaf[0].clone(memory_format=torch.contiguous_format) for leaf in leaves]
        _, results = scan(step, [started, *before], list(leaves))
        return results

    return replaced([(module, "generic_associative_scan", through_scan)])


def fake_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors without data on the CPU like the given ones, all of one ``FakeTensorMode``."""
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        made = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu") for t in tensors]
        return [
            torch.nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, torch.nn.Parameter) else new
            for new, old in zip(made, tensors, strict=True)
        ]


def followed_scalars(
    computed: Callable[[torch._ops.OpOverload, Any, Any, torch.Tensor], None],
    made: Callable[[torch.Tensor, torch.Tensor], None],
    read: Callable[[torch.Tensor], Any],
    named: Callable[[torch.Tensor, torch.SymInt], None],
) -> AbstractContextManager[None]:
    """Watch tensors of one element and no dimensions that torch.export computes without data.

    Relies on ``FakeTensorMode.dispatch`` and ``from_tensor``.

    Args:
        computed: Gets the operator, its arguments and the result.
        made: Gets a tensor with data, and the one that stands for it.
        read: Gets a tensor, and returns the number in it; None if that is not known.
        named: Gets a tensor whose number was not known, and what stands for it from now on.
    """

    def dispatch(self: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS and (number := read(args[0])) is not None:
            return number
        result = original(FakeTensorMode, "dispatch")(self, func, types, args, kwargs)
        if isinstance(result, FakeTensor) and not result.dim():
            computed(func, args, kwargs, result)
        elif func in _READS and isinstance(result, torch.SymInt):
            named(args[0], result)
        return result

    def from_tensor(self: FakeTensorMode, tensor: torch.Tensor, **options: Any) -> Any:
        # Describing a plain tensor reads some fifty attributes, of which no mode has to know.
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        with torch._C.DisableTorchFunction() if plain else contextlib.nullcontext():
            result = original(FakeTensorMode, "from_tensor")(self, tensor, **options)
            if not tensor.dim():
                made(tensor, result)
        return result

    return replaced([(FakeTensorMode, "dispatch", dispatch), (FakeTensorMode, "from_tensor", from_tensor)])


_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


def known_scalar(tensor: torch.Tensor) -> int | float | None:
    """Return the number in a tensor without dimensions that is a constant of a graph; None for another one."""
    constant = getattr(tensor, "constant", None) if isinstance(tensor, FakeTensor) else tensor
    if constant is None or constant.dim() or constant.dtype == torch.bool or constant.is_complex():
        return None
    with _disable_current_modes():
        return constant.item()


def sizes_unlike_0_and_1() -> AbstractContextManager[None]:
    """Let torch note what the model decides by whether a size is 0 or 1 (``backed_size_oblivious``).

    Without it a dynamic size counts as 2 or more, and such decisions leave no guard.
    """
    return symbolic_config.patch(backed_size_oblivious=True)  # type: ignore[no-any-return, attr-defined]


@functools.cache
def not_the_users() -> tuple[str, ...]:
    """Return the beginnings of the paths of code that is torch's, the exporter's, or Python's machinery."""
    modules = [module.__file__ or "" for module in (torch, onnxops_core, onnxops_decomp, logging)]
    # With a separator, because torchvision is not torch.
    folders = [str(Path(file).parent) + os.sep for file in (*modules, __file__)]
    return (*folders, str(Path(contextlib.__file__).with_suffix("")))


def is_of_dynamo(frame: FrameType) -> bool:
    """Tell whether a frame runs a guard, which Dynamo writes and calls (``torch._dynamo.guards``)."""
    caller = frame.f_back
    return frame.f_code.co_filename == "<string>" and caller is not None and caller.f_code.co_filename == _GUARDS


@functools.cache
def is_users_code(file: str, function: str) -> bool:
    """Tell whether the code of a function is neither torch's, nor the exporter's, nor written by a program."""
    return not file.startswith(not_the_users()) and not is_generated_code(file, function)


def causal_mask_detection(function: Callable[..., bool]) -> list[tuple[Any, str, Any]]:
    """Return the replacement of what compares masks with the causal one (``_detect_is_causal_mask``)."""
    return [(torch.nn.modules.transformer, "_detect_is_causal_mask", function)]


def possibly_empty_results() -> AbstractContextManager[None]:
    """Let the sizes that data decides be 0 and 1, too, where a library describes its operators in the older way.

    Its ``FakeImplCtx.create_unbacked_symint`` takes them for 2 or more unless it is told otherwise, as torchvision's
    ``nms`` does, and what a model does with no boxes would be lost; ``new_dynamic_size`` does not.
    """

    def create(self: FakeImplCtx, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        return self.new_dynamic_size(min=min, max=max)

    return replaced([(FakeImplCtx, "create_unbacked_symint", create)])


def exported(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any,
    strict: bool,
    below_autograd: bool,
) -> torch.export.ExportedProgram:
    """Capture a model: ``torch.export.export``, or the same below autograd (``_export``, ``pre_dispatch=False``)."""
    if not below_autograd:
        return torch.export.export(model, tuple(args), dict(kwargs), dynamic_shapes=dynamic_shapes, strict=strict)
    program: torch.export.ExportedProgram = _export(
        model, tuple(args), dict(kwargs), dynamic_shapes, strict=strict, pre_dispatch=False
    )
    return program


@contextlib.contextmanager
def without_partial_graphs() -> Iterator[None]:
    """Keep torch.export from printing what it had recorded when it fails (``print`` in ``torch.export._trace``).

    That is a part of a graph, and what it logs of its symbols, guards and classes of errors: the error says it in terms
    of the user's code.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced([(_trace, "print", lambda *values, **options: None)]))
        for name in ("torch.fx.experimental.symbolic_shapes", "torch.export._trace", "torch._guards"):
            logger = logging.getLogger(name)
            logger.addFilter(_says_something)
            stack.callback(logger.removeFilter, _says_something)
        yield


def _says_something(record: logging.LogRecord) -> bool:
    is_symbolic = record.name == "torch.fx.experimental.symbolic_shapes"
    return not str(record.msg).startswith("Unable to find user code") if is_symbolic else record.levelno < logging.ERROR


@contextlib.contextmanager
def transforms_left() -> Iterator[None]:
    """Leave the function transforms that the body entered and did not leave (``torch._C._functorch``).

    Dynamo enters ``vmap`` and ``grad`` while it reads them, and stays there if it fails.
    """
    levels: Any = torch._C._functorch
    depth = levels.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        if levels.get_dynamic_layer_stack_depth() > depth:
            levels.pop_dynamic_layer_stack_and_undo_to_depth(depth)


class WithoutEmptyBags(TorchDispatchMode):
    """Refuses calls that end the process: PyTorch writes to memory that is not there where there are no bags."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _BAGS and len(args) > 7 and args[7] and len(args[2]) == 1:
            raise ValueError("embedding_bag of one offset, which is the last one")
        return func(*args, **(kwargs or {}))


_BAGS = (torch.ops.aten._embedding_bag.default, torch.ops.aten._embedding_bag_forward_only.default)
