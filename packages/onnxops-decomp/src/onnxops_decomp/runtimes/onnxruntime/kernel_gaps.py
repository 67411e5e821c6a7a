"""Dtypes that the ONNX specification allows but ONNX Runtime's CPU provider has no kernel for.

A model that uses them would pass the checker and fail to load, so the builder computes in the stand-in named here and
casts back. Every stand-in is exact for its operator: values that are only moved or compared pass through any type that
holds them in their order, and sums and products wrap like the narrow type when they are cast back. Where no cast
helps, the operator is composed of others instead (:mod:`.composed`); where that is not exact either, it is left
as it is. The tables are measured with ONNX Runtime 1.31, which loads opsets up to 26, and for 27 and 28 with 1.32:
``tests/test_kernel_gaps.py`` fails when a gap has closed or a new one appears.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from importlib import metadata

import onnx_ir as ir

from onnxops_decomp.runtimes.onnxruntime.domain import DOMAIN

__all__ = [
    "BFLOAT16_KERNELS",
    "KERNEL_GAPS",
    "LOADED_SINCE",
    "NO_KERNEL",
    "compute_dtype",
    "installed_release",
    "is_older",
    "least_outputs",
    "refusal",
    "without_kernels",
]

_BOOL, _DOUBLE, _FLOAT = ir.DataType.BOOL, ir.DataType.DOUBLE, ir.DataType.FLOAT
_INT8, _INT16, _INT32, _INT64 = ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64
_UINT8, _UINT16 = ir.DataType.UINT8, ir.DataType.UINT16
_UINT32, _UINT64 = ir.DataType.UINT32, ir.DataType.UINT64
_BFLOAT16, _FLOAT16 = ir.DataType.BFLOAT16, ir.DataType.FLOAT16

_SHORT = {_INT16: _INT32, _UINT16: _INT32}
_ORDERED = {**_SHORT, _UINT32: _INT64}
_WRAPPING = {_UINT32: _INT64, _UINT64: _INT64}

# Operator -> type variable -> dtype without a kernel -> dtype to compute in.
KERNEL_GAPS: Mapping[str, Mapping[str, Mapping[ir.DataType, ir.DataType]]] = {
    "ArgMax": {"T": _ORDERED},
    "ArgMin": {"T": _ORDERED},
    "BitShift": {"T": {_UINT16: _UINT32}},
    "CenterCropPad": {"T": _SHORT, "Tind": {_INT32: _INT64}},
    "Clip": {"T": _SHORT},
    "CumSum": {"T": _WRAPPING},
    "Einsum": {"T": {_INT8: _INT32, _UINT8: _INT32, **_SHORT, **_WRAPPING}},
    "Max": {"T": _SHORT},
    "Min": {"T": _SHORT},
    # Only whether a number is zero counts, and that is what a cast to BOOL asks.
    "NonZero": {"T": dict.fromkeys((_INT8, _INT16, _UINT16, _UINT32, _UINT64, _DOUBLE), _BOOL)},
    "OneHot": {
        "T1": dict.fromkeys((_INT8, _INT16, _INT32, _UINT8, _UINT16, _UINT32, _FLOAT16, _FLOAT, _DOUBLE), _INT64),
        "T2": dict.fromkeys(
            (_INT8, _INT16, _INT32, _UINT8, _UINT16, _UINT32, _UINT64, _FLOAT16, _FLOAT, _DOUBLE), _INT64
        ),
        "T3": {
            **dict.fromkeys((_BOOL, _INT8, _INT16, _INT32, _UINT8, _UINT16, _UINT32, _UINT64), _INT64),
            _FLOAT16: _FLOAT,
        },
    },
    "Pad": {"T": _SHORT},
    "Pow": {"T1": {_INT8: _INT32, _UINT8: _INT32, **_SHORT, _UINT32: _INT64}},
    # The kernel refuses the maximum of no booleans, which is False.
    "ReduceMax": {"T": {_BOOL: _UINT8, _UINT32: _INT64}},
    "ReduceMin": {"T": {_BOOL: _UINT8, _UINT32: _INT64}},
    "ReduceSum": {"T": _WRAPPING},
    "Relu": {"T": {_INT16: _INT32}},
    "TopK": {"T": {_UINT16: _INT32, _UINT32: _INT64}},
    "Trilu": {"T": {_INT8: _INT32, _UINT8: _INT32, **_SHORT, **_WRAPPING}},
    "Unique": {"T": {_BOOL: _INT8, _INT16: _INT64, _INT32: _INT64, _UINT8: _INT64, _UINT16: _INT64, _UINT32: _INT64}},
    "Where": {"T": {_BOOL: _UINT8, **_SHORT, _UINT64: _INT64}},
}

# Operators that have no kernel for any dtype, and that the runtime cannot expand by their definition, or not rightly,
# with the first and the last opset of which this was measured.
NO_KERNEL: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(
        (
            *("Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
            *("MaxRoiPool", "RoiAlign"),
        ),
        (22, 28),
    ),
    # Runtimes expand it by the definition in ONNX's schema, which draws 1 with the probability of 0.
    "Bernoulli": (15, 28),
    "Swish": (25, 28),
    "SwiGLU": (28, 28),
}

# What releases before the one named here lack beyond that: operator -> type variable -> dtype -> stand-in.
_CLOSED: Mapping[tuple[int, int], Mapping[str, Mapping[str, Mapping[ir.DataType, ir.DataType]]]] = {
    (1, 24): {
        "Max": {"T": dict.fromkeys((_INT8, _UINT8), _INT32)},
        "Min": {"T": dict.fromkeys((_INT8, _UINT8), _INT32)},
    },
    (1, 26): {"TopK": {"T": dict.fromkeys((_INT8, _UINT8), _INT32)}},
    (1, 29): {"Trilu": {"T": {_INT32: _INT64}}},
    (1, 31): {"Where": {"T": {_INT8: _INT32, _UINT32: _INT64}}},
}


# The first release that loads models of an opset; those of lower opsets every one loads.
LOADED_SINCE = {23: (1, 23), 24: (1, 24), 25: (1, 24), 26: (1, 25), 27: (1, 32), 28: (1, 32)}

# Distributions of ONNX Runtime; all have the kernels for the CPU.
_DISTRIBUTIONS = (
    "onnxruntime",
    *(f"onnxruntime-{kind}" for kind in ("gpu", "directml", "openvino", "qnn", "migraphx")),
)


@functools.cache
def installed_release() -> tuple[int, int] | None:
    """Return the release of the installed ONNX Runtime, the oldest one if there are several; None if there is none."""
    found = []
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            major, minor = metadata.version(name).split(".")[:2]
            found.append((int(major), int(minor)))
    return min(found, default=None)


def is_older(major: int, minor: int) -> bool:
    """Return whether the installed ONNX Runtime is older than a release; models are written for the installed one."""
    installed = installed_release()
    return installed is not None and installed < (major, minor)


@functools.cache
def _gaps_of(op_type: str) -> Mapping[str, Mapping[ir.DataType, ir.DataType]]:
    """Return the stand-ins for an operator by type variable, those for the installed release included."""
    found = {variable: dict(gaps) for variable, gaps in KERNEL_GAPS.get(op_type, {}).items()}
    for release, closed in _CLOSED.items():
        if is_older(*release):
            for variable, gaps in closed.get(op_type, {}).items():
                found.setdefault(variable, {}).update(gaps)
    return found


def without_kernels() -> Mapping[str, tuple[int, int]]:
    """Return ``NO_KERNEL``, with what the installed release lacks beyond it."""
    older = {}
    if is_older(1, 26):
        older["DeformConv"] = (19, 28)
    if is_older(1, 30):
        # Averages over counted padding are divided by too much, in some cases.
        older["AveragePool"] = (10, 28)
    if is_older(1, 28):
        # One-sided inverses were refused at first, and then gave one half of the wrong signal.
        older["DFT"] = (20, 28)
        # Of complex signals it read memory that was never written.
        older["STFT"] = (17, 28)
    return {**NO_KERNEL, **older}


def refusal(domain: str, op_type: str, inputs: Sequence[object], attributes: Mapping[str, object]) -> str:
    """Return why the installed release cannot be given a call of its own operator; an empty text if it can."""
    if domain != DOMAIN:
        return ""
    if op_type == "GroupQueryAttention":
        if attributes.get("local_window_size", -1) != -1 and is_older(1, 24):
            return _needs("a local_window_size in GroupQueryAttention", "let queries see one key more", 24)
        if any(value is not None for value in inputs[_HEAD_SINK:]) and is_older(1, 23):
            return _needs("a head_sink in GroupQueryAttention", "have none", 23)
        if any(value is not None for value in inputs[_HEAD_SINK + 1 :]) and is_older(1, 28):
            return _needs("normalized or quantized heads in GroupQueryAttention", "have none", 28)
        if "causal" in attributes and is_older(1, 30):
            return _needs("a GroupQueryAttention that is not causal", "have none", 30)
    if op_type == "MatMulNBits":
        return _refused_bits(inputs, attributes)
    if op_type == "MoE" and "swiglu_fusion" in attributes and is_older(1, 23):
        return _needs("gated experts in MoE", "have none", 23)
    if op_type == "QMoE" and "accuracy_level" in attributes and is_older(1, 31):
        return _needs("rounded experts in QMoE", "know no accuracy_level", 31)
    return ""


def least_outputs() -> Mapping[str, int]:
    """Return how many outputs the installed release wants of calls of its own operators, by operator."""
    return {"GroupQueryAttention": 3} if is_older(1, 27) else {}


def _refused_bits(inputs: Sequence[object], attributes: Mapping[str, object]) -> str:
    bits = attributes.get("bits", 4)
    floats = len(inputs) > _ZERO_POINTS and getattr(inputs[_ZERO_POINTS], "dtype", None) in (_FLOAT, _FLOAT16)
    first = {8: 23, 2: 28 if floats else 24}.get(bits, 0) if isinstance(bits, int) else 0
    if not is_older(1, first):
        return ""
    zero_points = " and floating zero points" if floats else ""
    return _needs(f"a MatMulNBits of {bits} bits{zero_points}", "have no kernel for it", first)


# Places among the inputs of GroupQueryAttention and MatMulNBits.
_HEAD_SINK, _ZERO_POINTS = 11, 3


def _needs(what: str, instead: str, minor: int) -> str:
    return (
        f"The model has {what}. Releases of ONNX Runtime before 1.{minor} {instead}, and models are written for the "
        f"installed one: install onnxruntime>=1.{minor}."
    )


# The operators that have BFLOAT16 kernels. All others compute in FLOAT where the model is meant for the CPU.
BFLOAT16_KERNELS = frozenset(
    (
        "Cast",
        "CastLike",
        "Concat",
        "Constant",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "If",
        "IsInf",
        "Loop",
        "Reshape",
        "ScatterElements",
        "ScatterND",
        "Shape",
        "Sign",
        "Slice",
        "Split",
        "Squeeze",
        "TensorScatter",
        "Transpose",
        "Unsqueeze",
    )
)


def compute_dtype(
    op_type: str, type_key: str, dtype: ir.DataType, *, widen_bfloat16: bool = False
) -> ir.DataType | None:
    """Return the dtype to compute in instead of ``dtype``, or None if ``dtype`` itself is right.

    Args:
        op_type: ONNX operator of the default domain.
        type_key: Type variable of the operand.
        dtype: Dtype of the operand.
        widen_bfloat16: Whether the model is meant for the CPU, which computes in BFLOAT16 almost nowhere.
    """
    if dtype == _BFLOAT16 and widen_bfloat16 and op_type not in BFLOAT16_KERNELS:
        return _FLOAT
    of_variable = _gaps_of(op_type).get(type_key)
    return None if of_variable is None else of_variable.get(dtype)
