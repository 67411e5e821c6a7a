"""What an imported model computes of sizes holds at other sizes, in eager mode and in a program that torch exports."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from importable_models import wanted

from onnxops_decomp import to_torch

HEAD = '<ir_version: 8, opset_import: ["": 13]> g '
COMMON = "<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64[1] five = {5}"
COMMON += ", int64[1] minus_two = {-2}, int64[1] minus_nine = {-9}, int64[1] minus_ten = {-10}>"
SIZES = "s = Shape(x) n = Gather(s, zero) m = Gather(s, one)"
TABLES = [(2, 6), (4, 7), (9, 3)]
IMAGES = [(2, 2, 7, 8), (3, 2, 6, 5), (2, 2, 9, 4)]
NUMBERS = {
    "a quotient below zero": "d = Sub(five, m) y = Div(d, three)",
    "a quotient by what is below zero": "d = Sub(two, m) y = Div(five, d)",
    "a remainder below zero": "d = Sub(five, m) y = Mod(d, three)",
    "a remainder of the sign of the first": "d = Sub(five, m) y = Mod <fmod = 1> (d, three)",
    "one of two sizes": "c = Greater(n, three) y = Where(c, m, two)",
    "one of two sizes by two conditions": "c = Greater(n, three) d = Less(m, three) e = Not(d) f = And(c, e) "
    "y = Where(f, m, two)",
    "one of two sizes by either condition": "c = Greater(n, five) d = Less(m, three) f = Or(c, d) y = Where(f, m, n)",
    "the number of a condition": "c = Greater(n, three) d = Cast <to = 7> (c) y = Add(d, two)",
    "the larger size": "y = Max(n, m, three)",
    "a slice that begins before the first size": "k = Slice(s, minus_nine, minus_ten, zero, minus_two) y = Add(k, two)",
}
POOLS = {
    f"{name} {pads}": f"y = {name} <{pads}, strides = [2, 2], kernel_shape = [3, 2]{more}> (x)"
    for name, more in (("MaxPool", ""), ("AveragePool", ""), ("AveragePool", ", count_include_pad = 1"))
    for pads in ('auto_pad = "SAME_UPPER"', 'auto_pad = "SAME_LOWER"', "ceil_mode = 1, pads = [1, 1, 1, 1]")
}
BRANCHES = (
    "c = Greater(n, three) b = Squeeze(c) y = If (b) <then_branch = then () => (float[n, m] p) {p = Relu(x)}, "
    "else_branch = other () => (float[n, m] q) {q = Neg(x)}>"
)


# As torch.onnx writes `expand` in TorchScript mode.
EXPANSION = (
    "minus = Constant <value_int = -1> () k = Shape(s) ones = ConstantOfShape <value = int64[1] {1}> (k) "
    "p = Mul(ones, minus) c = Equal(s, p) e = Where(c, ones, s) row = Slice(x, zero, one, zero) y = Expand(row, e)"
)


def of_sizes(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD}(float[n, m] x) => (int64[1] y) {COMMON} {{{SIZES} {body}}}")


def of_tables(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD}(float[n, m] x) => (float[n, m] y) {COMMON} {{{SIZES} {body}}}")


def of_images(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD}(float[n, 2, h, w] x) => (float[n, k, a, b] y) {{{body}}}")


CONV = 'w = Constant <value = float[1, 2, 2, 3] {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6}> () y = Conv <auto_pad = "%s", '
CONV += "strides = [2, 2]> (x, w)"
CASES = {
    **{name: (of_sizes(body), TABLES) for name, body in NUMBERS.items()},
    "a branch": (of_tables(BRANCHES), TABLES),
    "an expansion": (of_tables(EXPANSION), TABLES),
    **{name: (of_images(body), IMAGES) for name, body in POOLS.items()},
    **{f"Conv {pads}": (of_images(CONV % pads), IMAGES) for pads in ("SAME_UPPER", "SAME_LOWER")},
}


def given(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_other_sizes_give_what_the_runtime_gives(name: str) -> None:
    if name.startswith("AveragePool ceil_mode"):
        pytest.importorskip(
            "onnxruntime", minversion="1.30", reason="ONNX Runtime averages over such windows since 1.30"
        )
    model, shapes = CASES[name]
    module = to_torch(model)
    dims = dict.fromkeys(range(2) if len(shapes[0]) == 2 else (0, 2, 3), torch.export.Dim.DYNAMIC)
    program = torch.export.export(module, (torch.from_numpy(given(shapes[0])),), dynamic_shapes=(dims,)).module()

    for shape in shapes:
        x = given(shape)
        (want,) = wanted(model, {"x": x})
        for function in (module, program):
            torch.testing.assert_close(function(torch.from_numpy(x)), torch.from_numpy(want))


@pytest.mark.parametrize("name", ["a branch", "an expansion", "a quotient below zero", "Conv SAME_UPPER"])
def test_torch_compile_takes_other_sizes(name: str) -> None:
    model, shapes = CASES[name]
    module = to_torch(model)
    compiled = torch.compile(module, fullgraph=True, backend="eager")

    for shape in shapes:
        x = torch.from_numpy(given(shape))
        torch.testing.assert_close(compiled(x), module(x))


def test_both_branches_are_recorded_where_dynamo_exports() -> None:
    model, shapes = CASES["a branch"]
    module = to_torch(model)
    dims = dict.fromkeys(range(2), torch.export.Dim.DYNAMIC)
    program = torch.export.export(module, (torch.randn(shapes[0]),), dynamic_shapes=(dims,), strict=True).module()

    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), module(x))
