"""How two tensors differ, measured in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from onnx_verify.values.dtypes import is_float, is_int

if TYPE_CHECKING:
    from onnx_verify.values.tolerance import Tolerance

_CHUNK = 1 << 20
_DECADES = range(-12, 7)

Array = npt.NDArray[Any]


@dataclass
class TensorMetrics:
    """What was measured between a reference tensor and a candidate tensor of the same shape.

    The maxima and means are over the elements that are finite on both sides. ``max_rel`` is relative to the
    reference and ignores elements where it is zero. ``max_ulp`` counts representable numbers between the two
    values; it is None where the dtypes differ or are not floats. ``cosine`` and ``snr_db`` (10 log10 of signal
    power over error power; infinite without an error) are None where they are undefined.

    ``worst_index`` is the index of the element whose error is the largest multiple of its tolerance, with
    its two values; ``histogram`` counts the finite elements by the decade of their absolute error, with the
    key
    ``"0"`` for exact ones and ``"1e-06"`` for errors from 1e-6 up to 1e-5.
    """

    elements: int = 0
    mismatches: int = 0
    nan_mismatches: int = 0
    inf_mismatches: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    mean_abs: float = 0.0
    max_ulp: int | None = None
    cosine: float | None = None
    snr_db: float | None = None
    worst_index: tuple[int, ...] | None = None
    worst_reference: Any = None
    worst_candidate: Any = None
    histogram: dict[str, int] = field(default_factory=dict)


def measure(reference: Array, candidate: Array, tolerance: Tolerance) -> TensorMetrics:
    """Measure two arrays of equal shape, chunk by chunk, so that no float64 copy of the whole is made.

    Args:
        reference: array of any shape and dtype that ONNX has.
        candidate: array of the same shape.
        tolerance: decides which elements count as mismatches.
    """
    if reference.dtype.kind in "OSUT" or candidate.dtype.kind in "OSUT":
        return _measure_text(reference, candidate)
    sums = _Sums(TensorMetrics(elements=int(reference.size)), reference.shape)
    flat_reference, flat_candidate = reference.reshape(-1), candidate.reshape(-1)
    sums.ulp = reference.dtype == candidate.dtype and is_float(reference.dtype)
    for start in range(0, reference.size, _CHUNK):
        stop = start + _CHUNK
        with np.errstate(all="ignore"):
            sums.add(flat_reference[start:stop], flat_candidate[start:stop], tolerance, start)
    return sums.finish()


@dataclass
class _Sums:
    """The running sums behind one :class:`TensorMetrics`."""

    metrics: TensorMetrics
    shape: tuple[int, ...]
    ulp: bool = False
    finite: int = 0
    error: float = 0.0
    error_power: float = 0.0
    reference_power: float = 0.0
    candidate_power: float = 0.0
    dot: float = 0.0
    worst: float = -math.inf

    def add(self, reference: Array, candidate: Array, tolerance: Tolerance, start: int) -> None:
        """Take in one flat chunk that begins at element ``start``."""
        wide_reference, wide_candidate = _widen(reference), _widen(candidate)
        equal = wide_reference == wide_candidate
        nan_reference, nan_candidate = np.isnan(wide_reference), np.isnan(wide_candidate)
        both_nan = nan_reference & nan_candidate
        finite = np.isfinite(wide_reference) & np.isfinite(wide_candidate)
        difference = np.where(finite, np.abs(wide_candidate - wide_reference), 0.0)
        if is_int(reference.dtype) and is_int(candidate.dtype):
            equal = (
                reference.astype(np.object_) == candidate.astype(np.object_)
                if _inexact(reference, candidate)
                else equal
            )
            difference = np.where(equal, 0.0, np.maximum(difference, 1.0))
        allowed = tolerance.atol + tolerance.rtol * np.abs(np.where(finite, wide_reference, 0.0))
        wrong = (difference > allowed) & ~equal
        agree = equal | (both_nan if tolerance.equal_nan else False)
        wrong |= ~finite & ~agree
        # Where nothing is allowed the differences still rank among themselves, above all that something
        # allows.
        ratio = np.where(allowed > 0, difference / allowed, difference * 1e30)
        ratio = np.where(finite, ratio, np.where(agree, 0.0, math.inf))
        metrics = self.metrics
        metrics.mismatches += int(np.count_nonzero(wrong))
        metrics.nan_mismatches += int(np.count_nonzero((nan_reference | nan_candidate) & ~agree))
        metrics.inf_mismatches += int(np.count_nonzero(~finite & ~nan_reference & ~nan_candidate & ~equal))
        self._add_maxima(difference, wide_reference, finite)
        self._add_powers(wide_reference[finite], wide_candidate[finite], difference[finite])
        self._add_worst(ratio, reference, candidate, start)
        if self.ulp:
            distance = _ulp_distance(reference[finite], candidate[finite])
            metrics.max_ulp = max(metrics.max_ulp or 0, distance)

    def _add_maxima(self, difference: Array, reference: Array, finite: Array) -> None:
        metrics = self.metrics
        metrics.max_abs = max(metrics.max_abs, float(difference.max()))
        magnitude = np.abs(reference)
        relative = difference[finite & (magnitude > 0)] / magnitude[finite & (magnitude > 0)]
        if relative.size:
            metrics.max_rel = max(metrics.max_rel, float(relative.max()))
        _count_decades(metrics.histogram, difference[finite])

    def _add_powers(self, reference: Array, candidate: Array, difference: Array) -> None:
        self.finite += int(reference.size)
        self.error += float(difference.sum())
        self.error_power += float((difference**2).sum())
        self.reference_power += float((np.abs(reference) ** 2).sum())
        self.candidate_power += float((np.abs(candidate) ** 2).sum())
        self.dot += float((np.conj(reference) * candidate).real.sum())

    def _add_worst(self, ratio: Array, reference: Array, candidate: Array, start: int) -> None:
        position = int(np.argmax(ratio))
        if ratio[position] > self.worst:
            self.worst = float(ratio[position])
            index = np.unravel_index(start + position, self.shape)
            self.metrics.worst_index = tuple(int(i) for i in index)
            self.metrics.worst_reference = _scalar(reference[position])
            self.metrics.worst_candidate = _scalar(candidate[position])

    def finish(self) -> TensorMetrics:
        """Turn the sums into the ratios."""
        metrics = self.metrics
        if self.finite:
            metrics.mean_abs = self.error / self.finite
            norm = math.sqrt(self.reference_power) * math.sqrt(self.candidate_power)
            if 0 < norm < math.inf:
                metrics.cosine = max(-1.0, min(1.0, self.dot / norm))
            if self.error_power == 0:
                metrics.snr_db = math.inf
            elif self.reference_power > 0 and math.isfinite(self.error_power + self.reference_power):
                metrics.snr_db = 10 * math.log10(self.reference_power / self.error_power)
        return metrics


def _widen(values: Array) -> Array:
    """Return float64 or complex128 values."""
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _inexact(reference: Array, candidate: Array) -> bool:
    """Tell whether float64 may merge two different integers of these dtypes."""
    return max(reference.dtype.itemsize, candidate.dtype.itemsize) > 4


def _scalar(value: Any) -> Any:
    """Return a plain Python number for one numpy element."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return value.item()
    return float(value)


def _ulp_distance(reference: Array, candidate: Array) -> int:
    """Return the largest number of representable values between two finite arrays of one float dtype."""
    if not reference.size:
        return 0
    first, second = _ordered(reference), _ordered(candidate)
    # The distance between two float64 values of opposite sign does not fit int64, but it does fit uint64.
    high, low = np.maximum(first, second), np.minimum(first, second)
    return int((high.astype(np.uint64) - low.astype(np.uint64)).max())


def _ordered(values: Array) -> npt.NDArray[np.int64]:
    """Map floats to integers that keep their order and count steps; both zeros map to 0."""
    bits = np.ascontiguousarray(values).view(np.dtype(f"i{values.dtype.itemsize}")).astype(np.int64)
    sign = ml_dtypes.finfo(values.dtype).bits - 1  # type: ignore[no-untyped-call]
    magnitude = bits & ((1 << sign) - 1)
    return np.where(bits >> sign & 1, -magnitude, magnitude).astype(np.int64)


def _count_decades(histogram: dict[str, int], difference: Array) -> None:
    """Add absolute errors to a histogram by decades."""
    zeros = int(np.count_nonzero(difference == 0))
    if zeros:
        histogram["0"] = histogram.get("0", 0) + zeros
    errors = difference[difference > 0]
    if not errors.size:
        return
    decades = np.clip(np.floor(np.log10(errors)), _DECADES.start, _DECADES.stop - 1).astype(int)
    for decade, count in zip(*np.unique(decades, return_counts=True), strict=True):
        key = f"1e{decade:+03d}"
        histogram[key] = histogram.get(key, 0) + int(count)


def _measure_text(reference: Array, candidate: Array) -> TensorMetrics:
    """Measure string tensors: elements are equal or not."""
    metrics = TensorMetrics(elements=int(reference.size))
    left, right = reference.reshape(-1), candidate.reshape(-1)
    wrong = [i for i in range(left.size) if element_text(left[i]) != element_text(right[i])]
    metrics.mismatches = len(wrong)
    if wrong:
        metrics.worst_index = tuple(int(i) for i in np.unravel_index(wrong[0], reference.shape))
        metrics.worst_reference, metrics.worst_candidate = element_text(left[wrong[0]]), element_text(right[wrong[0]])
    return metrics


def element_text(value: Any) -> str:
    """Return the text of one element of a string tensor (bytes are UTF-8)."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
