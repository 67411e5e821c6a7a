"""Several examples, examples of size 0 and 1, and numbers as inputs."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import onnx_fx_export
from onnx_fx_export import DynamicShapeError, InvalidArgumentError, export


def dims(program, index: int = 0) -> list[bool]:
    """Tell which dimensions of an input are dynamic."""
    return [not isinstance(dim, int) for dim in program.model.graph.inputs[index].shape]


class Product(torch.nn.Module):
    def forward(self, x, other, scale=1.0):
        return x @ other["matrix"] * scale


def example(rows: int, columns: int) -> tuple:
    return torch.randn(rows, 4), {"matrix": torch.randn(4, columns)}


def test_what_differs_between_examples_is_dynamic() -> None:
    program = export(Product(), [example(2, 3), example(5, 3)], dynamic_shapes="auto")
    assert (dims(program, 0), dims(program, 1)) == ([True, False], [False, False])
    args = example(7, 3)
    torch.testing.assert_close(program(*args), Product()(*args))


def test_examples_may_have_size_one_and_keywords() -> None:
    first, second = ({"x": x, "other": other} for x, other in (example(1, 3), example(4, 0)))
    program = export(Product(), kwargs=[first, second], dynamic_shapes="auto")
    assert (dims(program, 0), dims(program, 1)) == ([True, False], [False, True])
    for args in (example(1, 3), example(4, 0), example(6, 5)):
        torch.testing.assert_close(program(x=args[0], other=args[1]), Product()(*args))


def test_single_tensors_are_examples() -> None:
    program = export(torch.nn.ReLU(), [torch.randn(2, 3), torch.randn(2, 4)], dynamic_shapes="auto")
    assert dims(program) == [False, True]


def test_numbers_that_differ_are_inputs() -> None:
    program = export(Product(), [(*example(2, 3), 2.0), (*example(2, 3), 3.0)], dynamic_shapes="auto")
    assert len(program.input_names) == 3
    args = (*example(2, 3), 7.5)
    torch.testing.assert_close(program(*args), Product()(*args))


@pytest.mark.parametrize(
    "args, reason",
    [
        ([(torch.ones(2),)], "compares examples"),
        ((torch.ones(2),), "compares examples"),
        ([(torch.ones(2),), (torch.ones(2), torch.ones(2))], "structure"),
        ([(torch.ones(2),), (torch.ones(2, 2),)], "rank"),
        ([(torch.ones(2),), (torch.ones(2).int(),)], "dtype"),
        ([(torch.ones(2), "a"), (torch.ones(2), "b")], "neither a tensor nor a number"),
    ],
)
def test_examples_that_cannot_be_compared_are_refused(args, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        export(lambda x, y=None: x + 1, args, dynamic_shapes="auto")


def test_another_word_than_auto_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'all'"):
        export(torch.nn.ReLU(), (torch.ones(2),), dynamic_shapes="all")


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("dim", ["batch", Dim.DYNAMIC, Dim.AUTO, Dim("batch", max=16)])
def test_an_example_of_size_0_or_1_is_dynamic(size: int, dim) -> None:
    model = torch.nn.Linear(4, 2)
    program = export(model, (torch.randn(size, 4),), dynamic_shapes={"input": {0: dim}})
    assert dims(program) == [True, False]
    for rows in (size, 3):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(program(x), model(x).detach())


def test_sizes_that_depend_on_each_other_are_enlarged_together() -> None:
    class Cached(torch.nn.Module):
        def forward(self, token, past, mask):
            return torch.cat([past, token], 1) * mask[:, :, None]

    args = (torch.randn(1, 1, 4), torch.randn(1, 6, 4), torch.ones(1, 7))
    names = {"token": {0: "b", 1: "new"}, "past": {0: "b", 1: "past"}, "mask": {0: "b", 1: Dim.DYNAMIC}}
    program = export(Cached(), args, dynamic_shapes=names)
    for batch, new, past in ((1, 1, 6), (2, 3, 5)):
        args = (torch.randn(batch, new, 4), torch.randn(batch, past, 4), torch.rand(batch, past + new))
        torch.testing.assert_close(program(*args), Cached()(*args))


def test_a_model_that_is_only_right_for_other_sizes_than_the_example_is_refused() -> None:
    with pytest.raises(DynamicShapeError, match="sizes of the example"):
        export(lambda x: x + 1 if x.shape[0] > 1 else x * 2, (torch.ones(1, 3),), dynamic_shapes={"x": {0: "n"}})


@pytest.mark.parametrize("length", [1, 3])
def test_a_condition_on_a_size_that_changes_nothing_is_dropped(length: int) -> None:
    class Choice(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            return torch.cond(x.sum() > 0, lambda x, y: x + y + 7, lambda x, y: y.relu(), (x, y))

    shapes = {"x": {0: "batch", 1: "length"}}
    program = export(Choice(), (torch.randn(2, length, 4),), dynamic_shapes=shapes)
    assert not program.constraints.conditions
    for x in (torch.ones(3, 1, 4), -torch.ones(1, 2, 4)):
        torch.testing.assert_close(program(x), Choice()(x))


def test_the_line_that_fixes_a_dimension_is_named() -> None:
    def function(x):
        y = x.relu()
        return y.view(3, 4) + 1

    with pytest.raises(DynamicShapeError) as caught:
        export(function, (torch.randn(3, 4),), dynamic_shapes={"x": {0: "batch"}})
    line = function.__code__.co_firstlineno + 2
    assert f"test_examples.py:{line}: return y.view(3, 4) + 1" in str(caught.value)
    assert "Dim.AUTO" not in str(caught.value)


@pytest.mark.parametrize("number, other", [(4, 7), (4.5, -1.25), (True, False), (1, 0)])
@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_number_that_is_declared_dynamic_is_an_input(number, other, by_keyword: bool) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x, flag=True, scale=None):
            return x * self.weight * scale if flag else x

    model = Scaled()
    args, kwargs = ((torch.randn(3),), {"scale": number}) if by_keyword else ((torch.randn(3), True, number), {})
    shapes = {"x": None, "scale": Dim.DYNAMIC} if by_keyword else {"x": None, "flag": None, "scale": "scale"}
    program = export(model, args, kwargs=kwargs, dynamic_shapes=shapes)
    assert program.input_names == ["x", "scale"]
    assert list(program.model.graph.initializers) == ["weight"]
    assert "forward" not in vars(model)
    call_args, call_kwargs = (args, {"scale": other}) if by_keyword else ((*args[:2], other), {})
    torch.testing.assert_close(program(*call_args, **call_kwargs), model(*call_args, **call_kwargs).detach())


def test_a_number_outside_of_its_bounds_is_refused() -> None:
    program = export(lambda x, n: x[:n] * 2, (torch.randn(9), 4), dynamic_shapes={"x": None, "n": "n"})
    x = torch.randn(9)
    for number in (0, 1, 7, 12):
        torch.testing.assert_close(program(x, number), x[:number] * 2)
    with pytest.raises(InvalidArgumentError, match="n >= 0"):
        program(x, -2)


@pytest.mark.parametrize(
    "value, other", [(4, 5), (2.5, 3.5), (True, False), (None, torch.ones(3)), ("sum", "mean"), (1, 1.0)]
)
def test_a_call_with_another_constant_is_refused(value, other) -> None:
    program = export(lambda x, option: x * 2, (torch.ones(3), value))
    program(torch.ones(3), value)
    with pytest.raises(InvalidArgumentError, match="exported for"):
        program(torch.ones(3), other)


def test_a_bert_with_one_sentence_serves_several() -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 50}
    model = BertModel(BertConfig(num_hidden_layers=1, **sizes)).eval()
    shapes = {"input_ids": {0: "batch", 1: "length"}}
    program = export(model, (torch.randint(0, 50, (1, 5)),), dynamic_shapes=shapes)
    # Attention asks whether the length is 1, so that this is a condition; the batch may have any size.
    assert not any("batch" in condition for condition in program.constraints.conditions)
    for size in ((1, 5), (3, 7)):
        ids = torch.randint(0, 50, size)
        with torch.no_grad():
            torch.testing.assert_close(program(ids)[0], model(ids)[0], rtol=1e-4, atol=1e-5)


def test_a_swin_with_one_image_serves_several() -> None:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(image_size=32, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4)
    model = SwinModel(config).eval()

    program = export(model, (torch.randn(1, 3, 32, 32),), dynamic_shapes={"pixel_values": {0: "batch"}})

    for batch in (1, 2, 5):
        pixels = torch.randn(batch, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(program(pixels)[0], model(pixels)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("example", [(1, 6), (1, 1), (2, 1)])
def test_a_llama_with_one_sentence_serves_several(example: tuple[int, int]) -> None:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 50}
    model = LlamaModel(LlamaConfig(num_hidden_layers=1, num_key_value_heads=2, use_cache=False, **sizes)).eval()

    program = export(model, (torch.randint(0, 50, example),), dynamic_shapes={"input_ids": {0: "batch", 1: "length"}})

    # The mask of a row is left out where there is one sentence or one word; what is computed is the same.
    assert program.constraints.conditions == ("length >= 1",)
    for size in ((1, 6), (3, 7), (1, 1), (4, 1)):
        ids = torch.randint(0, 50, size)
        with torch.no_grad():
            torch.testing.assert_close(program(ids)[0], model(ids)[0], rtol=1e-4, atol=1e-5)


def test_dimensions_of_something_without_any_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no dimensions"):
        export(lambda x, n: x * n, (torch.ones(3), 2), dynamic_shapes=({0: "a"}, {0: "b"}))


def test_keyword_arguments_keep_the_names_of_their_dimensions() -> None:
    class Sums(torch.nn.Module):
        def forward(self, a, b):
            return a.sum() + b.sum()

    kwargs = {"b": torch.ones(2), "a": torch.ones(3)}
    program = export(Sums(), kwargs=kwargs, dynamic_shapes={"a": {0: "of_a"}, "b": {0: "of_b"}})
    assert {v.name: str(v.shape[0]) for v in program.model.graph.inputs} == {"a": "of_a", "b": "of_b"}


def test_a_builtin_function_is_a_model() -> None:
    x = torch.randn(2, 3)
    program = export(torch.add, (x, x), dynamic_shapes=(({0: "n"}, {0: "n"}),))
    y = torch.randn(5, 3)
    torch.testing.assert_close(program(y, y), y + y)
    assert isinstance(program, onnx_fx_export.ONNXProgram)
