"""Resize in the opsets before its coordinate modes, and the resampling of one axis from single operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import onnx_ir as ir

from onnxops_decomp.builder.forms import adapter
from onnxops_decomp.builder.sizes import Size
from onnxops_decomp.errors import UnsupportedOpsetError
from onnxops_decomp.formulas.resampling import Ratio, axis_ratio, position_dtype, resample, resampled_size

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder


_FLOAT = ir.DataType.FLOAT


@adapter("Resize", below=19)
def resize_without_symmetry(
    op: OpBuilder,
    X: ir.Value,
    roi: ir.Value | None = None,
    scales: ir.Value | None = None,
    sizes: ir.Value | None = None,
    *,
    older: OpBuilder,
    coordinate_transformation_mode: str = "half_pixel",
    **attributes: Any,
) -> ir.Value:
    if coordinate_transformation_mode == "half_pixel_symmetric":
        whole = sizes is not None and attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        if not whole and not _gives_whole_sizes(op, X, scales, attributes.get("axes")):
            raise UnsupportedOpsetError("Resize", op.opset, lowest=19, reason="half_pixel_symmetric")
        coordinate_transformation_mode = "half_pixel"
    return older.Resize(
        X, roi, scales, sizes, coordinate_transformation_mode=coordinate_transformation_mode, **attributes
    )


def _gives_whole_sizes(op: OpBuilder, X: ir.Value, scales: ir.Value | None, axes: Sequence[int] | None) -> bool:
    """Tell whether sizes times scales are known to be whole numbers: then symmetry needs no adjustment."""
    numbers = None if scales is None else op.static(scales)
    if numbers is None:
        return False
    sizes = [op.size(X, axis) for axis in axes or range(op.rank(X))]
    products = [
        float(number) * (size if isinstance(size, int) else 1) for size, number in zip(sizes, numbers, strict=True)
    ]
    return all(product.is_integer() for product in products)


@adapter("Resize", below=18)
def resize_without_axes(
    op: OpBuilder,
    X: ir.Value,
    roi: ir.Value | None = None,
    scales: ir.Value | None = None,
    sizes: ir.Value | None = None,
    *,
    older: OpBuilder,
    axes: Sequence[int] | None = None,
    antialias: int = 0,
    keep_aspect_ratio_policy: str = "stretch",
    **attributes: Any,
) -> ir.Value:
    if keep_aspect_ratio_policy != "stretch":
        raise UnsupportedOpsetError("Resize", op.opset, lowest=18, reason="keep_aspect_ratio_policy came with opset 18")
    if antialias:
        return _composed(op, X, scales, sizes, axes, antialias=True, **attributes)
    if axes is not None:
        rank = op.rank(X)
        wanted = {axis % rank: position for position, axis in enumerate(axes)}
        if scales is not None:
            numbers = op.static(scales)
            if numbers is None:
                raise UnsupportedOpsetError("Resize", op.opset, lowest=18, reason="axes with runtime scales")
            scales = op.constant(
                [float(numbers[wanted[axis]]) if axis in wanted else 1.0 for axis in range(rank)], _FLOAT
            )
        if roi is not None:
            region = op.static(roi)
            if region is None:
                raise UnsupportedOpsetError("Resize", op.opset, lowest=18, reason="axes with a runtime region")
            ends = region.reshape(2, -1)
            whole = [
                [float(ends[end][wanted[axis]]) if axis in wanted else float(end) for axis in range(rank)]
                for end in (0, 1)
            ]
            roi = op.constant([*whole[0], *whole[1]], _FLOAT)
        if sizes is not None:
            counts = _elements(op, sizes, len(wanted))
            sizes = op.vector([counts[wanted[axis]] if axis in wanted else op.size(X, axis) for axis in range(rank)])
    return older.Resize(X, roi, scales, sizes, **attributes)


def _elements(op: OpBuilder, vector: ir.Value, count: int) -> list[Size]:
    static = op.static(vector)
    if static is not None:
        return [int(number) for number in static]
    return [op.as_size(op.Slice(vector, [index], [index + 1])) for index in range(count)]


@adapter("Resize", below=13)
def resize_with_all_inputs(
    op: OpBuilder,
    X: ir.Value,
    roi: ir.Value | None = None,
    scales: ir.Value | None = None,
    sizes: ir.Value | None = None,
    *,
    older: OpBuilder,
    **attributes: Any,
) -> ir.Value:
    nothing = op.constant([], _FLOAT)
    return older.Resize(X, roi or nothing, scales or nothing, sizes, **attributes)


# Where the samples lie.
@adapter("Resize", below=11, keeps_meaning=False)
def resize_from_single_operators(
    op: OpBuilder,
    X: ir.Value,
    roi: ir.Value | None = None,
    scales: ir.Value | None = None,
    sizes: ir.Value | None = None,
    **attributes: Any,
) -> ir.Value:
    # Resize-10 and Upsample know neither coordinate modes nor sizes, and runtimes round their indices differently.
    return _composed(op, X, scales, sizes, None, antialias=False, **attributes)


def resize_of_doubles(
    op: OpBuilder,
    X: ir.Value,
    roi: ir.Value | None = None,
    scales: ir.Value | None = None,
    sizes: ir.Value | None = None,
    *,
    axes: Sequence[int] | None = None,
    antialias: int = 0,
    **attributes: Any,
) -> ir.Value:
    return _composed(op, X, scales, sizes, axes, antialias=bool(antialias), **attributes)


_COMPOSED = ("half_pixel", "align_corners", "asymmetric")


def _refuse(op: OpBuilder, modes: str, since: int) -> NoReturn:
    lowest = since if op.opset < since else None
    raise UnsupportedOpsetError("Resize", op.opset, lowest=lowest, reason=f"{modes} is not composed")


def _composed(
    op: OpBuilder,
    X: ir.Value,
    scales: ir.Value | None,
    sizes: ir.Value | None,
    axes: Sequence[int] | None,
    *,
    antialias: bool,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
) -> ir.Value:
    if coordinate_transformation_mode not in _COMPOSED or bool(exclude_outside) != antialias:
        _refuse(op, f"{mode}, {coordinate_transformation_mode}, {nearest_mode}", 18 if antialias else 11)
    targets = list(range(op.rank(X))) if axes is None else list(axes)
    numbers = None if scales is None else op.static(scales)
    if sizes is None and numbers is None:
        raise UnsupportedOpsetError("Resize", op.opset, lowest=11, reason="scales known only at run time")
    counts = [] if sizes is None else _elements(op, sizes, len(targets))
    result, dtype = X, position_dtype(X, mode)
    aligned = coordinate_transformation_mode == "align_corners"
    for position, axis in enumerate(targets):
        size = op.size(X, axis)
        if sizes is None:
            assert numbers is not None
            # What the user wrote, before single precision rounded it.
            scale = float(str(numbers[position]))
            count = resampled_size(op, size, scale)
            ratio: Ratio = axis_ratio(op, size, count, align_corners=True, dtype=dtype) if aligned else 1 / scale
            if scale == 1.0:
                continue
        else:
            count = counts[position]
            if op.dim(count) == op.dim(size) and isinstance(count, int):
                continue
            ratio = axis_ratio(op, size, count, align_corners=aligned, dtype=dtype)
        result = resample(
            op,
            result,
            axis,
            count,
            ratio,
            mode=mode,
            coordinates=coordinate_transformation_mode,
            nearest_mode=nearest_mode,
            cubic_coeff_a=cubic_coeff_a,
            antialias=antialias,
        )
    return result
