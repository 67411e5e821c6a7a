"""Inputs carry the names of their arguments in both exporters, however the example gives them."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from both_exporters import EXPORTERS, TRACING, exporters, run_by_name, tracing
from torch.utils import _pytree as pytree

from onnx_fx_export import OnnxExporterError, export


def rows(n: int, offset: float = 0.0) -> torch.Tensor:
    return torch.arange(3.0 * n).reshape(n, 3) + offset


class Masked(torch.nn.Module):
    def forward(self, x, mask, y, *, scale):
        return x * mask - y * scale


class Further(torch.nn.Module):
    def forward(self, x, *args, last=None, **kwargs):
        for value in args:
            x = x * 2 + value
        for value in kwargs.values():
            x = x * 3 - value
        return x if last is None else x + last * 5


CALLS: dict[str, tuple[Callable[[], torch.nn.Module], int, list[str]]] = {
    "in order": (Masked, 1, ["mask", "y", "scale"]),
    "in another order": (Masked, 1, ["scale", "y", "mask"]),
    "one by position more": (Masked, 2, ["scale", "y"]),
    "all by keyword": (Masked, 0, ["y", "scale", "x", "mask"]),
}


@pytest.mark.parametrize("dict_at_the_end", [False, True])
@pytest.mark.parametrize("call", CALLS)
@exporters
def test_keyword_arguments_keep_their_names(exporter: str, call: str, dict_at_the_end: bool) -> None:
    make, positional, keywords = CALLS[call]
    given = {name: rows(2, i) for i, name in enumerate(["x", "mask", "y", "scale"])}
    args, kwargs = tuple(list(given.values())[:positional]), {name: given[name] for name in keywords}
    call_form = {"args": (*args, kwargs)} if dict_at_the_end else {"args": args, "kwargs": kwargs}
    axes = {name: {0: "n"} for name in given}
    program = EXPORTERS[exporter](make(), **call_form, dynamic_axes=axes, verify=True)
    other = {name: rows(4, 7 * i) for i, name in enumerate(given)}
    np.testing.assert_allclose(run_by_name(program, **other)[0], make()(**other))


@tracing
def test_collected_arguments_have_names_of_their_own(exporter: str) -> None:
    kwargs = {"b": rows(2, 4), "last": rows(2, 6), "a": rows(2, 5)}
    program = TRACING[exporter](Further(), (rows(2), rows(2, 1), rows(2, 2)), kwargs=kwargs, verify=True)
    own = {"x", "a", "b", "last", "args.0", "args.1"}
    assert set(program.input_names) == own
    x, first, second = rows(2, 9), rows(2, 8), rows(2, 7)
    named = dict(zip(sorted(own), [kwargs["a"], first, second, kwargs["b"], kwargs["last"], x], strict=True))
    np.testing.assert_allclose(run_by_name(program, **named)[0], Further()(x, first, second, **kwargs))


class Shifted(torch.nn.Module):
    def forward(self, x, table=None, **kwargs):
        x = x if table is None else x * table["scale"]
        return x - sum(kwargs.values())


@pytest.mark.parametrize("kwargs", [{"shift": rows(2, 3)}, {"shift": rows(2, 3), "scale": rows(2, 4)}], ids=len)
@tracing
def test_a_dict_by_position_is_an_argument_beside_keyword_arguments(exporter: str, kwargs: Any) -> None:
    args = rows(2, 1), {"scale": rows(2, 2)}
    program = TRACING[exporter](Shifted(), args, kwargs=kwargs, verify=True)
    np.testing.assert_allclose(
        torch.as_tensor(pytree.tree_leaves(program(*args, **kwargs))[0]), Shifted()(*args, **kwargs)
    )


@exporters
def test_given_names_and_dynamic_axes_reach_the_same_input(exporter: str) -> None:
    class Product(torch.nn.Module):
        def forward(self, x, y, z):
            return x @ y + z.sum(0)

    kwargs = {"z": rows(3), "y": torch.eye(3)}
    order = "xzy" if exporter == "fx" else "xyz"
    axes = {"in_x": {0: "n"}, "in_z": {0: "k"}}
    program = EXPORTERS[exporter](
        Product(), (rows(2),), kwargs=kwargs, input_names=[f"in_{name}" for name in order], dynamic_axes=axes
    )
    shapes = {value.name: [str(dim) for dim in value.shape] for value in program.model.graph.inputs}
    assert shapes["in_x"] == ["n", "3"]
    assert shapes["in_y"] == ["3", "3"]
    result = run_by_name(program, in_x=rows(4, 1), in_y=torch.eye(3) * 2, in_z=rows(5, 5))
    np.testing.assert_allclose(result[0], Product()(rows(4, 1), torch.eye(3) * 2, rows(5, 5)))


@exporters
def test_names_of_other_arguments_warn_and_say_which(exporter: str) -> None:
    args = (rows(2), rows(2, 1), rows(2, 2))
    with pytest.warns(UserWarning, match="'y' to the input for mask, and y is another argument"):
        EXPORTERS[exporter](Masked(), args, kwargs={"scale": rows(2)}, input_names=["x", "y", "mask"])


def test_names_in_the_order_of_the_signature_warn_where_the_call_has_another_one() -> None:
    kwargs = {"y": rows(2, 1), "mask": rows(2, 2), "scale": rows(2)}
    with pytest.warns(UserWarning, match="'mask' to the input for y"):
        export(Masked(), (rows(2),), kwargs=kwargs, input_names=["x", "mask", "y", "scale"])


class Speaker(torch.nn.Module):
    def forward(self, x, sid: torch.Tensor | None = None, y: torch.Tensor | None = None):
        if sid is not None:
            x = x + sid
        return x if y is None else x * y


@pytest.mark.parametrize(
    "args,names,expected",
    [
        ((rows(2), None), ["x", "sid"], ["x"]),
        ((rows(2), None), ["input", "speaker"], ["input"]),
        ((rows(2),), ["x", "sid"], ["x"]),
        ((rows(2), None, rows(2)), ["x", "sid", "y"], ["x", "y"]),
        ((rows(2), None, rows(2)), ["a", "sid", "b"], ["a", "b"]),
        ((rows(2), None, rows(2)), ["a", "b", "c"], ["a", "c"]),
    ],
)
@exporters
def test_names_of_arguments_that_are_none_are_left_out(exporter: str, args: Any, names: Any, expected: Any) -> None:
    with pytest.warns(UserWarning, match="not an input"):
        program = EXPORTERS[exporter](Speaker(), args, input_names=names)
    assert program.input_names == expected


@exporters
def test_too_many_names_say_which_argument_is_none(exporter: str) -> None:
    with pytest.raises(OnnxExporterError, match=r"4 names for 2 inputs \(x, y\); sid is None in the example"):
        EXPORTERS[exporter](Speaker(), (rows(2), None, rows(2)), input_names=["a", "b", "c", "d"])


@tracing
def test_a_name_for_a_number_says_that_it_is_a_constant(exporter: str) -> None:
    with pytest.raises(OnnxExporterError, match="sid is 3 in the example, which is a constant"):
        TRACING[exporter](Speaker(), (rows(2), 3), input_names=["x", "sid"])


@pytest.mark.parametrize(
    "names,text",
    [
        ({"input_names": ["a"], "output_names": ["a"]}, "another input or output"),
        ({"input_names": ["a", "a"]}, "another input or output"),
        ({"output_names": ["bias", "b"]}, "a weight"),
        ({"input_names": ["weight"]}, "a weight"),
        ({"output_names": ["input1"]}, "an input"),
        ({"input_names": [""]}, "list of names"),
        ({"output_names": ["a\nb"]}, "not a name"),
    ],
)
@exporters
def test_names_that_cannot_stand_in_one_model_are_refused(exporter: str, names: dict[str, Any], text: str) -> None:
    with pytest.raises(OnnxExporterError, match=text):
        EXPORTERS[exporter](torch.nn.Bilinear(3, 3, 2), (rows(2), rows(2)), **names)


class Several(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))

    def forward(self, x, w):
        return {"x": x * self.w + w, "a.b": x * 2, "a": {"b": w * 3}, "output_1": x + 2}


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"output_names": ["output_1"]},
        {"output_names": ["a.b", "output_1.out"]},
        {"input_names": ["a.b"]},
        {"input_names": ["output_1", "a.b.out"]},
        {"input_names": ["output_1"], "output_names": ["a.b", "x.out"]},
    ],
    ids=str,
)
@tracing
def test_default_names_make_room_for_given_ones(exporter: str, names: dict[str, list[str]], tmp_path: Path) -> None:
    program = TRACING[exporter](Several(), (rows(2), rows(2, 1)), **names)
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    inputs, outputs = ([value.name for value in part] for part in (session.get_inputs(), session.get_outputs()))
    assert (inputs, outputs) == (program.input_names, program.output_names)
    assert len({*inputs, *outputs}) == 6
    for given, found in (("input_names", inputs), ("output_names", outputs)):
        assert found[: len(names.get(given, ()))] == names.get(given, [])
    call = rows(2, 5), rows(2, 6)
    expected = pytree.tree_leaves(Several()(*call))
    results = session.run(None, dict(zip(inputs, map(np.asarray, call), strict=True)))
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, value.detach())


@pytest.mark.filterwarnings("ignore:input_names gives the name")
@tracing
def test_an_argument_makes_room_for_a_name_that_another_one_is_given(exporter: str) -> None:
    program = TRACING[exporter](Masked(), (rows(2), rows(2), rows(2)), kwargs={"scale": rows(2)}, input_names=["mask"])
    assert [name.rstrip("_01") for name in program.input_names] == ["mask", "mask", "y", "scale"]
    onnx.checker.check_model(program.model_proto, full_check=True)


@exporters
def test_a_weight_is_replaced_under_its_name_beside_an_input_of_that_name(exporter: str) -> None:
    model = Several()
    program = EXPORTERS[exporter](model, (rows(2), rows(2, 1)))
    weights = {"w": torch.full((3,), 5.0)}
    assert program.apply_weights(weights) == []
    model.load_state_dict(weights)
    call = rows(2, 5), rows(2, 6)
    torch.testing.assert_close(pytree.tree_leaves(program(*call)), pytree.tree_leaves(model(*call)))


@pytest.mark.parametrize("collected", [True, False])
@tracing
def test_dimensions_of_collected_arguments_are_declared_as_torch_does(exporter: str, collected: bool) -> None:
    declared = {"a": {0: "n"}, "b": {0: "n"}}
    shapes = {"x": {0: "n"}, **({"kwargs": declared} if collected else declared)}
    program = TRACING[exporter](Further(), (rows(2),), kwargs={"b": rows(2, 1), "a": rows(2, 2)}, dynamic_shapes=shapes)
    call = {"x": rows(5), "b": rows(5, 1), "a": rows(5, 3)}
    np.testing.assert_allclose(run_by_name(program, **call)[0], Further()(**call))


class Table(dict):
    pass


@tracing
def test_dimensions_in_subclasses_of_containers_are_declared(exporter: str) -> None:
    class Reading(torch.nn.Module):
        def forward(self, x, table):
            return x + table["a"]

    def call(n):
        return rows(n), Table(a=rows(n, 1))

    program = TRACING[exporter](Reading(), call(2), dynamic_shapes={"x": {0: "n"}, "table": {"a": {0: "n"}}})
    torch.testing.assert_close(pytree.tree_leaves(program(*call(5))), [Reading()(*call(5))])


@pytest.mark.parametrize("form", ["dynamic_axes", "dynamic_shapes"])
def test_a_fallback_gives_names_in_the_order_of_the_call(form: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x, mask, y):
            if not torch.jit.is_tracing() and torch.compiler.is_compiling():
                raise RuntimeError("only a trace takes this model")
            return x * mask - y

    kwargs = {"y": rows(2, 1), "mask": rows(2, 2)}
    names = ["in_x", "in_y", "in_mask"]
    declared = {name: {0: "n"} for name in (names if form == "dynamic_axes" else ("x", "y", "mask"))}
    program = export(Model(), (rows(2),), kwargs=kwargs, input_names=names, fallback=True, **{form: declared})
    other = {"in_x": rows(3), "in_y": rows(3, 5), "in_mask": rows(3, 7)}
    np.testing.assert_allclose(run_by_name(program, **other)[0], Model()(rows(3), rows(3, 7), rows(3, 5)))


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclasses.dataclass
class Box:
    low: torch.Tensor
    high: torch.Tensor


class Nested(torch.nn.Module):
    def forward(self, d, pair, box):
        return d["b"] * 2 + d["a"][0] * 3 - pair.right * 5 + pair.left * 7 - box.low + box.high * 11


def nested(n: int, offset: int = 0) -> dict[str, Any]:
    a, b, left, right, low, high = (rows(n, offset + i * i) for i in range(6))
    return {"box": Box(low, high), "pair": Pair(left, right), "d": {"a": [a], "b": b}}


@tracing
def test_nested_arguments_have_the_names_of_their_keys(exporter: str) -> None:
    program = TRACING[exporter](Nested(), (), kwargs=nested(2), verify=True)
    other = nested(2, 20)
    feeds = {
        "d.b": other["d"]["b"],
        "d.a.0": other["d"]["a"][0],
        **{f"pair.{name}": getattr(other["pair"], name) for name in Pair._fields},
        **{f"box.{name}": getattr(other["box"], name) for name in ("low", "high")},
    }
    np.testing.assert_allclose(run_by_name(program, **feeds)[0], Nested()(**other))


@pytest.fixture(scope="module")
def bert():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=30,
        return_dict=False,
    )  # fmt: skip
    return BertModel(config).eval()


@tracing
def test_the_dict_of_a_tokenizer_keeps_its_names(bert, exporter: str) -> None:
    def call(n: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(n * 5).reshape(n, 5) % 30
        padding = torch.arange(5).expand(n, 5) < torch.arange(3, 3 + n)[:, None].clamp(max=5)
        return {"input_ids": ids, "token_type_ids": (ids > 9).long(), "attention_mask": padding.long()}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = TRACING[exporter](bert, (), kwargs=call(2), dynamic_axes={name: {0: "n"} for name in call(1)})
    other = call(3)
    with torch.no_grad():
        expected = bert(**other)
    for actual, wanted in zip(run_by_name(program, **other), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, atol=1e-5)


class Affine(torch.nn.Linear):
    def forward(self, x, scale, shift=None):
        return super().forward(x) * scale + (0 if shift is None else shift)


@tracing
def test_a_partial_of_a_module_has_the_names_that_are_left(exporter: str) -> None:
    module = Affine(3, 2).eval()
    model = functools.partial(module, shift=torch.ones(2))
    program = TRACING[exporter](model, (rows(2), torch.tensor(2.0)), dynamic_axes={"x": {0: "n"}}, verify=True)
    assert program.input_names == ["x", "scale"]
    assert {"func.weight", "func.bias"} <= set(program.model.graph.initializers)
    result = run_by_name(program, x=rows(3), scale=torch.tensor(3.0))
    np.testing.assert_allclose(result[0], model(rows(3), torch.tensor(3.0)).detach(), rtol=1e-5)


@tracing
def test_a_compiled_model_has_its_own_names(exporter: str) -> None:
    module = Affine(3, 2)
    program = TRACING[exporter](torch.compile(module), (rows(2), torch.tensor(2.0)))
    assert program.input_names == ["x", "scale"]
    assert {"weight", "bias"} <= set(program.model.graph.initializers)


@tracing
def test_a_class_instead_of_an_instance_is_refused(exporter: str) -> None:
    with pytest.raises(OnnxExporterError, match=r"the class Affine, not an instance: pass Affine\(...\)"):
        TRACING[exporter](Affine, (rows(2), rows(2)))


@exporters
def test_a_verification_notices_inputs_under_the_names_of_others(exporter: str) -> None:
    args = rows(2), rows(2, 1.0), rows(2, 2.0)

    with pytest.warns(UserWarning, match="another argument"), pytest.raises(OnnxExporterError, match="The input mask"):
        EXPORTERS[exporter](Masked(), args, kwargs={"scale": rows(2)}, input_names=["x", "y", "mask"], verify=True)


@tracing
def test_numbers_that_become_constants_are_named_in_one_warning(exporter: str) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x, factor, flags, bias=3):
            return x * factor + bias if flags[0] else x

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        EXPORTERS[exporter](Scaled(), (rows(2), 2.5, [True]))

    (warning,) = [str(each.message) for each in caught if "as constants" in str(each.message)]
    assert "factor=2.5" in warning
    assert "=True" in warning
    assert "bias" not in warning


def test_dynamic_dimensions_without_a_name_are_called_after_their_input() -> None:
    auto = torch.export.Dim.AUTO
    program = export(lambda a, b: a @ b, (rows(2), rows(3).T.clone().T), dynamic_shapes=({0: auto, 1: auto}, {1: auto}))

    shapes = [[str(dim) for dim in value.shape or ()] for value in program.model.graph.inputs]
    assert shapes == [["a_dim_0", "3"], ["3", "b_dim_1"]]
