"""Rewritten operators are exact where arithmetic tricks usually are not: infinities, NaN, integers beyond 2**53."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from adapter_cases import run_function as run

from onnxops_decomp.errors import UnsupportedOpsetError

INF, NAN = np.inf, np.nan
FLOATS = np.array([-INF, -3.5, -1.0, -0.0, 0.0, 1e-40, 1.0, 2.5, 3e38, INF, NAN], np.float32)
LONGS = np.array([-(2**63), -(2**53) - 1, -(2**53), -1, 0, 1, 2**53, 2**53 + 1, 2**62, 2**63 - 2, 2**63 - 1], np.int64)
LOW_OPSETS = [7, 8, 9, 10, 11, 12]


def pairs(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return every number against every other."""
    return np.repeat(numbers, len(numbers)), np.tile(numbers, len(numbers))


COMPARISONS = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}


@pytest.mark.parametrize("opset", LOW_OPSETS)
@pytest.mark.parametrize("op_type", COMPARISONS)
@pytest.mark.parametrize("numbers", [FLOATS, FLOATS.astype(np.float64), LONGS, LONGS.view(np.uint64)])
def test_comparison_of_every_pair(op_type: str, numbers: np.ndarray, opset: int) -> None:
    a, b = pairs(numbers)
    actual = run(lambda op, x, y: op.emit(op_type, x, y), opset, a, b)[0]
    np.testing.assert_array_equal(actual, COMPARISONS[op_type](a, b))


@pytest.mark.parametrize("opset", LOW_OPSETS)
@pytest.mark.parametrize("op_type", COMPARISONS)
@pytest.mark.parametrize("bound", [0, -1, 2**53 - 1, 2**53, 2**62])
def test_comparison_of_longs_with_a_constant(op_type: str, bound: int, opset: int) -> None:
    actual = run(lambda op, x: op.emit(op_type, x, bound), opset, LONGS)[0]
    np.testing.assert_array_equal(actual, COMPARISONS[op_type](LONGS, bound))


@pytest.mark.parametrize("opset", LOW_OPSETS)
@pytest.mark.parametrize("numbers", [FLOATS, FLOATS.astype(np.float64), LONGS, LONGS.astype(np.int8), LONGS > 0])
@pytest.mark.parametrize("dynamic", [False, True])
def test_where_picks_whatever_stands_on_the_other_side(numbers: np.ndarray, opset: int, dynamic: bool) -> None:
    condition = np.array([[True], [False]])
    other = numbers[::-1].copy()
    actual = run(lambda op, c, x, y: op.Where(c, x, y), opset, condition, numbers, other, dynamic=dynamic)[0]
    np.testing.assert_array_equal(actual, np.where(condition, numbers, other))


@pytest.mark.parametrize("opset", LOW_OPSETS)
def test_where_of_scalar_infinity(opset: int) -> None:
    mask = np.array([[True, False, True]])
    actual = run(lambda op, c: op.Where(c, op.constant(-INF), op.constant(0.0)), opset, mask)[0]
    np.testing.assert_array_equal(actual, np.where(mask, np.float32(-INF), np.float32(0)))


@pytest.mark.parametrize("opset", LOW_OPSETS)
@pytest.mark.parametrize("op_type", ["Max", "Min"])
@pytest.mark.parametrize(
    "numbers", [FLOATS, FLOATS.astype(np.float64), LONGS, LONGS.astype(np.int16), LONGS.astype(np.uint8)]
)
def test_extremes_broadcast_and_keep_nan(op_type: str, numbers: np.ndarray, opset: int) -> None:
    row, column = numbers[None, :], numbers[:, None].copy()
    actual = run(lambda op, x, y: op.emit(op_type, x, y), opset, row, column)[0]
    expected = {"Max": np.maximum, "Min": np.minimum}[op_type](row, column)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("opset", LOW_OPSETS)
@pytest.mark.parametrize("numbers", [FLOATS, FLOATS.astype(np.float64), LONGS, LONGS.astype(np.int32)])
@pytest.mark.parametrize("bounds", [(None, 1), (-1, None), (-1, 2), (2, -1)])
def test_clip_lets_infinities_and_nan_through(numbers: np.ndarray, bounds: Any, opset: int) -> None:
    low, high = bounds
    if opset > 10 and numbers.dtype.kind == "f":
        # From opset 11 on an absent bound is the largest finite number, says the specification.
        low, high = -INF if low is None else low, INF if high is None else high
    actual = run(lambda op, x: op.Clip(x, low, high), opset, numbers)[0]
    expected = numbers if low is None else np.maximum(numbers, numbers.dtype.type(low))
    expected = expected if high is None else np.minimum(expected, numbers.dtype.type(high))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("opset", [7, 8, 9, 10])
def test_clip_to_a_double_that_no_attribute_holds(opset: int) -> None:
    numbers = np.array([-1.0, 0.05, 0.1, 0.2])
    actual = run(lambda op, x: op.Clip(x, 0.1, None), opset, numbers)[0]
    np.testing.assert_array_equal(actual, np.maximum(numbers, 0.1))


@pytest.mark.parametrize("opset", LOW_OPSETS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_infinity_sign(dtype: type, opset: int) -> None:
    numbers = FLOATS.astype(dtype)
    nan, both, negative, positive = run(
        lambda op, x: [op.IsNaN(x), op.IsInf(x), op.IsInf(x, detect_positive=0), op.IsInf(x, detect_negative=0)],
        opset,
        numbers,
    )
    np.testing.assert_array_equal(nan, np.isnan(numbers))
    np.testing.assert_array_equal(both, np.isinf(numbers))
    np.testing.assert_array_equal(negative, np.isneginf(numbers))
    np.testing.assert_array_equal(positive, np.isposinf(numbers))
    number = numbers[~np.isnan(numbers)]
    np.testing.assert_array_equal(run(lambda op, x: op.Sign(x), opset, number)[0], np.sign(number))


@pytest.mark.parametrize("opset", LOW_OPSETS)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8])
def test_sign_of_integers(dtype: type, opset: int) -> None:
    numbers = LONGS.astype(dtype)
    np.testing.assert_array_equal(run(lambda op, x: op.Sign(x), opset, numbers)[0], np.sign(numbers))


@pytest.mark.parametrize("opset", [7, 9, 10, 11])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_round_to_even(dtype: type, opset: int) -> None:
    numbers = np.array([-INF, -2.5, -1.5, -0.7, -0.5, -0.3, 0.0, 0.5, 0.51, 1.5, 2.5, 8388609.0, 3e30, INF, NAN], dtype)
    np.testing.assert_array_equal(run(lambda op, x: op.Round(x), opset, numbers)[0], np.round(numbers))


@pytest.mark.parametrize("opset", [7, 8, 9, 10])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8])
def test_remainders_of_integers_have_the_sign_asked_for(dtype: type, opset: int) -> None:
    a, b = pairs(np.array([-7, -6, -1, 1, 3, 6, 7], dtype))
    floor, trunc = run(lambda op, x, y: [op.Mod(x, y), op.Mod(x, y, fmod=1)], opset, a, b)
    np.testing.assert_array_equal(floor, np.mod(a, b))
    np.testing.assert_array_equal(trunc, np.fmod(a, b))


@pytest.mark.parametrize("opset", [10, 13, 20, 26])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floor_remainder_of_floats(dtype: type, opset: int) -> None:
    a, b = pairs(np.array([-7.5, -6, -0.25, 0.25, 3, 6, 7.5, INF, -INF], dtype))
    actual = run(lambda op, x, y: op.Mod(x, y), opset, a, b)[0]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(actual, np.mod(a, b))


def test_remainder_of_floats_without_a_kernel_is_refused() -> None:
    with pytest.raises(UnsupportedOpsetError, match="lowest opset that works is 10"):
        run(lambda op, x, y: op.Mod(x, y, fmod=1), 9, FLOATS, FLOATS)


BITS = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor}


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 18])
@pytest.mark.parametrize("op_type", BITS)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8, np.uint16])
def test_bits_of_every_pair(op_type: str, dtype: type, opset: int) -> None:
    a, b = pairs(np.array([*LONGS, 0x55, -0x56, 12345], np.int64).astype(dtype))
    actual, inverse = run(lambda op, x, y: [op.emit(op_type, x, y), op.BitwiseNot(x)], opset, a, b)
    np.testing.assert_array_equal(actual, BITS[op_type](a, b))
    np.testing.assert_array_equal(inverse, np.bitwise_not(a))


@pytest.mark.parametrize("opset", [7, 11, 18, 26])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8, np.uint16])
@pytest.mark.parametrize("amount", [0, 1, 5])
def test_shift_of_signed_numbers(dtype: type, amount: int, opset: int) -> None:
    numbers = LONGS.astype(dtype)
    left, right = run(
        lambda op, x: [op.BitShift(x, amount, direction="LEFT"), op.BitShift(x, amount, direction="RIGHT")],
        opset,
        numbers,
    )
    np.testing.assert_array_equal(left, np.left_shift(numbers, dtype(amount)))
    np.testing.assert_array_equal(right, np.right_shift(numbers, dtype(amount)))


HYPERBOLIC = {"Acosh": np.arccosh, "Asinh": np.arcsinh, "Atanh": np.arctanh, "Cosh": np.cosh, "Sinh": np.sinh}


@pytest.mark.parametrize(
    "dtype, opset", [(np.float32, 7), (np.float32, 8), (np.float64, 7), (np.float64, 9), (np.float64, 26)]
)
@pytest.mark.parametrize("op_type", HYPERBOLIC)
def test_hyperbolic_functions_keep_small_and_large_numbers(op_type: str, dtype: type, opset: int) -> None:
    numbers = np.array(
        [-INF, -1e20, -88.9, -3, -1, -0.5, -1e-3, -1e-7, 0, 1e-7, 0.3, 1, 1.0001, 2, 88.9, 1e20, INF, NAN]
    )
    numbers = numbers.astype(dtype)
    with np.errstate(all="ignore"):
        expected = HYPERBOLIC[op_type](numbers.astype(np.longdouble)).astype(dtype)
    actual = run(lambda op, x: op.emit(op_type, x), opset, numbers)[0]
    # A few units in the last place: the composed form rounds several times.
    np.testing.assert_allclose(actual, expected, rtol=20 * np.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("opset", [7, 8])
def test_erf_is_accurate_to_the_last_digit_or_two(opset: int) -> None:
    numbers = np.concatenate([np.linspace(-6, 6, 2001), [1e-20, INF, -INF, NAN]]).astype(np.float32)
    expected = torch.erf(torch.from_numpy(numbers).double()).numpy()
    actual = run(lambda op, x: op.Erf(x), opset, numbers)[0]
    np.testing.assert_allclose(actual, expected, rtol=1.5e-7, atol=0)


@pytest.mark.parametrize("opset", [7, 8, 9, 13])
def test_erf_of_doubles_has_their_precision(opset: int) -> None:
    numbers = np.concatenate([FLOATS.astype(np.float64), np.linspace(-6.5, 6.5, 400)])
    actual = run(lambda op, x: op.Erf(x), opset, numbers)[0]
    np.testing.assert_allclose(actual, torch.erf(torch.from_numpy(numbers)).numpy(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("opset", [7, 9, 10, 11])
@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.int8, np.bool_])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad_of_every_dtype_keeps_the_numbers(dtype: type, mode: str, opset: int) -> None:
    numbers = (LONGS % 251 if dtype is np.float64 else LONGS).astype(dtype).reshape(1, 11)
    fill = None if mode != "constant" else dtype(1)
    actual = run(
        lambda op, x: (
            op.Pad(x, [0, 2, 1, 3], fill, mode=mode) if mode == "constant" else op.Pad(x, [2, 3], None, [1], mode=mode)
        ),
        opset,
        numbers,
    )[0]
    pads = ((0, 1), (2, 3)) if mode == "constant" else ((0, 0), (2, 3))
    options = {"constant_values": dtype(1)} if mode == "constant" else {}
    np.testing.assert_array_equal(actual, np.pad(numbers, pads, mode=mode, **options))


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("largest", [0, 1])
def test_sort_of_numbers_that_doubles_confuse(dtype: type, largest: int, opset: int) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.permutation(np.concatenate([LONGS, LONGS[3:6]])).astype(np.int64).astype(dtype)[None]
    values, index = run(lambda op, x: op.emit_many("TopK", 2, x, [14], largest=largest), opset, numbers)
    expected = np.sort(numbers, axis=-1)
    np.testing.assert_array_equal(values, expected[:, ::-1] if largest else expected)
    np.testing.assert_array_equal(np.take_along_axis(numbers, index, -1), values)


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 14, 25])
@pytest.mark.parametrize("op_type", ["CumSum", "CumProd"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("options", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_running_sums_and_products(
    op_type: str, opset: int, dynamic: bool, options: dict[str, int], dtype: type
) -> None:
    numbers = np.array([[1, 2, 3, 4, 5, 6, 7], [-1, 2, -3, 4, -5, 6, -7]], dtype)
    actual = run(lambda op, x: op.emit(op_type, x, op.constant(1), **options), opset, numbers, dynamic=dynamic)[0]
    expected = numbers[:, ::-1] if options.get("reverse") else numbers
    neutral = 0 if op_type == "CumSum" else 1
    if options.get("exclusive"):
        expected = np.concatenate([np.full((2, 1), neutral, dtype), expected[:, :-1]], axis=1)
    expected = {"CumSum": np.cumsum, "CumProd": np.cumprod}[op_type](expected, axis=1)
    np.testing.assert_array_equal(actual, expected[:, ::-1] if options.get("reverse") else expected)


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 12, 13])
@pytest.mark.parametrize("dynamic", [False, True])
def test_negative_indices(opset: int, dynamic: bool) -> None:
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    index = np.array([[-1, 0], [2, -3]])
    taken, along, nested = run(
        lambda op, x, i: [
            op.Gather(x, i, axis=1),
            op.GatherElements(x, op.Unsqueeze(i, [2]), axis=1),
            op.GatherND(x, op.constant(np.array([[-1, -2], [0, 1]]))),
        ],
        opset,
        data,
        index,
        dynamic=dynamic,
    )
    np.testing.assert_array_equal(taken, data[:, index])
    np.testing.assert_array_equal(along, np.take_along_axis(data[..., :1], index[..., None], 1))
    np.testing.assert_array_equal(nested, data[[-1, 0], [-2, 1]])


@pytest.mark.parametrize("opset", [9, 10, 11, 13, 15, 16, 17, 18])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("rows", [3, 7])
def test_scatter_combines_repeated_indices(reduction: str, rows: int, opset: int) -> None:
    rng = np.random.default_rng(rows)
    data = rng.integers(-5, 5, (4, 3))
    index, updates = rng.integers(0, 4, (rows, 3)), rng.integers(-5, 5, (rows, 3))
    elements, slices = run(
        lambda op, x, i, u: [
            op.ScatterElements(x, i, u, axis=0, reduction=reduction),
            op.ScatterND(x, op.Slice(i, [0], [1], [1]), u, reduction=reduction),
        ],
        opset,
        data,
        index,
        updates,
    )
    combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    expected = data.copy()
    combine.at(expected, (index, np.arange(3)[None]), updates)
    np.testing.assert_array_equal(elements, expected)
    expected = data.copy()
    combine.at(expected, index[:, 0], updates)
    np.testing.assert_array_equal(slices, expected)


@pytest.mark.parametrize("opset", [10, 11, 13, 17, 18])
@pytest.mark.parametrize("size", [7, 8, 9])
def test_uneven_split_of_a_symbolic_axis(opset: int, size: int) -> None:
    numbers = np.arange(2 * size, dtype=np.float32).reshape(2, size)
    parts = run(lambda op, x: op.emit_many("Split", 3, x, axis=1, num_outputs=3), opset, numbers, dynamic=True)
    chunk = -(-size // 3)
    for part, start in zip(parts, (0, chunk, 2 * chunk), strict=True):
        np.testing.assert_array_equal(part, numbers[:, start : start + chunk])


@pytest.mark.parametrize("opset", [7, 8, 9])
@pytest.mark.parametrize(
    "steps", [(0, 2**63 - 1, 2), (-1, -(2**63), -1), (5, 1, -2), (-2, -6, -3), (1, 6, 3), (3, -1, -1)]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_slice_with_steps(steps: tuple[int, int, int], opset: int, dynamic: bool) -> None:
    start, end, step = steps
    numbers = np.arange(14, dtype=np.int64).reshape(2, 7)
    actual = run(lambda op, x: op.Slice(x, [start], [end], [1], [step]), opset, numbers, dynamic=dynamic)[0]
    stop = None if end == -(2**63) else end
    np.testing.assert_array_equal(actual, numbers[:, start:stop:step])


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11])
@pytest.mark.parametrize("arguments", [(0, 5, 1), (2, 11, 3), (5, -4, -2), (3, 3, 1), (4, 0, 1)])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.float64])
def test_range_of_runtime_numbers(arguments: tuple[int, int, int], dtype: type, opset: int) -> None:
    numbers = [np.array(argument, dtype) for argument in arguments]
    actual = run(lambda op, a, b, c: op.Range(a, b, c), opset, *numbers)[0]
    np.testing.assert_array_equal(actual, np.arange(*arguments).astype(dtype))


@pytest.mark.parametrize("opset", [7, 8, 9])
def test_expand_of_symbolic_sizes(opset: int) -> None:
    data, like = np.arange(3, dtype=np.int8).reshape(3, 1), np.zeros((2, 3, 4), np.float32)
    actual = run(lambda op, x, y: op.Expand(x, op.Shape(y)), opset, data, like, dynamic=True)[0]
    np.testing.assert_array_equal(actual, np.broadcast_to(data, (2, 3, 4)))


@pytest.mark.parametrize("opset", [7, 9, 11])
@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "bij,bjk->bik",
        "...ij,...jk->...ik",
        "ii->i",
        "ij->",
        "i,j->ij",
        "bhld,bhsd->bhls",
        "ij,kj,lk->il",
        "ijk,ilm->ijlkm",
        "aab,b->a",
    ],
)
def test_einsum_where_there_is_none(equation: str, opset: int) -> None:
    rng = np.random.default_rng(0)
    sizes = {letter: 2 + index % 3 for index, letter in enumerate("abdhijklms")} | {"a": 3}
    terms = equation.split("->")[0].split(",")
    arrays = [
        rng.standard_normal(([2] if "..." in term else []) + [sizes[c] for c in term if c != "."]).astype(np.float32)
        for term in terms
    ]
    actual = run(lambda op, *xs: op.Einsum(*xs, equation=equation), opset, *arrays, dynamic=True)[0]
    np.testing.assert_allclose(actual, np.einsum(equation, *arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [7, 8, 9, 11])
@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((4,), (4,))]
)
def test_matrix_products_of_integers_wrap(shapes: Any, opset: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-(2**40), 2**40, shape) for shape in shapes)
    np.testing.assert_array_equal(run(lambda op, x, y: op.MatMul(x, y), opset, a, b)[0], np.matmul(a, b))


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 26])
def test_gemm_of_integers(opset: int) -> None:
    a, b, c = np.arange(6).reshape(3, 2), np.arange(12).reshape(4, 3), np.arange(4)
    actual = run(lambda op, x, y, z: op.Gemm(x, y, z, transA=1, transB=1), opset, a, b, c)[0]
    np.testing.assert_array_equal(actual, a.T @ b.T + c)
