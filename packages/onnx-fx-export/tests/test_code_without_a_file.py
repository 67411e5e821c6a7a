"""Code that was typed at a prompt or passed to exec has no file, and is a model's code like any other."""

import warnings

import pytest
import torch

from onnx_fx_export import CaptureError, InvalidArgumentError, MutationError, OnnxExporterError, export
from onnx_fx_export.inputs.arguments import FunctionModule

SOURCE = """
import dataclasses
import torch

@dataclasses.dataclass
class Shape:
    rows: int
    columns: int

def one_row(x):
    return x * 2 if x.shape[0] == 1 else x.clone()

def product(x):
    rows, columns = x.shape
    return x * 2 if rows * columns == columns else x.clone()

def half(x):
    return x * 2 if x.shape[0] // 2 == 1 else x.clone()

def of_class(x):
    return x * 2 if isinstance(x.shape[0], int) and x.shape[0] < 4 else x.clone()

def by_dataclass(x):
    return x * 2 if Shape(*x.shape) == Shape(1, 5) else x.clone()

def by_text(x):
    return x * {"7": 3.0}.get(str(x.shape[0]), 1.0)

def by_identity(x):
    return x * 2 if (x.shape[0] > 3) is True else x.clone()

in_a_lambda = lambda x: x * 2 if x.shape[0] == 1 else x.clone()

def by_data(x):
    return x * 2 if x.sum() > 0 else x

class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls
"""
PROMPTS = ("<stdin>", "<string>", "<python-input-0>", "<ipython-input-3-0a1b2c>")


def typed(prompt):
    names = {"__name__": "__main__"}
    exec(compile(SOURCE, prompt, "exec"), names)
    return names


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", ["one_row", "product", "half", "of_class", "by_dataclass", "in_a_lambda"])
def test_no_size_gives_something_else(name, prompt) -> None:
    function = typed(prompt)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = export(FunctionModule(function), (torch.randn(4, 5),), dynamic_shapes=({0: "rows", 1: "columns"},))
    right = 0
    for rows in (1, 2, 3, 4, 6, 7):
        x = torch.randn(rows, 5)
        try:
            result = program(x)
        except InvalidArgumentError:
            continue
        torch.testing.assert_close(result, function(x))
        right += 1
    assert right >= 2


@pytest.mark.parametrize("name", ["by_text", "by_identity"])
def test_what_only_the_source_would_show_to_be_right_is_refused(name) -> None:
    with pytest.raises(OnnxExporterError, match=r"<stdin>:\d+"):
        export(FunctionModule(typed("<stdin>")[name]), (torch.randn(4, 5),), dynamic_shapes=({0: "rows"},))


def test_errors_name_the_line() -> None:
    names = typed("<stdin>")
    line = names["by_data"].__code__.co_firstlineno + 1
    with pytest.raises(CaptureError, match=f"<stdin>:{line}"):
        export(FunctionModule(names["by_data"]), (torch.randn(4, 5),), trial_runs=False)
    with pytest.raises(MutationError, match=r"calls \(at <stdin>:\d+\)"):
        export(names["Counts"](), (torch.randn(4, 5),))
