"""Sizes that divide, assertions, and other uses of sizes: the file is right at sizes other than the example's."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.export import Dim

from onnx_fx_export import CaptureError, ConversionError, DynamicShapeError, InvalidArgumentError, export
from onnx_fx_export.inputs.arguments import FunctionModule
from onnx_fx_export.sizes.constraints import CONSTRAINTS_KEY


def repeats(x, y):
    return torch.ones_like(x.repeat(y.shape[0] // x.shape[0], 1))


def remainder(x, y):
    return torch.cat([x.new_zeros(y.shape[0] % x.shape[0] + 1, 3), x])


def rounded_up(x, y):
    return x.repeat(-(-y.shape[0] // x.shape[0]), 1).copy_(x[:1])


def half_of_the_quotient(x, y):
    return torch.nn.functional.linear(y[: y.shape[0] // x.shape[0] // 2 + 1], x)


def power_of_two(x, y):
    return y.new_ones(2 ** (y.shape[0] // x.shape[0]), 1).expand(-1, 3) + 1


def written_part(x, y):
    return torch.slice_scatter(y, x[:1].expand(y.shape[0] // x.shape[0], -1), 0, 0, y.shape[0] // x.shape[0])


def contraction(x, y):
    return torch.einsum("ni,mi->nm", x.repeat(y.shape[0] // x.shape[0], 1), y)


DIVIDED = (repeats, remainder, rounded_up, half_of_the_quotient, power_of_two, written_part, contraction)


@pytest.mark.parametrize("function", DIVIDED)
def test_a_size_may_divide(function) -> None:
    dims = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    program = export(FunctionModule(function), (torch.randn(2, 3), torch.randn(6, 3)), dynamic_shapes=dims)
    for x, y in ((2, 6), (3, 7), (4, 17), (1, 5)):
        arguments = torch.randn(x, 3), torch.randn(y, 3)
        torch.testing.assert_close(program(*arguments), function(*arguments))


def checks_all(x):
    torch._check_tensor_all(x > -100, lambda: "too small")
    return x + 1


def asserts(x):
    torch._assert_async((x > -100).all())
    torch._assert_async((x > -100).all(), "too small")
    torch.ops.aten._assert_tensor_metadata(x, dtype=torch.float32)
    return x + 1


def asserts_what_has_no_lowering(x):
    torch._assert_async(torch.linalg.eigvals(x[:3, :3]).real.max() < 1e6)
    return x + 1


def states_bounds(x):
    torch._check(x.shape[0] < 1000)
    torch.ops.aten.sym_constrain_range_for_size(x.shape[0], min=0, max=1000)
    return x + 1


@pytest.mark.parametrize("function", [checks_all, asserts, asserts_what_has_no_lowering, states_bounds])
def test_assertions_vanish_with_what_is_computed_for_them_alone(function) -> None:
    program = export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: "rows"},))
    assert [node.op_type for node in program.model.graph] == ["Add"]
    assert not any("u0" in condition for condition in program.constraints.conditions)
    x = torch.randn(7, 3)
    torch.testing.assert_close(program(x), x + 1)


def test_assertions_vanish_inside_of_functions_too() -> None:
    class Checked(torch.nn.Module):
        def forward(self, x):
            torch._assert_async(torch.linalg.eigvals(x[:3, :3]).real.max() < 1e6)
            return x * 2

    program = export(
        torch.nn.Sequential(Checked(), torch.nn.ReLU()),
        (torch.randn(4, 3),),
        dynamic_shapes=({0: "rows"},),
        export_modules_as_functions={Checked},
    )
    (function,) = program.model.functions.values()
    assert [node.op_type for node in function] == ["Constant", "Mul"]
    x = torch.randn(7, 3)
    torch.testing.assert_close(program(x), (x * 2).relu())


def test_a_size_that_is_checked_and_used_is_kept() -> None:
    def function(x, n):
        length = n.item()
        torch._check(length >= 0)
        torch._check(length <= x.shape[0])
        return x[:length]

    program = export(FunctionModule(function), (torch.randn(4, 3), torch.tensor(2)), dynamic_shapes=({0: "rows"}, None))
    x = torch.randn(8, 3)
    torch.testing.assert_close(program(x, torch.tensor(5)), x[:5])


def test_assertions_as_results() -> None:
    def function(x):
        return torch._is_all_true(x > 0), torch._is_any_true(x > 0)

    program = export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: "rows"},))
    for x in (torch.ones(5, 3), -torch.ones(5, 3), torch.eye(3)):
        np.testing.assert_array_equal(program(x), function(x))


def rows_of_the_other(x, y):
    return x.reshape(y.shape[0], -1)


def rows_of_the_other_times_two(x, y):
    return x.view(2 * y.shape[0], -1) + 1


def a_part_of_the_rows(x, y):
    return x.reshape(x.shape[0] // 3, -1)


def groups_of_four(x, y):
    return x.view(-1, 4, 3).sum(1)


def both_together(x, y):
    return torch.cat([x, y]) + torch.cat([y, x])


def halves(x, y):
    return x.unflatten(0, (2, -1)).sum(0)


def one_shape_in_another(x, y):
    return x.view(y.shape[0], y.shape[1], -1)


# Examples as rows of x and of y, sizes that are right, sizes that break the condition.
CONDITIONS = {
    rows_of_the_other: ((8, 4), [(8, 4), (4, 6), (5, 5), (2, 1), (3, 9)], [(5, 4), (7, 5)]),
    rows_of_the_other_times_two: ((12, 3), [(8, 6), (4, 2), (6, 9), (6, 1)], [(4, 5), (7, 5)]),
    a_part_of_the_rows: ((6, 2), [(6, 2), (9, 2), (3, 2), (12, 3)], [(14, 2)]),
    groups_of_four: ((8, 2), [(8, 2), (4, 2), (16, 3)], [(7, 2), (2, 2)]),
    both_together: ((8, 2), [(8, 2), (4, 9), (1, 1)], []),
    halves: ((8, 2), [(8, 2), (2, 2), (6, 1)], [(7, 2), (1, 1)]),
    one_shape_in_another: ((8, 2), [(8, 2), (4, 4), (2, 1), (6, 3)], [(5, 2), (1, 2)]),
}


@pytest.mark.parametrize("function", CONDITIONS)
def test_conditions_are_kept_and_are_not_taken_for_fixed_sizes(function) -> None:
    (x, y), right, wrong = CONDITIONS[function]
    dims = ({0: "n"}, {0: "m"})
    program = export(FunctionModule(function), (torch.randn(x, 3), torch.randn(y, 3)), dynamic_shapes=dims)
    stored = {entry.key: entry.value for entry in program.model_proto.metadata_props}
    assert json.loads(stored.get(CONSTRAINTS_KEY, "[]")) == list(program.constraints.conditions)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    for x, y in right:
        arguments = torch.randn(x, 3), torch.randn(y, 3)
        torch.testing.assert_close(program(*arguments), function(*arguments))
        feeds = {value.name: a.numpy() for value, a in zip(session.get_inputs(), arguments, strict=False)}
        np.testing.assert_allclose(session.run(None, feeds)[0], function(*arguments), rtol=1e-5, atol=1e-6)
    for x, y in wrong:
        with pytest.raises(RuntimeError):
            function(torch.randn(x, 3), torch.randn(y, 3))
        with pytest.raises(InvalidArgumentError, match="captured for"):
            program(torch.randn(x, 3), torch.randn(y, 3))


def test_conditions_are_short_enough_to_be_read() -> None:
    example = torch.randn(6, 4), torch.randn(3, 2)
    program = export(FunctionModule(rows_of_the_other), example, dynamic_shapes=({0: "n"}, {0: "m"}))
    assert "4 * n % m == 0" in program.constraints.conditions
    assert len(program.constraints.conditions) <= 2


def test_a_condition_on_a_static_number_of_elements_leaves_its_divisors() -> None:
    example = torch.randn(6, 4), torch.randn(3, 2)
    program = export(FunctionModule(rows_of_the_other), example, dynamic_shapes=(None, {0: "m"}))
    for rows in (1, 2, 8, 12, 24):
        assert program(example[0], torch.randn(rows, 2)).shape == (rows, 24 // rows)
    with pytest.raises(InvalidArgumentError, match="24 % m == 0"):
        program(example[0], torch.randn(7, 2))


@pytest.mark.parametrize("wanted", [10, "half"])
def test_a_dimension_that_is_one_number_is_said_to_be_fixed(wanted) -> None:
    def function(x):
        return x.reshape(10, 3) if wanted == 10 else x[: int(x.shape[0] * 0.5)].reshape(5, 3)

    with pytest.raises(DynamicShapeError, match="is fixed by the model"):
        export(FunctionModule(function), (torch.randn(10, 3),), dynamic_shapes=({0: "n"},))


@pytest.mark.parametrize("condition", [lambda n: n > 5, lambda n: n % 2 == 0, lambda n: n // 2 != 1, lambda n: n != 7])
@pytest.mark.parametrize("reshaped", [False, True])
def test_a_branch_of_the_model_stays_a_condition(condition, reshaped) -> None:
    """The first one who asks is not always the model's code."""

    def function(x):
        if reshaped:
            x = x.view(2, -1, 3).reshape(-1, 3)
        return x + 1 if condition(x.shape[0]) else x

    program = export(FunctionModule(function), (torch.randn(8, 3),), dynamic_shapes=({0: "n"},))
    for rows in range(2, 12, 2):
        x = torch.randn(rows, 3)
        if condition(rows):
            torch.testing.assert_close(program(x), x + 1)
        else:
            with pytest.raises(InvalidArgumentError):
                program(x)


def same_name(x, y):
    return x.sum(0) + y.sum(0)


def larger_than_five(x, y):
    return x + 1 if x.shape[0] > 5 else x - 1


def only_even(x, y):
    return torch.nn.functional.relu(x) * 2 if x.shape[0] % 2 == 0 else x


# Dimensions, example, sizes that are right, sizes that break a condition, and what the error names.
CHECKED = {
    rows_of_the_other: ("nm", (8, 4), [(8, 4), (4, 6), (2, 1)], [(5, 4), (7, 5)], r"\bm\b"),
    a_part_of_the_rows: ("nm", (6, 2), [(9, 2), (3, 1)], [(14, 2)], "n // 3"),
    groups_of_four: ("nm", (8, 2), [(4, 1), (16, 3)], [(7, 2), (2, 1)], "n >= 4|n % 4"),
    larger_than_five: ("nm", (8, 2), [(6, 1)], [(5, 2), (0, 1)], "n > 5|n >= 6"),
    only_even: ("nm", (8, 2), [(2, 1), (0, 1)], [(5, 2)], "n % 2 == 0"),
    both_together: (("n", "n"), (4, 4), [(8, 8), (1, 1)], [(8, 7)], "axis0 == n"),
    same_name: (("n", "2*n"), (4, 8), [(8, 16), (1, 2)], [(8, 7)], r"axis0 == 2 \* n|axis0 == 2\*n"),
}


@pytest.mark.parametrize("opset", [7, 11, 20])
@pytest.mark.parametrize("function", CHECKED)
def test_the_graph_refuses_what_breaks_a_condition_if_it_is_asked_to(function, opset) -> None:
    (n, m), (x, y), right, wrong, text = CHECKED[function]
    example = torch.randn(x, 3), torch.randn(y, 3)
    dims = ({0: n}, {0: m})
    program = export(FunctionModule(function), example, dynamic_shapes=dims, size_checks=True, opset_version=opset)
    onnx.checker.check_model(program.model_proto, full_check=True)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [value.name for value in session.get_inputs()]

    def feeds(x, y):
        return dict(zip(names, (torch.randn(x, 3).numpy(), torch.randn(y, 3).numpy()), strict=False))

    for sizes in right:
        fed = feeds(*sizes)
        arguments = [torch.from_numpy(fed[name]) if name in fed else torch.randn(sizes[1], 3) for name in ("x", "y")]
        np.testing.assert_allclose(session.run(None, fed)[0], function(*arguments), rtol=1e-5, atol=1e-6)
    for sizes in wrong:
        with pytest.raises(Exception, match=f"size_check: .*({text})"):
            session.run(None, feeds(*sizes))


def test_a_model_without_conditions_is_the_same_with_size_checks() -> None:
    plain, checked = (
        export(torch.nn.ReLU(), (torch.randn(3),), dynamic_shapes=({0: "n"},), size_checks=wanted)
        for wanted in (False, True)
    )
    assert plain.model_proto == checked.model_proto


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.randn(8, 3))

    def forward(self, x):
        return x + self.positions[: x.shape[0]]


BOUNDS = {
    "<= 8": (Table(), 5),
    "> 5|>= 6": (FunctionModule(lambda x: x + 1 if x.shape[0] > 5 else x), 8),
    "% 2 == 0": (FunctionModule(lambda x: x.view(2, -1, 3)), 8),
}


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("dim", ["n", Dim.DYNAMIC], ids=["name", "DYNAMIC"])
def test_a_bound_that_is_not_declared_is_told_of(bound, dim) -> None:
    model, rows = BOUNDS[bound]
    with pytest.warns(UserWarning, match=f"only some of the declared sizes: .*({bound})"):
        export(model, (torch.randn(rows, 3),), dynamic_shapes=({0: dim},))


@pytest.mark.parametrize(
    ("model", "dim"),
    [(Table(), Dim("n", max=8)), (Table(), Dim.AUTO), (torch.nn.ReLU(), "n"), (FunctionModule(lambda x: x[1:]), "n")],
)
def test_sizes_that_work_and_bounds_that_are_declared_need_no_warning(model, dim, recwarn) -> None:
    program = export(model, (torch.randn(5, 3),), dynamic_shapes=({0: dim},))
    assert not [warning for warning in recwarn if warning.category is UserWarning]
    for rows in (1, 2, 8):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x), model(x))


def test_an_error_says_that_a_larger_example_may_help() -> None:
    def filled(x):
        y = x.clone()
        y[1:] = 0.0
        y[3:] = 1.0
        return y

    line = filled.__code__.co_firstlineno + 2
    with pytest.raises(DynamicShapeError, match=rf"(?s)test_sizes.py:{line}.*give a larger example"):
        export(FunctionModule(filled), (torch.randn(2, 3),), dynamic_shapes=({0: "n"},))
    program = export(FunctionModule(filled), (torch.randn(8, 3),), dynamic_shapes=({0: "n"},))
    for rows in (5, 11):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x), filled(x))


def test_a_larger_example_is_taken_where_sympy_cannot_solve_what_fixes_a_size() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.Conv2d(4, 4, 2, 2), torch.nn.AvgPool2d(7, 1)
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1)).eval()
    program = export(model, (torch.randn(2, 3, 28, 28),), dynamic_shapes=({0: "batch", 2: "height", 3: "width"},))
    for height, width in ((28, 28), (40, 33)):
        x = torch.randn(1, 3, height, width)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_larger_example_is_taken_where_a_part_of_the_given_one_is_too_small() -> None:
    def filled(x):
        y = x.clone()
        y[1:] = 0.0
        return y

    program = export(FunctionModule(filled), (torch.randn(2, 4),), dynamic_shapes=({0: "n"},))
    for rows in (1, 2, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(program(x), filled(x))


def first_of_each_row(x):
    return x.as_strided((2, 3), (1, 2), 1)


def written_by_strides(x):
    return x.as_strided_scatter(x.new_zeros(2, 2), (2, 2), (3, 1))


def of_columns(x):
    return x.mT.as_strided((2, 3), (1, 2), 1)


@pytest.mark.parametrize("function", [first_of_each_row, written_by_strides, of_columns])
def test_strides_address_a_tensor_of_dynamic_sizes(function) -> None:
    program = export(FunctionModule(function), (torch.randn(4, 5),), dynamic_shapes=({0: "n", 1: "m"},))
    for shape in ((4, 5), (7, 2), (3, 3), (1, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), function(x))
    with pytest.raises(InvalidArgumentError, match=r"captured for .* >= "):
        program(torch.randn(2, 2))


def test_windows_by_strides_of_a_tensor() -> None:
    """As Longformer takes them."""

    def function(x, mask):
        chunks = x.view(x.shape[0], torch.div(x.shape[1], 4, rounding_mode="trunc"), 4)
        size, stride = list(chunks.shape), list(chunks.stride())
        size[1], stride[1] = 2 * size[1] - 1, stride[1] // 2
        return chunks.as_strided(size, stride) * 2, mask.flip(0)

    example = torch.randn(2, 8), torch.ones(2, 3)
    dims = {0: "batch", 1: "length"}, {0: "batch"}
    program = export(FunctionModule(function), example, dynamic_shapes=dims)
    for batch, length in ((2, 8), (3, 20), (2, 4), (5, 16)):
        inputs = torch.randn(batch, length), torch.randn(batch, 3)
        for actual, expected in zip(program(*inputs), function(*inputs), strict=True):
            torch.testing.assert_close(actual, expected)


def test_strides_of_what_is_a_copy_for_larger_sizes_only() -> None:
    def function(x):
        y = x.permute(2, 1, 0).reshape(-1, x.shape[0])
        return y.as_strided((2, 2), (y.shape[1], 1)) * 2

    program = export(FunctionModule(function), (torch.randn(3, 4, 2),), dynamic_shapes=({0: "a", 2: "c"},))
    x = torch.randn(5, 4, 3)
    torch.testing.assert_close(program(x), function(x))
    with pytest.raises(InvalidArgumentError, match="c != 1"):
        program(torch.randn(3, 4, 1))


def test_strides_of_a_part_of_a_memory_are_refused() -> None:
    def function(x):
        return x[:, 1:].as_strided((2, 2), (1, 2), 1)

    with pytest.raises(ConversionError, match="an unknown layout"):
        export(FunctionModule(function), (torch.randn(4, 5),), dynamic_shapes=({0: "n", 1: "m"},))


@pytest.mark.parametrize("sizes", [(0, 0), (0, 1)])
def test_a_branch_that_several_small_sizes_decide_together_stays_a_condition(sizes) -> None:
    def function(x, y, z):
        return z + 1 if x.shape[0] + y.shape[0] == sum(sizes) else z

    example = torch.randn(3, 1), torch.randn(4, 1), torch.randn(2)
    program = export(FunctionModule(function), example, dynamic_shapes=({0: "n"}, {0: "m"}, None))
    with pytest.raises(InvalidArgumentError):
        program(torch.randn(sizes[0], 1), torch.randn(sizes[1], 1), example[2])
    torch.testing.assert_close(program(torch.randn(5, 1), torch.randn(2, 1), example[2]), example[2])


class Squeezed(torch.nn.Module):
    def forward(self, x):
        return x.squeeze(0) * 2


def test_a_squeezed_dimension_that_is_one_in_the_example_is_refused_with_its_line() -> None:
    with pytest.raises(DynamicShapeError, match=r"n != 1(.|\n)*Size 1 is treated differently at .*test_sizes.py:\d+"):
        export(Squeezed(), (torch.ones(1, 3),), dynamic_shapes=({0: "n"},))


@pytest.mark.parametrize("dims", [None, ({0: "n"},)])
def test_a_squeezed_dimension_that_data_decides_is_told_of(dims) -> None:
    with pytest.warns(UserWarning, match=r"size the data decides is squeezed at .*test_sizes.py:\d+"):
        export(FunctionModule(lambda x: x[x > 0].squeeze()), (torch.ones(4),), dynamic_shapes=dims)


def bcast(x, y):
    return x + y


def test_a_dynamic_dimension_that_is_broadcast_in_the_example_is_refused_with_advice() -> None:
    with pytest.raises(CaptureError, match="declare dimensions that are always 0 or 1 as static"):
        export(FunctionModule(bcast), (torch.ones(1, 3), torch.ones(4, 3)), dynamic_shapes=({0: "n"}, None))


def test_sizes_that_only_together_make_a_computed_size_one_are_taken(recwarn) -> None:
    def function(x):
        first, second = x.chunk(2, 1)
        return first * second

    program = export(FunctionModule(function), (torch.randn(2, 6),), dynamic_shapes=({0: "b", 1: "n"},))
    for shape in [(1, 2), (1, 6), (3, 2)]:
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), function(x))
    assert [str(each.message) for each in recwarn if "n % 2 == 0" in str(each.message)]
    assert not [each for each in recwarn if "size 1" in str(each.message)]
