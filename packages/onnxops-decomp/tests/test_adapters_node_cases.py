"""ONNX's own node test cases, written in the newest form, give the same results at every older opset."""

from __future__ import annotations

import adapter_cases
import pytest
from adapter_cases import Case, Outcome

from onnxops_decomp.builder import forms as registry
from onnxops_decomp.errors import UnsupportedOpsetError

# Fused operators have tests of their own.
FUSED = ("attention", "normalization", "quantization", "regions", "resampling", "sampling", "vision", "recurrent")
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
# What old opsets cannot express exactly: operator -> the opset from which on all of its cases can be written.
EXPRESSIBLE_FROM = {
    "BitShift": 11,
    "Identity": 16,
    "MaxPool": 8,
    "Mod": 10,
    "Pow": 12,
    "ScatterElements": 9,
    "ScatterND": 9,
    "TensorScatter": 9,
}
# Dtypes that older opsets have no name for; strings, which ATen does not have, are left out with them.
NEWER_DTYPES = ("bfloat16", "float8", "float4", "float6", "int4", "int2")
# The runtime is wrong, or has no kernel and no exact stand-in.
RUNTIME_DEFECTS = {
    "test_pow_types_float32_uint64": "no kernel for UINT64 exponents",
    "test_bitcast_bool_to_uint8": "no kernel for BOOL",
}


def _operators() -> list[str]:
    registry.find_adapter("Identity", 7, 28)
    owners = {
        op_type: {function.__module__.rpartition(".")[2] for function in changes.values()}
        for op_type, changes in registry._ADAPTERS.items()
    }
    for op_type, entries in registry._COMPOSED.items():
        composed = {function.__module__.rpartition(".")[2] for _, _, function in entries}
        owners[op_type] = composed if not composed & set(FUSED) else owners.get(op_type, set()) | composed
    return sorted({op_type for op_type, modules in owners.items() if not modules & set(FUSED)} - RANDOM)


def _cases(op_type: str) -> list[Case]:
    return [
        case
        for case in adapter_cases.cases_of(op_type)
        if case.name not in RUNTIME_DEFECTS and not case.name.startswith("test_training_dropout") and not _newer(case)
    ]


def _newer(case: Case) -> bool:
    arrays = [array for array in (*case.inputs, *case.outputs) if array is not None]
    return any(array.dtype.name.startswith(NEWER_DTYPES) or array.dtype.kind in "OU" for array in arrays)


def _replayed(op_type: str, opset: int, *, symbolic: bool = False) -> dict[str, Outcome]:
    return {case.name: adapter_cases.replay(case, opset, symbolic=symbolic) for case in _cases(op_type)}


OPERATORS = _operators()


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("opset", [7, 10, 13, 17, 20])
def test_newest_form_gives_the_specified_result_at(opset: int, op_type: str) -> None:
    outcomes = _replayed(op_type, opset)
    unsupported = {name for name, outcome in outcomes.items() if outcome.unsupported}
    assert not unsupported or opset < EXPRESSIBLE_FROM.get(op_type, 0)


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("opset", [9, 11, 15])
def test_newest_form_gives_the_specified_result_with_symbolic_sizes_at(opset: int, op_type: str) -> None:
    # Sizes that an old attribute needs may be missing; what is written has to be right, and replay compares it.
    _replayed(op_type, opset, symbolic=True)


@pytest.mark.wide
@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26])
def test_newest_form_at_every_opset_of_the_runtime(opset: int, op_type: str, symbolic: bool) -> None:
    outcomes = _replayed(op_type, opset, symbolic=symbolic)
    unsupported = {name for name, outcome in outcomes.items() if outcome.unsupported}
    assert symbolic or not unsupported or opset < EXPRESSIBLE_FROM.get(op_type, 0)


@pytest.mark.wide
@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("opset", [27, 28])
def test_newest_form_in_the_evaluator_of_onnx(opset: int, op_type: str) -> None:
    assert not any(outcome.unsupported for outcome in _replayed(op_type, opset).values())


@pytest.mark.parametrize("op_type", sorted(EXPRESSIBLE_FROM))
def test_error_names_an_opset_that_works(op_type: str) -> None:
    for case in _cases(op_type):
        outcome = adapter_cases.replay(case, 7)
        if isinstance(outcome.error, UnsupportedOpsetError):
            assert outcome.error.lowest is not None
            assert not adapter_cases.replay(case, outcome.error.lowest).unsupported
