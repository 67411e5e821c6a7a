"""The error about a branch that data decides spells out the torch.cond that takes its place, and that one works."""

from __future__ import annotations

import linecache
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from onnx_fx_export import CaptureError, export
from onnx_fx_export.capture.conditions.branches import cond_for

REWRITES = {
    "two returns": (
        """
        if x.sum() > 0:
            return x + y
        return x - 1
        """,
        "return torch.cond(x.sum() > 0, lambda x, y: x + y, lambda x, y: x - 1, (x, y))",
    ),
    "if and else": (
        """
        if (x.sum()
                > y.sum()):
            z = x * 2
        else:
            z = y
        return z
        """,
        "z = torch.cond(x.sum() > y.sum(), lambda x, y: x * 2, lambda x, y: y.clone(), (x, y))",
    ),
    "no else": (
        """
        z = x + 1
        if z.max() > 1:
            z = z * y
        return z
        """,
        "z = torch.cond(z.max() > 1, lambda z, y: z * y, lambda z, y: z.clone(), (z, y))",
    ),
    "in place": (
        """
        z = x + 1
        if bool(z.max() > 1):
            z *= 3
        return z
        """,
        "z = torch.cond(z.max() > 1, lambda z: z * 3, lambda z: z.clone(), (z,))",
    ),
    "not": (
        """
        if not (x > 0).any():
            return x + y
        return x - 1
        """,
        "return torch.cond(torch.logical_not((x > 0).any()), lambda x, y: x + y, lambda x, y: x - 1, (x, y))",
    ),
    "an expression": (
        """
        return x * 2 if y.min() < 0 else x
        """,
        "torch.cond(y.min() < 0, lambda x: x * 2, lambda x: x.clone(), (x,))",
    ),
}


def function_of(body: str, folder: Path) -> Any:
    path = folder / f"user_code_{abs(hash(body))}.py"
    path.write_text(
        "import torch\n\ndef function(x, y):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n"
    )
    linecache.checkcache(str(path))
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["function"]


@pytest.mark.parametrize("name", REWRITES)
def test_the_rewrite_is_spelled_out_and_can_be_exported(name: str, tmp_path: Path) -> None:
    body, rewrite = REWRITES[name]
    function = function_of(body, tmp_path)
    with pytest.raises(CaptureError) as caught:
        export(function, (torch.ones(2), torch.ones(2)), dynamic_shapes=({0: "n"}, {0: "n"}), strategy="non-strict")
    assert f"\n  {rewrite}\n" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    before = "z = x + 1\n" if "z = x + 1" in body else ""
    after = "" if rewrite.startswith("return") else "\nreturn z" if rewrite.startswith("z =") else ""
    returned = rewrite if after or rewrite.startswith("return") else f"return {rewrite}"
    written = function_of(before + returned + after, tmp_path)
    program = export(written, (torch.ones(2), torch.ones(2)), dynamic_shapes=({0: "n"}, {0: "n"}))
    for x, y in ((torch.ones(3), -torch.ones(3)), (-torch.ones(3), torch.ones(3)), (torch.ones(4), torch.ones(4) * 2)):
        torch.testing.assert_close(program(x, y), function(x, y))


@pytest.mark.parametrize(
    "body",
    [
        "if x.sum() > 0:\n    z = x + 1\n    w = z\nelse:\n    w = x\nreturn w",
        "if x.sum() > 0:\n    z = x\nelse:\n    w = y\nreturn x",
        "if not x.any():\n    x = None\nreturn x",
        "if x.sum() == 0:\n    x[0] = 1\nreturn x",
        "return x",
    ],
)
def test_branches_that_do_more_get_the_general_form(body: str, tmp_path: Path) -> None:
    function = function_of(body, tmp_path)
    assert cond_for(function.__code__.co_filename, function.__code__.co_firstlineno + 1) == ""


def test_a_module_keeps_its_own_weights_out_of_the_operands() -> None:
    class Choice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x):
            if x.sum() > 0:
                return self.linear(x)
            return x

    with pytest.raises(CaptureError) as caught:
        export(Choice(), (torch.ones(2),), strategy="non-strict")
    wanted = "return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x.clone(), (x,))"
    assert wanted in str(caught.value)
