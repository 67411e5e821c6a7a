"""Numbers that cannot be negative are known by what computes them, and no others are."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxops_decomp.spec.signs import is_never_negative


def is_known(last: str, dtype: str = "int64[N]") -> bool:
    """Tell what is known of ``result``, which ``last`` computes of data, of positions and of sizes."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 18]>
        positions (float[N, M] x, int64[N] data, uint8[N] bytes) => ({dtype} result)
        <int64 zero = {{0}}, int64 seven = {{7}}, int64 minus = {{-7}}, int64 huge = {{4611686018427387904}}>
        {{
            at = ArgMax <axis = 1, keepdims = 0> (x)
            all = Shape (x)
            {last}
        }}
    """
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))).graph

    def constant(value: ir.Value | None) -> np.ndarray | None:
        return None if value is None or value.const_value is None else value.const_value.numpy()

    return is_never_negative(graph.outputs[0], constant)


@pytest.mark.parametrize(
    "last",
    [
        "result = Identity (at)",
        "result = Add (at, seven)",
        "half = Div (at, seven) result = Mul (half, all)",
        "one = Mul (all, all) two = Mul (one, one) result = Mul (two, seven)",
        "result = Mod (data, seven)",
        "result = Mod <fmod = 1> (at, minus)",
        "result = Max (data, zero)",
        "result = Clip (data, zero)",
        "result = Clip (data, zero, seven)",
        "result = Min (at, seven)",
        "result = Range (zero, at, seven)",
        "result = Concat <axis = 0> (at, all)",
        "chosen = Greater (data, zero) result = Where (chosen, at, seven)",
        "whole = Cast <to = 7> (bytes) result = Add (whole, at)",
        "narrow = Cast <to = 6> (all) result = Cast <to = 7> (narrow)",
    ],
)
def test_what_cannot_be_negative(last: str) -> None:
    assert is_known(last)


@pytest.mark.parametrize(
    "last",
    [
        "result = Identity (data)",
        "result = Sub (at, seven)",
        "result = Add (at, data)",
        "result = Mul (at, minus)",
        "result = Mul (at, huge)",
        "result = Add (huge, huge)",
        "result = Mod (at, minus)",
        "result = Mod <fmod = 1> (data, seven)",
        "result = Max (data, minus)",
        "result = Clip (data)",
        "result = Clip (data, zero, minus)",
        "result = Min (at, data)",
        "result = Range (minus, at, seven)",
        "result = Concat <axis = 0> (at, data)",
        "chosen = Greater (data, zero) result = Where (chosen, at, data)",
        "narrow = Cast <to = 6> (huge) result = Cast <to = 7> (narrow)",
        "wide = Add (at, at) narrow = Cast <to = 3> (wide) result = Cast <to = 7> (narrow)",
    ],
)
def test_what_may_be_negative(last: str) -> None:
    assert not is_known(last)


@pytest.mark.parametrize(
    ("last", "known"),
    [
        ("result = Softmax (x)", True),
        ("shares = Softmax (x) best, place = TopK (shares, seven) result = Div (best, best)", True),
        ("large = Exp (x) result = Add (large, large)", True),
        ("even = Abs (x) total = ReduceSum (even) result = Sqrt (total)", True),
        ("shares = Sigmoid (x) result = GatherElements (shares, data)", True),
        ("result = GatherElements (x, data)", False),
        ("large = Exp (x) result = Sub (large, large)", False),
        ("result = Tanh (x)", False),
    ],
)
def test_real_numbers_that_cannot_be_negative(last: str, known: bool) -> None:
    assert is_known(last, "float[N, M]") == known


def test_real_numbers_may_be_too_large_to_be_integers_that_are_not_negative() -> None:
    assert not is_known("large = Exp (x) result = Cast <to = 7> (large)")
    assert not is_known("none = Cast <to = 1> (zero) large = Max (x, none) result = Cast <to = 7> (large)")
    assert not is_known("none = Cast <to = 1> (zero) large = Clip (x, none) result = Cast <to = 7> (large)")
    assert not is_known("real = Cast <to = 1> (at) sum = ReduceSum (real) result = Cast <to = 7> (sum)")
    assert not is_known("real = Cast <to = 1> (at) large = Div (real, real) result = Cast <to = 7> (large)")
    assert is_known("real = Cast <to = 1> (at) result = Cast <to = 7> (real)")
