"""Parts of tensors without rows have none either: where a model takes them to have some, that is a condition of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ts_models import scripted_program

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

ONE_OR_MORE = {
    "a tensor like the first row": "return torch.ones_like(x[:1])",
    "the mean of the last row": "return x[-1:].mean(0)",
    "a write to the first row": "y = x * 2\ny[:1] = 0.5\nreturn y",
    "the number of the other rows": "return torch.zeros(x[1:].size(0) + 1, 2)",
    "the number of elements": "return x + x[:-1].numel()",
    "the length of what is computed": "return x * len(x[1:] * 2)",
}
ANY_NUMBER = ["x[1:] - x[:-1]", "x[:2] * 2", "x[::2].sum(0)", "x[1:].reshape(-1)", "x[:0].sum(0)"]


def program_of(function: Callable[[torch.Tensor], torch.Tensor]) -> onnx_ts_legacy.TSProgram:
    example = (torch.randn(4, 3),)
    return onnx_ts_legacy.export(function, example, input_names=["x"], dynamic_axes={"x": {0: "n"}})


@pytest.mark.parametrize("body", ONE_OR_MORE)
@pytest.mark.parametrize("traced", [False, True])
def test_what_is_right_for_some_rows_alone_refuses_none(body: str, traced: bool, tmp_path: Path) -> None:
    function = scripted_program(tmp_path, "x: torch.Tensor", ONE_OR_MORE[body])
    program = program_of((lambda x: function(x)) if traced else function)

    assert program.constraints.conditions == ("n >= 1",)
    torch.testing.assert_close(program(torch.ones(1, 3))[0], function(torch.ones(1, 3)))
    with pytest.raises(OnnxExporterError, match="n >= 1"):
        program(torch.ones(0, 3))


@pytest.mark.parametrize("text", ANY_NUMBER)
def test_what_is_right_for_no_rows_too_has_no_condition(text: str, tmp_path: Path) -> None:
    function = scripted_program(tmp_path, "x: torch.Tensor", f"return {text}")
    program = program_of(function)

    assert program.constraints.conditions == ()
    for rows in (0, 1, 2, 5):
        torch.testing.assert_close(program(torch.ones(rows, 3))[0], function(torch.ones(rows, 3)))


def test_what_an_if_leaves_out_is_no_condition(tmp_path: Path) -> None:
    body = "if x.size(0) > 0:\n    return x[-1:].mean(0)\nreturn x.sum(0) - 1"
    function = scripted_program(tmp_path, "x: torch.Tensor", body)
    program = program_of(function)

    for rows in (0, 1, 5):
        torch.testing.assert_close(program(torch.ones(rows, 3))[0], function(torch.ones(rows, 3)))
