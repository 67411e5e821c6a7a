"""Weights that are a subclass of Tensor made of plain tensors, such as the quantized ones of torchao.

What the model computes with are the plain tensors: each that is read becomes an initializer of its own, named after
the weight and the attribute.
"""

from __future__ import annotations

from typing import Any

import torch

from onnx_fx_export.torch_private import ACCESS
from onnxops_decomp.exporting import GraphLowering, flattened_subclass

__all__ = ["ACCESS", "inner_tensor", "reads_a_subclass_whole"]


def inner_tensor(lowering: GraphLowering, node: torch.fx.Node) -> Any:
    """Return what an attribute of a weight stands for: a value, or the parts of a subclass inside the subclass."""
    parts, attribute = lowering.resolve(node.args)
    if attribute in parts:
        return parts[attribute]
    prefix = f"{attribute}."
    return {path.removeprefix(prefix): value for path, value in parts.items() if path.startswith(prefix)}


def reads_a_subclass_whole(program: torch.export.ExportedProgram) -> bool:
    """Tell whether an operator works on a weight of a subclass itself, so that only torch can take the call apart."""
    tensors = {**program.constants, **program.state_dict}
    specs = program.graph_signature.input_specs
    placeholders = program.graph.find_nodes(op="placeholder")
    return any(
        isinstance(user.target, torch._ops.OpOverload) and user.target is not ACCESS
        for node, spec in zip(placeholders, specs, strict=True)
        if isinstance(tensor := tensors.get(spec.target or ""), torch.Tensor) and flattened_subclass(tensor)
        for user in node.users
    )
