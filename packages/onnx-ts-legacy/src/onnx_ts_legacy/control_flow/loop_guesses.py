"""What the body of a loop will change, as far as its nodes tell: each right guess saves one run of the body.

A variable that is carried and stays the same is still the same after the loop. Memory that is only written to in a
branch is left out: if the branch is never taken, it is not state of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnx_ts_legacy.control_flow.junctions import Junction
from onnx_ts_legacy.control_flow.plans import Carried, Number, Plan, Same
from onnx_ts_legacy.graph.parts import block_inputs, block_nodes, block_outputs, node_branches, node_outputs
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import Mutable, Tensor, View

__all__ = ["first_objects", "first_plans"]

_VIEWS = ("aten::select", "aten::slice", "aten::narrow", "aten::view", "aten::unsqueeze", "aten::squeeze")


def first_plans(junction: Junction, block: Any, carried: Sequence[Any]) -> list[Plan]:
    """Return plans to begin with for the variables of a loop, of which ``carried`` are the values before it."""
    given, returned = block_inputs(block)[1:], block_outputs(block)[1:]
    return [
        _plan(junction.of_variable(value), _is_counted(before, after) or _is_computed(after))
        for value, before, after in zip(carried, given, returned, strict=True)
    ]


def _is_counted(before: Any, after: Any) -> bool:
    """Tell whether a variable is increased or decreased."""
    node = after.node()
    return node.kind() in ("aten::add", "aten::sub") and node.inputsAt(0).unique() == before.unique()


def _is_computed(variable: Any) -> bool:
    """Tell whether a tensor is the result of an operator that changes nothing, on some path."""
    node = variable.node()
    if variable.type().kind() != "TensorType":
        return False
    if node.kind() == "prim::If":
        index = [output.unique() for output in node_outputs(node)].index(variable.unique())
        return any(_is_computed(block_outputs(block)[index]) for block in node_branches(node))
    return node.kind().startswith("aten::") and not node.kind().endswith("_")


def _plan(plan: Same, changes: bool) -> Plan:
    value = plan.value
    if not changes or plan.wider is None:
        return plan
    if isinstance(plan.wider, Number) and plan.wider.dtype != ir.DataType.BOOL:
        return plan.wider
    if not isinstance(plan.wider, Carried) or len(plan.wider.shapes) != 1:
        return plan
    made_of_number = not isinstance(value.node, View) and value.node.state.number is not None
    return plan if made_of_number else plan.wider


def first_objects(context: ConversionContext, junction: Junction, block: Any) -> dict[Mutable, Plan]:
    """Return plans to begin with for the memories that every iteration writes to through views of older tensors."""
    plans: dict[Mutable, Plan] = {}
    nodes = [(node, node.kind()) for node in block_nodes(block)]
    writing = [node for node, kind in nodes if kind.startswith("aten::") and kind.endswith("_") and kind[-2] != "_"]
    if not writing:
        return plans
    inner = {variable.unique() for variable in block_inputs(block)}
    for node, _ in nodes:
        inner.update(variable.unique() for variable in node_outputs(node))
    for node in writing:
        variable = node.inputsAt(0)
        while variable.unique() in inner and variable.node().kind() in _VIEWS:
            variable = variable.node().inputsAt(0)
        target = None if variable.unique() in inner else context.env.get(variable.unique())
        if isinstance(target, Tensor) and len(target.forms) == 1 and target.storage.fake is not None:
            plans[target.storage] = junction.of_object(target.storage, target.storage.state)
    return plans
