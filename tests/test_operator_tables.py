"""The tables of operators say what tests found, and no more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.importer_table import PAGE
from tools.operator_results import Recorder
from tools.operator_tables import ATEN_PAGE, NATIVE_PAGE, aten_data, native_page, of_namespaces, ranges


def lowered(recorder: Recorder, *names: str, opset: int) -> None:
    """Plays a harness that lowers a model of some operators."""
    graph = SimpleNamespace(op=SimpleNamespace(opset=opset))
    recorder.lowering(lambda: None)()
    for name in names:
        recorder.checking(lambda graph, result, val, name: None)(graph, None, None, name)


def fails() -> None:
    raise AssertionError("not what eager computes")


def test_an_operator_counts_once_the_outputs_were_compared(tmp_path: Path) -> None:
    recorder = Recorder()
    for opset in (13, 7):
        lowered(recorder, "aten::add.Tensor", "aten::mul.Tensor", opset=opset)
        recorder.comparing(lambda: None)()

    recorder.write(tmp_path / "results.json")

    written = json.loads((tmp_path / "results.json").read_text())
    row = {"opsets": [7, 13], "limits": {}}
    assert written == {"aten::add.Tensor": row, "aten::mul.Tensor": row}


def test_what_an_opset_refuses_is_noted_with_the_lowest_one_that_does_not() -> None:
    class Refusal(Exception):
        operator, op_type, lowest, reason = "aten::nonzero", "NonZero", 9, ""

    def refuses() -> None:
        raise Refusal

    recorder = Recorder()
    with pytest.raises(Refusal):
        recorder.lowering(refuses)()
    lowered(recorder, "aten::nonzero", opset=9)
    recorder.comparing(lambda: None)()

    assert recorder.plain() == {"aten::nonzero": {"opsets": [9], "limits": {"9": "ONNX NonZero"}}}
    assert json.loads(aten_data(recorder.plain())) == recorder.plain()


def test_an_operator_of_a_model_that_was_not_compared_or_was_wrong_does_not_count() -> None:
    recorder = Recorder()
    lowered(recorder, "aten::only_lowered", opset=13)
    lowered(recorder, "aten::wrong", opset=13)
    with pytest.raises(AssertionError):
        recorder.comparing(fails)()
    lowered(recorder, "aten::right", opset=13)
    recorder.comparing(lambda: None)()

    assert set(recorder.right) == {"aten::right"}


@pytest.mark.parametrize(
    ("numbers", "expected"), [([], ""), ([7], "7"), ([13, 7, 8, 9, 12], "7-9, 12-13"), ([7, 9], "7, 9")]
)
def test_neighbouring_opsets_are_joined(numbers: list[int], expected: str) -> None:
    assert ranges(numbers) == expected


def test_a_page_lists_each_operator_once() -> None:
    page = native_page([("", "Attention", 24), ("", "Attention", 23), ("com.microsoft", "MatMulNBits", 1)])
    onnx = "https://onnx.ai/onnx/operators/onnx__Attention.html"
    contrib = "https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits"
    assert f"| [`Attention`]({onnx}) | ONNX | `opset23`, `opset24` |" in page
    assert f"| [`MatMulNBits`]({contrib}) | com.microsoft | `opset1` |" in page


@pytest.mark.parametrize("page", [ATEN_PAGE, NATIVE_PAGE, PAGE])
def test_every_row_of_the_pages_links_to_its_operator(page: Path) -> None:
    rows = [line for line in page.read_text(encoding="utf-8").split("\n## ")[0].splitlines() if "`" in line]
    unlinked = [
        row for row in rows if row.startswith("| ") and not re.match(r"\| \[`[\w:.]+`\]\(https://\S+\) \|", row)
    ]
    assert len(rows) > 30
    assert unlinked == []


def test_operators_that_tests_define_are_not_listed() -> None:
    results = {"aten::add.Tensor": {"opsets": [7]}, "mine::twice": {"opsets": [7]}}
    assert of_namespaces(results, ["aten::mul.Tensor"]).keys() == {"aten::add.Tensor"}
