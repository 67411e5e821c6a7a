"""Nodes know the line of the user's code that they come from."""

from __future__ import annotations

import functools
import inspect
import os

import torch

from onnx_fx_export import export
from onnx_fx_export.origin import source_line
from onnx_fx_export.torch_private import not_the_users


def scaled(x, *, factor=2.0):
    y = torch.relu(x)
    return y * factor


class Scaler:
    def apply(self, x):
        return torch.sigmoid(x)


def lines(program) -> dict[str, str]:
    return {node.op_type: node.metadata_props.get("onnxops.source", "") for node in program.model.graph}


def line_of(function, text: str) -> str:
    source, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(i for i, line in enumerate(source) if text in line)}"


def test_nodes_of_a_function_have_lines() -> None:
    x = torch.randn(2, 3)
    program = export(scaled, (x,))
    assert lines(program) == {"Relu": line_of(scaled, "relu"), "Mul": line_of(scaled, "factor\n")}
    torch.testing.assert_close(program(x), scaled(x))


def test_keyword_defaults_closures_and_methods_are_kept() -> None:
    offset = torch.tensor([1.0, 2.0, 3.0])

    def shifted(x, scale=3):
        return x * scale + offset

    x = torch.randn(2, 3)
    torch.testing.assert_close(export(shifted, (x,))(x), shifted(x))
    method = Scaler().apply
    program = export(method, (x,))
    assert lines(program) == {"Sigmoid": line_of(Scaler.apply, "sigmoid")}
    torch.testing.assert_close(export(functools.partial(scaled, factor=5.0), (x,))(x), 5 * torch.relu(x))


def test_a_library_whose_name_begins_like_torch_is_code_of_the_user() -> None:
    torch_itself = os.path.dirname(torch.__file__)
    library = f"{torch_itself}vision{os.sep}boxes.py"
    node = torch.fx.Graph().placeholder("x")
    node.meta["stack_trace"] = (
        f'File "{library}", line 3, in nms\nFile "{torch_itself}{os.sep}_ops.py", line 7, in call\n'
    )

    assert source_line(node) == f"{library}:3"
    assert not library.startswith(not_the_users())
    assert torch.__file__.startswith(not_the_users())
