"""A step is applied to a state as often as asked for."""

import onnx_ir as ir
import pytest
import torch
from decomp_harness import run

from onnxops_decomp.builder.op_builder import OpBuilder
from onnxops_decomp.files.model import build_model
from onnxops_decomp.formulas.loops import repeat


def doubled(body: OpBuilder, index: ir.Value, state: list[ir.Value]) -> tuple[list[ir.Value], list[ir.Value]]:
    return [body.Mul(state[0], 2.0)], [body.Add(state[0], body.cast(index, ir.DataType.FLOAT))]


@pytest.mark.parametrize("opset", [8, 13, 18, 23])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_last_state_and_what_each_iteration_collects(count: int, opset: int) -> None:
    op = OpBuilder(opset)
    x = op.input("x", ir.DataType.FLOAT, (2,))
    (last,), (collected,) = repeat(op, count, [x], doubled)
    proto = ir.to_proto(build_model(op, [last, collected], name="test"))
    start = torch.tensor([1.0, -3.0])
    final, rows = run(proto, [start])
    torch.testing.assert_close(final, start * 2**count)
    torch.testing.assert_close(rows, torch.stack([start * 2**i + i for i in range(count)] or [start])[:count])


def test_number_of_iterations_that_only_the_runtime_knows() -> None:
    op = OpBuilder(18)
    x, count = op.input("x", ir.DataType.FLOAT, (1,)), op.input("count", ir.DataType.INT64, ())
    (last,), _ = repeat(op, count, [x], lambda body, i, state: ([body.Add(state[0], 1.0)], []))
    proto = ir.to_proto(build_model(op, [last], name="test"))
    assert run(proto, [torch.zeros(1), torch.tensor(5)])[0].item() == 5.0


def test_loop_ends_early() -> None:
    op = OpBuilder(18)
    x = op.input("x", ir.DataType.FLOAT, ())
    (last,), _ = repeat(
        op,
        100,
        [x],
        lambda body, i, state: ([body.Mul(state[0], 2.0)], []),
        unless=lambda body, state: body.Greater(state[0], 10.0),
    )
    proto = ir.to_proto(build_model(op, [last], name="test"))
    assert run(proto, [torch.tensor(1.0)])[0].item() == 16.0
