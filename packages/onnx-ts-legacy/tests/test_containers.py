"""Optional values, lists, dicts, named tuples and texts of scripted programs."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035  TorchScript reads these annotations

import onnx
import pytest
import torch
from torch import Tensor
from ts_models import exported, over_opsets, refused_below

import onnx_ts_legacy
from onnx_ts_legacy.errors import OnnxExporterError

X, Y = torch.randn(2, 3), torch.randn(5, 3)
AXES = {"x": {0: "n"}}


class Scaled(NamedTuple):
    value: Tensor
    factor: int


@torch.jit.script
def none_or_tensor(x: Tensor) -> Tensor:
    y: Optional[Tensor] = None  # noqa: UP045
    if bool(x.sum() > 0):
        y = x * 2
    if y is not None:
        return y + 1
    return x - 1


@torch.jit.script
def first_of_loop(x: Tensor) -> Tensor:
    best: Optional[Tensor] = None  # noqa: UP045
    for i in range(x.size(0)):
        if best is None:
            best = x[i]
        else:
            best = torch.maximum(best, x[i])
    assert best is not None
    return best


@torch.jit.script
def found_row(x: Tensor) -> Tensor:
    found: Optional[Tensor] = None  # noqa: UP045
    place: Optional[int] = None  # noqa: UP045
    for i in range(x.size(0)):
        if bool(x[i].sum() > 1):
            found = x[i] * 3
            place = i
    if found is None or place is None:
        return x[0]
    return found + place


@torch.jit.script
def pair(x: Tensor) -> Tuple[Tensor, Optional[Tensor]]:  # noqa: UP006, UP045
    if bool(x.sum() > 0):
        return x, x * 2
    return x, None


@torch.jit.script
def optional_in_a_tuple(x: Tensor) -> Tensor:
    a, b = pair(x)
    if b is not None:
        a = a + b
    return a


@torch.jit.script
def optional_with_a_default(x: Tensor) -> Tensor:
    _, b = pair(x)
    if b is None:
        b = torch.zeros_like(x)
    return b + 1


@torch.jit.script
def texts_and_checks(x: Tensor) -> Tensor:
    n = x.size(0)
    print(f"size {n} of {x}")
    assert n > 0, f"empty {n}"
    assert bool(x.sum() < 1e9), "too large"
    if n > 1000:
        raise ValueError(f"too long: {n}")
    if f"a{3}" == "a3" and f"{{b}}{x.dim()}" == "{b}2":
        return x * 2
    raise RuntimeError("never")


@torch.jit.script
def list_methods(x: Tensor) -> Tensor:
    numbers = [3, 1, 2]
    numbers.sort(reverse=True)
    halves = [1.5, 0.5]
    halves.sort()
    numbers.remove(1)
    numbers *= 2
    letters = ["b", "a"]
    letters.sort()
    sizes = [x.size(0), 3, 3]
    k = 1 if letters[0] == "a" else 100
    return x + numbers[0] * 10 + numbers[-1] + halves[0] + len(numbers) + k + sizes.count(3) + letters.index("b")


@torch.jit.script
def dict_methods(x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
    table: Dict[str, Tensor] = {}  # noqa: UP006
    for i, key in enumerate(["a", "b", "c"]):
        table[key] = x * i
    if "b" in table:
        table["d"] = table.pop("b")
    table.update({"c": x * 3})
    for key, value in table.items():
        table[key] = value + len(table)
    return table


@torch.jit.script
def named_tuples(x: Tensor) -> Tensor:
    first = Scaled(x, 3)
    second = Scaled(value=first.value + 1, factor=first.factor * 2)
    return second.value * second.factor


@torch.jit.script
def zipped(x: Tensor) -> Tensor:
    total = x
    for i, (a, b) in enumerate(zip([x, x + 1], [x * 2, x * 3])):
        total = total + a * b * i
    return total


@torch.jit.script
def returned_lists(x: Tensor) -> List[Tensor]:  # noqa: UP006
    if bool(x.sum() > 0):
        return [x * 2, x + 1]
    y = x - 1
    return [y, y * 3]


@torch.jit.script
def list_that_shrinks(x: Tensor) -> Tensor:
    items: List[Tensor] = []  # noqa: UP006
    for i in range(x.size(0)):
        items.append(x[i])
    while len(items) > 2:
        last = items.pop()
        items[0] = items[0] + last
    items.insert(0, x[0])
    return torch.stack(items)


@torch.jit.script
def shifted_numbers(x: Tensor) -> Tensor:
    n = x.size(0)
    return x + (n << 2) + (n >> 1)


def doubled(x: Tensor) -> Tensor:
    return x * 2


@torch.jit.script
def forked(x: Tensor) -> Tensor:
    future = torch.jit.fork(doubled, x)
    return torch.jit.wait(future) + 1


PROGRAMS = [
    *(none_or_tensor, first_of_loop, found_row, optional_in_a_tuple, optional_with_a_default),
    *(texts_and_checks, list_methods, dict_methods, named_tuples, zipped, returned_lists),
    *(list_that_shrinks, shifted_numbers, forked),
]


LOWEST = {
    **dict.fromkeys(("none_or_tensor", "optional_in_a_tuple", "optional_with_a_default"), 9),
    "list_that_shrinks": 13,
}


@pytest.mark.parametrize(("program", "lowest", "opset"), over_opsets({p.name: p for p in PROGRAMS}, LOWEST))
def test_a_scripted_program_agrees_on_every_path(program: torch.jit.ScriptFunction, lowest: int, opset: int) -> None:
    with refused_below(lowest, opset):
        exported(program, (Y,), (X.abs(),), (-X.abs(),), (Y.abs(),), dynamic_axes=AXES, opset=opset)


def test_dict_outputs_have_the_names_of_their_keys() -> None:
    assert onnx_ts_legacy.export(dict_methods, (X,)).output_names == ["a", "c", "d"]


@torch.jit.script
def last_positive_row(x: Tensor) -> Tuple[Optional[Tensor], Optional[int], Tensor]:  # noqa: UP006, UP045
    row: Optional[Tensor] = None  # noqa: UP045
    place: Optional[int] = None  # noqa: UP045
    for i in range(x.size(0)):
        if bool(x[i].sum() > 0):
            row = x[i] * 2
            place = i
    return row, place, x


@pytest.mark.parametrize("opset", range(16, 27))
def test_a_result_that_is_none_or_not_has_an_optional_type(opset: int) -> None:
    program = onnx_ts_legacy.export(last_positive_row, (X,), dynamic_axes=AXES, opset_version=opset)

    onnx.checker.check_model(program.model_proto, full_check=True)
    for x in (Y.abs(), -Y.abs(), X):
        expected = last_positive_row(x)
        row, place, same = program(x)
        assert (row is None) == (expected[0] is None)
        if expected[0] is not None:
            torch.testing.assert_close(row, expected[0])
        assert (None if place is None else place.item()) == expected[1]
        assert torch.equal(same, x)


def test_optional_types_need_opset_16() -> None:
    with pytest.raises(OnnxExporterError, match="lowest opset that works is 16"):
        onnx_ts_legacy.export(last_positive_row, (X,), opset_version=15)


def test_a_tuple_that_is_none_or_not_is_no_output() -> None:
    @torch.jit.script
    def maybe_two(x: Tensor) -> Optional[Tuple[Tensor, Tensor]]:  # noqa: UP006, UP045
        return (x, x * 2) if bool(x.sum() > 0) else None

    with pytest.raises(OnnxExporterError, match="may be None"):
        onnx_ts_legacy.export(maybe_two, (X,))


def test_what_changes_a_dict_in_an_unknown_way_is_refused() -> None:
    @torch.jit.script
    def popped(x: Tensor) -> Tensor:
        table = {"a": x, "b": x * 2}
        table.popitem()
        return x + len(table)

    with pytest.raises(OnnxExporterError, match="popitem"):
        onnx_ts_legacy.export(popped, (X,))


def test_a_list_of_one_item_is_unpacked_to_the_item() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([row[:, 0::2] + 1 for row in x])

    program = onnx_ts_legacy.export(Rows(), (torch.randn(1, 3, 4),), input_names=["x"], dynamic_axes={"x": {1: "n"}})

    for n in (3, 7):
        x = torch.randn(1, n, 4)
        [y] = program(x)
        torch.testing.assert_close(y, Rows()(x))


@torch.jit.script
def like_an_unknown(x: Tensor) -> Tensor:
    unknown = torch._standard_gamma_grad(x, x)
    return x + torch.tensor(0.5, dtype=unknown.dtype)


def test_a_constant_like_what_cannot_be_converted_names_the_operator() -> None:
    with pytest.raises(OnnxExporterError, match="aten::_standard_gamma_grad"):
        onnx_ts_legacy.export(like_an_unknown, (X.abs(),))


@torch.jit.script
def item_at_a_key(x: Tensor) -> Tensor:
    table = {0: x, 1: x + 1, 7: x * 2}
    factors = {True: 3.0, False: 2.0}
    key = int(x[0, 0].item())
    y = table[key] if key in table else -x
    return y * factors[bool(x.sum() > 3)] + {0.0: 1, 1.0: 2, 7.0: 3, 9.0: 4, -1.0: 5}[float(x[0, 0].item())]


@pytest.mark.parametrize("opset", [11, 18])
def test_a_dict_is_read_at_a_key_that_data_decides(opset: int) -> None:
    values = (1.0, 0.0, 7.0, 9.0, -1.0)
    exported(item_at_a_key, *((torch.full((2, 3), value),) for value in values), opset=opset)


def test_a_key_that_a_dict_does_not_have_is_an_error() -> None:
    program = onnx_ts_legacy.export(item_at_a_key, (torch.ones(2, 3),))
    with pytest.raises(Exception, match="out of data bounds"):
        program(torch.full((2, 3), 4.0))


def test_a_dict_that_changes_at_a_key_that_data_decides_is_refused() -> None:
    @torch.jit.script
    def filled(x: Tensor) -> Tensor:
        table = {1: x}
        table[int(x[0, 0].item())] = x
        return table[1]

    @torch.jit.script
    def of_sizes(x: Tensor) -> Tensor:
        return {x.size(0): x, 1: x + 1}[2]

    for program in (filled, of_sizes):
        with pytest.raises(OnnxExporterError, match="at a key known only at run time"):
            onnx_ts_legacy.export(program, (X,), input_names=["x"], dynamic_axes=AXES)


def test_texts_are_formatted_where_they_are_known_or_not_read() -> None:
    @torch.jit.script
    def named(x: Tensor) -> tuple[Tensor, int]:
        text = "%d rows" % x.size(0)  # noqa: UP031
        assert x.size(0) > 1, text
        return x + 1, len("%s-%d%%" % ("ab", 12))  # noqa: UP031

    @torch.jit.script
    def read(x: Tensor) -> int:
        return len("%s: %d" % ("rows", x.size(0)))  # noqa: UP031

    exported(named, (X,), (Y,), dynamic_axes=AXES)
    with pytest.raises(OnnxExporterError, match="a string that depends on values computed at run time"):
        onnx_ts_legacy.export(read, (X,), input_names=["x"], dynamic_axes=AXES)
