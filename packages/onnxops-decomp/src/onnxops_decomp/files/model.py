"""From a finished builder to a model."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from onnxops_decomp._version import __version__
from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["build_model", "ir_version_for"]

# IR version 4 is the first in which an initializer need not be an input as well.
_LOWEST_IR_VERSION = 4
_FUNCTIONS_IR_VERSION = 8


def ir_version_for(opset: int) -> int:
    """Return the lowest IR version whose runtimes know ``opset``, and in which weights are not inputs."""
    known = [row[1] for row in onnx.helper.VERSION_TABLE if row[2] >= opset]
    return max(min(known), _LOWEST_IR_VERSION)


def build_model(
    op: OpBuilder,
    outputs: Sequence[ir.Value],
    *,
    name: str,
    initializers: Sequence[ir.Value] = (),
    functions: Sequence[ir.Function] = (),
    producer: tuple[str, str] = ("onnxops-decomp", __version__),
) -> ir.Model:
    """Close the main graph and wrap it in a model that declares exactly the opsets it uses.

    Args:
        op: Builder of the main graph.
        outputs: Results of the model.
        name: Name of the graph.
        initializers: Weights; unused ones are left out.
        functions: Model-local functions.
        producer: Name and version of the tool.
    """
    graph = op.graph(outputs, name=name, initializers=initializers, constants=True)
    ir_version = ir_version_for(op.opset)
    model = ir.Model(
        graph,
        ir_version=max(ir_version, _FUNCTIONS_IR_VERSION) if functions else ir_version,
        producer_name=producer[0],
        producer_version=producer[1],
        functions=functions,
    )
    runtime = op.context.runtime
    for each in () if runtime is None else runtime.passes:
        each()(model)
    return model
