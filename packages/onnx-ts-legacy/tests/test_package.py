"""What importing the package costs, and which names it has."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onnx_ts_legacy


def test_importing_the_package_loads_no_other_library() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import onnx_ts_legacy; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "onnx_ts_legacy" in loaded
    assert not loaded & {"onnx", "onnx_ir", "onnxscript", "onnxruntime", "onnxops_core", "sympy", "google"}


def test_every_public_name_can_be_had() -> None:
    assert {"export", "OnnxExporterError"} <= set(onnx_ts_legacy.__all__) <= set(dir(onnx_ts_legacy))
    assert all(getattr(onnx_ts_legacy, name) is not None for name in onnx_ts_legacy.__all__)
    with pytest.raises(AttributeError, match="absent"):
        _ = onnx_ts_legacy.absent


def test_the_function_is_there_whatever_was_imported_before() -> None:
    code = (
        "import onnx_ts_legacy; from onnx_ts_legacy import errors; from onnx_ts_legacy.api import export; "
        "assert onnx_ts_legacy.export is export"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
