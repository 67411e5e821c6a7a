"""Nodes know the line of the user's code that they come from."""

from __future__ import annotations

import functools
import inspect

import torch

from onnx_fx_export import export


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
