"""ONNX's own node cases, imported: the first of each operator by default, all of them in the wide run."""

from __future__ import annotations

import functools
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from onnxops_decomp import ModelImportError, to_torch

sys.path.insert(0, str(Path(__file__).parents[2] / "onnxops-core" / "tests"))

from core_node_cases import onnx_cases
from core_node_cases import to_torch as to_tensor

RANDOM = ("bernoulli", "training_dropout")
REASONS = {
    "Gradient": "derivatives of nodes of the same graph are left to torch.autograd",
    "ImageDecoder": "decoding images is left to libraries of images",
    "TreeEnsemble": "no ensembles of trees",
}
OTHER_RESULTS = {
    name: reason
    for reason, names in {
        "ONNX Runtime, and the text of the specification, divide by the number of elements that there are, less one": (
            "test_resize_downsample_scales_linear_align_corners",
            "test_resize_downsample_scales_cubic_align_corners",
        ),
        "the reference rounds to float16 after other steps: one or two elements are a unit of the last place apart": (
            "test_attention_4d_fp16",
            "test_attention_4d_causal_fp16",
        ),
        "zeros of a transform of numbers up to 100, whose rounding errors (2e-7) are not ONNX's": (
            "test_dft_inverse",
            "test_dft_inverse_opset19",
        ),
        "the cases expect -0 for NaN, as ml_dtypes has it; ONNX's table of casts to FLOAT4E2M1 says 6": (
            "test_cast_FLOAT_to_FLOAT4E2M1",
            "test_cast_FLOAT16_to_FLOAT4E2M1",
            "test_castlike_FLOAT_to_FLOAT4E2M1",
            "test_castlike_FLOAT16_to_FLOAT4E2M1",
        ),
    }.items()
    for name in names
}
"""Cases that do not agree, and why."""


@functools.cache
def model_cases() -> list[Any]:
    """ONNX's own cases of whole models, as far as they come with the package."""
    found = []
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for case in load_model_tests(kind=kind):
            folder = Path(case.model_dir or "")
            if not case.model_dir or not (folder / "model.onnx").exists():
                continue
            model = onnx.load(folder / "model.onnx")
            fixed = {tensor.name for tensor in model.graph.initializer}
            given = [each.type for each in model.graph.input if each.name not in fixed]
            sets = [
                (_saved(each, "input", given), _saved(each, "output", [each.type for each in model.graph.output]))
                for each in sorted(folder.glob("test_data_set_*"))
            ]
            found.append(
                types.SimpleNamespace(name=case.name, model=model, data_sets=sets, rtol=case.rtol, atol=case.atol)
            )
    return found


def _saved(folder: Path, kind: str, declared: list[onnx.TypeProto]) -> list[Any]:
    """Return the inputs or outputs that a folder holds."""
    forms = {"tensor_type": onnx.TensorProto, "sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
    found = []
    for place in range(len(list(folder.glob(f"{kind}_*.pb")))):
        proto = forms[declared[place].WhichOneof("value")]()
        proto.ParseFromString((folder / f"{kind}_{place}.pb").read_bytes())
        found.append(proto)
    return found


def value(proto: Any) -> Any:
    if isinstance(proto, onnx.SequenceProto):
        return [value(each) for each in numpy_helper.to_list(proto)]
    if isinstance(proto, onnx.OptionalProto):
        return value(numpy_helper.to_optional(proto))
    if isinstance(proto, list):
        return [value(each) for each in proto]
    if proto is None:
        return None
    array = numpy_helper.to_array(proto) if isinstance(proto, onnx.TensorProto) else np.asarray(proto)
    return array if array.dtype.kind in "OUS" else to_tensor(array)


def agree(got: Any, want: Any, case: Any) -> None:
    """Compare as ONNX's own runner of these cases does, with the tolerances of the case."""
    if isinstance(want, list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            agree(one, other, case)
    elif want is None or isinstance(want, np.ndarray):
        assert got is None if want is None else (np.asarray(got, str) == np.asarray(want, str)).all()
    else:
        assert got.shape == want.shape
        if want.element_size() == 1 and want.is_floating_point():
            got, want = got.float(), want.float()
        rtol = max(case.rtol, 2**-6) if want.dtype == torch.bfloat16 else case.rtol
        torch.testing.assert_close(got, want, rtol=rtol, atol=case.atol, equal_nan=True)


def failure(case: Any) -> str | None:
    """Return why a case does not agree, or None."""
    try:
        module = to_torch(case.model)
        for inputs, outputs in case.data_sets:
            want = [value(each) for each in outputs]
            made = module(*(value(each) for each in inputs))
            got = list(made) if isinstance(made, tuple) else [made]
            for one, other in zip(got, want, strict=True):
                agree(one, other, case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def excused(case: Any) -> bool:
    operators = {node.op_type for node in case.model.graph.node}
    name = case.name.removesuffix("_expanded")
    return bool(operators & set(REASONS)) or name in OTHER_RESULTS or any(part in name for part in RANDOM)


def test_the_first_case_of_each_operator_agrees() -> None:
    seen: Counter[str] = Counter()
    failures = {}
    for case in onnx_cases():
        operator = case.model.graph.node[0].op_type
        seen[operator] += 1
        if seen[operator] == 1 and "_expanded" not in case.name and not excused(case):
            failures[case.name] = failure(case)
    assert len(failures) > 150
    assert not {name: text for name, text in failures.items() if text}


@pytest.mark.parametrize("operator", sorted(REASONS))
def test_what_is_not_imported_is_refused_by_name(operator: str) -> None:
    every = (*onnx_cases(), *model_cases())
    case = next(case for case in every if any(node.op_type == operator for node in case.model.graph.node))
    with pytest.raises(ModelImportError, match=operator):
        to_torch(case.model)


@pytest.mark.wide
def test_all_cases_agree() -> None:
    failures = {case.name: failure(case) for case in (*onnx_cases(), *model_cases()) if not excused(case)}
    assert len(failures) >= 1980
    assert not {name: text for name, text in failures.items() if text}
