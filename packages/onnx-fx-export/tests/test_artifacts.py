"""What an export writes besides the model, and where it hands a model that it cannot take."""

from __future__ import annotations

import dataclasses
import html
import logging
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import onnx_fx_export
import onnx_ts_legacy
from onnx_fx_export import export


class Branch(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x[:1] - 1


class Rectifier(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) if x.shape[0] > 3 else x


def test_a_report_is_one_page_that_refers_to_nothing_else(tmp_path: Path) -> None:
    dims = {"x": {0: "n"}}
    export(Rectifier(), (torch.ones(5),), dynamic_shapes=dims, report=True, profile=True, artifacts_dir=tmp_path)
    text = (tmp_path / "onnx_export_report.html").read_text()
    for expected in ("Relu", "n &gt;", "capture", "convert", "FLOAT", "function calls", "test_artifacts.py:"):
        assert expected in text
    assert "http" not in text
    assert "src=" not in text


def test_the_captured_program_can_be_kept(tmp_path: Path) -> None:
    export(torch.nn.ReLU(), (torch.ones(5),), dump_exported_program=True, artifacts_dir=tmp_path)
    program = torch.export.load(tmp_path / "exported_program.pt2")
    torch.testing.assert_close(program.module()(-torch.ones(5)), torch.zeros(5))


@dataclasses.dataclass
class Parts:
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class NamelessParts(Parts):
    pass


torch.export.register_dataclass(NamelessParts)


class Tensors(dict):
    pass


@pytest.mark.parametrize("kind", [Parts, Tensors])
def test_the_captured_program_is_kept_with_its_containers(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sums(torch.nn.Module):
        def forward(self, x, parts):
            first, second = (parts[k] for k in ("first", "second")) if kind is Tensors else vars(parts).values()
            return kind(first=x + first, second=x - second)

    args = (torch.ones(3), kind(first=torch.ones(3), second=torch.zeros(3)))
    export(Sums(), args, dump_exported_program=True, artifacts_dir=tmp_path)
    # torch logs that the example is of a class that it does not know, with a format that fails.
    monkeypatch.setattr(logging.root.manager, "disable", logging.WARNING)
    result = torch.export.load(tmp_path / "exported_program.pt2").module()(*args)
    assert type(result) is kind
    torch.testing.assert_close(result["first"] if kind is Tensors else result.first, torch.full((3,), 2.0))


def test_a_container_that_torch_has_no_name_for_is_one_clear_error(tmp_path: Path) -> None:
    def halves(x):
        return NamelessParts(x[:2], x[2:])

    with pytest.raises(onnx_fx_export.SaveError, match=r"NamelessParts.*serialized_type_name"):
        export(halves, (torch.ones(4),), dump_exported_program=True, artifacts_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["report", "profile", "dump_exported_program"])
def test_a_missing_folder_is_made(option: str, tmp_path: Path) -> None:
    folder = tmp_path / "missing" / "folder"
    export(torch.nn.ReLU(), (torch.ones(5),), artifacts_dir=folder, **{option: True})
    names = {"report": "onnx_export_report.html", "profile": "onnx_export_profile.txt"}
    assert [file.name for file in folder.iterdir()] == [names.get(option, "exported_program.pt2")]


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(onnx_fx_export.SaveError, match="folder"):
        export(
            torch.nn.ReLU(), (torch.ones(5),), tmp_path / "m.onnx", report=True, artifacts_dir=tmp_path / "file" / "x"
        )
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_profile_names_the_functions_that_took_the_time(tmp_path: Path) -> None:
    export(torch.nn.ReLU(), (torch.ones(5),), profile=True, artifacts_dir=tmp_path)
    assert "converted" in (tmp_path / "onnx_export_profile.txt").read_text()


def test_verbose_prints_stages_and_times(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told: list[str] = []
    export(torch.nn.ReLU(), (torch.ones(5),), tmp_path / "m.onnx", verify=True, verbose=True, progress=told.append)
    assert re.fullmatch(r"( *\w+  \d+\.\d\d s\n){4}", printed := capsys.readouterr().out)
    assert re.findall(r"[a-z]{4,}", printed) == told == ["capture", "convert", "verify", "save"]
    export(torch.nn.ReLU(), (torch.ones(5),))
    assert capsys.readouterr().out == ""


class Branching(torch.nn.Module):
    """Everything that a page shows: functions, conditions on sizes, state, warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x.sum(0))
        warnings.warn("written in a hurry", stacklevel=1)  # noqa: TID251
        return self.blocks(x).unfold(0, 2, 1), x.shape[0] > 3


def page(folder: Path) -> str:
    text = (folder / "onnx_export_report.html").read_text()
    assert html.unescape(text).count("<h1>") == 1
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text.split("</style>")[1])))


@pytest.mark.filterwarnings("always")
def test_a_page_tells_all_about_an_export(tmp_path: Path) -> None:
    options = {"state": "io", "verify": True, "export_modules_as_functions": {torch.nn.Linear}}
    rows = torch.export.Dim("rows", min=2, max=64)
    model = Branching().eval()
    export(model, (torch.randn(5, 4),), dynamic_shapes=({0: rows},), report=True, artifacts_dir=tmp_path, **options)
    text = page(tmp_path)
    for expected in (
        "Exported , verified against PyTorch",
        "Warnings warning UserWarning: written in a hurry Model",
        "in 1 functions",
        "x FLOAT [rows,4]",
        "output_1 BOOL []",
        "rows <= 64",
        "total total.next",
        "Verification sizes outputs compared largest difference the example 3",
        "at rows = 6 3",
        "Operators operator nodes in functions from",
        "Gemm 0 1",
        "aten.gelu.default 1 1 Gelu",
    ):
        assert expected in text
    assert re.search(r"capture \d+\.\d{3} convert \d+\.\d{3} verify \d+\.\d{3}", text)


def test_a_page_about_an_export_that_is_not_verified_says_so(tmp_path: Path) -> None:
    export(torch.nn.ReLU(), (torch.ones(5),), report=True, artifacts_dir=tmp_path)
    assert "not verified against PyTorch" in page(tmp_path)


@torch.library.custom_op("onnx_fx_export_artifacts::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


unknown.register_fake(torch.empty_like)


def wrong_relu(op, x):
    return op.Abs(x)


FAILURES = {
    "capture": (Branch(), {}, ["Failed at capture", "torch.cond", "test_artifacts.py:"]),
    "convert": (
        lambda x: unknown(unknown(x)).relu(), {},
        ["Failed at convert", "Operators that cannot be converted", "onnx_fx_export_artifacts.unknown.default 2",
         "Captured calls call calls from", "aten.relu.default 1"]),
    "verify": (
        torch.nn.ReLU(), {"verify": True, "custom_translation_table": {torch.ops.aten.relu.default: wrong_relu}},
        ["Failed at verify", "does not agree", "Abs 1", "aten.relu.default 1 1 Abs"]),
    "save": (torch.nn.ReLU(), {"f": "/nowhere/model.onnx"}, ["Failed at save", "cannot be written", "Relu 1"]),
}  # fmt: skip


@pytest.mark.parametrize("stage", FAILURES)
def test_a_page_is_written_about_an_export_that_fails(stage: str, tmp_path: Path) -> None:
    model, options, texts = FAILURES[stage]
    with pytest.raises(onnx_fx_export.OnnxExporterError):
        export(model, (-torch.ones(2),), report=True, dump_exported_program=True, artifacts_dir=tmp_path, **options)
    text = page(tmp_path)
    for expected in [*texts, "no model was written"]:
        assert expected in text
    assert (tmp_path / "exported_program.pt2").exists() is (stage != "capture")


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_cannot_be_captured_goes_through_torchscript_when_scripted() -> None:
    with pytest.raises(onnx_fx_export.CaptureError):
        export(Branch(), (torch.ones(2),))
    program = export(torch.jit.script(Branch()), (torch.ones(2),), dynamo=False)
    assert isinstance(program, onnx_ts_legacy.TSProgram)
    torch.testing.assert_close(program(-torch.ones(2)), torch.full((1,), -2.0))
