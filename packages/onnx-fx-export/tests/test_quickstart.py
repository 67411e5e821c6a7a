"""The quickstart's sentence encoder: pretrained weights, real sentences, other sizes than the example's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def quickstart() -> ModuleType:
    path = Path(__file__).parents[3] / "examples" / "quickstart.py"
    spec = importlib.util.spec_from_file_location("quickstart", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["quickstart"] = module
    spec.loader.exec_module(module)
    return module


def test_sentence_encoder_equals_eager(quickstart: ModuleType, tmp_path: Path) -> None:
    rows = quickstart.sentence_encoder_rows(tmp_path)
    assert [(row.opset, row.verdict) for row in rows] == [(20, "same"), (23, "same"), (13, "same")]
    assert all(row.max_error < 1e-5 for row in rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"sentence_encoder_opset{opset}.onnx" for opset in (13, 20, 23)
    ]
