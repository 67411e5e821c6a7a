"""Every leaf that a model returns is an output, in both exporters, whatever it stands in."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Callable
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
    with pytest.warns(UserWarning, match="None at output_1, 'text' at output_2") as found:
        program = exported(exporter, with_nothing, torch.ones(2))
    assert sum("left out" in str(warning.message) for warning in found) == 1
    assert [list(value) for value in run_by_name(program, x=torch.ones(2))] == [[2, 2], [2, 2]]


def test_text_of_a_script_is_left_out_with_its_place() -> None:
    def text(x: Tensor):
        return x + 1, "text"

    with pytest.warns(UserWarning, match="'text' at output_1"):
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


class Listed(list):
    pass


class Tupled(tuple):
    pass


class Keyed(dict):
    pass


class Ordered(collections.OrderedDict):
    pass


class Signed(collections.OrderedDict):
    def __init__(self, first, second):
        super().__init__(first=first, second=second)


class Noted(dict):
    def __init__(self, note, **values):
        super().__init__(values)
        self.note = note


class Fields(collections.namedtuple("Fields", "left right")):
    pass


@dataclasses.dataclass
class Record:
    left: Any
    right: Any = None


RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "list": lambda x: Listed([x + 1, x * 2]),
    "tuple": lambda x: Tupled((x + 1, x * 2)),
    "dict": lambda x: Keyed(b=x + 1, a=x * 2),
    "ordered dict": lambda x: Ordered(b=x + 1, a=(x * 2,)),
    "a constructor of its own": lambda x: Signed(x + 1, x * 2),
    "an attribute": lambda x: Noted("hello", a=x + 1, b=x * 2),
    "named tuple": lambda x: Fields(x + 1, x * 2),
    "dataclass": lambda x: Record(x + 1, [x * 2]),
    "nested": lambda x: {"a": [Listed([Keyed(k=x + 1)])], "b": Record(Tupled((x * 2,)), Ordered(z=x - 1))},
}


def leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = vars(value)
    items = value.values() if isinstance(value, dict) else value or ()
    return [leaf for item in items for leaf in leaves(item)]


@tracing
@pytest.mark.parametrize("name", RESULTS)
def test_subclasses_of_containers_are_results(exporter: str, name: str) -> None:
    make = RESULTS[name]
    program = exported(exporter, make, torch.ones(2), dynamic_axes={"x": {0: "n"}}, verify=True)
    x = torch.arange(3.0)
    for actual, expected in zip(run_by_name(program, x=x), leaves(make(x)), strict=True):
        np.testing.assert_allclose(actual, expected)
    if exporter == "fx":
        answer = program(x)
        assert type(answer) is type(make(x))
        assert getattr(answer, "note", "hello") == "hello"
        for actual, expected in zip(leaves(answer), leaves(make(x)), strict=True):
            torch.testing.assert_close(actual, expected)


@tracing
def test_subclasses_of_containers_are_arguments(exporter: str) -> None:
    def total(items, keyed):
        return items[0] * keyed["k"] + keyed["j"][0]

    def example(n: int) -> tuple[Any, Any]:
        return Listed([torch.arange(1.0 * n)]), Keyed(k=torch.ones(n) * 3, j=Tupled((torch.ones(n) * 5,)))

    program = EXPORTERS[exporter](total, (*example(2), {}), verify=True)
    items, keyed = example(2)
    feeds = {"items.0": items[0] + 1, "keyed.k": keyed["k"], "keyed.j.0": keyed["j"][0]}
    np.testing.assert_allclose(run_by_name(program, **feeds)[0], total([items[0] + 1], keyed))


@pytest.fixture(scope="module")
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, vocab_size=20, **sizes)).eval()


@tracing
def test_a_cache_that_only_comes_out_is_taken_apart(llama, exporter: str) -> None:
    ids = torch.arange(6).reshape(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = EXPORTERS[exporter](llama, (), kwargs={"input_ids": ids}, dynamic_axes={"input_ids": {0: "n"}})
    ids = torch.arange(9).reshape(3, 3) + 4
    with torch.no_grad():
        expected = llama(input_ids=ids)
    layer = expected.past_key_values.layers[0]
    wanted = [expected.logits, layer.keys, layer.values]
    for actual, value in zip(run_by_name(program, input_ids=ids), wanted, strict=True):
        np.testing.assert_allclose(actual, value, atol=1e-5)
