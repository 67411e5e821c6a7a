"""Lowerings for operators of one's own: plain functions and functions of onnxscript."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx_ir as ir
import pytest
import torch
from decomp_harness import compare, lower, run
from onnxscript import opset13, opset18, opset20, script
from onnxscript.values import Opset

from onnxops_decomp import LoweringError, builtin_table

DOMAIN = Opset("decomp_tests", 1)
OPSETS = [7, 9, 11, 13, 15, 17, 18, 20, 21, 23, 24, 25, 26, 27, 28]


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with torch.library._scoped_library("decomp_own", "FRAGMENT") as lib:
        for schema in (
            "halves(Tensor x, Tensor y, float alpha, int axis=1) -> (Tensor, Tensor)",
            "scaled(Tensor x, float scale=2.0, *, bool mean=False) -> Tensor",
            "powers(Tensor x, int count) -> Tensor",
            "plus(Tensor x, Scalar y) -> Tensor",
        ):
            lib.define(schema)
        for name, function in EAGER.items():
            lib.impl(name, function, "CPU")
            lib.impl(name, META.get(name, function), "Meta")
        yield


def eager_halves(x, y, alpha, axis=1):
    scaled = x * alpha
    return (scaled if scaled.sum() > 0 else y.softmax(axis)) + 1.5, scaled


def eager_powers(x, count):
    return x ** (count + 1)


EAGER: dict[str, Callable[..., Any]] = {
    "halves": eager_halves,
    "scaled": lambda x, scale=2.0, *, mean=False: (x * scale).mean(1),
    "powers": eager_powers,
    "plus": lambda x, y: x + y,
}
META = {"halves": lambda x, y, alpha, axis=1: (torch.empty_like(x), torch.empty_like(x))}


@script(DOMAIN, default_opset=opset18)
def Scaled(x, by: float = 2.0):
    return opset18.Mul(x, opset18.CastLike(opset18.Constant(value_float=by), x))


@script(DOMAIN, default_opset=opset18)
def Halves(x, y, alpha: float, axis: int = 1):
    scaled = Scaled(x, by=alpha)
    if opset18.ReduceSum(scaled, keepdims=0) > 0.0:
        result = scaled
    else:
        result = opset18.Softmax(y, axis=axis)
    return result + 1.5, opset18.Identity(scaled)


@script(DOMAIN, default_opset=opset20)
def MeanOfScaled(x, scale):
    return opset20.ReduceMean(opset20.Mul(x, scale), opset20.Constant(value_ints=[1]), keepdims=0)


@script(DOMAIN, default_opset=opset13)
def OlderMean(x, scale):
    return opset13.ReduceMean(opset13.Mul(x, scale), axes=[1], keepdims=0)


@script(DOMAIN, default_opset=opset18)
def Powers(x, count):
    result = opset18.Identity(x)
    for _ in range(count):
        result = opset18.Mul(result, x)
    return result


@script(DOMAIN, default_opset=opset18)
def Plus(x, y):
    return opset18.Add(x, y)


@script(DOMAIN, default_opset=opset18)
def Normalized(x):
    return opset18.LayerNormalization(x, opset18.Constant(value_floats=[1.0, 1.0, 1.0, 1.0]))


@script(DOMAIN, default_opset=opset13)
def Gathered(x):
    return opset13.Split(x)


def check(functions: Mapping[Any, Any], model: Callable[..., Any], *args: torch.Tensor, opset: int) -> list[str]:
    table = builtin_table().extended(functions)
    others = tuple(torch.cat([arg, arg]) for arg in args)
    lowered = lower(model, args, opset=opset, dynamic=True, table=table)
    for example in (args, others):
        compare(run(lowered.proto, example), list(torch.utils._pytree.tree_leaves(model(*example))))
    assert not lowered.proto.functions
    assert {o.domain: o.version for o in lowered.proto.opset_import} == {"": opset}
    return lowered.op_types()


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_onnxscript_function_with_branches_and_calls_at(opset: int, sign: float) -> None:
    x, y = torch.rand(3, 4) * sign, torch.randn(3, 4)
    halves = torch.ops.decomp_own.halves
    check({halves.default: Halves}, lambda x, y: halves(x, y, 2.0), x, y, opset=opset)


@pytest.mark.parametrize("opset", OPSETS)
def test_a_function_with_a_number_as_an_input_at(opset: int) -> None:
    scaled = torch.ops.decomp_own.scaled
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(3, 4, dtype=dtype)
        check({scaled.default: MeanOfScaled}, lambda x: scaled(x, 3.0), x, opset=opset)


@pytest.mark.parametrize("opset", [13, 17, 18, 23])
def test_attributes_that_became_inputs_move_in_a_function_of_an_older_opset(opset: int) -> None:
    scaled = torch.ops.decomp_own.scaled
    check({scaled.default: OlderMean}, lambda x: scaled(x), torch.randn(3, 4), opset=opset)


@pytest.mark.parametrize("opset", [7, 13, 20])
def test_a_function_with_a_loop_at(opset: int) -> None:
    powers = torch.ops.decomp_own.powers
    op_types = check({powers.default: Powers}, lambda x: powers(x, 3), torch.randn(3, 4), opset=opset)
    assert "Loop" in op_types


@pytest.mark.parametrize("opset", [7, 13, 20])
def test_a_plain_function_at(opset: int) -> None:
    def plus(op, x, y):
        return op.Add(x, y)

    operator = torch.ops.decomp_own.plus
    assert check({operator.default: plus}, lambda x: operator(x, 2), torch.randn(3), opset=opset) == ["Add"]


def test_one_function_serves_overloads_whose_arguments_stand_elsewhere() -> None:
    def variance(op, self, keepdim=False, unbiased=True, dim=None):
        rank = op.rank(self)
        axes = list(range(rank)) if dim is None else [axis % rank for axis in dim]
        deviation = op.Sub(self, op.ReduceMean(self, axes))
        count = op.size_mul(*(op.size(self, axis) for axis in axes))
        squares = op.ReduceSum(op.Mul(deviation, deviation), axes, keepdims=int(keepdim))
        return op.Div(squares, op.cast(op.number(op.size_add(count, -1 if unbiased else 0), self.dtype), self.dtype))

    var = torch.ops.aten.var
    functions = {var.default: variance, var.dim: variance}
    x = torch.randn(3, 4)

    for model in (var.default, lambda x: var.default(x, False), lambda x: var.dim(x, [-1], False, True)):
        check(functions, model, x, opset=18)


@pytest.mark.parametrize("opset", [9, 16])
def test_a_fused_operator_of_a_function_is_composed_where_the_opset_lacks_it(opset: int) -> None:
    layer_norm = torch.ops.aten.layer_norm.default
    op_types = check(
        {layer_norm: normalized}, lambda x: torch.nn.functional.layer_norm(x, (4,)), torch.randn(3, 4), opset=opset
    )
    assert "LayerNormalization" not in op_types


def normalized(op, input, normalized_shape):
    """Takes none of the arguments that have their defaults in the call."""
    from onnxops_decomp.lowerings.scripted import script_lowering

    return script_lowering(Normalized)(op, input)


def test_an_argument_that_the_function_does_not_take_is_no_longer_ignored_when_it_says_something() -> None:
    table = builtin_table().extended({torch.ops.aten.layer_norm.default: normalized})
    with pytest.raises(LoweringError, match="layer_norm"):
        lower(lambda x, w: torch.nn.functional.layer_norm(x, (4,), w), [torch.randn(3, 4), torch.randn(4)], table=table)


def test_a_function_entered_by_decorator_serves_several_operators() -> None:
    table = builtin_table().extended({})

    @table.register(torch.ops.decomp_own.scaled.default, torch.ops.decomp_own.plus.default)
    def double(op, x, *args, **kwargs):
        return op.Add(x, x)

    assert table["decomp_own::scaled"].function is table["decomp_own::plus"].function is double
    assert "decomp_own::scaled" not in builtin_table()


def test_an_operator_whose_meaning_changed_since_the_opset_of_a_function_is_refused() -> None:
    operator = torch.ops.decomp_own.scaled
    table = builtin_table().extended({operator.default: Gathered})
    with pytest.raises(LoweringError, match=r"Split means something else in opset 20 than in 13.*opset 18"):
        lower(lambda x: operator(x), [torch.randn(3, 4)], opset=20, table=table)


def test_an_attribute_that_the_model_computes_is_refused() -> None:
    halves = torch.ops.decomp_own.halves
    table = builtin_table().extended({halves.default: lambda op, x, y, alpha, axis: scripted(op, x, y, op.Size(x))})

    def scripted(op, *args):
        from onnxops_decomp.lowerings.scripted import script_lowering

        return script_lowering(Halves)(op, *args)

    with pytest.raises(LoweringError, match="'alpha' is an attribute of Halves, but the model computes it"):
        lower(lambda x, y: halves(x, y, 2.0), [torch.randn(3, 4)] * 2, dynamic=True, table=table)


def test_a_missing_attribute_is_named() -> None:
    from onnxops_decomp import OpBuilder
    from onnxops_decomp.lowerings.scripted import script_lowering

    op = OpBuilder(20)
    x = op.input("x", ir.DataType.FLOAT, (3, 4))
    with pytest.raises(LoweringError, match="Halves needs its attribute 'alpha'"):
        script_lowering(Halves)(op, x, x)
