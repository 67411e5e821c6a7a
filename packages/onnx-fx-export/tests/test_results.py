"""Every leaf that a model returns is an output, in both exporters, whatever it stands in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from both_exporters import EXPORTERS, exporters, run_by_name, tracing
from torch import Tensor

from onnx_fx_export import OnnxExporterError


def exported(exporter: str, model: Any, *args: Any, **options: Any) -> Any:
    return EXPORTERS[exporter](model, args, **options)


def numbers(x: Tensor):
    return x + 1, 2.5, 7, True, x.shape[0], x.shape[0] / 2, x * 2


@exporters
def test_numbers_are_outputs_in_their_order(exporter: str) -> None:
    names = list("abcdefg")
    program = exported(exporter, numbers, torch.ones(2), output_names=names, dynamic_axes={"x": {0: "n"}}, verify=True)
    assert program.output_names == names
    for n in (2, 5):
        x = torch.arange(1.0 * n)
        for actual, expected in zip(run_by_name(program, x=x), numbers(x), strict=True):
            np.testing.assert_allclose(actual, expected)
    kinds = [value.dtype.name for value in program.model.graph.outputs]
    assert [kinds[2], kinds[3], kinds[4]] == ["INT64", "BOOL", "INT64"]


def test_a_call_answers_the_numbers_of_python() -> None:
    program = exported("fx", lambda x: {"sum": x.sum(), "third": 1 / 3, "rows": x.shape[0]}, torch.ones(2))
    result = program(torch.ones(2))
    assert (result["third"], result["rows"]) == (1 / 3, 2)
    assert type(result["rows"]) is int


def with_nothing(x: Tensor):
    return x + 1, None, "text", x * 2


@tracing
def test_none_and_text_are_left_out_with_their_places(exporter: str) -> None:
    with pytest.warns(UserWarning, match=r"None at \w+_1, 'text' at \w+_2") as found:
        program = exported(exporter, with_nothing, torch.ones(2))
    assert sum("left out" in str(warning.message) for warning in found) == 1
    assert [list(value) for value in run_by_name(program, x=torch.ones(2))] == [[2, 2], [2, 2]]


def test_text_of_a_script_is_left_out_with_its_place() -> None:
    def text(x: Tensor):
        return x + 1, "text"

    with pytest.warns(UserWarning, match="'text' at result_1"):
        program = exported("scripted", text, torch.ones(2))
    assert len(program.output_names) == 1


@tracing
@pytest.mark.parametrize("result", [[], None, (None, "text"), {}], ids=str)
def test_a_model_without_outputs_is_refused(exporter: str, result: Any) -> None:
    with pytest.raises(OnnxExporterError, match="returns no tensor and no number"):
        exported(exporter, lambda x: result, torch.ones(2))


def test_a_script_whose_lists_stay_empty_is_refused() -> None:
    def empty(x: Tensor):
        found = [x]
        found.pop()
        return found

    with pytest.raises(OnnxExporterError, match="returns no tensor and no number"):
        exported("scripted", empty, torch.ones(2))
