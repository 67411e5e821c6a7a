"""The house check sees what it is meant to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import house
from tools.workspace import Workspace


def test_a_file_of_more_than_600_lines_is_reported() -> None:
    assert list(house.file_faults("a.py", "x = 1\n" * 600)) == []
    [fault] = house.file_faults("a.py", "x = 1\n" * 601)
    assert fault.startswith("a.py:601: the file is longer")


def test_a_long_function_is_reported_by_its_body_without_the_docstring() -> None:
    docstring = '    """Summary.\n' + "\n    Text." * 50 + '\n    """\n'
    short = "def short():\n" + docstring + "    x = 1\n" * house.MAX_FUNCTION_LINES
    long = "def long():\n" + docstring + "    x = 1\n" * (house.MAX_FUNCTION_LINES + 1)

    assert list(house.file_faults("a.py", short)) == []
    [fault] = house.file_faults("a.py", long)
    assert "body of long" in fault


@pytest.mark.parametrize(
    "line",
    [
        "torch._C._jit_pass_onnx(graph)",
        "from onnxscript._internal import param",
        "import torch.onnx._internal.exporter",
        "x = torch.onnx._internal",
        "from onnx_ir._core import Value",
    ],
)
def test_private_parts_of_other_projects_are_reported(line: str) -> None:
    faults = list(house.forbidden_names("a.py", line))

    assert faults
    assert all("private" in fault for fault in faults)


@pytest.mark.parametrize("line", ["import onnx_ir as ir", "'torch.onnx._internal'", "from onnxscript import ir"])
def test_public_parts_and_mere_mentions_are_not(line: str) -> None:
    assert list(house.forbidden_names("a.py", line)) == []


@pytest.mark.parametrize(
    "decision",
    [
        '"overlap" in str(error)',
        're.search("overlap", str(error))',
        'str(error).startswith("x")',
        '"x" in error.args[0]',
    ],
)
def test_a_decision_by_the_text_of_an_error_is_reported(decision: str) -> None:
    code = f"try:\n    f()\nexcept ValueError as error:\n    if {decision}:\n        raise\n"
    [fault] = house.error_text_faults("packages/a/src/a/b.py", code)
    assert fault.startswith("packages/a/src/a/b.py:4: an error's text decides")
    assert list(house.error_text_faults("packages/a/src/a/torch_private.py", code)) == []
    shown = code.replace(decision, "print(str(error))")
    assert list(house.error_text_faults("packages/a/src/a/b.py", shown)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from onnxops_decomp.builder.scope import Scope",
        "import onnxops_decomp.dtypes",
        "monkeypatch.setattr('onnxops_decomp.exporting.program.LIMIT', 1)",
        "monkeypatch.setattr('onnxops_decomp.builder.LIMIT', 1)",
    ],
)
@pytest.mark.parametrize("name", ["packages/onnx-fx-export/src/onnx_fx_export/a.py", "benchmarks/a.py"])
def test_an_import_from_the_inside_of_another_distribution_is_reported(name: str, line: str) -> None:
    [fault] = house.face_faults(name, line)
    assert fault.endswith("is inside onnxops_decomp; use onnxops_decomp or onnxops_decomp.exporting")
    assert list(house.face_faults("packages/onnxops-decomp/tests/a.py", line)) == []


@pytest.mark.parametrize(
    "line",
    [
        "from onnxops_decomp.exporting import ONNXProgram",
        "import_module('onnxops_decomp.exporting')",
        "import onnxops_core",
        "import os",
    ],
)
def test_an_import_from_a_face_is_not(line: str) -> None:
    assert list(house.face_faults("tools/a.py", line)) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("x = torch._C._get_tracing_state()", "is private to torch"),
        ("from torch._subclasses.fake_tensor import FakeTensor", "is private to torch"),
        ("from torch.fx.experimental import _config", "is private to torch"),
        ("import torch._dynamo.config", "is private to torch"),
        ("torch.onnx.export = mine", "torch is changed here"),
        ("setattr(torch.Tensor, 'data', mine)", "torch is changed here"),
    ],
)
def test_private_names_and_changes_of_torch_are_reported(line: str, fault: str) -> None:
    faults = list(house.torch_faults("packages/a/src/a/b.py", line))
    assert faults
    assert all(fault in each for each in faults)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("packages/a/src/a/torch_private.py", "x = torch._C._get_tracing_state()"),
        ("packages/a/src/a/b.py", "x: torch._ops.OpOverload = torch.ops.aten.add.Tensor"),
        ("packages/a/src/a/b.py", "from torch.utils import _pytree as pytree"),
        ("packages/a/src/a/b.py", "torch.manual_seed(0).__class__"),
        ("packages/a/src/a/b.py", "self.torch = torch"),
    ],
)
def test_what_may_be_used_of_torch_is_not(name: str, line: str) -> None:
    assert not list(house.torch_faults(name, line))


def test_new_and_committed_files_are_checked_and_ignored_ones_are_not(sample: Workspace) -> None:
    (sample.root / "new.py").write_text("x = 1\n")
    (sample.root / "build").mkdir()
    (sample.root / "build" / "made.py").write_text("x = 1\n")

    listed = house.python_files(sample.root)

    assert "new.py" in listed
    assert "packages/sample-alpha/tests/smoke.py" in listed
    assert "build/made.py" not in listed


def test_a_breach_gives_an_exit_status(sample: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(sample.root) == 0
    (sample.root / "long.py").write_text("x = 1\n" * 700)

    assert house.main(Path(sample.root)) == 1
    assert "long.py" in capsys.readouterr().out
