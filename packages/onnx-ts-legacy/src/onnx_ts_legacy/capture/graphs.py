"""From a model and example arguments to a TorchScript graph: scripted programs as they are, others by tracing."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_ts_legacy import _torch_private as private
from onnx_ts_legacy.capture.flat_model import FlatModel
from onnx_ts_legacy.capture.frozen_values import FrozenValues, reported_frozen_values
from onnx_ts_legacy.capture.open_conversions import traced_with_conversions
from onnx_ts_legacy.capture.size_decisions import SizeDecision
from onnx_ts_legacy.capture.traced_state import TracedState, kept_state
from onnx_ts_legacy.errors import ArgumentsError, CaptureError, OnnxExporterError
from onnx_ts_legacy.graph.autocast import TracedAutocast, cast_scripted
from onnx_ts_legacy.graph.parts import block_outputs, node_inputs
from onnx_ts_legacy.graph.sources import line_of_exception, source_line
from onnxops_core import onnx_export
from onnxops_core.exporting import active_autocasts, unfused_layers
from onnxops_decomp.exporting import (
    CallStructure,
    Leaf,
    argument_paths,
    casts_that_change_something,
    check_numbers,
    helpers_of,
    homes_of,
    in_order,
    key_of,
    left_out,
    path_name,
    positional_parameters,
    register_containers,
    warn_of_numbers,
    without_keywords,
)

__all__ = [
    "Captured",
    "ExampleInput",
    "capture",
    "leaves_of",
    "positional_list",
    "scripted_parameters",
    "split_arguments",
]


DynamicAxes = Callable[[Sequence[Leaf], Collection[str]], Sequence[Collection[int]]]


@dataclasses.dataclass(frozen=True)
class ExampleInput:
    """An argument of the graph.

    Attributes:
        name: Name of the parameter.
        value: Example: a tensor, a number, or a container of them.
        is_constant: Whether its numbers are part of the model, as those of defaults are.
    """

    name: str
    value: Any
    is_constant: bool = False


@dataclasses.dataclass
class Captured:
    """A TorchScript graph and what is needed to run it.

    Attributes:
        graph: The graph, all calls inlined.
        root: The module that its first input is, or None.
        prefix: Start of attribute names that the user's model does not have.
        inputs: Its other inputs.
        output_names: Names of the flat outputs of a traced model; else None.
        weights: Parameters and buffers that are the last inputs of the graph, with their names.
        rebound: Names of the buffers whose new values are further outputs of the graph, with the lines that bind them.
        decisions: What sizes decided in a trace; what was read for each of them is a further output of the graph.
        places: Names of the weights that the model holds outside of its parameters and buffers.
        structure: Structure of a call, and of the result of a traced model.
        leaves: Leaves of the example call.
        result: For each leaf of the result of a traced model its class, or what it is if that has no value in ONNX.
        absent: Names of the parameters that the call leaves at None.
        left_out: What a traced model returns that has no value in ONNX, by its place in the result.
        aliases: Further names of these weights.
    """

    graph: Any
    root: Any
    prefix: str
    inputs: list[ExampleInput]
    output_names: list[str] | None
    structure: CallStructure
    leaves: Sequence[Leaf]
    weights: list[tuple[str, torch.Tensor]] = dataclasses.field(default_factory=list)
    rebound: Mapping[str, str] = dataclasses.field(default_factory=dict)
    result: Sequence[Any] = ()
    absent: frozenset[str] = frozenset()
    left_out: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    aliases: Sequence[tuple[str, torch.Tensor]] = ()
    places: frozenset[str] = frozenset()
    decisions: Sequence[SizeDecision] = ()

    def initial(self, name: str) -> Any:
        """Return what an attribute of the model holds."""
        found = dict(self.weights).get(name)
        if found is None:
            found = self.root
            for part in (f"{self.prefix}.{name}" if self.prefix else name).split("."):
                found = _part(found, part)
        return found.detach().clone() if isinstance(found, torch.Tensor) else found

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of the example."""
        leaves = [leaf.value for leaf in self.leaves]
        call: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, self.structure.inputs)
        return call

    def with_constants(self, names: Collection[str]) -> Captured:
        """Return the same program with the numbers of some parameters as parts of it."""
        inputs = [dataclasses.replace(x, is_constant=x.is_constant or x.name in names) for x in self.inputs]
        return dataclasses.replace(self, inputs=inputs, leaves=leaves_of(inputs))

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors among the example inputs, flat."""
        leaves = pytree.tree_leaves([example.value for example in self.inputs])
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def split_arguments(model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments; a dict at the end of ``args`` may hold the latter, as in torch."""
    return _split(_signature(model), args, kwargs)


def _split(
    signature: inspect.Signature, args: Any, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positional = tuple(args) if isinstance(args, tuple) else (args,)
    return without_keywords(signature, positional, kwargs)


def capture(
    model: Any,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    state: str = "error",
    dynamic_axes: DynamicAxes | None = None,
    refuses: bool = False,
) -> Captured:
    """Capture a model.

    Args:
        model: A ScriptModule or ScriptFunction, which is taken as it is; a module or function, which is traced.
        args: Example arguments, a tuple or a single one; a dict at the end holds keyword arguments.
        kwargs: Further keyword arguments.
        state: What becomes of changes: ``"ignore"`` warns of those that are not tensors, else they are refused;
            ``"io"`` refuses a trace in which tensors that a call changes decide a Python value.
        dynamic_axes: Given the leaves of the call, and the names of parameters that it leaves out, returns the dynamic
            axes of each tensor.
        refuses: Whether a trace in which the data or a dynamic size decides a Python value is refused, and not only
            warned of.

    Raises:
        ArgumentsError: If the arguments do not fit the model's signature.
        StateError: If a later call of the model depends on what cannot be an input of a graph.
        CaptureError: If the model cannot be traced.
    """
    if private.is_any_traced():
        raise CaptureError("A model cannot be exported while another one is traced: export it before or after that.")
    signature = _signature(model)
    positional, named = _split(signature, args, kwargs)
    if isinstance(model, torch.nn.Module):
        for name, weight in itertools.chain(model.named_parameters(), model.named_buffers()):
            check_numbers("Weight", name, weight)
    with private.hidden_deprecations():
        if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
            return _scripted(model, positional, named)
        if not callable(model):
            raise ArgumentsError(f"The model to export must be a module or a function, got {type(model).__name__}.")
        trace = partial(_traced, model, signature, positional, named, state, dynamic_axes, refuses)
        homes = homes_of(model)
        return traced_with_conversions(trace, [*homes, *helpers_of(homes)])


def positional_list(model: Any, args: Any) -> Any:
    """Return a list of arguments as a tuple, unless the model is a scripted one that takes a list first."""
    if not isinstance(args, list):
        return args
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        parameters = scripted_parameters(model)
        if parameters and parameters[0].type.kind() == "ListType":
            return args
    return tuple(args)


# ---- scripted programs


def scripted_parameters(model: Any) -> Sequence[Any]:
    """Return the parameters of a scripted program, without the module itself.

    Raises:
        CaptureError: If a module has no forward.
    """
    if not isinstance(model, torch.jit.ScriptModule):
        parameters: Sequence[Any] = model.schema.arguments
        return parameters
    if not model._c._has_method("forward"):
        raise CaptureError(
            f"{getattr(model, 'original_name', 'The module')} has several scripted forward methods and none of "
            "that name, as torch.nn.LSTM and GRU do; script a module that calls it."
        )
    parameters = model._c._get_method("forward").schema.arguments
    return parameters[1:]


def _scripted(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Captured:
    if active_autocasts():
        raise CaptureError(
            "A scripted model is exported as its script says, which differs from what it computes inside "
            "torch.autocast: export it outside of autocast, or export the Python model."
        )
    is_module = isinstance(model, torch.jit.ScriptModule)
    parameters = scripted_parameters(model)
    inputs = _bound("forward" if is_module else model.name, parameters, args, kwargs)
    # The graph is changed while it is prepared, and the model must not be.
    graph = model.graph.copy()
    private.inline_calls(graph)
    cast_scripted(graph)
    structure, leaves = _scripted_structure(parameters, inputs), leaves_of(inputs)
    _check_inputs(leaves)
    return Captured(graph, model._c if is_module else None, "", inputs, None, structure, leaves)


def leaves_of(inputs: Sequence[ExampleInput]) -> list[Leaf]:
    """Return the leaves of the arguments of a graph; numbers are inputs as tensors are."""
    leaves: list[Leaf] = []
    for example in inputs:
        kinds = (torch.Tensor,) if example.is_constant else (torch.Tensor, bool, int, float)
        for path, value in pytree.tree_flatten_with_path(example.value)[0]:
            leaves.append(Leaf(path_name([example.name, *map(key_of, path)]), value, isinstance(value, kinds)))
    return leaves


def _check_inputs(leaves: Sequence[Leaf]) -> None:
    for leaf in leaves:
        if isinstance(leaf.value, torch.Tensor):
            check_numbers("Input", leaf.name, leaf.value)


def _scripted_structure(parameters: Sequence[Any], inputs: Sequence[ExampleInput]) -> CallStructure:
    """Return the structure of a call of a scripted program."""
    pairs = list(zip(parameters, inputs, strict=True))
    args = tuple(example.value for parameter, example in pairs if not parameter.kwarg_only)
    kwargs = {example.name: example.value for parameter, example in pairs if parameter.kwarg_only}
    defaults = {parameter.name: parameter.default_value for parameter in parameters if parameter.has_default_value()}
    names = tuple(parameter.name for parameter in parameters if not parameter.kwarg_only)
    return CallStructure(pytree.tree_structure((args, kwargs)), pytree.tree_structure(None), names, defaults)


def _bound(name: str, parameters: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[ExampleInput]:
    """Match arguments with the parameters of a schema.

    Raises:
        ArgumentsError: If they do not fit.
    """
    names = [parameter.name for parameter in parameters]
    if len(args) > len(names):
        raise ArgumentsError(f"{name} takes {len(names)} arguments ({', '.join(names)}), got {len(args)}.")
    unknown = [key for key in kwargs if key not in names[len(args) :]]
    if unknown:
        raise ArgumentsError(f"{name} has no further argument {unknown[0]!r}; it takes {', '.join(names)}.")
    bound: list[ExampleInput] = []
    for index, parameter in enumerate(parameters):
        if index < len(args):
            value = args[index]
        elif parameter.name in kwargs:
            value = kwargs[parameter.name]
        elif parameter.has_default_value():
            value = parameter.default_value
        else:
            raise ArgumentsError(f"{name} needs argument {parameter.name!r} ({parameter.type}).")
        is_default = index >= len(args) and parameter.name not in kwargs
        value = _number_of(str(parameter.type), value)
        if not _fits(parameter.type, value):
            raise ArgumentsError(
                f"Argument {parameter.name!r} of {name} is a {parameter.type}, got {type(value).__name__}."
            )
        bound.append(ExampleInput(parameter.name, value, is_constant=is_default))
    return bound


_NUMBERS: dict[str, tuple[type, Callable[[torch.Tensor], bool]]] = {
    "bool": (bool, lambda x: x.dtype == torch.bool),
    "int": (int, lambda x: not (x.dtype == torch.bool or x.dtype.is_floating_point or x.dtype.is_complex)),
    "float": (float, lambda x: not (x.dtype == torch.bool or x.dtype.is_complex)),
}


def _number_of(kind: str, value: Any) -> Any:
    """Return the number for a parameter that is one, which the example may give as a tensor of one element."""
    number, takes = _NUMBERS.get(kind.removeprefix("Optional[").removesuffix("]"), (None, None))
    if number is None or takes is None:
        return value
    if isinstance(value, torch.Tensor):
        return number(value.item()) if value.numel() == 1 and takes(value) else value
    return float(value) if number is float and type(value) is int else value


def _fits(kind: Any, value: Any) -> bool:
    if str(kind) == "Tensor":
        return isinstance(value, torch.Tensor)
    return str(kind) not in ("int", "float", "bool", "str") or not isinstance(value, torch.Tensor)


def _part(owner: Any, name: str) -> Any:
    """Return an attribute of a scripted module or object, or an item of a list, tuple or dict."""
    if isinstance(owner, list | tuple):
        return owner[int(name)]
    return {str(key): value for key, value in owner.items()}[name] if isinstance(owner, dict) else owner.getattr(name)


# ---- traced programs


def _example_leaves(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Leaf], pytree.TreeSpec]:
    """Return the named leaves of an example call, and its structure."""
    leaves, structure = pytree.tree_flatten_with_path((args, kwargs))
    found = [tuple(map(key_of, path)) for path, _ in leaves]
    paths = argument_paths(found, positional_parameters(signature))
    named = [Leaf(path_name(path), x, isinstance(x, torch.Tensor)) for path, (_, x) in zip(paths, leaves, strict=True)]
    _check_inputs(named)
    warn_of_numbers({leaf.name: leaf.value for leaf in named}, "Give a tensor, or script the model,")
    return named, structure


def _traced(
    model: Any,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    state: str,
    dynamic_axes: DynamicAxes | None,
    refuses: bool,
) -> Captured:
    kwargs = in_order(signature.parameters, kwargs)
    _check_arguments(model, signature, args, kwargs)
    register_containers([*args, *kwargs.values()])
    named, structure = _example_leaves(signature, args, kwargs)
    leaves, names = [leaf.value for leaf in named], [leaf.name for leaf in named if leaf.is_input]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    root, weights, rebound = None, list[tuple[str, torch.Tensor]](), dict[str, str]()
    autocast, absent = TracedAutocast(), left_out(signature, args, kwargs)
    with (
        _recordable(),
        autocast.recorded(),
        kept_state(model) as found,
        # Sees the model's calls, not those of the others.
        reported_frozen_values(found.keep, refuses, state == "io") as frozen,
    ):
        dynamic = [()] * len(tensors) if dynamic_axes is None else dynamic_axes(named, absent)
        begin = partial(frozen.begin, dynamic=dynamic, weights=found.weights)
        at_end = [lambda _: autocast.note(), frozen.close, lambda _: found.leave()]
        flat = FlatModel(model, leaves, structure, [begin, autocast.begin], at_end, frozen.decided)
        with casts_that_change_something(), frozen.checked(found.changed), _explained():
            if _hold_scripts(flat.modules()):
                examples = _copies(tensors)
                traced = torch.jit.trace(flat, tuple(examples), check_trace=False, strict=False)
                graph, root = traced.graph.copy(), traced._c
                found.refuse_tensors()
            else:
                graph, weights, rebound, examples = _recorded(flat, tensors, found)
        _check_trace(flat, partial(FlatModel, model, leaves, structure), tensors, found, frozen, state)
    autocast.inline_calls(graph)
    _return_one_by_one(graph, len(rebound) + len(frozen.decided))
    _refuse_constant_inputs(graph, names, examples)
    call = _call_structure(signature, structure, flat.result_structure)
    return Captured(
        graph, root, "model", list(map(ExampleInput, names, tensors)), flat.result_names, call, named, weights,
        rebound, flat.result, absent, flat.left_out, _aliases(model),
        frozenset(place.path for place in found.places), tuple(frozen.decisions),
    )  # fmt: skip


@contextlib.contextmanager
def _recordable() -> Iterator[None]:
    """Let a model do nothing in the body that a trace cannot hold where there is another way."""
    with onnx_export(), unfused_layers(), private.recording(_unrecorded):
        yield


def _check_trace(
    flat: FlatModel,
    fresh: Callable[[], FlatModel],
    tensors: Sequence[torch.Tensor],
    found: TracedState,
    frozen: FrozenValues,
    state: str,
) -> None:
    """Compare a trace with the model, and find out what makes a difference to it.

    Args:
        flat: What was traced.
        fresh: Makes what calls the model in the same way.
        tensors: The example.
        found: The state of the model.
        frozen: What the trace froze.
        state: What becomes of changes that are not tensors.
    """

    def call(given: Sequence[Any]) -> Any:
        return fresh()(*given)

    found.check(call, tensors, (flat.returned, flat.random_state), state)
    frozen.drop_order(lambda: found.results(call, tensors, flat.random_state))


def _return_one_by_one(graph: Any, further: int) -> None:
    """Let a graph that returns further values than the model return the elements of its tuple."""
    if further and (result := block_outputs(graph)[0]).node().kind() == "prim::TupleConstruct":
        graph.eraseOutput(0)
        for element in node_inputs(result.node()):
            graph.registerOutput(element)


def _call_structure(signature: inspect.Signature, call: pytree.TreeSpec, result: pytree.TreeSpec) -> CallStructure:
    """Return how a model of this signature is called."""
    parameters = signature.parameters.values()
    single = itertools.takewhile(lambda parameter: parameter.kind <= parameter.POSITIONAL_OR_KEYWORD, parameters)
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return CallStructure(call, result, tuple(each.name for each in single), defaults)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Say in which line of the user's a trace failed.

    Raises:
        CaptureError: If it did.
    """
    try:
        yield
    except OnnxExporterError:
        raise
    except Exception as error:
        text = str(error).strip().splitlines()
        line = line_of_exception(error)
        if text and "requires grad as a constant" in text[0]:
            raise CaptureError(
                f"The model computes{f' at {line}' if line else ''} with a weight that is no parameter of it, as those "
                "of a module that it keeps in a list, a dict or a closure. Keep modules in attributes, "
                "torch.nn.ModuleList or torch.nn.ModuleDict, or detach() the weight."
            ) from error
        if private.is_of_dynamo(error):
            raise CaptureError(
                f"The model calls compiled code{f' at {line}' if line else ''}, as torch.compile makes it, and as "
                "torch.cond, while_loop and flex_attention do by themselves: no trace records it. Export the model "
                "with onnx_fx_export, or script it and write if and while there."
            ) from error
        raise CaptureError(
            f"The model could not be traced: {type(error).__name__}: {text[0] if text else ''}"
            + (f" (at {line})" if line else "")
        ) from error


def _refuse_constant_inputs(graph: Any, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Refuse a trace that holds the memory of an example, as it does where the model reads it in an untraced way.

    Raises:
        CaptureError: If there is one.
    """
    for node in graph.findAllNodes("prim::Constant"):
        if not node.hasAttribute("value") or node.kindOf("value") != "t":
            continue
        constant = node.t("value")
        for name, tensor in zip(names, tensors, strict=True):
            if constant.numel() and constant.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                raise CaptureError(
                    f"The trace holds {name} as a constant, so the model would ignore it: something that tracing "
                    "does not record makes a tensor from its memory (used at "
                    f"{source_line(node) or 'an unknown line'})."
                )


def _unrecorded(what: str) -> Exception:
    return TypeError(f"a trace cannot hold {what}; write x.copy_(value) or x = value, and x.clone() for a copy")


def _hold_scripts(modules: Iterable[torch.nn.Module]) -> bool:
    """Tell whether a module is scripted, or has an object of TorchScript such as packed weights."""
    found = list(modules)
    kinds = {type(value) for module in found for value in vars(module).values()}
    scripted = (torch.jit.ScriptModule, private.ScriptObject)
    return any(issubclass(kind, scripted) for kind in {*map(type, found), *kinds})


def _recorded(
    flat: FlatModel, examples: Sequence[torch.Tensor], state: TracedState
) -> tuple[Any, list[tuple[str, torch.Tensor]], dict[str, str], list[torch.Tensor]]:
    """Trace a model of Python modules.

    Returns:
        The graph; the weights, which are its last inputs, with their names; the names of what the model binds anew,
        whose new values are its last outputs, with the lines that do; and the tensors that it was traced with.
    """
    named = {**dict(flat.named_parameters()), **dict(flat.named_buffers())}
    scopes = {module: f"__module.{name}" if name else "__module" for name, module in flat.named_modules()}
    tensors: list[torch.Tensor] = []
    rebound: dict[str, torch.Tensor] = {}

    def call(*given: torch.Tensor) -> Any:
        state.enter(given[len(tensors) + len(named) :])
        results = flat(*given[: len(tensors)])
        rebound.clear()
        rebound.update(state.rebound())
        results = (*results, *rebound.values())
        return results[0] if len(results) == 1 else results

    def trace() -> Any:
        tensors[:] = _copies(examples)
        return private.trace_graph(call, [*tensors, *named.values(), *(place.tensor for place in state.places)], scopes)

    graph = state.settle(trace)
    weights = [(name.removeprefix("model."), tensor) for name, tensor in named.items()]
    weights.extend((place.path, place.tensor) for place in state.places)
    return graph, weights, {path: state.line(path) for path in rebound}, tensors


def _aliases(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the names under which a module has a weight that has another name as well."""
    if not isinstance(model, torch.nn.Module):
        return []
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return [(name, weight) for name, weight in named if first.setdefault(id(weight), name) != name]


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]


def _signature(model: Any) -> inspect.Signature:
    """Return the signature of a model; builtins that have none take whatever they are given."""
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        return inspect.Signature(list(map(_parameter, scripted_parameters(model))))
    try:
        return inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except (TypeError, ValueError):
        return inspect.signature(lambda *args, **kwargs: None)


def _parameter(parameter: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if parameter.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = parameter.default_value if parameter.has_default_value() else inspect.Parameter.empty
    return inspect.Parameter(parameter.name, kind, default=default)


def _check_arguments(
    model: Any, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Make sure that the arguments of a call fit.

    Raises:
        ArgumentsError: If they do not.
    """
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "the model")
        raise ArgumentsError(f"The arguments do not fit {name}{signature}: {error}.") from None
