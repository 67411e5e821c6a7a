"""``custom_translation_table`` in every form that torch.onnx and this project take, on every path."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import pytest
import torch
from onnxscript import COMPLEX64, COMPLEX128, DOUBLE, FLOAT, INT64, opset11, opset13, opset18, opset20, script
from onnxscript.values import Opset

import onnx_fx_export
import onnx_ts_legacy
from onnx_fx_export import CaptureError, InvalidArgumentError, OnnxExporterError, export, replace_torch_onnx

aten = torch.ops.aten
DOMAIN = Opset("translation_tests", 1)
X = torch.linspace(-3, 3, 12).reshape(3, 4)
OTHER = torch.linspace(2, -5, 20).reshape(5, 4)


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    with torch.library._scoped_library("translation_tests", "FRAGMENT") as lib:
        lib.define("shifted(Tensor x, float by=1.0) -> Tensor")
        lib.impl("shifted", lambda x, by=1.0: x + by, "CompositeExplicitAutograd")
        lib.impl("shifted", lambda x, by=1.0: torch.empty_like(x), "Meta")
        yield


@torch.library.custom_op("translation_tests::opposite", mutates_args=())
def opposite(x: torch.Tensor) -> torch.Tensor:
    return -x


@opposite.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("translation_tests::limited", mutates_args=())
def limited(x: torch.Tensor, limit: float) -> torch.Tensor:
    return x.clamp(-limit, limit)


@limited.register_fake
def _(x, limit):
    return torch.empty_like(x)


@script(DOMAIN, default_opset=opset18)
def Scripted(self):
    return opset18.Abs(self)


def annotated(self: FLOAT) -> FLOAT:
    return opset20.Abs(self)


FORMS: dict[str, Any] = {
    "builder": lambda op, x: op.Abs(x),
    "onnxscript": lambda x: opset18.Abs(x),
    "annotated": annotated,
    "operators": lambda self: opset18.Max(-self, self * 1.0),
    "script": Scripted,
    "list": [lambda self: opset18.Neg(self), lambda self: opset18.Abs(self)],
}
CROSSED = ["builder", "onnxscript", "script", "list"]
OWN_KEYS: dict[str, Any] = {
    "definition": opposite,
    "overload": torch.ops.translation_tests.opposite.default,
    "packet": torch.ops.translation_tests.opposite,
    "name": "translation_tests::opposite",
    "full name": "translation_tests::opposite.default",
}
KEYS: dict[str, Any] = {
    "overload": aten.relu.default,
    "packet": aten.relu,
    "function": torch.relu,
    "method": torch.Tensor.relu,
    "name": "aten::relu",
}


class Relu(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


class InPlaceRelu(torch.nn.Module):
    def forward(self, x):
        return (x + 0).relu_()


def replaced(model: Any, args: Any, **options: Any) -> Any:
    with replace_torch_onnx():
        return torch.onnx.export(model, args, **options)


def by_shapes(call: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda model, table: call(model, (X,), dynamic_shapes=({0: "n"},), custom_translation_table=table, **options)


def by_axes(call: Callable[..., Any], prepare: Callable[[Any], Any] = lambda model: model, **options: Any) -> Any:
    return lambda model, table: call(
        prepare(model), (X,), input_names=["x"], dynamic_axes={"x": {0: "n"}}, custom_translation_table=table, **options
    )


PATHS: dict[str, Callable[[Any, Any], Any]] = {
    "fx": by_shapes(export),
    "captured": lambda model, table: export(
        torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim("n")},)), custom_translation_table=table
    ),
    "dynamo=False": by_axes(export, dynamo=False),
    "script module": by_axes(export, torch.jit.script),
    "traced": by_axes(onnx_ts_legacy.export),
    "scripted": by_axes(onnx_ts_legacy.export, torch.jit.script),
    "replaced": by_shapes(replaced),
    "replaced, dynamo=False": by_axes(replaced, dynamo=False),
}
NOT_SCRIPTED = ["fx", "dynamo=False", "traced", "replaced", "replaced, dynamo=False"]


def fallen_back(model: Any, table: Any) -> Any:
    """Export through the fallback, as if torch.export could not capture the model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnx_fx_export.pipeline.ExportRequest.captured", refusing)
        return by_axes(export, fallback=True)(model, table)


def refusing(*args: Any) -> Any:
    raise CaptureError("not today")


def result(program: Any, *args: torch.Tensor) -> torch.Tensor:
    given = program(*args)
    return given[0] if isinstance(given, list | tuple) else given


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", FORMS)
def test_a_translation_wins_over_the_built_in_lowering(form: str, path: str) -> None:
    program = PATHS[path](Relu(), {aten.relu.default: FORMS[form]})
    torch.testing.assert_close(result(program, OTHER), OTHER.abs())


@pytest.mark.parametrize("path", [*PATHS, "fallback"])
@pytest.mark.parametrize("form", CROSSED)
@pytest.mark.parametrize("key", KEYS)
def test_an_operator_is_named_in_several_ways(key: str, form: str, path: str) -> None:
    program = (fallen_back if path == "fallback" else PATHS[path])(Relu(), {KEYS[key]: FORMS[form]})
    torch.testing.assert_close(result(program, OTHER), OTHER.abs())


class Opposite(torch.nn.Module):
    def forward(self, x):
        return opposite(x)


class ScriptedOpposite(torch.nn.Module):
    def forward(self, x):
        return torch.ops.translation_tests.opposite(x)


@pytest.mark.parametrize("path", [*PATHS, "fallback"])
@pytest.mark.parametrize("form", CROSSED)
@pytest.mark.parametrize("key", OWN_KEYS)
def test_an_operator_of_ones_own_is_named_in_several_ways(key: str, form: str, path: str) -> None:
    model = ScriptedOpposite() if "script" in path else Opposite()
    program = (fallen_back if path == "fallback" else PATHS[path])(model, {OWN_KEYS[key]: FORMS[form]})
    torch.testing.assert_close(result(program, OTHER), OTHER.abs())


@pytest.mark.parametrize("key", ["overload", "packet", "function", "method", "name"])
@pytest.mark.parametrize("path", ["fx", "traced", "replaced", "fallback"])
def test_what_fits_with_a_builder_and_without_is_refused_with_both_ways(path: str, key: str) -> None:
    export_by = fallen_back if path == "fallback" else PATHS[path]
    with pytest.raises(OnnxExporterError, match=r"f\(op, ...\) with the builder first.*or as f\(...\) with"):
        export_by(Relu(), {KEYS[key]: lambda *args: args[-1]})


@pytest.mark.parametrize("path", ["fx", "traced", "scripted"])
@pytest.mark.parametrize("form", FORMS)
def test_it_serves_calls_that_write_to_their_operand(form: str, path: str) -> None:
    program = PATHS[path](InPlaceRelu(), {aten.relu.default: FORMS[form]})
    torch.testing.assert_close(result(program, OTHER), OTHER.abs())


@pytest.mark.parametrize("form", FORMS)
def test_a_fallback_keeps_the_table(form: str) -> None:
    class Packed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = torch.nn.LSTM(4, 2, batch_first=True)

        def forward(self, x, lengths):
            if torch.compiler.is_exporting():
                raise NotImplementedError("not for torch.export")
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            padded, _ = torch.nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return torch.relu(padded)

    class Without(Packed):
        def forward(self, x, lengths):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return torch.nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0].abs()

    model, expected = Packed().eval(), Without().eval()
    expected.load_state_dict(model.state_dict())
    args = (torch.randn(2, 3, 4), torch.tensor([3, 2]))
    program = export(model, args, fallback=True, custom_translation_table={aten.relu.default: FORMS[form]})
    assert isinstance(program, onnx_ts_legacy.TSProgram)
    torch.testing.assert_close(result(program, *args), expected(*args).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", NOT_SCRIPTED)
@pytest.mark.parametrize("key", [limited, "translation_tests::limited"])
def test_an_operator_of_ones_own_with_a_number(key: Any, path: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.translation_tests.limited(x, 2.5)

    program = PATHS[path](Model(), {key: lambda x, limit: opset18.Clip(opset18.Add(x, limit), 0.0, limit)})
    torch.testing.assert_close(result(program, OTHER), (OTHER + 2.5).clamp(0, 2.5))


SPECIAL: dict[str, tuple[Any, Any, Any, Callable[[torch.Tensor], Any]]] = {
    # What is decomposed, simplified away, or goes other ways than through the table.
    "composite": (aten.hardswish.default, torch.nn.Hardswish(), lambda self: opset18.Neg(self), torch.neg),
    "no-op": (
        aten.dropout.default,
        torch.nn.Dropout().eval(),
        lambda input, p, train: opset18.Neg(input),
        torch.neg,
    ),
    "attributes": (
        aten.softmax.int,
        torch.nn.Softmax(1),
        lambda self, dim, dtype=None: opset13.Softmax(self, axis=dim) * 2.0,
        lambda x: x.softmax(1) * 2,
    ),
    "weights": (
        aten.linear.default,
        torch.nn.Linear(4, 4),
        lambda input, weight, bias=None: opset18.MatMul(opset18.CastLike(0, input) * input, opset18.Transpose(weight)),
        torch.zeros_like,
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", SPECIAL)
def test_it_wins_over_decompositions_and_simplifications(case: str, path: str) -> None:
    key, model, translation, expected = SPECIAL[case]
    program = PATHS[path](model, {key: translation})
    torch.testing.assert_close(result(program, OTHER), expected(OTHER))


@pytest.mark.parametrize("path", ["fx", "traced"])
def test_a_function_gives_several_results(path: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            values, indices = torch.max(x, 1)
            first, second = x.split(2, 1)
            return values + indices + first.sum(1) - second.sum(1)

    def smallest(self, dim, keepdim=False):
        return opset18.ReduceMin(self, [dim], keepdims=keepdim), opset18.ArgMin(self, axis=dim, keepdims=keepdim)

    def swapped(self, split_size, dim=0):
        first, second = opset18.Split(self, num_outputs=2, axis=dim)
        return second, first

    program = PATHS[path](Model(), {aten.max.dim: smallest, aten.split.Tensor: swapped})
    expected = OTHER.min(1).values + OTHER.min(1).indices + OTHER[:, 2:].sum(1) - OTHER[:, :2].sum(1)
    torch.testing.assert_close(result(program, OTHER), expected)


@pytest.mark.parametrize("path", ["fx", "traced"])
def test_writes_through_a_translated_view_reach_its_base(path: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            y = x + 0
            y.transpose(0, 1)[1] = 7.0
            return y

    translation = {aten.transpose.int: lambda self, dim0, dim1: opset18.Transpose(self, perm=[1, 0])}
    torch.testing.assert_close(result(PATHS[path](Model(), translation), OTHER), Model()(OTHER))


@pytest.mark.parametrize("path", ["fx", "traced"])
def test_an_operator_of_another_domain_needs_no_schema(path: str) -> None:
    custom = Opset("translation_tests.custom", 3)

    def translation(self):
        return custom.Doubled(custom.Halved(self, factor=0.5), alpha=2.0, names=["a"])

    program = PATHS[path](Relu(), {aten.relu.default: translation})
    model = program.model_proto
    assert [(n.domain, n.op_type) for n in model.graph.node] == [
        ("translation_tests.custom", "Halved"),
        ("translation_tests.custom", "Doubled"),
    ]
    assert {o.domain: o.version for o in model.opset_import}["translation_tests.custom"] == 3
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert not hasattr(custom, "Halved")


# ---- opsets


@pytest.mark.parametrize("opset", [7, 9, 13, 17, 18, 20, 22, 24])
@pytest.mark.parametrize("path", ["fx", "traced"])
def test_the_opset_asked_for_is_written(path: str, opset: int) -> None:
    def mean_of_squares(self):
        return opset18.ReduceMean(opset18.Mul(self, self), [1], keepdims=1) + opset18.CastLike(1, self) - self

    call = export if path == "fx" else onnx_ts_legacy.export
    table = {aten.relu.default: mean_of_squares}
    program = call(Relu(), (X,), opset_version=opset, custom_translation_table=table)
    assert program.model.opset_imports[""] == opset
    torch.testing.assert_close(result(program, X), (X * X).mean(1, keepdim=True) + 1 - X)


@pytest.mark.parametrize("path", ["fx", "traced"])
def test_an_opset_that_cannot_express_it_is_refused_with_the_lowest_that_can(path: str) -> None:
    call = export if path == "fx" else onnx_ts_legacy.export
    table = {aten.relu.default: lambda self: opset18.Gather(self, opset18.NonZero(opset18.Squeeze(self)), axis=0)}
    with pytest.raises(OnnxExporterError, match=r"NonZero.*opset 8.*lowest opset that works is 9"):
        call(Relu(), (X,), opset_version=8, custom_translation_table=table)


@pytest.mark.parametrize("path", ["fx", "traced"])
def test_an_operator_that_means_something_else_now_is_refused(path: str) -> None:
    table = {aten.softmax.int: lambda self, dim, dtype=None: opset11.Softmax(self, axis=dim)}
    call = export if path == "fx" else onnx_ts_legacy.export
    with pytest.raises(
        OnnxExporterError, match="Softmax means something else in opset 20 than in 11: ask for opset 11"
    ):
        call(torch.nn.Softmax(1), (X,), opset_version=20, custom_translation_table=table)
    program = call(torch.nn.Softmax(1), (X,), opset_version=11, custom_translation_table=table)
    torch.testing.assert_close(result(program, X), X.softmax(1))


# ---- lists


@pytest.mark.parametrize("path", ["fx", "traced"])
@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, torch.neg), (torch.float64, torch.abs)])
def test_of_a_list_the_last_that_is_annotated_for_the_dtype_is_taken(path, dtype, expected) -> None:
    def first(self: FLOAT | DOUBLE):
        return opset18.Abs(self)

    def second(self: FLOAT):
        return opset18.Neg(self)

    def third(self: INT64):
        return opset18.Sub(self, self)

    call = export if path == "fx" else onnx_ts_legacy.export
    program = call(Relu(), (X.to(dtype),), custom_translation_table={aten.relu.default: [first, second, third]})
    torch.testing.assert_close(result(program, X.to(dtype)), expected(X.to(dtype)))


def test_a_dtype_that_no_function_of_a_list_is_annotated_for_is_refused() -> None:
    functions = [annotated, annotated]
    with pytest.raises(OnnxExporterError, match=r"none of the translations annotated .* for tensors of DOUBLE"):
        export(Relu(), (X.double(),), custom_translation_table={aten.relu.default: functions})


@pytest.mark.parametrize("path", ["fx", "traced", "scripted", "fallback"])
@pytest.mark.parametrize("functions", ["one", "several"])
def test_of_a_list_the_complex_functions_are_for_complex_calls(functions: str, path: str) -> None:
    def real(self: FLOAT, other: FLOAT, alpha=1):
        return opset18.Add(self, opset18.Mul(other, 2.0))

    def pairs(self: COMPLEX64, other: COMPLEX64, alpha=1):
        return opset18.Sub(self, opset18.Mul(other, 3.0))

    def other_pairs(self: COMPLEX128, other: COMPLEX128, alpha=1):
        return opset18.Mul(self, other)

    class Model(torch.nn.Module):
        def forward(self, x):
            y = torch.view_as_complex(x.reshape(-1, 2, 2))
            return torch.view_as_real(y + torch.view_as_complex(x.reshape(-1, 2, 2) * 2)).reshape(-1, 4) + x

    table = {aten.add.Tensor: [real, pairs] if functions == "one" else [real, pairs, other_pairs]}
    program = (fallen_back if path == "fallback" else PATHS[path])(Model(), table)

    torch.testing.assert_close(result(program, OTHER), (OTHER - 6 * OTHER) + 2 * OTHER)


# ---- numbers


def test_functions_of_sizes_are_translated() -> None:
    table = {operator.mul: lambda a, b: opset18.Add(opset18.Mul(a, b), 2)}
    program = export(lambda x: x + x.shape[0] * x.shape[1], (X,), dynamic_shapes=({0: "n"},))
    torch.testing.assert_close(program(OTHER), OTHER + 20)
    program = export(
        lambda x: x + x.shape[0] * x.shape[1], (X,), dynamic_shapes=({0: "n"},), custom_translation_table=table
    )
    torch.testing.assert_close(program(OTHER), OTHER + 22)


@pytest.mark.parametrize(("key", "translation"), [
    (operator.mul, lambda a, b: a), (torch.sym_not, lambda a: a), (math.floor, lambda a: a),
])  # fmt: skip
def test_they_belong_to_fx_graphs(key: Any, translation: Any) -> None:
    with pytest.raises(OnnxExporterError, match=f"{key.__name__}.*onnx-fx-export"):
        onnx_ts_legacy.export(Relu(), (X,), custom_translation_table={key: translation})


# ---- what cannot be used


@pytest.mark.parametrize("call", [export, onnx_ts_legacy.export, replaced])
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (3, FORMS["builder"], "the key 3, which is not an operator"),
        (torch.nn.functional.relu, FORMS["builder"], r"the key relu \(.*not an operator"),
        (torch.cond, FORMS["builder"], "not an operator"),
        ("relu", FORMS["builder"], "namespace::name"),
        ("aten::relu.none", FORMS["builder"], "has the overloads default"),
        ("mine::unknown", lambda x: x, "import the library"),
        (aten.relu_.default, FORMS["builder"], "give that as the key"),
        (aten.relu.default, 3, "not a function with a signature"),
        (aten.relu.default, [], "empty list"),
        (aten.relu.default, lambda *args: args[0], "with a builder and without one"),
        (aten.relu.default, lambda a, b, c: a, "does not fit"),
        (aten.relu.default, lambda op: op, "does not fit"),
        (aten.relu, lambda a, b, c: a, "fits no overload"),
        ("translation_tests::shifted", lambda a, b: a, "with a builder and without one"),
    ],
)
def test_an_unusable_entry_is_refused_before_anything_is_captured(call, key, value, message) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call(Relu(), (X,), custom_translation_table={key: value})


@pytest.mark.parametrize(
    "translation",
    [
        lambda op, x: op.Add(x, x),
        lambda op, b: op.Add(b, b),
        lambda op, x, by: op.Add(x, x),
        lambda builder, x: builder.Add(x, x),
        lambda x: opset18.Add(x, x),
        lambda x, by: opset18.Add(x, x),
        lambda x, by=3.0: opset18.Add(x, x),
        lambda x, **kwargs: opset18.Add(x, x),
    ],
)
def test_names_of_parameters_tell_the_forms_apart_where_defaults_leave_it_open(translation) -> None:
    model = torch.export.export(Shifted(), (X,))
    program = export(model, custom_translation_table={"translation_tests::shifted": translation})
    torch.testing.assert_close(result(program, X), X + X)


class Shifted(torch.nn.Module):
    def forward(self, x):
        return torch.ops.translation_tests.shifted(x)


@pytest.mark.parametrize("call", [export, onnx_ts_legacy.export])
def test_an_error_inside_of_a_translation_names_it(call) -> None:
    def broken(self):
        return opset18.Abs(self.no_such_thing)

    with pytest.raises(OnnxExporterError, match=r"the translation .*broken \(.*test_translations.py:\d+\) failed with"):
        call(Relu(), (X,), custom_translation_table={aten.relu.default: broken})


def test_what_cannot_be_converted_is_found_with_the_table() -> None:
    with torch.library._scoped_library("translation_tests", "FRAGMENT") as lib:
        lib.define("opaque(Tensor x) -> Tensor")
        lib.impl("opaque", torch.clone, "CompositeExplicitAutograd")
        lib.impl("opaque", torch.empty_like, "Meta")
        opaque = torch.ops.translation_tests.opaque

        class Model(torch.nn.Module):
            def forward(self, x):
                return opaque(x)

        table = {opaque.default: lambda x: opset18.Identity(x)}
        assert list(onnx_fx_export.unconvertible_ops(Model(), (X,))) == ["translation_tests.opaque.default"]
        assert onnx_fx_export.unconvertible_ops(Model(), (X,), custom_translation_table=table) == {}
        assert onnx_ts_legacy.unconvertible_ops(Model(), (X,))[1] == ["translation_tests::opaque"]
        assert onnx_ts_legacy.unconvertible_ops(Model(), (X,), custom_translation_table=table)[1] == []
