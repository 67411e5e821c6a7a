"""What goes in and comes out of an exported program, as a table: names, structure and results at other sizes."""

from __future__ import annotations

import collections
import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import onnx
import pytest
import torch
from torch.utils import _pytree as pytree

from onnx_fx_export import InvalidArgumentError, export


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


@dataclasses.dataclass
class Boxes:
    corners: torch.Tensor
    count: int = 2
    labels: torch.Tensor | None = None


@dataclasses.dataclass
class Scene:
    boxes: Boxes
    extra: list[torch.Tensor]


def rows(n: int) -> torch.Tensor:
    return torch.randn(n, 3)


N = {0: "n"}


@dataclasses.dataclass
class Case:
    """One model: its function, a call for any size, declared dimensions, and what its values are called."""

    function: Callable[..., Any]
    args: Callable[[int], tuple[Any, ...]]
    shapes: Any
    inputs: list[str]
    outputs: list[str]
    kwargs: Callable[[int], dict[str, Any]] = lambda n: {}
    state: str = "error"


class WithConstants(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(3.0))
        self.register_buffer("table", torch.arange(4))

    def forward(self, x):
        return self.weight, self.table, torch.tensor([1, 2]), x * self.weight, self.weight


def encoder_output(x):
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=x.last_hidden_state * 2, hidden_states=(x.last_hidden_state, x[0] + 1))


def model_output(n: int):
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=rows(n))


def dynamic_cache(n: int):
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.randn(1, 2, n, 4), torch.randn(1, 2, n, 4), layer)
    return cache


def append_to_cache(cache, x):
    keys, _ = cache.update(x, x * 2, 0)
    return keys.sum(2), cache


def encoder_decoder_cache(n: int):
    from transformers import EncoderDecoderCache

    return EncoderDecoderCache(dynamic_cache(n), dynamic_cache(n + 1))


def append_to_both(cache, x):
    keys, _ = cache.self_attention_cache.update(x, x * 2, 1)
    return keys.sum(2) + cache.cross_attention_cache.layers[0].values.sum(2), cache


CACHE = [f"cache.{kind}.{layer}" for layer in range(2) for kind in ("key_cache", "value_cache")]
HALVES = ("self_attention_cache", "cross_attention_cache")
BOTH = [f"cache.{half}.{name.removeprefix('cache.')}" for half in HALVES for name in CACHE]

CASES = {
    "tuple": Case(lambda t: (t[0] + t[1], t), lambda n: ((rows(n), rows(n)),), {"t": (N, N)}, ["t.0", "t.1"],
                  ["output_0", "output_1.0", "output_1.1"]),
    "list": Case(lambda t: [t[0] * 2, [t[1]]], lambda n: ([rows(n), rows(2)],), {"t": [N, None]}, ["t.0", "t.1"],
                 ["output_0", "output_1.0"]),
    "dict": Case(lambda d: {"sum": d["b"] + d["a"]}, lambda n: ({"b": rows(n), "a": rows(n)},),
                 {"d": {"a": N, "b": N}}, ["d.b", "d.a"], ["sum"]),
    "dict whose dimensions are declared for some": Case(
        lambda d: d["a"].sum(0) + d["b"], lambda n: ({"a": rows(n), "b": rows(2)},), {"d": {"a": N}},
        ["d.a", "d.b"], ["output"]),
    "ordered dict": Case(
        lambda d: collections.OrderedDict(twice=d["x"] * 2, same=d["x"]),
        lambda n: (collections.OrderedDict(x=rows(n)),), {"d": {"x": N}}, ["d.x"], ["twice", "same"]),
    "deep": Case(
        lambda d: {"out": [(d["k"][0]["z"] + d["k"][1][0],)]}, lambda n: ({"k": [{"z": rows(n)}, (rows(n),)]},),
        {"d": {"k": [{"z": N}, (N,)]}}, ["d.k.0.z", "d.k.1.0"], ["out.0.0"]),
    "named tuple": Case(
        lambda p: Pair(p.right * 2, p.left), lambda n: (Pair(rows(n), rows(n)),), {"p": Pair(N, N)},
        ["p.left", "p.right"], ["left", "right"]),
    "named tuple by fields": Case(
        lambda p: Pair(p.left.sum(0), None), lambda n: (Pair(rows(n), None),), {"p": {"left": N}}, ["p.left"],
        ["left"]),
    "dataclass": Case(
        lambda b: Boxes(b.corners * b.count, b.count + 1, None), lambda n: (Boxes(rows(n), 4),),
        {"b": [N, None]}, ["b.corners"], ["corners", "count"]),
    "dataclass by fields": Case(
        lambda b: Boxes(b.labels, 7, b.corners), lambda n: (Boxes(rows(n), 2, rows(n)),),
        {"b": {"corners": N, "labels": N}}, ["b.corners", "b.labels"], ["corners", "count", "labels"]),
    "nested dataclasses": Case(
        lambda s: Scene(Boxes(s.boxes.corners + 1), [s.extra[0], s.boxes.corners]),
        lambda n: (Scene(Boxes(rows(n)), [rows(2)]),), {"s": {"boxes": {"corners": N}}},
        ["s.boxes.corners", "s.extra.0"], ["boxes.corners", "boxes.count", "extra.0", "extra.1"]),
    "none": Case(lambda x, y, z=None: (x if z is None else x + z, None, y), lambda n: (rows(n), None),
                 {"x": N, "y": None}, ["x"], ["output_0"]),
    "numbers as constants": Case(
        lambda x, i, f, b, o: (x * i + f if b else x, i + 1, f * 2, not b, o), lambda n: (rows(n), 3, 2.5, True, "sum"),
        {"x": N, "i": None, "f": None, "b": None, "o": None}, ["x"], [f"output_{i}" for i in range(4)]),
    "numbers as inputs": Case(
        lambda x, i, f: (x * i + f, x.shape[0] + i), lambda n: (rows(n), n, n / 2), {"x": N, "i": "i", "f": "f"},
        ["x", "i", "f"], ["output_0", "output_1"]),
    "further positional arguments": Case(
        lambda x, *more: x + more[0] + more[1], lambda n: (rows(n), rows(n), rows(n)), {"x": N, "more": (N, N)},
        ["x", "more.0", "more.1"], ["output"]),
    "further keyword arguments": Case(
        lambda x, **more: x + more["a"] - more["b"], lambda n: (rows(n),), {"x": N, "a": N, "b": N}, ["x", "b", "a"],
        ["output"], lambda n: {"b": rows(n), "a": rows(n)}),
    "keyword arguments": Case(
        lambda x, *, scale, bias=None: x * scale, lambda n: (rows(n),), {"x": N, "scale": None}, ["x", "scale"],
        ["output"], lambda n: {"scale": torch.randn(3)}),
    "output that is an input": Case(lambda x: x, lambda n: (rows(n),), {"x": N}, ["x"], ["output"]),
    "output that is an input, twice": Case(lambda x: {"x": x, "y": x}, lambda n: (rows(n),), {"x": N}, ["x"],
                                           ["x.out", "y"]),
    "output that is repeated": Case(
        lambda x: (y := x + 1, {"again": y}, y), lambda n: (rows(n),), {"x": N}, ["x"],
        ["output_0", "output_1.again", "output_2"]),
    "output that is a constant": Case(
        WithConstants(), lambda n: (rows(n),), {"x": N}, ["x"], [f"output_{i}" for i in range(5)]),
    "numbers of dynamic sizes": Case(
        lambda x: (x.shape[0] * 2, x.shape[0] / 2, x.shape[0] > 1, 3), lambda n: (rows(n),), {"x": N}, ["x"],
        [f"output_{i}" for i in range(4)]),
    "an input that is not used": Case(
        lambda x, unused: x * 2, lambda n: (rows(n), rows(n)), {"x": N, "unused": N}, ["x", "unused"], ["output"]),
    "model output": Case(
        encoder_output, lambda n: (model_output(n),), {"x": [N]}, ["x.last_hidden_state"],
        ["last_hidden_state", "hidden_states.0", "hidden_states.1"]),
    "dynamic cache": Case(
        append_to_cache, lambda n: (dynamic_cache(n), torch.randn(1, 2, 3, 4)),
        {"cache": [{2: "n"}] * 4, "x": None}, [*CACHE, "x"],
        ["output_0", *(name.replace("cache.", "output_1.", 1) for name in CACHE)]),
    "encoder-decoder cache": Case(
        append_to_both, lambda n: (encoder_decoder_cache(n), torch.randn(1, 2, 3, 4)),
        {"cache": [*[{2: "n"}] * 4, *[{2: "m"}] * 4], "x": None}, [*BOTH, "x"],
        ["output_0", *(name.replace("cache.", "output_1.", 1) for name in BOTH)]),
}  # fmt: skip


def call(model: Any, args: Any, kwargs: Any) -> Any:
    with torch.no_grad():
        return model(*copy.deepcopy(args), **copy.deepcopy(kwargs))


def same(actual: Any, expected: Any) -> None:
    mine, structure = pytree.tree_flatten(actual)
    theirs, wanted = pytree.tree_flatten(expected)
    assert structure == wanted
    for left, right in zip(mine, theirs, strict=True):
        assert type(left) is type(right) or isinstance(right, torch.Tensor)
        torch.testing.assert_close(left, right) if isinstance(right, torch.Tensor) else None
        assert isinstance(right, torch.Tensor) or left == right


@pytest.mark.parametrize("name", CASES)
def test_values_go_in_and_come_out_as_in_torch(name: str) -> None:
    case = CASES[name]
    program = export(case.function, case.args(4), kwargs=case.kwargs(4), dynamic_shapes=case.shapes)
    assert program.input_names == case.inputs
    assert program.output_names == case.outputs
    onnx.checker.check_model(program.model_proto, full_check=True)
    for n in (7, 1, 4):
        args, kwargs = case.args(n), case.kwargs(n)
        same(program(*copy.deepcopy(args), **kwargs), call(case.function, args, kwargs))


@pytest.mark.parametrize("name", ["deep", "named tuple", "dataclass by fields", "keyword arguments"])
def test_every_input_and_output_can_be_renamed(name: str) -> None:
    case = CASES[name]
    inputs, outputs = [f"in{i}" for i in range(len(case.inputs))], [f"out{i}" for i in range(len(case.outputs))]
    names = {"input_names": inputs, "output_names": outputs}
    program = export(case.function, case.args(4), kwargs=case.kwargs(4), dynamic_shapes=case.shapes, **names)
    assert (program.input_names, program.output_names) == (inputs, outputs)
    args, kwargs = case.args(5), case.kwargs(5)
    same(program(*args, **kwargs), call(case.function, args, kwargs))


NESTED = ((rows(4), rows(4)), {"scale": torch.randn(3)})
NAMES = ["left", "right", "scale"]
DECLARATIONS: dict[str, dict[str, Any]] = {
    "by parameter": {"dynamic_shapes": {"pair": (N, N), "options": None}},
    "by parameter, flat": {"dynamic_shapes": {"pair": [N, N], "options": [None]}},
    "by position": {"dynamic_shapes": ((N, N), None)},
    "by input name": {"dynamic_shapes": {"left": N, "right": N}, "input_names": NAMES},
    "by name from the structure": {"dynamic_shapes": {"pair.0": N, "pair.1": N}},
    "axes by input name": {"dynamic_axes": {"left": N, "right": N}, "input_names": NAMES},
    "axes by name from the structure": {"dynamic_axes": {"pair.0": N, "pair.1": N}},
    "axes by parameter": {"dynamic_axes": {"pair": N}},
    "axes from the end": {"dynamic_axes": {"pair": {-2: "n"}}},
    "axes with those of the output": {"dynamic_axes": {"pair": N, "output": N}},
    "from examples": {"dynamic_shapes": "auto"},
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_dimensions_of_nested_arguments_are_declared_in_many_ways(name: str) -> None:
    def function(pair, options):
        return (pair[0] + pair[1]) * options["scale"]

    declaration = DECLARATIONS[name]
    smaller = ((rows(3), rows(3)), {"scale": torch.randn(3)})
    program = export(function, [NESTED, smaller] if name == "from examples" else NESTED, **declaration)
    dims = [[str(dim) for dim in value.shape] for value in (*program.model.graph.inputs, *program.model.graph.outputs)]
    if name == "from examples":
        assert dims == [[dims[0][0], "3"], [dims[0][0], "3"], ["3"], [dims[0][0], "3"]]
        assert not dims[0][0].isdigit()
    else:
        assert dims == [["n", "3"], ["n", "3"], ["3"], ["n", "3"]]
    args = ((rows(6), rows(6)), {"scale": torch.randn(3)})
    torch.testing.assert_close(program(*args), function(*args))


class Weighted(torch.nn.Module):
    def forward(self, x, more):
        return x * 2 + more["y"] * 3 - more["z"][0]


def test_a_tensor_that_is_passed_twice_is_two_inputs() -> None:
    x = torch.randn(4, 3)
    names = {0: "n"}
    program = export(Weighted(), (x, {"y": x, "z": [x]}), dynamic_shapes=(names, {"y": names, "z": [names]}))
    assert [value.name for value in program.model.graph.inputs] == ["x", "more.y", "more.z.0"]
    other = (torch.randn(5, 3), {"y": torch.randn(5, 3), "z": [torch.randn(5, 3)]})
    torch.testing.assert_close(program(*other), Weighted()(*other))


def test_attention_to_itself_takes_other_keys_too() -> None:
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    program = export(model, (x, x, x), kwargs={"need_weights": False}, verify=True)
    other = [torch.randn(2, 3, 8) for _ in range(3)]
    expected = model(*other, need_weights=False)[0].detach()
    torch.testing.assert_close(program(*other, need_weights=False)[0], expected)


def test_a_captured_program_that_took_two_inputs_for_one_is_told_of() -> None:
    x = torch.randn(4, 3)
    captured = torch.export.export(Weighted(), (x, {"y": x, "z": [torch.randn(4, 3)]}))
    with pytest.warns(UserWarning, match="x, more_y.* one tensor"):
        export(captured)
    distinct = torch.export.export(Weighted(), (x, {"y": x.clone(), "z": [torch.randn(4, 3)]}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export(distinct)


class Named(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return {"linear": self.second(torch.relu(self.first(x))), "scores": x.sum()}


@pytest.mark.parametrize("options", [
    {},
    {"output_names": ["relu", "linear"]},
    {"output_names": ["val_0", "constant_0"]},
    {"input_names": ["linear"], "output_names": ["linear_1", "relu"]},
])  # fmt: skip
def test_names_of_the_boundary_come_before_those_inside(options) -> None:
    program = export(Named(), (torch.randn(2, 3),), **options)
    assert [value.name for value in program.model.graph.inputs] == options.get("input_names", ["x"])
    assert [value.name for value in program.model.graph.outputs] == options.get("output_names", ["linear", "scores"])
    onnx.checker.check_model(program.model_proto, full_check=True)
    x = torch.randn(2, 3)
    model = Named()
    assert program.apply_weights(model.state_dict()) == []
    torch.testing.assert_close(program(x), {name: value.detach() for name, value in model(x).items()})


@pytest.mark.parametrize(("options", "message"), [
    ({"output_names": ["o", "o"]}, "another"),
    ({"input_names": ["o"], "output_names": ["o"]}, "another"),
    ({"output_names": ["x"]}, "an input"),
    ({"output_names": ["first.weight"]}, "a weight"),
    ({"input_names": ["first.weight"]}, "a weight"),
    ({"input_names": "x"}, "list of strings"),
    ({"output_names": [""]}, "list of names"),
    ({"output_names": [1]}, "list of strings"),
])  # fmt: skip
def test_names_that_cannot_be_given_are_refused(options, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        export(Named(), (torch.randn(2, 3),), **options)


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any = None


def test_dimensions_are_declared_in_a_dataclass_of_their_own() -> None:
    def function(pair):
        return Pair(pair.left * 2, pair.right)

    example, other = Pair(torch.randn(3), torch.randn(2)), Pair(torch.randn(5), torch.randn(2))
    program = export(function, (example,), dynamic_shapes={"pair": Pair({0: "n"})})
    assert [str(value.shape) for value in program.model.graph.inputs] == ["[n]", "[2]"]
    torch.testing.assert_close(program(other).left, other.left * 2)


@pytest.mark.parametrize(("number", "other"), [(float("nan"), 1.0), (0.0, -0.0), (float("inf"), -float("inf"))])
def test_a_constant_is_the_number_that_it_was(number: float, other: float) -> None:
    program = export(lambda x, number: x / number, (torch.ones(2), number))
    torch.testing.assert_close(program(torch.ones(2), float(str(number))), torch.ones(2) / number, equal_nan=True)
    with pytest.raises(InvalidArgumentError, match="exported for"):
        program(torch.ones(2), other)
