"""Sampling at arbitrary positions in the opsets before it became an operator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.builder.sizes import Size
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.grid import affine_grid

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["Tap", "gathered_taps", "grid_sample"]

_INT64 = ir.DataType.INT64
# Position along one axis, and its weight where it has one.
Tap = tuple[ir.Value, ir.Value | None]

_OLD_MODES = {"linear": "bilinear", "cubic": "bicubic"}
_NEW_MODES = {old: new for new, old in _OLD_MODES.items()}


def _clipped(op: OpBuilder, x: ir.Value, size: Size) -> ir.Value:
    highest = op.Sub(op.number(size, op.dtype(x)), 1.0)
    return op.Min(op.Max(x, 0.0), highest)


def _pixels(op: OpBuilder, coordinate: ir.Value, size: Size, align_corners: int) -> ir.Value:
    """Bring a coordinate from -1 ... 1 to pixels."""
    extent = op.number(size, op.dtype(coordinate))
    shifted = op.Add(coordinate, 1.0)
    if align_corners:
        return op.Mul(shifted, op.Div(op.Sub(extent, 1.0), 2.0))
    return op.Div(op.Sub(op.Mul(shifted, extent), 1.0), 2.0)


def _reflected(op: OpBuilder, x: ir.Value, size: Size, align_corners: int) -> ir.Value:
    """Reflect positions at the borders: at the centers of the outer pixels if aligned, else at their edges."""
    extent = op.number(size, op.dtype(x))
    if align_corners:
        if isinstance(size, int) and size == 1:
            return op.Mul(x, 0.0)
        low, span = 0.0, op.Sub(extent, 1.0)
    else:
        low, span = -0.5, extent
    distance = op.Abs(op.Sub(x, low))
    flips = op.Floor(op.Div(distance, span))
    extra = op.Sub(distance, op.Mul(flips, span))
    odd = op.Equal(op.Sub(flips, op.Mul(op.Floor(op.Div(flips, 2.0)), 2.0)), 1.0)
    return _clipped(op, op.Add(op.Where(odd, op.Sub(span, extra), extra), low), size)


def _padded(op: OpBuilder, x: ir.Value, size: Size, padding_mode: str, align_corners: int) -> ir.Value:
    if padding_mode == "border":
        return _clipped(op, x, size)
    return _reflected(op, x, size, align_corners) if padding_mode == "reflection" else x


def _cubic_weights(op: OpBuilder, fraction: ir.Value) -> list[ir.Value]:
    """Return the weights of four neighbours; the kernel of Keys with a = -0.75."""
    a = -0.75

    def near(x: ir.Value) -> ir.Value:
        return op.Add(op.Mul(op.Mul(op.Sub(op.Mul(x, a + 2), a + 3), x), x), 1.0)

    def far(x: ir.Value) -> ir.Value:
        return op.Sub(op.Mul(op.Add(op.Mul(op.Sub(op.Mul(x, a), 5 * a), x), 8 * a), x), 4 * a)

    rest = op.Sub(1.0, fraction)
    return [far(op.Add(fraction, 1.0)), near(fraction), near(rest), far(op.Add(rest, 1.0))]


def _taps(op: OpBuilder, x: ir.Value, size: Size, mode: str, padding_mode: str, align_corners: int) -> list[Tap]:
    """Return the neighbours of positions along one axis."""
    if mode == "cubic":
        floor = op.Floor(x)
        weights = _cubic_weights(op, op.Sub(x, floor))
        neighbours = [op.Add(floor, float(offset)) for offset in (-1, 0, 1, 2)]
        return [
            (_padded(op, neighbour, size, padding_mode, align_corners), weight)
            for neighbour, weight in zip(neighbours, weights, strict=True)
        ]
    x = _padded(op, x, size, padding_mode, align_corners)
    if mode == "nearest":
        return [(op.Round(x), None)]
    floor = op.Floor(x)
    fraction = op.Sub(x, floor)
    return [(floor, op.Sub(1.0, fraction)), (op.Add(floor, 1.0), fraction)]


def gathered_taps(op: OpBuilder, X: ir.Value, axes: Sequence[Sequence[Tap]], *, zeros: bool = True) -> ir.Value:
    """Add up the weighted neighbours of sampling positions.

    Args:
        op: Builder in the newest dialect.
        X: (N, C, D1, ..., Dk).
        axes: For each of the k axes, the neighbours along it as tensors of shape (N, samples).
        zeros: Whether a position outside the input gives 0; else it is moved to the border.

    Returns:
        A tensor of shape (N, C, samples).
    """
    batch, channels, *plane = op.sizes(X)
    flat = op.reshape(X, [batch, channels, op.size_mul(*plane)])
    parts: list[list[tuple[ir.Value, ir.Value | None, ir.Value | None]]] = []
    for size, taps in zip(plane, axes, strict=True):
        parts.append([_tap_parts(op, position, weight, size, zeros) for position, weight in taps])
    result: ir.Value | None = None
    for combination in itertools.product(*parts):
        index: ir.Value | None = None
        factors: list[ir.Value] = []
        for (place, weight, inside), size in zip(combination, plane, strict=True):
            index = place if index is None else op.Add(op.Mul(index, size), place)
            factors.extend(factor for factor in (weight, inside) if factor is not None)
        assert index is not None
        samples = op.expand(op.Unsqueeze(index, [1]), [-1, channels, -1])
        value = op.GatherElements(flat, samples, axis=2)
        if factors:
            value = op.Mul(value, op.Unsqueeze(_product(op, factors), [1]))
        result = value if result is None else op.Add(result, value)
    assert result is not None
    return result


def _product(op: OpBuilder, factors: Sequence[ir.Value]) -> ir.Value:
    product = factors[0]
    for factor in factors[1:]:
        product = op.Mul(product, factor)
    return product


def _tap_parts(
    op: OpBuilder, position: ir.Value, weight: ir.Value | None, size: Size, zeros: bool
) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
    """Return the index of a neighbour, its weight, and 1 or 0 for inside or outside where that matters."""
    index = op.cast(_clipped(op, position, size), _INT64)
    if not zeros:
        return index, weight, None
    dtype = op.dtype(position)
    inside = op.And(op.GreaterOrEqual(position, 0.0), op.Less(position, op.number(size, dtype)))
    return index, weight, op.cast(inside, dtype)


def grid_sample(
    op: OpBuilder, X: ir.Value, grid: ir.Value, mode: str, padding_mode: str, align_corners: int
) -> ir.Value:
    """Write GridSample from single operators, in the newest dialect; the modes have their names of opset 20."""
    spatial = op.rank(X) - 2
    batch, *out, _ = op.sizes(grid)
    points = op.reshape(op.cast(grid, op.dtype(X)), [batch, op.size_mul(*out), spatial])
    axes: list[list[Tap]] = []
    for axis in range(spatial):
        # The last coordinate belongs to the first axis.
        coordinate = op.Gather(points, op.constant(spatial - 1 - axis), axis=2)
        size = op.size(X, 2 + axis)
        pixels = _pixels(op, coordinate, size, align_corners)
        axes.append(_taps(op, pixels, size, mode, padding_mode, align_corners))
    result = gathered_taps(op, X, axes, zeros=padding_mode == "zeros")
    return op.reshape(result, [op.size(X, 0), op.size(X, 1), *out])


# The names of the modes.
@adapter("GridSample", below=20, keeps_meaning=False)
def grid_sample_of_images(
    op: OpBuilder,
    X: ir.Value,
    grid: ir.Value,
    *,
    older: OpBuilder,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> ir.Value:
    if op.rank(X) != 4 or (op.dtype(X) == ir.DataType.DOUBLE and not op.takes_doubles("GridSample")):
        return grid_sample(op, X, grid, mode, padding_mode, align_corners)
    old = _OLD_MODES.get(mode, mode)
    return older.GridSample(X, grid, align_corners=align_corners, mode=old, padding_mode=padding_mode)


@adapter("GridSample", below=16)
def grid_sample_from_single_operators(
    op: OpBuilder,
    X: ir.Value,
    grid: ir.Value,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
) -> ir.Value:
    return grid_sample(op, X, grid, _NEW_MODES.get(mode, mode), padding_mode, align_corners)


@adapter("AffineGrid", below=20)
def affine_grid_from_single_operators(
    op: OpBuilder, theta: ir.Value, size: ir.Value, *, align_corners: int = 0
) -> ir.Value:
    count = op.size(theta, 1)
    if not isinstance(count, int):
        raise UnsupportedOpsetError("AffineGrid", op.opset, lowest=20, reason="the rank of the grid is not known")
    static = op.static(size)
    plane: list[Size]
    if static is not None:
        plane = [int(number) for number in static[2:]]
    else:
        plane = [op.as_size(op.Slice(size, [2 + axis], [3 + axis])) for axis in range(count)]
    return affine_grid(op, theta, plane, align_corners)
