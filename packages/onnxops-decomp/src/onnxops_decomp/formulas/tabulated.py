"""Functions that ONNX lacks, as piecewise polynomials through values that torch itself computes.

A function of one variable is interpolated on an interval in double precision: the interval is cut into equal pieces,
and each piece gets the polynomial through the function's values at its Chebyshev points (Trefethen, Approximation
Theory and Approximation Practice, chapter 4). The pieces are halved until the result equals the function to about 13
digits, so what is left of the error is that of the function's own kernel. In the graph it costs a lookup and a
polynomial, however involved the function is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from onnxops_decomp.dtypes import promote, result_dtype, to_ir

if TYPE_CHECKING:
    from onnxops_decomp.builder.op_builder import OpBuilder

__all__ = ["Function", "in_double", "polynomial", "tabulated"]

F = TypeVar("F", bound=Callable[..., Any])
# torch.special is not typed, so its functions return Any.
Function = Callable[[torch.Tensor], Any]

_DEGREE = 10
_TOLERANCE = 2e-13
_MOST_PIECES = 512


def in_double(count: int = 1, *, first: int = 0) -> Callable[[F], F]:
    """Return a decorator that computes a lowering in DOUBLE and casts the result to the dtype that torch gives.

    Args:
        count: Number of operands.
        first: Position of the first operand among the arguments.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(op: OpBuilder, *args: Any, **kwargs: Any) -> ir.Value:
            operands = args[first : first + count]
            dtype = result_dtype(*operands)
            if not dtype.is_floating_point():
                dtype = to_ir(torch.get_default_dtype())
            wide = promote(op, *operands, dtype=ir.DataType.DOUBLE)
            return op.cast(function(op, *args[:first], *wide, *args[first + count :], **kwargs), dtype)

        return cast(F, wrapper)

    return decorate


def polynomial(op: OpBuilder, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Return the polynomial with these coefficients, constant term first."""
    result = op.constant(coefficients[-1], op.dtype(x))
    for coefficient in reversed(coefficients[:-1]):
        result = op.Add(op.Mul(result, x), coefficient)
    return result


def tabulated(op: OpBuilder, x: ir.Value, function: Function, low: float, high: float) -> ir.Value:
    """Return ``function`` of the elements of ``x`` between ``low`` and ``high``; elsewhere the result is arbitrary.

    Args:
        op: Builder.
        x: DOUBLE tensor.
        function: Smooth function of a double tensor, a module-level one: its table is kept by identity.
        low: Lower end of the interval.
        high: Upper end.
    """
    table = _table(function, low, high)
    pieces = len(table)
    position = op.Mul(op.Sub(x, low), pieces / (high - low))
    piece = op.Max(op.Min(op.cast(op.Floor(position), ir.DataType.INT64), pieces - 1), 0)
    # Within its piece x runs from -1 to 1.
    offset = op.Sub(op.Mul(op.Sub(position, op.cast(piece, ir.DataType.DOUBLE)), 2), 1)
    last = op.rank(offset)
    powers = op.Pow(op.Unsqueeze(offset, [last]), np.arange(_DEGREE + 1, dtype=np.float64))
    return op.ReduceSum(op.Mul(op.Gather(op.constant(table), piece, axis=0), powers), [last], keepdims=0)


def _values(function: Function, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    with torch.no_grad():
        return np.asarray(function(torch.from_numpy(points)).numpy(), np.float64)


@functools.cache
def _table(function: Function, low: float, high: float) -> npt.NDArray[np.float64]:
    """Return the coefficients of each piece, constant term first."""
    nodes = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
    probes = np.linspace(-0.97, 0.97, 7)
    pieces = 1
    while True:
        width = (high - low) / pieces
        centers = low + width * (np.arange(pieces) + 0.5)
        samples = _values(function, centers[:, None] + nodes * width / 2)
        series = np.polynomial.chebyshev.chebfit(nodes, samples.T, _DEGREE)
        expected = _values(function, centers[:, None] + probes * width / 2)
        error = np.abs(np.polynomial.chebyshev.chebval(probes, series) - expected).max()
        if error <= _TOLERANCE * np.abs(samples).max() or pieces >= _MOST_PIECES:
            break
        pieces *= 2
    return np.stack([_monomials(column) for column in series.T])


def _monomials(series: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    coefficients = np.zeros(_DEGREE + 1)
    found = np.polynomial.chebyshev.cheb2poly(series)
    coefficients[: len(found)] = found
    return coefficients
