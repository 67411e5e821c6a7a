"""ONNX -> ATen: what every native ONNX operator is in ATen operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from onnxops_core.native import native_ops

__all__ = ["aten_decompositions"]


def aten_decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Return the decompositions of the native ONNX operators, for ``ExportedProgram.run_decompositions``.

    The operators of ``torch.onnx.ops`` (namespace ``onnx``) are included as far as torch has them. Every function
    computes on fake tensors and with symbolic sizes, and equals its operator.

    Returns:
        A new table from overloads to functions of the same signature; it may be changed.

    Example:
        >>> import onnxops_core
        >>> class Model(torch.nn.Module):
        ...     def forward(self, x):
        ...         return onnxops_core.swish(x)
        >>> program = torch.export.export(Model(), (torch.ones(2),)).run_decompositions(aten_decompositions())
        >>> sorted({node.target.namespace for node in program.graph.nodes if node.op == "call_function"})
        ['aten']
    """
    import torch.onnx.ops  # defines the operators of the namespace onnx

    table: dict[torch._ops.OpOverload, Callable[..., Any]] = {}
    for overload, native in native_ops().items():
        table[overload] = native.decomposition
        packet = None if native.domain else getattr(torch.ops.onnx, native.op_type, None)
        if packet is not None and overload._overloadname in packet.overloads():
            table[getattr(packet, overload._overloadname)] = native.decomposition
    return table
