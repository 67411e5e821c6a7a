"""State that a model changes becomes inputs and outputs, or the export fails; in-place operators keep their meaning."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from both_exporters import TRACING, tracing
from torch.utils._pytree import tree_leaves

import onnx_fx_export
from onnx_fx_export import CaptureError, DynamicShapeError, MutationError, export
from onnx_fx_export.inputs.arguments import FunctionModule


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


class Window(torch.nn.Module):
    """Writes through a view, so that the graph has to be functionalized."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("history", torch.zeros(3, 2))

    def forward(self, x):
        self.history[:-1] = self.history[1:].clone()
        self.history[-1] = x
        return self.history.sum(0)


@pytest.mark.parametrize("model", [Counter, Window])
def test_mutated_buffers_are_refused_by_default(model) -> None:
    with pytest.raises(onnx_fx_export.MutationError, match='state="io"'):
        export(model(), (torch.ones(2),))


@pytest.mark.parametrize(("model", "name"), [(Counter, "total"), (Window, "history")])
def test_mutated_buffers_become_state(model, name: str) -> None:
    program = export(model(), (torch.ones(2),), state="io")
    assert program.state == {name: f"{name}.next"}
    assert program.input_names == ["x", name]
    eager = model()
    state = program.initial_state
    for step in range(5):
        x = torch.tensor([1.0 + step, -2.0 * step])
        outputs = program.run({"x": x, **state})
        torch.testing.assert_close(outputs["output"], eager(x))
        state = {source: outputs[following] for source, following in program.state.items()}


def test_a_mutated_input_may_have_any_size() -> None:
    def function(x, cache):
        cache[:, : x.shape[1]] = x * 2
        cache.mul_(2)
        return cache.sum(1)

    shapes = {"x": {0: "n", 1: "m"}, "cache": {0: "n", 1: "k"}}
    program = export(function, (torch.ones(2, 3), torch.ones(2, 6)), state="io", dynamic_shapes=shapes)
    x, cache = torch.randn(4, 2), torch.randn(4, 5)
    outputs = program.run({"x": x, "cache": cache})
    torch.testing.assert_close(outputs["output"], function(x, cache))
    torch.testing.assert_close(outputs["cache.next"], cache)


def test_mutated_inputs_become_state() -> None:
    def function(x, cache):
        cache.mul_(2)
        return x + cache

    with pytest.warns(UserWarning, match=r"input cache \(at .*test_mutation.py:\d+\) in place.*state=\"io\""):
        program = export(function, (torch.ones(2), torch.ones(2)))
    torch.testing.assert_close(program(torch.ones(2), torch.ones(2)), torch.full((2,), 3.0))
    program = export(function, (torch.ones(2), torch.ones(2)), state="io")
    outputs = program.run({"x": torch.ones(2), "cache": torch.tensor([1.0, 3.0])})
    torch.testing.assert_close(outputs["output"], torch.tensor([3.0, 7.0]))
    torch.testing.assert_close(outputs["cache.next"], torch.tensor([2.0, 6.0]))


def test_a_mutated_input_may_be_renamed() -> None:
    def function(cache):
        return cache.add_(1) * 2

    program = export(function, (torch.ones(2),), state="io", input_names=["memory"])
    assert program.state == {"memory": "memory.next"}


def test_batch_norm_in_training_mode_is_state() -> None:
    model = torch.nn.BatchNorm1d(3)
    with pytest.raises(onnx_fx_export.MutationError, match="running_mean"):
        export(model, (torch.randn(4, 3),))


def local_inplace(x):
    y = x + 1
    y.mul_(2)
    y += x
    return y.relu_()


def view_written(x):
    y = x.clone()
    y[:, 0] = 5
    y[1].add_(1)
    return y


def view_read_after_write(x):
    y = x * 1
    view = y.view(-1)
    y.add_(1)
    return view * 2


def result_of_inplace_used(x):
    y = x + 0.5
    z = y.add_(1)
    y.mul_(2)
    return z, y


@pytest.mark.parametrize(
    "function", [local_inplace, view_written, view_read_after_write, result_of_inplace_used], ids=lambda f: f.__name__
)
def test_inplace_operators_on_local_values(function) -> None:
    program = export(function, (torch.randn(3, 4),), dynamic_shapes={"x": {0: "n"}})
    x = torch.randn(5, 4)
    torch.testing.assert_close(program(x), function(x))


@tracing
def test_what_is_written_in_place_keeps_the_dtype(exporter: str) -> None:
    def function(x, y):
        equal, negated, product, greater = x.clone(), x.clone(), x.clone(), x.clone()
        return equal.eq_(y), negated.logical_not_(), product.mul_(y.int()), greater.gt_(1)

    x = torch.arange(-3, 3, dtype=torch.int8)
    results = tree_leaves(TRACING[exporter](function, (x, x.flip(0)))(x, x.flip(0)))
    torch.testing.assert_close(results, [*function(x, x.flip(0))])


def test_state_through_a_view_of_an_input_is_not_lost() -> None:
    def function(cache):
        cache.view(-1).add_(1)
        return cache * 2

    program = export(function, (torch.ones(2, 2),), state="io")
    outputs = program.run({"cache": torch.zeros(2, 2)})
    torch.testing.assert_close(outputs["cache.next"], torch.ones(2, 2))
    torch.testing.assert_close(outputs["output"], torch.full((2, 2), 2.0))


def test_verification_covers_the_state_and_leaves_the_model_as_it_was() -> None:
    model = Counter()
    export(model, (torch.ones(2),), state="io", verify=True)
    assert model.total.tolist() == [0.0, 0.0]

    def wrong_add(op, self, other, alpha=1):
        return op.Mul(op.Add(self, other), 1.0 if op.rank(self) == 0 else 3.0)

    table = {torch.ops.aten.add.Tensor: wrong_add}

    class Hidden(Counter):
        def forward(self, x):
            self.total.add_(x)
            return x * 2

    with pytest.raises(onnx_fx_export.VerificationError):
        export(Hidden(), (torch.ones(2),), state="io", verify=True, custom_translation_table=table)


def written_parts(x):
    y = x.clone()
    first, second = y.unbind(1)
    first.mul_(2)
    second[1:] = first[:-1]
    return y, first


def written_windows(x):
    y = x.clone()
    y.unfold(0, 2, 2).mul_(2)
    return y


def test_parts_of_a_tensor_are_written_at_every_size() -> None:
    program = export(written_parts, (torch.randn(6, 2),), dynamic_shapes=({0: "n"},))
    assert [str(dim) for dim in program.model.graph.inputs[0].shape] == ["n", "2"]
    for length in (3, 5, 9):
        x = torch.randn(length, 2)
        torch.testing.assert_close(program(x), written_parts(x))


def test_the_captured_program_stays_as_it_is() -> None:
    captured = torch.export.export(FunctionModule(written_parts), (torch.randn(6, 2),))
    before = str(captured.graph)
    export(captured)
    assert str(captured.graph) == before


def test_a_dimension_that_torch_fixes_on_the_way_is_told_of_with_the_write() -> None:
    line = written_windows.__code__.co_firstlineno + 2
    with pytest.raises(DynamicShapeError, match=rf"dimension 0 of x only(.|\n)*test_mutation.py:{line}"):
        export(written_windows, (torch.randn(6, 2),), dynamic_shapes=({0: "n"},))
    x = torch.randn(6, 2)
    torch.testing.assert_close(export(written_windows, (x,))(x), written_windows(x))


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[1:], lambda x: x.t()])
def test_a_written_input_that_another_one_sees_is_refused(view) -> None:
    def function(x, y):
        y.add_(1)
        return x.sum() + y.sum()

    x = torch.randn(3, 3)
    with pytest.raises(onnx_fx_export.MutationError, match="input y, which shares its memory with x"):
        export(function, (x, view(x)), state="io")
    args = (x, view(x).clone())
    program = export(function, args, state="io")
    expected = function(*(value.clone() for value in args))
    torch.testing.assert_close(program(*args), expected)


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.expand(2, 3, 4).masked_fill_(y > 0, 9),
        lambda y: y.expand(2, 3, 4).fill_(9),
        lambda y: y.t().unsqueeze(0).expand(2, -1, -1).zero_(),
        lambda y: y.unfold(1, 2, 1).zero_(),
    ],
)
def test_writes_to_memory_that_a_view_repeats_are_refused(write) -> None:
    """torch's functionalization loses them, or does not take them."""

    def read_later(x):
        y = x * 1
        write(y)
        return y + 1

    with pytest.raises(MutationError, match=r"share memory(.|\n)*test_mutation.py:\d+\n.*clone\(\)"):
        export(FunctionModule(read_later), (torch.randn(3, 4),))


def test_an_expanded_tensor_that_alone_is_read_later_is_written() -> None:
    function = FunctionModule(lambda x: (x * 1).expand(2, 3, 4).masked_fill_(x > 0, 9) + 1)
    x = torch.randn(3, 4)
    torch.testing.assert_close(export(function, (torch.randn(3, 4),))(x), function(x))


def test_a_part_of_an_expanded_tensor_is_written() -> None:
    def function(x):
        y = x * 1
        y.expand(2, 3, 4)[0].mul_(2)
        return y

    x = torch.randn(3, 4)
    torch.testing.assert_close(export(FunctionModule(function), (torch.randn(3, 4),))(x), function(x))


def test_what_torch_cannot_functionalize_is_told_of_with_its_line() -> None:
    def function(x, classes):
        y = x * 1
        shown = y.expand(2, 2, 3)
        y[0][0] = 2
        return shown + 1, torch.nn.functional.one_hot(classes).sum(-1)

    line = function.__code__.co_firstlineno + 4
    with pytest.raises(CaptureError, match=rf"size from the values(.|\n)*test_mutation.py:{line}:\n  .*one_hot"):
        export(FunctionModule(function), (torch.randn(2, 3), torch.tensor([0, 2])))


@dataclasses.dataclass
class History:
    """A container that computes when it is made, from a constant, as caches of transformers do."""

    values: torch.Tensor

    def __post_init__(self) -> None:
        self.values = torch.cat([torch.tensor([]), self.values])


class Filled(torch.nn.Module):
    """Writes in a way that torch has to functionalize, and has a constant of its own in a submodule."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        y[:, 0] = torch.tensor(2.0)
        y[:, 1:] = x[:, :-1]
        return y


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_containers_that_compute_when_they_are_made_go_in_and_come_out(taken: bool, given: bool) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filled = Filled()

        def forward(self, x, history):
            y = self.filled(x) + (history.values if taken else history)
            return (History(y), y * 2) if given else y

    def args(rows: int) -> tuple[Any, ...]:
        values = torch.randn(rows, 4)
        return torch.randn(rows, 4), History(values) if taken else values

    model, rows = Model(), torch.export.Dim("rows")
    program = export(model, args(2), dynamic_shapes=({0: rows}, [{0: rows}] if taken else {0: rows}))
    x, history = args(5)
    for actual, expected in zip(tree_leaves(program(x, history)), tree_leaves(model(x, history)), strict=True):
        torch.testing.assert_close(actual, expected)


def write_to_data(x):
    y = x * 2
    y.data.add_(1)
    y.data[0] = 5
    return y * 3


@pytest.mark.parametrize("function", [lambda x: x.data + 1, lambda x: x * 2 - (x * 3).data, write_to_data])
def test_data_of_a_tensor_is_the_tensor(function) -> None:
    program = export(FunctionModule(function), (torch.randn(3, 2),), dynamic_shapes=[{0: "n"}])

    x = torch.randn(5, 2)
    torch.testing.assert_close(program(x.clone()), function(x.clone()))


def assign_data(x):
    y = x * 2
    y.data = x + 5
    return y + 1


def test_assigned_data_is_refused_with_the_line() -> None:
    with pytest.raises(CaptureError, match=r"assigned \(at .*test_mutation\.py:\d+\).*copy_"):
        export(FunctionModule(assign_data), (torch.randn(3),))


# Index, and the shape of what is written; None for a number.
WRITTEN_AT: dict[str, tuple[Any, tuple[int, ...] | None]] = {
    "row": (lambda i: i[0], (1, 4)),
    "column": (lambda i: (slice(None), i[1]), None),
    "element": (lambda i: (i[0], i[1], i[0]), None),
    "behind an ellipsis": (lambda i: (..., i[1]), (1, 1)),
    "around an ellipsis": (lambda i: (i[0], ..., i[1]), (1,)),
    "beside numbers": (lambda i: (1, i[1], slice(1, None)), (3,)),
    "beside a slice": (lambda i: (slice(None, -1), slice(1, None), i[1]), None),
    "beside a new axis": (lambda i: (None, slice(None), i[0]), (1, 1, 1, 4)),
    "computed": (lambda i: (slice(None), (i[0] + 7) % i.shape[0]), None),
}


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("case", WRITTEN_AT)
def test_places_that_tensors_choose_are_written(case: str, added: bool) -> None:
    index, shape = WRITTEN_AT[case]

    class Model(torch.nn.Module):
        def forward(self, x, i):
            y, place = x.clone(), index(i)
            written = 2 if shape is None else torch.arange(float(torch.Size(shape).numel())).reshape(shape)
            if added:
                y[place] += 3
            else:
                y[place] = written
            return y

    dims = ({0: "rows", 1: "columns"}, {0: "places"})
    program = export(Model(), (torch.randn(5, 6, 4), torch.tensor([1, 3])), dynamic_shapes=dims)
    for rows, columns, places in ((5, 6, [1, 3]), (3, 7, [2, -1, 0]), (4, 4, [-4, 2])):
        inputs = torch.randn(rows, columns, 4), torch.tensor(places)
        torch.testing.assert_close(program(*inputs), Model()(*inputs))


def test_a_cache_is_written_at_the_place_that_is_given() -> None:
    class Cache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 8, 3))

        def forward(self, key, position):
            self.keys[:, position] = key
            return self.keys.sum(1)

    program, model = export(Cache(), (torch.randn(2, 3), torch.tensor(0)), state="io"), Cache()
    state = {}
    for position in (0, 3, 5, 3):
        inputs = {"key": torch.randn(2, 3), "position": torch.tensor(position)}
        result, state["keys"] = program.run({**{k: v.numpy() for k, v in inputs.items()}, **state}).values()
        torch.testing.assert_close(torch.as_tensor(result), model(**inputs))
