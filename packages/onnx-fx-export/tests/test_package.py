"""What importing the package costs, and which names it has."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onnx_fx_export


def test_importing_the_package_loads_no_other_library() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import onnx_fx_export; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "onnx_fx_export" in loaded
    assert not loaded & {"onnx", "onnx_ir", "onnxscript", "onnxruntime", "onnxops_core", "sympy", "google"}


def test_a_first_export_loads_no_library_that_it_does_not_need() -> None:
    code = (
        "import sys, torch; model, x = torch.nn.Linear(2, 2), torch.ones(1, 2); torch.export.export(model, (x,)); "
        "before = set(sys.modules); import onnx_fx_export; onnx_fx_export.export(model, (x,)); "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    own = {"onnx_fx_export", "onnxops_core", "onnxops_decomp"}
    known = own | {"google", "lazy_loader", "ml_dtypes", "numpy", "onnx", "onnx_ir", "packaging"}
    loaded = {name for name in done.stdout.split() if name not in sys.stdlib_module_names}
    assert own <= loaded <= known


def test_every_public_name_can_be_had() -> None:
    assert {"export", "OnnxExporterError"} <= set(onnx_fx_export.__all__) <= set(dir(onnx_fx_export))
    assert all(getattr(onnx_fx_export, name) is not None for name in onnx_fx_export.__all__)
    with pytest.raises(AttributeError, match="absent"):
        _ = onnx_fx_export.absent


def test_the_function_is_there_whatever_was_imported_before() -> None:
    code = (
        "import onnx_fx_export; from onnx_fx_export import errors; from onnx_fx_export.api import export; "
        "assert onnx_fx_export.export is export"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
