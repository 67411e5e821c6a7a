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


KEPT = {
    "the first row": "z = x[:1]",
    "the last row": "z = x[-1:] * 2",
    "a tensor like the first row": "z = torch.ones_like(x[:1])",
    "rows of a transposed tensor": "z = (x.t()[:, :1] + 1).t()",
    "a view of the first row": "z = x[:1].view(-1, 3) + 1",
    "a write to the first row": "z = x.clone()\nz[:1, 1:].mul_(3)\nz[:1].t().add_(1)\nz[-1:] = z[:1] * 2",
    "the numbers of rows": "z = x[x[1:].size(0):] * (x[:1].size(0) + x[2:].numel() + len(x[-1:]))",
    "what has fewer rows outside": "z = torch.ones(4 + len(fewer), 3) * fewer.size(0)",
}
PATHS = {
    "a branch": "if bool(x.sum() > -1000):",
    "a branch on the number": "if x.size(0) < 5:",
    "a loop": "for _ in range(x.size(0) + 1):",
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", KEPT)
def test_what_a_slice_has_in_ifs_and_loops_is_read_from_it(body: str, path: str, tmp_path: Path) -> None:
    lines = "\n".join(f"    {line}" for line in KEPT[body].split("\n"))
    text = f"fewer = x[1:]\nz = x\n{PATHS[path]}\n{lines}\nreturn torch.cat([z, torch.ones_like(z)]) * (1 + z.size(0))"
    function = scripted_program(tmp_path, "x: torch.Tensor", text)
    program = program_of(function)

    assert program.constraints.conditions == ()
    for rows in (0, 1, 2, 5):
        torch.testing.assert_close(program(torch.ones(rows, 3))[0], function(torch.ones(rows, 3)))
