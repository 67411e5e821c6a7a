"""How far apart two values may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from onnx_verify.errors import InputError
from onnx_verify.values.dtypes import is_float


@dataclass(frozen=True)
class Tolerance:
    """Elements agree if ``|candidate - reference| <= atol + rtol * |reference|``.

    Attributes:
        rtol: relative part, >= 0.
        atol: absolute part, >= 0.
        equal_nan: whether NaN agrees with NaN.
        max_mismatch_ratio: share of the elements, from 0 to 1, that may disagree before the tensor does.
    """

    rtol: float
    atol: float
    equal_nan: bool = True
    max_mismatch_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what would make every comparison pass or fail."""
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if not (value >= 0 and np.isfinite(value)):
                raise InputError(f"Tolerance.{name} is {value!r}; it must be finite and not negative")
        if not 0 <= self.max_mismatch_ratio < 1:
            raise InputError(f"Tolerance.max_mismatch_ratio is {self.max_mismatch_ratio!r}; give 0 <= x < 1")


ToleranceLike = Tolerance | Mapping[str | int, Tolerance] | None
"""One tolerance for all outputs, one by output name or index (others keep their default), or the defaults."""

EXACT = Tolerance(0.0, 0.0)

# Room for the roundings that a network gathers between two correct runtimes: hundreds of them in float32 and float64, a
# few in the half types, inside whose operators most runtimes compute in float32.
_DEFAULTS: dict[np.dtype[np.generic], Tolerance] = {
    np.dtype(np.float64): Tolerance(1e-7, 1e-9),
    np.dtype(np.complex128): Tolerance(1e-7, 1e-9),
    np.dtype(np.float32): Tolerance(1e-4, 1e-5),
    np.dtype(np.complex64): Tolerance(1e-4, 1e-5),
    np.dtype(np.float16): Tolerance(5e-3, 5e-3),
    np.dtype(ml_dtypes.bfloat16): Tolerance(2e-2, 2e-2),
}


def default_tolerance(dtype: np.dtype[np.generic]) -> Tolerance:
    """Return the tolerance for a dtype: exact for integers, bool and strings, one step for 8 and 4-bit floats."""
    if dtype in _DEFAULTS:
        return _DEFAULTS[dtype]
    if is_float(dtype):
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        return Tolerance(float(info.eps), float(info.smallest_subnormal))
    return EXACT


def coarser(first: Tolerance, second: Tolerance) -> Tolerance:
    """Return the tolerance that lets more pass, of two defaults."""
    return first if (first.rtol, first.atol) >= (second.rtol, second.atol) else second


def resolve_tolerance(tolerance: ToleranceLike, name: str, index: int, *dtypes: np.dtype[np.generic]) -> Tolerance:
    """Pick the tolerance of one output: by name, then by index, then the default of the coarsest dtype."""
    if isinstance(tolerance, Tolerance):
        return tolerance
    if tolerance is not None:
        for key in (name, index):
            if key in tolerance:
                return tolerance[key]
    picked = EXACT
    for dtype in dtypes:
        picked = coarser(picked, default_tolerance(dtype))
    return picked
