"""What the table of onnxops-decomp costs: loading it, lowering one operator, writing one node.

    python benchmarks/lowering_cost.py [--json FILE]

Every operator is lowered many times into one graph, on operands that differ, so that nothing is merged. The time is
that of the process, with nothing else of an export in it: no capture, no file.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import onnx_ir as ir
import torch
from figures import Figure, command, take_turns

from onnxops_decomp import OpBuilder, builtin_table
from onnxops_decomp.exporting import apply_lowering, find_lowering

aten = torch.ops.aten
CALLS = 200
ROUNDS = 5

# Operator -> shapes of its tensors, then its other arguments.
OPERATORS: dict[torch._ops.OpOverload, tuple[list[tuple[int, ...]], tuple[object, ...]]] = {
    aten.relu.default: ([(2, 8, 16)], ()),
    aten.add.Tensor: ([(2, 8, 16), (16,)], ()),
    aten.gelu.default: ([(2, 8, 16)], ()),
    aten.softmax.int: ([(2, 8, 16)], (-1,)),
    aten.sum.dim_IntList: ([(2, 8, 16)], ([1],)),
    aten.view.default: ([(2, 8, 16)], ([2, 128],)),
    aten.transpose.int: ([(2, 8, 16)], (1, 2)),
    aten.slice.Tensor: ([(2, 8, 16)], (1, 0, 4)),
    aten.linear.default: ([(2, 8, 16), (4, 16), (4,)], ()),
    aten.layer_norm.default: ([(2, 8, 16)], ([16],)),
    aten.convolution.default: (
        [(2, 8, 16, 16), (4, 8, 3, 3), (4,)],
        ([1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ),
    aten.scaled_dot_product_attention.default: ([(2, 4, 8, 16), (2, 4, 8, 16), (2, 4, 8, 16)], ()),
    aten.index_put.default: ([(8, 16)], ()),
}


def lowered(overload: torch._ops.OpOverload, opset: int, calls: int) -> Callable[[], int]:
    """Return an action that lowers ``calls`` calls into a new graph and returns the number of nodes."""
    shapes, others = OPERATORS[overload]
    table = builtin_table()

    def action() -> int:
        op = OpBuilder(opset)
        for _ in range(calls):
            tensors: list[object] = [op.input("x", ir.DataType.FLOAT, shape) for shape in shapes]
            if overload is aten.index_put.default:
                tensors += [[op.input("i", ir.DataType.INT64, (4,))], op.input("v", ir.DataType.FLOAT, (4, 16))]
            args = (*tensors, *others)
            entry = find_lowering(table, overload, args, {}, opset)
            assert entry is not None
            apply_lowering(op, entry, overload, args, {})
        return len(op.scope.nodes)

    return action


def row(overload: torch._ops.OpOverload, opset: int) -> dict[str, str | int | float | None]:
    """Measure one operator at one opset."""
    action = lowered(overload, opset, CALLS)
    nodes = action() / CALLS
    (seconds,) = take_turns([action], ROUNDS, clock=time.process_time)
    per_call = None if seconds is None else seconds / CALLS * 1e6
    return {
        "operator": str(overload),
        "opset": opset,
        "nodes": nodes,
        "call_us": per_call,
        "node_us": None if per_call is None else per_call / nodes,
    }


def table_seconds() -> float:
    """Return the seconds that loading the table takes in a new process that has torch and onnx-ir already."""
    code = (
        "import time, torch, onnx_ir, onnxops_core; from onnxops_decomp import OpBuilder;"
        "start = time.process_time(); import onnxops_decomp; onnxops_decomp.builtin_table();"
        "print(time.process_time() - start)"
    )
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(5)
    ]
    return min(times)


def main() -> None:
    options = command(__doc__).parse_args()
    rows = [row(overload, opset) for overload in OPERATORS for opset in (23, 13)]
    loading = table_seconds()
    Figure(
        title="Lowering cost",
        caption=(
            f"Microseconds of one call of an operator through the table, and of each node it becomes; least is best. "
            f"Loading the table of {len(builtin_table())} operators takes {loading:.2f} s once."
        ),
        columns={
            "operator": "operator",
            "opset": "opset",
            "nodes": "nodes",
            "call_us": "us / call",
            "node_us": "us / node",
        },
        rows=rows,
    ).finish(options.json)


if __name__ == "__main__":
    main()
