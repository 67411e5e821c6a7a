"""Specifications of operators that the oldest supported onnx lacks: they are what the newest one says."""

from __future__ import annotations

import json

import onnx
import pytest

from onnxops_decomp.spec.schemas import NEWER_OPERATORS, NEWEST_OPSET, OLDEST_ONNX_OPSET, op_spec

ROWS = {(name, row["since_version"]) for name, rows in json.loads(NEWER_OPERATORS.read_text()).items() for row in rows}
NEWEST = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < NEWEST_OPSET,
    reason=f"onnx {onnx.__version__} lacks what these are compared with",
)


@NEWEST
def test_all_newer_operators_are_listed() -> None:
    schemas = onnx.defs.get_all_schemas_with_history()
    newer = [each for each in schemas if not each.domain and OLDEST_ONNX_OPSET < each.since_version <= NEWEST_OPSET]
    assert {(each.name, each.since_version) for each in newer if not each.deprecated} == ROWS


@NEWEST
@pytest.mark.parametrize(("op_type", "version"), sorted(ROWS))
def test_a_newer_operator_is_known_to_an_old_onnx_as_it_is(
    op_type: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = op_spec(op_type, version)
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: OLDEST_ONNX_OPSET)
    op_spec.cache_clear()
    try:
        assert op_spec(op_type, version) == expected
        assert op_spec("Add", NEWEST_OPSET) == op_spec("Add", OLDEST_ONNX_OPSET)
    finally:
        op_spec.cache_clear()
