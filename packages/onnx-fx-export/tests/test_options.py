"""Every option of an export is honoured or refused on every path, as the one table of options says."""

from __future__ import annotations

import inspect
import io
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from option_probes import PATHS, PROBES, X, outcome, uncapturable
from torch import nn

import onnx_fx_export
import onnx_ts_legacy
from onnx_fx_export import OnnxExporterError
from onnx_fx_export.compat.arguments import TorchArguments
from onnxops_decomp.exporting import OPTIONS, ExportPath

# A call inside replace_torch_onnx is one of the others.
TABLE = {
    "fx": ExportPath.FX,
    "torchscript": ExportPath.TORCHSCRIPT,
    "fallback": ExportPath.FALLBACK,
    "legacy": ExportPath.LEGACY,
    "replaced": ExportPath.FX,
    "replaced torchscript": ExportPath.TORCHSCRIPT,
}
# Refused for some of their values only, which test_some_values_are_refused tries.
BY_VALUE = ("opset_version", "dynamic_shapes", "optimize")


def parameters(export: Any) -> set[str]:
    found = inspect.signature(export).parameters.values()
    further = TorchArguments.__annotations__ if export is onnx_fx_export.export else {}
    return {parameter.name for parameter in found if parameter.kind is not parameter.VAR_KEYWORD} | further.keys()


def test_every_argument_of_an_export_has_a_row_and_a_probe() -> None:
    known = parameters(onnx_fx_export.export) | parameters(onnx_ts_legacy.export)

    assert known == set(OPTIONS) == set(PROBES)
    assert parameters(onnx_fx_export.export) <= parameters(onnx_ts_legacy.export)
    assert parameters(torch.onnx.export) <= parameters(onnx_fx_export.export)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("option", PROBES)
def test_an_option_does_what_the_table_says(option: str, path: str) -> None:
    refused = TABLE[path] in OPTIONS[option].refused and option not in BY_VALUE

    assert outcome(path, option) == ("refused" if refused else "honoured")


@pytest.mark.parametrize("path", ["torchscript", "fallback", "legacy", "replaced torchscript"])
@pytest.mark.parametrize(
    ("option", "value"), [("opset_version", 28), ("optimize", "onnxscript")], ids=["opset_version", "optimize"]
)
def test_some_values_are_refused(option: str, value: Any, path: str) -> None:
    with pytest.raises(OnnxExporterError, match=option):
        PATHS[path](nn.ReLU(), (X,), **{option: value})


def test_a_word_for_dynamic_shapes_is_refused_by_the_torchscript_exporter_itself() -> None:
    examples = [(X,), (torch.ones(3, 4),)]
    program = onnx_fx_export.export(nn.ReLU(), examples, dynamic_shapes="auto", dynamo=False)
    assert program.model.graph.inputs[0].shape[0] not in (2, 3)
    with pytest.raises(OnnxExporterError, match="dynamic_shapes"):
        onnx_ts_legacy.export(nn.ReLU(), examples, dynamic_shapes="auto")


WRONG: list[dict[str, Any]] = [
    *({"opset_version": opset} for opset in ("17", True, 6, 99, -1, 17.0)),
    *({"f": f} for f in (io.StringIO(), 3)),
    *({"custom_opsets": versions} for versions in ({"": 11}, {"ai.onnx": 11}, {"a": 0}, {"a": "1"})),
    *({"input_names": names} for names in ("x", [1], 3)),
    *({"output_names": names} for names in ("x", [None])),
    *({"dynamic_axes": axes} for axes in ({"input": 0}, {"input": {"0": "n"}}, [0])),
    {"dynamic_axes": {"input": {0: "n"}}, "dynamic_shapes": ({0: "n"},)},
    *({"state": "x"}, {"optimize": "x"}, {"target": "tensorrt"}, {"verify": "yes"}, {"report": 1}),
    {"training": "eval"},
    *({"progress": 3}, {"artifacts_dir": None}, {"kwargs": [X]}, {"operator_export_type": 9}, {"export_params": None}),
    *({"custom_translation_table": [1]}, {"export_modules_as_functions": "Linear"}, {"nonsense": 1}),
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wrong", WRONG, ids=[f"{index}-{next(iter(wrong))}" for index, wrong in enumerate(WRONG)])
def test_a_wrong_value_is_one_error_that_names_the_option(wrong: dict[str, Any], path: str) -> None:
    with pytest.raises(OnnxExporterError, match=next(iter(wrong))):
        PATHS[path](nn.ReLU(), (X,), **wrong)


def test_a_file_for_text_is_refused_and_stays_empty(tmp_path: Path) -> None:
    for export in (onnx_fx_export.export, onnx_ts_legacy.export):
        with (tmp_path / "m.onnx").open("w") as file, pytest.raises(OnnxExporterError, match="f is a path or a file"):
            export(nn.ReLU(), (X,), file)
    assert (tmp_path / "m.onnx").read_text() == ""


def test_a_misspelt_argument_gets_a_suggestion() -> None:
    with pytest.raises(OnnxExporterError, match="did you mean 'opset_version'"):
        onnx_ts_legacy.export(nn.ReLU(), (X,), opset_vesion=17)


@pytest.mark.parametrize("path", ["fx", "torchscript", "fallback", "replaced", "replaced torchscript"])
def test_the_default_opset_is_one_on_every_path(path: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert PATHS[path](nn.ReLU(), (X,)).model.opset_imports[""] == 20


def test_the_report_of_a_fallback_says_that_it_made_the_model(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="fallback=True"):
        onnx_fx_export.export(
            uncapturable(nn.ReLU()), (X,), tmp_path / "m.onnx", fallback=True, report=True, verify=True,
            artifacts_dir=tmp_path,
        )  # fmt: skip

    text = (tmp_path / "onnx_export_report.html").read_text()
    assert "The fallback to TorchScript made the model" in text
    assert "not meant to capture this" in text
    assert "Exported</strong>, verified" in text
    assert "no model was written" not in text


COMING = Path(__file__).parents[3] / "docs" / "coming-from-torch-onnx.md"
ERRORS = Path(__file__).parents[3] / "docs" / "how-to" / "errors.md"


def part(page: Path, start: str, end: str) -> str:
    return page.read_text().partition(start)[2].partition(end)[0]


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


@pytest.mark.skipif(not COMING.is_file(), reason="the pages are only in the repository")
def test_the_page_for_users_of_torch_onnx_names_the_options_that_differ() -> None:
    start = "These\nbehave differently:\n"
    rows = [row.split("|")[1:3] for row in part(COMING, start, "And these are new").splitlines()[3:] if row]
    known = {name: effect for names, effect in rows for name in quoted(names)}
    by_torchscript = {name for name, effect in known.items() if "`dynamo=False` only" in effect}
    new = quoted(part(COMING, "And these are new", "\n\n"))

    assert known.keys() <= parameters(torch.onnx.export) & OPTIONS.keys()
    assert by_torchscript == {
        name
        for name, option in OPTIONS.items()
        if ExportPath.FX in option.refused and ExportPath.TORCHSCRIPT not in option.refused
    }
    assert known["opset_version"].strip().startswith(re.findall(r"\d+ to \d+", OPTIONS["opset_version"].kind.text)[0])
    assert known["opset_version"].strip().endswith(str(onnx_fx_export.export(nn.ReLU(), (X,)).model.opset_imports[""]))
    assert new == parameters(onnx_fx_export.export) - parameters(torch.onnx.export)


@pytest.mark.skipif(not COMING.is_file(), reason="the pages are only in the repository")
def test_the_page_on_errors_lists_every_exception() -> None:
    table = part(ERRORS, "| exception |", "\n\n")
    listed = set().union(*(quoted(row.split("|")[1]) for row in table.splitlines()[2:]))

    assert listed == {name for name in onnx_fx_export.__all__ if name.endswith("Error")} - {"OnnxExporterError"}
