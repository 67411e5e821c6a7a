"""Dynamic dimensions as torch.export takes them, in the form that a TorchScript export works with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim

from onnx_ts_legacy.capture.graphs import scripted_parameters, split_arguments
from onnx_ts_legacy.errors import ArgumentsError
from onnxops_core.exporting import warn_user
from onnxops_decomp.exporting import (
    DYNAMIC_NUMBER,
    bound_arguments,
    call_leaves,
    collected_shapes,
    declared_bounds,
    declared_text,
    in_order,
    leaf_specs,
    names_by_leaf,
    normalized_shapes,
    register_containers,
)

__all__ = ["axes_and_bounds"]


def axes_and_bounds(
    model: Any, args: Any, kwargs: Mapping[str, Any] | None, input_names: Sequence[str], dynamic_shapes: Any
) -> tuple[dict[str, dict[int, str]], list[str]]:
    """Return the dynamic axes by input, and the conditions that the bounds of dimensions are.

    Args:
        model: The model.
        args: Its example arguments.
        kwargs: Keyword arguments.
        input_names: Names that the user gives the tensor inputs, in order.
        dynamic_shapes: What is declared, for torch.export.

    Raises:
        ArgumentsError: If a number is declared dynamic.
        InvalidArgumentError: If the declarations do not fit the arguments.

    Warns:
        UserWarning: If dimensions are left open by ``Dim.AUTO``: they stay static.
    """
    positional, keywords = split_arguments(model, args, kwargs)
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        names = [parameter.name for parameter in scripted_parameters(model)]
        arguments = in_order(names, {**dict(zip(names, positional, strict=False)), **keywords})
    else:
        register_containers([*positional, *keywords.values()])
        forward = model.forward if isinstance(model, torch.nn.Module) else model
        arguments = bound_arguments(forward, positional, keywords)
    dynamic_shapes = collected_shapes(dynamic_shapes, model, positional, keywords)
    declared = normalized_shapes(dynamic_shapes, arguments, input_names)
    specs = [spec for name, value in arguments.items() for spec in leaf_specs(value, declared[name])]
    leaves = call_leaves(arguments)
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        # Its numbers are inputs too.
        kinds = (torch.Tensor, bool, int, float)
        leaves = [dataclasses.replace(leaf, is_input=isinstance(leaf.value, kinds)) for leaf in leaves]
    named = names_by_leaf(input_names, leaves, ArgumentsError)
    axes: dict[str, dict[int, str]] = {}
    bounds: dict[str, None] = {}
    open_axes: list[str] = []
    for index, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        if DYNAMIC_NUMBER in spec:
            raise ArgumentsError(f"{leaf.name} is not a tensor: only dimensions of tensors are dynamic in TorchScript.")
        name = named.get(index, leaf.name)
        dynamic = {axis: dim for axis, dim in spec.items() if dim not in (Dim.STATIC, Dim.AUTO)}
        open_axes += [f"axis {axis} of {name}" for axis, dim in spec.items() if dim is Dim.AUTO]
        if dynamic:
            axes[name] = {axis: declared_text(dim) or f"{name}_{axis}" for axis, dim in dynamic.items()}
        bounds.update(dict.fromkeys(bound for dim in dynamic.values() for bound in declared_bounds(dim)))
    if open_axes:
        warn_user(
            f"{', '.join(open_axes)} stays static: TorchScript cannot find out whether it could be dynamic, as "
            "torch.export.Dim.AUTO asks for. Declare what is to be dynamic by a name, Dim.DYNAMIC or Dim(...)."
        )
    return axes, list(bounds)
