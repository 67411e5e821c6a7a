"""The arguments of an export: the example call, the model's parameters, and the forms that torch.onnx knows."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from onnx_fx_export.errors import InvalidArgumentError
from onnx_fx_export.inputs.examples import inferred_dimensions, several_examples
from onnx_fx_export.origin import named_forward
from onnxops_decomp.exporting import (
    bound_arguments,
    collected_shapes,
    in_order,
    positional_parameters,
    without_keywords,
)

__all__ = [
    "FunctionModule",
    "arguments_by_name",
    "check_devices",
    "example_call",
    "parameter_defaults",
    "parameter_names",
    "with_own_description",
]


def with_own_description(model: Any, args: Any, arguments: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the positional and the other arguments of an export, with what a module says of its own export.

    Args:
        model: The model; an instance of ``torch.onnx.ExportableModule`` describes itself.
        args: The positional example; a module is asked for its own description only if the call gives no example.
        arguments: ``kwargs``, ``dynamic_shapes``, ``input_names`` and ``output_names`` of the call, which win.
    """
    if not isinstance(model, torch.onnx.ExportableModule) or args or arguments["kwargs"]:
        return args, dict(arguments)
    args, kwargs = model.example_arguments()
    own = {
        "kwargs": kwargs,
        "dynamic_shapes": model.dynamic_shapes(),
        "input_names": model.input_names(),
        "output_names": model.output_names(),
    }
    return args, {**own, **{name: value for name, value in arguments.items() if value is not None}}


def example_call(
    model: Any, args: Any, kwargs: Any, dynamic_shapes: Any
) -> tuple[tuple[Any, ...], Mapping[str, Any] | None, Any]:
    """Return the example to capture, and the declared dimensions, which may follow from several examples.

    Raises:
        InvalidArgumentError: If the declarations are a word other than ``"auto"``, or ask for another capture.
    """
    if not isinstance(dynamic_shapes, str):
        if not isinstance(args, torch.Tensor | Sequence) or isinstance(args, str):
            raise InvalidArgumentError(
                f"args must be a tuple of positional arguments, or one tensor, not {type(args).__name__}; pass "
                "arguments by name in kwargs."
            )
        args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
        if isinstance(model, torch.export.ExportedProgram | torch.jit.ScriptModule | torch.jit.ScriptFunction):
            return args, kwargs, dynamic_shapes
        dynamic_shapes = collected_shapes(dynamic_shapes, model, args, kwargs)
        return *without_keywords(inspect.signature(_forward(model)), args, kwargs), dynamic_shapes
    if dynamic_shapes != "auto":
        raise InvalidArgumentError(f'dynamic_shapes must describe dimensions or be "auto", not {dynamic_shapes!r}.')
    if isinstance(model, torch.export.ExportedProgram):
        raise InvalidArgumentError("An ExportedProgram already has its dynamic shapes; declare them in its capture.")
    (positional, keyword), declared = inferred_dimensions(_forward(model), several_examples(args, kwargs))
    return positional, keyword, declared


def _forward(model: Any) -> Callable[..., Any]:
    forward: Callable[..., Any] = model.forward if isinstance(model, torch.nn.Module) else _with_signature(model)
    return forward


class FunctionModule(torch.nn.Module):
    """Gives a function the form that torch.export captures."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.forward = named_forward(_with_signature(function))


def _with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose parameters are known; those of a builtin are its positional arguments."""
    try:
        inspect.signature(function)
    except TypeError as error:
        raise InvalidArgumentError(
            f"A model must be a module, an ExportedProgram or a function, not {type(function).__name__}."
        ) from error
    except ValueError:
        return lambda *args: function(*args)
    return function


def parameter_defaults(model: Any) -> dict[str, Any]:
    """Return the values of the parameters that a call of the model may leave out, as far as they are known."""
    if isinstance(model, torch.export.ExportedProgram):
        return {}
    parameters = inspect.signature(_forward(model)).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def arguments_by_name(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the example arguments by parameter name, in the order of the parameters.

    Raises:
        InvalidArgumentError: If they do not fit the signature.
    """
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        names = parameter_names(model)
        return in_order(names, {**dict(zip(names, args, strict=False)), **kwargs})
    return bound_arguments(_forward(model), args, kwargs)


def check_devices(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse examples without data for a model with weights, which is captured on the CPU, also if those have no data.

    Raises:
        InvalidArgumentError: If a tensor of the example is on the meta device, and the model has a weight.
    """
    named = arguments_by_name(model, args, kwargs)
    given = {name: [leaf for leaf in pytree.tree_leaves(value) if _is_meta(leaf)] for name, value in named.items()}
    on_meta = [name for name, leaves in given.items() if leaves]
    if on_meta and next(itertools.chain(model.parameters(), model.buffers()), None) is not None:
        size = list(given[on_meta[0]][0].shape)
        raise InvalidArgumentError(
            f"The example of {', '.join(on_meta)} is on the meta device. Models are captured on the CPU, even "
            f"those whose weights were never allocated: pass an example with data, such as torch.zeros({size})."
        )


def _is_meta(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_meta


def parameter_names(model: Any) -> list[str]:
    """Return the names of the positional parameters; one that collects further arguments begins with an asterisk."""
    if isinstance(model, torch.export.ExportedProgram):
        # What the placeholders were named after; older programs do not know it.
        signature = model.module_call_graph[0].signature if model.module_call_graph else None
        names = getattr(signature, "forward_arg_names", None) or ()
        # Keyword arguments follow in the order of the call, which says nothing about positions.
        return list(names[: model.call_spec.in_spec.child(0).num_children])
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        scripted: Any = model.forward if isinstance(model, torch.jit.ScriptModule) else model
        return [argument.name for argument in scripted.schema.arguments if argument.name != "self"]
    return positional_parameters(inspect.signature(_forward(model)))
