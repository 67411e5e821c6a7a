"""If and Loop written by custom symbolics, in the ways that published ones write them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from ts_models import exported, n

import onnx_ts_legacy
from onnx_ts_legacy import jit_utils, register_custom_op_symbolic, utils
from onnx_ts_legacy._globals import GLOBALS
from onnx_ts_legacy.errors import OnnxExporterError

AXES = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}


def constant(g: Any, value: Any) -> Any:
    return g.op("Constant", value_t=torch.tensor(value))


def positive(g: Any, x: Any) -> Any:
    total = g.op("ReduceSum", x, keepdims_i=0)
    return g.op("Greater", total, constant(g, 0.0))


@torch.library.custom_op("ts_blocks::either", mutates_args=())
def either(x: Tensor) -> Tensor:
    return x.exp() if x.sum() > 0 else x * 2


@either.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def with_contexts(g: Any, x: Any) -> Any:
    result, (then, other), node = jit_utils.add_op_with_blocks(g, "If", positive(g, x), n_blocks=2)
    assert node.kind() == "onnx::If"
    utils._add_output_to_block(then.block, then.op("Exp", x))
    utils._add_output_to_block(other.block, other.op("Mul", x, constant(other, 2.0)))
    return result


def with_blocks_of_the_node(g: Any, x: Any) -> Any:
    node = g.op("If", positive(g, x)).node()
    then, other = utils._add_block(node), utils._add_block(node)
    # Written beside the branches, and equal to what stands in one.
    beside = g.op("Exp", x)
    utils._add_output_to_block(then, then.op("Exp", x))
    utils._add_output_to_block(other, other.op("Mul", x, constant(other, 2.0)))
    return g.op("Add", node.output(), g.op("Sub", beside, beside))


def nested(g: Any, x: Any) -> Any:
    result, (then, other), _ = jit_utils.add_op_with_blocks(g, "If", positive(g, x), n_blocks=2)
    yes = then.op("Cast", constant(then, 1), to_i=9)
    inner, (inner_then, inner_other), _ = jit_utils.add_op_with_blocks(then, "If", yes, n_blocks=2)
    utils._add_output_to_block(inner_then.block, onnx_ts_legacy.symbolic_opset9.exp(inner_then, x))
    utils._add_output_to_block(inner_other.block, x)
    utils._add_output_to_block(then.block, inner)
    utils._add_output_to_block(other.block, other.op("Add", x, x))
    return result


@pytest.mark.parametrize("symbolic", [with_contexts, with_blocks_of_the_node, nested])
@pytest.mark.parametrize("opset", [9, 11, 13, 18])
def test_a_symbolic_writes_an_if(symbolic: Any, opset: int) -> None:
    register_custom_op_symbolic("ts_blocks::either", symbolic, 9)

    def model(x: Tensor) -> Tensor:
        return either(x) + 1

    examples = [(n(2, 3).abs(),), (-n(4, 3).abs(),), (n(5, 3).abs(),)]
    program = exported(model, *examples, opset=opset, **AXES)

    assert "If" in {node.op_type for node in program.model.graph}


@torch.library.custom_op("ts_blocks::powers", mutates_args=())
def powers(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x to the power of its length plus 1, and each power up to there."""
    found = [x]
    for _ in range(len(x)):
        found.append(found[-1] * x)
    return found[-1].clone(), torch.stack(found[1:])


@powers.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[0], *x.shape)


def powers_by_loop(g: Any, x: Any) -> Any:
    count = g.op("Gather", g.op("Shape", x), constant(g, 0), axis_i=0)
    always = g.op("Cast", constant(g, 1), to_i=9)
    results, (body,), node = jit_utils.add_op_with_blocks(g, "Loop", count, always, x, outputs=2, n_blocks=1)
    utils._add_input_to_block(body.block)
    again = utils._add_input_to_block(body.block)
    power = utils._add_input_to_block(body.block)
    assert power.type().dim() == 2
    product = body.op("Mul", power, x)
    for value in (body.op("Identity", again), product, product):
        utils._add_output_to_block(body.block, value)
    assert [node.outputsSize(), node.inputsSize(), len(node.blocks())] == [2, 3, 1]
    return results


@pytest.mark.parametrize("opset", [9, 13, 18])
def test_a_symbolic_writes_a_loop(opset: int) -> None:
    register_custom_op_symbolic("ts_blocks::powers", powers_by_loop, 9)

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        return powers(x)

    exported(model, (n(2, 3),), (n(4, 3),), (n(1, 3),), opset=opset, **AXES)


def incomplete(g: Any, x: Any) -> Any:
    result, (then, _), _ = jit_utils.add_op_with_blocks(g, "If", positive(g, x), n_blocks=2)
    utils._add_output_to_block(then.block, then.op("Exp", x))
    return g.op("Neg", result)


def of_two_dtypes(g: Any, x: Any) -> Any:
    result, (then, other), _ = jit_utils.add_op_with_blocks(g, "If", positive(g, x), n_blocks=2)
    utils._add_output_to_block(then.block, then.op("Exp", x))
    utils._add_output_to_block(other.block, other.op("Cast", x, to_i=7))
    return result


def outside(g: Any, x: Any) -> Any:
    utils._add_output_to_block(g.block, x)
    return x


def third_block(g: Any, x: Any) -> Any:
    return jit_utils.add_op_with_blocks(g, "If", positive(g, x), n_blocks=3)[0]


@pytest.mark.parametrize(
    ("symbolic", "reason"),
    [
        (incomplete, r"If is used before its blocks are complete: it needs 2 block\(s\) of 1 output\(s\), got 1, 0"),
        (of_two_dtypes, "The branches of an If give"),
        (outside, "Only the blocks of If and Loop"),
        (third_block, r"If has no more than 2 block\(s\)"),
    ],
)
def test_blocks_that_are_no_model_are_refused(symbolic: Any, reason: str) -> None:
    register_custom_op_symbolic("ts_blocks::either", symbolic, 9)

    with pytest.raises(OnnxExporterError, match=reason):
        onnx_ts_legacy.export(lambda x: either(x), (n(2, 3),), opset_version=13)


# ---- what else published symbolics ask for


def test_a_symbolic_knows_how_the_export_was_asked_for() -> None:
    seen = []

    def relu(g: Any, x: Any) -> Any:
        state = (GLOBALS.export_onnx_opset_version, GLOBALS.in_onnx_export, int(GLOBALS.training_mode))
        seen.append((*state, onnx_ts_legacy.symbolic_helper._export_onnx_opset_version))
        return g.op("Relu", x)

    register_custom_op_symbolic("aten::relu", relu, 9)
    onnx_ts_legacy.export(torch.nn.ReLU(), (n(2),), opset_version=12, training=onnx_ts_legacy.TrainingMode.TRAINING)

    assert seen == [(12, True, 2, 12)]
    assert not GLOBALS.in_onnx_export
    assert GLOBALS.export_onnx_opset_version == 17


def test_a_symbolic_reads_the_nodes_that_it_and_the_exporter_wrote() -> None:
    seen = {}

    def neg(g: Any, x: Any) -> Any:
        product = g.op("Gemm", x, x, alpha_f=0.5, transB_i=1, beta_f=None)
        for name, node in (("own", product.node()), ("given", x.node())):
            seen[name] = (node.kind(), [value.debugName() for value in node.inputs()], node.outputsSize())
        node = product.node()
        seen["attributes"] = (sorted(node.attributeNames()), node.kindOf("alpha"), node["alpha"], node.i("transB"))
        assert node.input(1).debugName() == x.debugName()
        assert node.output().debugName() == product.debugName()
        assert "test_symbolic_blocks.py" in node.sourceRange()
        return product

    register_custom_op_symbolic("ts_blocks::gram", neg, 9)
    program = onnx_ts_legacy.export(lambda x: gram(x.exp()), (n(2, 3),), input_names=["x"])

    product = program.model.graph.outputs[0].producer()
    assert product is not None
    exp = product.inputs[0]
    assert exp is not None
    assert seen == {
        "own": ("onnx::Gemm", [exp.name, exp.name], 1),
        "given": ("onnx::Exp", ["x"], 1),
        "attributes": (["alpha", "transB"], "f", 0.5, 1),
    }


@torch.library.custom_op("ts_blocks::gram", mutates_args=())
def gram(x: Tensor) -> Tensor:
    return 0.5 * x @ x.T


@gram.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[0])


def select(g: Any, x: Any, dim: Any, index: Any) -> Any:
    return g.op("Gather", x, index, axis_i=onnx_ts_legacy.symbolic_helper._get_const(dim, "i", "dim"))


def test_writes_through_a_view_by_a_custom_symbolic_reach_its_base() -> None:
    register_custom_op_symbolic("aten::select", select, 9)

    def model(x: Tensor) -> Tensor:
        y = x.clone()
        y.select(1, 0).mul_(3.0)
        return y

    exported(model, (n(2, 3),), (n(4, 3),), **AXES)


def test_a_symbolic_that_hands_its_input_on_does_not_share_its_memory() -> None:
    register_custom_op_symbolic("aten::clone", lambda g, x, *options: x, 9)

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        z = y.clone()
        z.mul_(2.0)
        return y, z

    exported(model, (n(2, 3),), (n(4, 3),), **AXES)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int32])
def test_numbers_take_the_dtype_of_the_tensors_beside_them(dtype: torch.dtype) -> None:
    def add(g: Any, x: Any, other: Any, alpha: Any) -> Any:
        return g.op("Add", g.op("Mul", x, constant(g, 1)), other)

    register_custom_op_symbolic("aten::add", add, 9)

    exported(lambda x: x + 2, (torch.ones(2, dtype=dtype),), (torch.ones(2, dtype=dtype),), opset=14)


def test_a_result_of_unknown_type_may_go_into_an_operator_of_onnx() -> None:
    def symbolic(g: Any, x: Any) -> Any:
        rows = g.op("com.example::Rows", x)
        return g.op("Det", rows).setType(x.type())

    register_custom_op_symbolic("ts_blocks::either", symbolic, 9)
    program = onnx_ts_legacy.export(lambda x: either(x), (n(2, 3),), custom_opsets={"com.example": 1})

    assert [node.op_type for node in program.model.graph] == ["Rows", "Det"]
