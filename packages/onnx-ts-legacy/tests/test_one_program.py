"""Whichever exporter made a program, and on whichever path, it is used in the same way."""

from __future__ import annotations

import collections
import dataclasses
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import onnx_ts_legacy
import onnx_verify
from onnxops_core import OnnxExporterError

fx = pytest.importorskip("onnx_fx_export", reason="the programs of both exporters are compared")


def fallen_back(model: Any, *args: Any, **options: Any) -> Any:
    """Export through the fallback, as if torch.export could not capture the model."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(torch.export, "export", refusing)
        return fx.export(model, *args, fallback=True, **options)


def refusing(*args: Any, **options: Any) -> Any:
    raise RuntimeError("not today")


def replaced(model: Any, *args: Any, **options: Any) -> Any:
    with fx.replace_torch_onnx():
        return torch.onnx.export(model, *args, **options)


def scripted(model: Any, *args: Any, **options: Any) -> Any:
    return onnx_ts_legacy.export(torch.jit.script(model), *args, **options)


PATHS: dict[str, Callable[..., Any]] = {
    "fx": fx.export,
    "traced": onnx_ts_legacy.export,
    "scripted": scripted,
    "fx dynamo=False": lambda model, *args, **options: fx.export(model, *args, dynamo=False, **options),
    "fx script": lambda model, *args, **options: fx.export(torch.jit.script(model), *args, **options),
    "fallback": fallen_back,
    "torch.onnx": replaced,
    "torch.onnx dynamo=False": lambda model, *args, **options: replaced(model, *args, dynamo=False, **options),
}
ANSWERS = {"traced": list, "scripted": list, "torch.onnx": tuple, "torch.onnx dynamo=False": tuple}


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def export(path: str) -> Iterator[Callable[..., Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        yield PATHS[path]


class Nested(nn.Module):
    """Tensors in a tuple and in a dict, and a dict in a tuple as result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(
        self,
        x: Tensor,
        pair: Tuple[Tensor, Tensor],  # noqa: UP006
        more: Dict[str, Tensor],  # noqa: UP006
    ) -> Tuple[Tensor, Dict[str, Tensor]]:  # noqa: UP006
        y = self.linear(x) + pair[0] - 2 * pair[1]
        return y, {"scaled": y * more["a"] - more["b"], "twice": x * 2}


INPUTS = ["x", "first", "second", "a", "b"]


def tensors(rows: int) -> dict[str, Tensor]:
    return {name: torch.randn(rows, 3 if name == "x" else 2) for name in INPUTS}


def arguments(rows: int) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    found = tensors(rows)
    return (found["x"], (found["first"], found["second"]), {"a": found["a"], "b": found["b"]}), found


def nested(export: Callable[..., Any], model: nn.Module) -> Any:
    args, _ = arguments(2)
    return export(model, (*args, {}), input_names=INPUTS, dynamic_axes={name: {0: "n"} for name in INPUTS})


def assert_answers(path: str, actual: Any, expected: Any) -> None:
    """Assert that an answer has the form of its path, and these contents."""
    kind = ANSWERS.get(path)
    if kind is not None:
        assert type(actual) is kind
        expected = kind(leaf for leaf in pytree.tree_leaves(expected) if leaf is not None)
    torch.testing.assert_close(actual, expected, check_dtype=True)


def test_a_call_takes_what_the_model_takes_in_any_order(path: str, export: Callable[..., Any]) -> None:
    model = Nested()
    program = nested(export, model)
    (x, pair, more), named = arguments(5)
    expected = model(x, pair, more)
    reordered = dict(reversed(more.items()))

    assert program.input_names == INPUTS
    assert_answers(path, program(x, pair, more), expected)
    assert_answers(path, program(more=reordered, pair=pair, x=x), expected)
    assert_answers(path, program(x, more=reordered, pair=pair), expected)
    assert_answers(path, program(**named), expected)  # by the names of the inputs
    outputs = program.run(named)
    torch.testing.assert_close(list(outputs.values()), pytree.tree_leaves(expected))
    assert list(outputs) == program.output_names


def test_a_call_that_does_not_fit_is_refused(export: Callable[..., Any]) -> None:
    program = nested(export, Nested())
    (x, pair, more), named = arguments(5)

    for wrong in (
        lambda: program(x),
        lambda: program(x, list(pair), more),
        lambda: program(x, (*pair, x), more),
        lambda: program(x, pair, {"a": x}),
        lambda: program(x, pair, more, x),
        lambda: program(x.double(), pair, more),
        lambda: program(x.int(), pair, more),
        lambda: program(None, pair, more),
        lambda: program(x, pair, more, first=x),
        lambda: program(x[:3], pair, more),
        lambda: program(x, pair, more, other=x),
        lambda: program.run({name: value for name, value in named.items() if name != "a"}),
        lambda: program.run({**named, "other": x}),
    ):
        with pytest.raises(fx.InvalidArgumentError):
            wrong()


class Doubled(nn.Module):
    def forward(self, x: Tensor, double: bool = True) -> Tensor:
        return x * 2 if double else x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [(True,), ()])
def test_a_number_is_what_was_exported_or_an_input(
    path: str, export: Callable[..., Any], given: tuple[bool, ...]
) -> None:
    x = torch.randn(2, 3)
    program = export(Doubled(), (x, *given))

    for call in ((x, True), (x,)):
        torch.testing.assert_close(pytree.tree_leaves(program(*call)), [x * 2])
    if "double" in program.input_names:
        torch.testing.assert_close(pytree.tree_leaves(program(x, False)), [x])
    else:
        with pytest.raises(fx.InvalidArgumentError):
            program(x, False)


@pytest.mark.parametrize("place", ["None", "mask"])
def test_arguments_that_are_none_are_constants(path: str, export: Callable[..., Any], place: str) -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Optional[Tensor] = None, bias: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
            if mask is not None:
                x = x * mask
            if bias is not None:
                x = x - bias
            return x

    x, y = torch.randn(2, 3), torch.randn(2, 3)
    given = {"bias": y} if place == "None" else {"mask": y}
    program = export(Masked(), (x,), kwargs=given)
    expected = Masked()(x, **given)

    assert program.input_names == ["x", *given]
    assert_answers(path, program(x, **given), expected)
    assert_answers(path, program(x, *((None, y) if place == "None" else (y, None))), expected)
    with pytest.raises(fx.InvalidArgumentError):
        program(x, mask=y, bias=y)


class Collecting(nn.Module):
    def forward(self, x: Tensor, scale: Tensor | None = None, **more: Tensor) -> Tensor:
        return (x if scale is None else x * scale) - more["shift"]


@pytest.mark.parametrize("path", [path for path in PATHS if "script" not in path])
def test_a_dictionary_at_the_end_holds_what_a_model_collects(path: str, export: Callable[..., Any]) -> None:
    x, shift = torch.randn(2, 3), torch.randn(2, 3)
    program = export(Collecting(), (x, {"shift": shift}))
    [actual] = pytree.tree_leaves(program(shift, shift=x))
    torch.testing.assert_close(actual, shift - x)


@dataclasses.dataclass
class Point:
    across: Tensor
    along: Tensor


torch.export.register_dataclass(Point)
Pair = collections.namedtuple("Pair", ["first", "second"])


class Containers(nn.Module):
    def forward(self, point: Point, pair: Pair, table: collections.OrderedDict) -> tuple:
        ordered = collections.OrderedDict(z=table["z"] * 3, a=table["a"])
        return Point(point.along * 2, point.across), Pair(pair.second + 1, None), ordered, [pair.first - 1]


@pytest.mark.parametrize("path", [path for path in PATHS if "script" not in path])
def test_containers_go_in_and_come_out(path: str, export: Callable[..., Any]) -> None:
    x = torch.randn(2, 3)
    table = collections.OrderedDict(a=x + 1, z=x)
    args = Point(x, -x), Pair(x, x + 2), table
    # Another dictionary at the end says that the last argument is not a dictionary of keyword arguments.
    program = export(Containers(), (*args, {}) if path == "traced" else args)
    expected = pytree.tree_leaves(Containers()(*args))

    actual = program(*args)
    torch.testing.assert_close(
        [leaf for leaf in pytree.tree_leaves(actual) if leaf is not None],
        [leaf for leaf in expected if leaf is not None],
    )
    if path not in ANSWERS:
        assert [type(part) for part in actual] == [Point, Pair, collections.OrderedDict, list]
        assert list(actual[2]) == ["z", "a"]
    program.verify(*args)
    torch.testing.assert_close(
        pytree.tree_leaves(program(*args[:2], collections.OrderedDict(z=x, a=x + 1))), pytree.tree_leaves(actual)
    )


class Sizes(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, int, int, bool]:  # noqa: UP006
        return x + 1, x.shape[0], x.shape[0] * 2 + 1, x.shape[0] > 3


def test_sizes_come_out_as_numbers(path: str, export: Callable[..., Any]) -> None:
    x = torch.randn(2, 3)
    program = export(Sizes(), (x,), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    if path in ANSWERS:
        program.answer = "structure"

    for rows in (2, 5):
        actual = program(torch.ones(rows, 3))
        assert actual[1:] == (rows, 2 * rows + 1, rows > 3)
        assert [type(number) for number in actual[1:]] == [int, int, bool]
        program.verify(torch.ones(rows, 3))


def test_lists_whose_length_the_runtime_decides_are_lists() -> None:
    @torch.jit.script
    def rows(x: Tensor):
        found = [x[0]]
        lengths = [0]
        for i in range(1, x.shape[0]):
            found.append(x[i, : i + 1])
            lengths.append(i)
        return found, lengths

    x = torch.randn(4, 5)
    program = fx.export(rows, (x[:2],), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    tensors, lengths = program(x)
    torch.testing.assert_close(tensors, [x[0], x[1, :2], x[2, :3], x[3, :4]])
    assert lengths == [0, 1, 2, 3]
    program.verify(x)


# ---- state


class Remembering(nn.Module):
    """Two buffers, one of them in a submodule, that are written in the other order than they are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(3))
        self.inner = nn.BatchNorm1d(3)
        self.inner.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.inner.count.add_(1)
        self.total.add_(x.sum(0))
        return x * self.total + self.inner.count


def test_state_has_one_spelling_and_one_order(path: str, export: Callable[..., Any]) -> None:
    model = Remembering().eval()
    program = export(model, (torch.randn(2, 3),), input_names=["x"], state="io")
    names = list(program.initial_state)

    assert set(names) == {"total", "inner.count"}
    assert program.input_names == ["x", *names]
    assert program.output_names[1:] == [f"{name}.next" for name in names]
    assert program.state == program.state_outputs == {name: f"{name}.next" for name in names}
    state = dict(program.initial_state)
    for _ in range(3):
        x = torch.randn(2, 3)
        outputs = program.run({"x": x, **state})
        by_keyword, expected = program(x, **state), model(x)
        torch.testing.assert_close(outputs[program.output_names[0]], expected)
        leaf = by_keyword if path not in ANSWERS else by_keyword[0]
        torch.testing.assert_close(leaf, expected)
        state = {name: outputs[output] for name, output in program.state.items()}
    torch.testing.assert_close(state, {name: dict(model.named_buffers())[name] for name in state})


def test_state_that_a_call_leaves_out_is_that_of_the_export(export: Callable[..., Any]) -> None:
    model = Remembering().eval()
    program = export(model, (torch.randn(2, 3),), input_names=["x"], state="io")
    x = torch.randn(2, 3)
    first = pytree.tree_leaves(program(x))[0]

    torch.testing.assert_close(pytree.tree_leaves(program(x))[0], first)
    torch.testing.assert_close(program.run({"x": x})[program.output_names[0]], first)
    torch.testing.assert_close(first, model(x))


# ---- verification


def test_a_program_is_compared_with_the_original_on_other_arguments(export: Callable[..., Any]) -> None:
    model = Nested()
    program = nested(export, model)
    (x, pair, more), named = arguments(7)

    program.verify(x, more=dict(reversed(more.items())), pair=pair)
    program.verify(**named)
    with pytest.raises(fx.InvalidArgumentError):
        program.verify(x, pair)
    program.apply_weights({"linear.bias": torch.full((2,), 9.0)})
    with pytest.raises(fx.VerificationError):
        program.verify(x, pair, more)
    program.release()
    with pytest.raises(OnnxExporterError, match="released"):
        program.verify(x, pair, more)


def test_the_state_is_compared_as_well_whatever_the_model_did_meanwhile(export: Callable[..., Any]) -> None:
    model = Remembering().eval()
    program = export(model, (torch.randn(2, 3),), input_names=["x"], state="io")
    model(torch.randn(2, 3))
    before = model.total.clone()

    program.verify(torch.randn(2, 3))
    assert torch.equal(model.total, before)
    # The first output stays right, and the state is wrong.
    outputs = {value.name: value for value in program.model.graph.outputs}
    node = outputs["inner.count.next"].producer()
    node.replace_input_with(1, node.inputs[0])
    program.initialize_inference_session()
    with pytest.raises(fx.VerificationError):
        program.verify(torch.randn(2, 3))


def test_the_original_is_compared_in_the_mode_of_the_export(export: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval()
    program = export(model, (torch.randn(2, 3),))
    model.train()

    program.verify(torch.randn(2, 3))
    assert model[1].training


class Changing(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return x * y


@pytest.mark.filterwarnings("ignore")
def test_an_input_that_is_changed_in_place_has_a_next_value(path: str, export: Callable[..., Any]) -> None:
    program = export(Changing(), (torch.ones(2), torch.ones(2)), input_names=["x", "given"], state="io")
    x, y = torch.randn(2), torch.randn(2)

    assert program.output_names[1:] == ["given.next"]
    assert program.state == {"given": "given.next"}
    torch.testing.assert_close(program.run({"x": x, "given": y})["given.next"], y + 1)
    program.verify(x, y)
    assert onnx_verify.compare(Changing(), program, [(x, y)])


def test_onnx_verify_takes_every_program(export: Callable[..., Any]) -> None:
    model = Remembering().eval()
    program = export(model, (torch.randn(2, 3),), input_names=["x"], state="io")
    x = torch.randn(2, 3)

    assert onnx_verify.compare(model, program, [(x,)])
    assert onnx_verify.find_mismatch(program, [(x,)]).verdict.ok
    node = program.model.graph.outputs[0].producer()
    node.op_type = "Sub" if node.op_type == "Add" else "Add"
    assert not onnx_verify.compare(model, program, [(x,)])


# TorchScript does not read the annotations of a class as they are postponed here.
Labelled = NamedTuple("Labelled", [("values", Tensor), ("parts", List[Tensor])])  # noqa: UP006, UP014


class Labelling(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Labelled, Dict[str, Labelled], Optional[Tensor], str]:  # noqa: UP006, UP045
        found = Labelled(x + 1, [x * 2, x - 1])
        return found, {"more": Labelled(x, [x * 3])}, None, "output_0"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", [path for path in PATHS if path not in ANSWERS])
def test_named_tuples_and_strings_come_out_as_they_are(path: str, export: Callable[..., Any]) -> None:
    x = torch.randn(2, 3)
    found, table, nothing, text = export(Labelling(), (x,))(x)

    torch.testing.assert_close([found.values, *found.parts], [x + 1, x * 2, x - 1])
    torch.testing.assert_close([table["more"].values, *table["more"].parts], [x, x * 3])
    assert (nothing, text) == (None, "output_0")


# ---- files


def test_weights_stand_where_the_caller_wants_them(export: Callable[..., Any], tmp_path: Path) -> None:
    x = torch.randn(2, 600)
    model = nn.Linear(600, 4)
    program = export(model, (x,))

    program.save(tmp_path / "one.onnx")
    program.save(tmp_path / "two.onnx", external_data=True)
    program.save(tmp_path / "bare.onnx", include_initializers=False)
    program.save(tmp_path / "inputs.onnx", keep_initializers_as_inputs=True)
    buffer = io.BytesIO()
    program.save(buffer)

    files = ["bare.onnx", "inputs.onnx", "one.onnx", "two.onnx", "two.onnx.data"]
    assert sorted(file.name for file in tmp_path.iterdir()) == files
    assert buffer.getvalue() == (tmp_path / "one.onnx").read_bytes()
    assert len(onnx.load(tmp_path / "bare.onnx").graph.initializer) == 0
    assert len(onnx.load(tmp_path / "inputs.onnx").graph.input) == 3
    for name in ("one.onnx", "two.onnx", "inputs.onnx"):
        proto = onnx.load(tmp_path / name)
        (result,) = onnx.reference.ReferenceEvaluator(proto).run(None, {program.input_names[0]: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(result), model(x).detach(), rtol=1e-4, atol=1e-4)


def test_external_data_is_an_option_of_every_export(export: Callable[..., Any], tmp_path: Path) -> None:
    export(nn.Linear(600, 4), (torch.randn(2, 600),), tmp_path / "model.onnx", external_data=True)

    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]


class Full(io.BytesIO):
    """A file on a disk that is full after some bytes."""

    def write(self, data: Any) -> int:
        if self.tell() > 8:
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_a_save_that_fails_leaves_nothing_and_says_why(export: Callable[..., Any], tmp_path: Path) -> None:
    program = export(nn.Linear(300, 300), (torch.randn(2, 300),))
    (tmp_path / "folder").mkdir()
    full = Full(b"before")
    full.seek(0, io.SEEK_END)

    for destination, options in (
        (tmp_path / "missing" / "model.onnx", {}),
        (tmp_path / "folder", {"external_data": True}),
        (io.StringIO(), {}),
        (io.BytesIO(), {"external_data": True}),
        (full, {}),
    ):
        with pytest.raises(fx.SaveError):
            program.save(destination, **options)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]
    assert full.getvalue() == b"before"
    assert issubclass(fx.SaveError, OnnxExporterError)


# ---- the model


def test_weights_dimensions_and_values_are_at_hand(path: str, export: Callable[..., Any]) -> None:
    model, other = Nested(), Nested()
    program = nested(export, model)
    (x, pair, more), _ = arguments(4)

    assert program.apply_weights({**other.state_dict(), "unknown": x}) == ["unknown"]
    assert_answers(path, program(x, pair, more), other(x, pair, more))
    with pytest.raises(fx.InvalidArgumentError, match="shape"):
        program.apply_weights({"linear.bias": torch.ones(5)})
    program.rename_axes({"n": "rows"})
    assert [str(value.shape[0]) for value in program.model.graph.inputs] == ["rows"] * 5
    assert str(program.model.graph.outputs[0].shape[0]) == "rows"
    with pytest.raises(fx.InvalidArgumentError, match="rows"):
        program(x[:2], pair, more)
    values = program.compute_values(["x", program.output_names[0]], (x, pair), {"more": more})
    torch.testing.assert_close(values, [x, other(x, pair, more)[0]])
    assert_answers(path, program.call_reference(x, pair, more), other(x, pair, more))
    program.optimize()
    program.inline_functions()
    assert_answers(path, program(x, pair, more), other(x, pair, more))
    assert program.timings


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.out.weight = self.into.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.into(x) + 1)


def test_tied_weights_are_replaced_by_all_their_names(export: Callable[..., Any]) -> None:
    program, other, x = export(Tied(), (torch.randn(2, 3),)), Tied(), torch.randn(2, 3)

    assert program.apply_weights(other.state_dict()) == []
    torch.testing.assert_close(pytree.tree_leaves(program(x)), [other(x).detach()])
    with pytest.raises(fx.InvalidArgumentError, match="one weight"):
        program.apply_weights({"into.weight": torch.ones(3, 3), "out.weight": torch.zeros(3, 3)})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.complex64, torch.bool])
def test_values_of_every_dtype_go_in_and_out(path: str, export: Callable[..., Any], dtype: torch.dtype) -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(0, 1)

    x = (torch.randn(2, 3) * 4).to(dtype)
    program = export(Turned(), (x,), opset_version=20)

    actual = pytree.tree_leaves(program(x))[0]
    assert actual.dtype == dtype
    assert torch.equal(actual.float() if dtype.itemsize == 1 else actual, (x.T).float() if dtype.itemsize == 1 else x.T)


def test_a_session_is_made_as_asked(export: Callable[..., Any]) -> None:
    import onnxruntime

    made: list[Any] = []
    program = export(nn.Linear(3, 2), (torch.randn(2, 3),))

    def initializer(model: bytes, **options: Any) -> Any:
        made.append(options)
        return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    program.initialize_inference_session(initializer, sign=1)
    program(torch.randn(2, 3))
    assert made == [{"sign": 1}]
