"""Whatever makes a Python value of a dynamic size: the file is right at other sizes, or the export is refused."""

from __future__ import annotations

import functools
import logging
import math
import numbers
import operator
import warnings

import numpy as np
import pytest
import torch
from torch.export import Dim

from onnx_fx_export import CaptureError, DynamicShapeError, InvalidArgumentError, OnnxExporterError, export
from onnx_fx_export.inputs.arguments import FunctionModule

NUMBERS = [float(n) for n in range(24)]
SIX = 6
# Greater numbers than CPython keeps one object of.
LARGE = 301 + SIX
BY_TEXT = {str(n): float(n) for n in range(24)}


class Scales:
    s4 = 4.0
    s6 = 6.0


@functools.cache
def doubled(n):
    return 2.0 * n


FORMS = {
    "str": lambda x: x * BY_TEXT[str(x.shape[0])],
    "repr": lambda x: x * BY_TEXT.get(repr(x.shape[0]), 1.0),
    "f-string": lambda x: x * getattr(Scales, f"s{x.shape[0]}", 1.0),
    "f-string with a format": lambda x: x * float(f"{x.shape[0]:03d}"),
    "f-string of a product": lambda x: x * float(f"{x.shape[0] / 2:.1f}"),
    "format": lambda x: x * BY_TEXT.get("{}".format(x.shape[0]), 1.0),  # noqa: UP032
    "percent": lambda x: x * BY_TEXT.get("%s" % x.shape[0], 1.0),  # noqa: UP031
    "text of a shape": lambda x: x * len(str(x.shape)),
    "text of a comparison": lambda x: x * len(str(x.shape[0] > 4)),
    "text of a part": lambda x: x * len(str(x[1:].shape[0] * 5)),
    "text compared": lambda x: x * 2 if str(x.shape[0]) == "6" else x,
    "text as a key": lambda x: {f"{x.shape[0]}": x * 2}.get("6", x),
    "list index": lambda x: x * NUMBERS[x.shape[0]],
    "dict key": lambda x: x * {4: 2.0}.get(x.shape[0], 3.0),
    "set member": lambda x: x * 2 if x.shape[0] in {4, 8} else x,
    "list member": lambda x: x * 2 if x.shape[0] in [4, 8] else x,
    "range member": lambda x: x * 2 if x.shape[0] in range(2, 6) else x,
    "hash": lambda x: x * float(hash(x.shape[0])),
    "int": lambda x: x * int(x.shape[0]),
    "float": lambda x: x * float(x.shape[0]),
    "bool": lambda x: x * 2 if x.shape[0] - 4 else x,
    "len": lambda x: x * len(x),
    "range": lambda x: x + len(range(x.shape[0])),
    "sym_ite": lambda x: x * torch.sym_ite(x.shape[0] > 4, 2, 3),
    "slice": lambda x: x + len(NUMBERS[: x.shape[0]]),
    "repeated list": lambda x: x + sum([1.0] * x.shape[0]),
    "cache": lambda x: x * doubled(x.shape[0]),
    "numpy": lambda x: x + float(np.ones(x.shape[0]).sum()),
    "numpy product": lambda x: x + int(np.prod(x.shape)),
    "math": lambda x: x * math.gcd(x.shape[0], 12),
    "square root": lambda x: x * x.shape[0] ** -0.5,
    "logarithm": lambda x: x * math.log(x.shape[0] + 1),
    "divmod": lambda x: x * divmod(x.shape[0], 3)[1],
    "bits": lambda x: x * ((x.shape[0] & 6) + (x.shape[0] | 3)),
    "other bits": lambda x: x * (x.shape[0] ^ 3),
    "shifts": lambda x: x * ((x.shape[0] << 2) + (x.shape[0] >> 1)),
    "index": lambda x: x * operator.index(x.shape[0]),
    "round": lambda x: x * round(x.shape[0] / 3),
    "round to digits": lambda x: x * round(x.shape[0] / 3, 1),
    "shape compared": lambda x: x * 2 if x.shape == (4, 3) else x,
    "shape sorted": lambda x: x * sorted([x.shape[0], 5])[0],
    "shape as a key": lambda x: x * {(4, 3): 2.0}.get(tuple(x.shape), 3.0),
    "shape counted": lambda x: x * x.shape.count(4),
    "shape member": lambda x: x * 2 if 4 in x.shape else x,
    "index in a shape": lambda x: x * x.shape.index(4) if 4 in x.shape else x + 1,
    "stride": lambda x: x * 2 if x.T.contiguous().stride(0) == 4 else x,
    "stride of a turned copy": lambda x: x * x.T.contiguous().stride(1),
    "offset": lambda x: x * x[x.shape[0] - 1 :].storage_offset(),
    "contiguity": lambda x: x * 2 if x.T.is_contiguous() else x,
    "contiguity of a part": lambda x: x * 2 if x[:, : x.shape[0] - 3].is_contiguous() else x,
    "contiguity of a column": lambda x: x * 2 if x.T[:, :6].is_contiguous() else x,
    "contiguity of rows": lambda x: x * 2 if x[:, None, :].expand(-1, 2, -1)[::3].is_contiguous() else x,
    "order of columns": lambda x: x * 2 if x.T.reshape(3, -1)[:, :6].is_contiguous() else x,
    "all strides": lambda x: x.sum(1) + sum(x.T.contiguous().stride()),
    "bytes of the storage": lambda x: x * x.untyped_storage().nbytes(),
    "storage of a part": lambda x: x * x[1:].untyped_storage().size(),
    "length of a storage": lambda x: x * len(x.storage()),
    "members": lambda x: torch.stack([row * i for i, row in enumerate(x)]),
    "key in a try": lambda x: tried(x),
    "identity": lambda x: x * 2 if x.shape[0] is SIX else x,
    "identity of two sizes": lambda x: x * 2 if x.shape[0] is x.shape[1] else x,
    "no identity": lambda x: x * 2 if x.shape[0] - 1 is not SIX else x,
    "identity of a truth value": lambda x: x * 2 if (x.shape[0] > 4) is True else x,
    "identity of large sizes": lambda x: x * 2 if x.shape[0] + 300 is LARGE else x,
    "branch for symbols": lambda x: x * 2 if isinstance(x.shape[0], torch.SymInt) else x * (2 if len(x) < 6 else 3),
    "class of a tensor": lambda x: x * 2 if type(x) is torch.Tensor else x,
}


def tried(x):
    try:
        return x * {4: 2.0, 6: 3.0}[x.shape[0]]
    except Exception:
        return x


@functools.singledispatch
def by_class(n):
    return 3.0


@by_class.register
def _(n: int):
    return 2.0


def matched(x):
    match x.shape[0] * 2:
        case int():
            return x * 2
        case _:
            return x


# What each of them asks is so for every size.
CLASSES = {
    "isinstance": lambda x: x * 2 if isinstance(x.shape[0], int) else x,
    "isinstance of several": lambda x: x * 2 if isinstance(x.shape[0] + 1, (str, int)) else x,
    "abstract class": lambda x: x * 2 if isinstance(x.shape[0], numbers.Integral) else x,
    "number of elements": lambda x: x * 2 if isinstance(x.numel(), int) else x,
    "comparison": lambda x: x * 2 if isinstance(x.shape[0] > 0, bool) else x,
    "quotient": lambda x: x * 2 if isinstance(x.shape[0] / 2, float) else x,
    "members of a shape": lambda x: x * 2 if all(isinstance(n, int) for n in x.shape) else x,
    "class attribute": lambda x: x * 2 if x.shape[0].__class__ is int else x,
    "numpy": lambda x: x * 2 if np.isscalar(x.shape[0]) else x,
    "generic function": lambda x: x * by_class(x.shape[0]),
    "match": matched,
    "type": lambda x: x * 2 if type(x.shape[0]) is int else x,
    "type among others": lambda x: x * 2 if type(x.shape[0]) in (int, float) else x,
    "name of the type": lambda x: x * 2 if type(x.shape[0]).__name__ == "int" else x,
    "subclass": lambda x: x * 2 if issubclass(type(x.shape[0]), int) else x,
    "types of a shape": lambda x: x * 2 if int in map(type, x.shape) else x,
    "symbolic number": lambda x: x if isinstance(x.shape[0], torch.SymInt | torch.SymFloat) else x * 2,
}


def right_or_refused(program, function):
    """Call a program at sizes of every kind; return how many of them it took."""
    taken = 0
    for rows in (0, 1, 2, 3, 4, 5, 6, 8, 11):
        x = torch.randn(rows, 3)
        try:
            result = program(x)
            expected = function(x)
        except (InvalidArgumentError, ZeroDivisionError):
            continue
        torch.testing.assert_close(result, expected, check_dtype=False)
        taken += 1
    return taken


@pytest.fixture
def dynamo_alone(monkeypatch):
    """Let torch.export fail without Dynamo, so that the exporter goes on to Dynamo."""
    export_of_torch = torch.export.export

    def only_strict(*args, strict=False, **kwargs):
        if not strict:
            raise RuntimeError("not with Dynamo")
        return export_of_torch(*args, strict=True, **kwargs)

    monkeypatch.setattr(torch.export, "export", only_strict)


def exported_or_refused(form, dim):
    function = FORMS[form]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: dim},))
        except OnnxExporterError:
            return
    assert right_or_refused(program, function) >= 2


@pytest.mark.parametrize("form", FORMS)
def test_a_size_as_a_python_value_is_followed_or_refused(form) -> None:
    exported_or_refused(form, Dim.DYNAMIC)


@pytest.mark.parametrize("form", ["str", "format", "list index", "len", "shape member"])
def test_a_size_declared_by_name_is_followed_or_refused(form) -> None:
    exported_or_refused(form, "rows")


@pytest.mark.parametrize("form", FORMS)
def test_a_size_as_a_python_value_is_followed_or_refused_with_dynamo(form, dynamo_alone) -> None:
    exported_or_refused(form, Dim.DYNAMIC)


@pytest.mark.parametrize("form", CLASSES)
def test_a_size_is_of_the_class_that_it_has_in_eager_pytorch(form) -> None:
    function = CLASSES[form]
    program = export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))
    assert right_or_refused(program, function) >= 5


class Rows(torch.nn.Module):
    def forward(self, x):
        return x.new_ones(len(x), len(x[0]) + 1) * len(list(x.shape)) + sum(len(part) for part in x.split(2, 1))


def test_the_length_of_a_tensor_is_a_size() -> None:
    program = export(Rows(), (torch.randn(4, 3),), dynamic_shapes=({0: "rows"},))
    for rows in (1, 4, 9):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x), Rows()(x))
    assert "len" not in globals()


def test_code_that_knows_symbolic_sizes_finds_them() -> None:
    def function(x):
        return x * 2 if isinstance(x.shape[0], torch.SymInt) else x + x

    x = torch.randn(4, 3)
    program = export(FunctionModule(function), (x,), dynamic_shapes=({0: Dim.DYNAMIC},))
    torch.testing.assert_close(program(x), x * 2)


def test_code_that_does_something_else_for_symbolic_sizes_is_refused_with_its_line() -> None:
    def function(x):
        return x * 2 if isinstance(x.shape[0], torch.SymInt) else x

    line = function.__code__.co_firstlineno + 1
    with pytest.raises(CaptureError, match=rf"the model.s values[^$]*{__file__}:{line}"):
        export(
            FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},), strategy="non-strict"
        )


@pytest.mark.filterwarnings("ignore:.*some of the declared sizes")
@pytest.mark.parametrize("rows", [4, 6])
def test_the_identity_of_a_size_is_a_condition(rows) -> None:
    def function(x):
        n = x.shape[0]
        return x * 2 if n is SIX else x

    if rows == SIX:
        with pytest.raises(OnnxExporterError, match="n != 6"):
            export(FunctionModule(function), (torch.randn(rows, 3),), dynamic_shapes=({0: "n"},))
        return
    with pytest.warns(UserWarning, match="n != 6"):
        program = export(FunctionModule(function), (torch.randn(rows, 3),), dynamic_shapes=({0: "n"},))
    assert right_or_refused(program, function) == 8


@pytest.mark.parametrize("form", ["type", "name of the type", "key in a try"])
def test_what_a_capture_gets_wrong_is_refused_with_the_line(form) -> None:
    function = {**CLASSES, **FORMS}[form]
    line = (tried if form == "key in a try" else function).__code__.co_firstlineno
    with pytest.raises(CaptureError, match=rf"the model.s values[^$]*{__file__}:{line + 2 * (form == 'key in a try')}"):
        export(
            FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},), strategy="non-strict"
        )


@pytest.mark.parametrize("form", ["str", "f-string", "text of a shape", "text as a key"])
def test_a_text_that_may_decide_something_is_refused_with_its_line(form) -> None:
    function = FORMS[form]
    line = f"{__file__}:{function.__code__.co_firstlineno}"
    with pytest.raises(DynamicShapeError, match=line):
        export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))


def test_a_text_of_a_number_from_data_is_refused() -> None:
    def function(x, n):
        return x * BY_TEXT.get(f"{n.item()}", 1.0)

    with pytest.raises(OnnxExporterError, match=__file__):
        export(FunctionModule(function), (torch.randn(4), torch.tensor(3)))


logger = logging.getLogger(__name__)


def prints(x):
    print("rows", x.shape[0], f"{x.shape[0]:5d}", repr(x.shape), sep=", ")
    print(", ".join(str(size) for size in x.shape))


def logs(x):
    logger.debug(f"{x.shape[0]} rows")
    logger.info("%s rows", x.shape[0])
    logger.warning("{} rows".format(x.shape[0]))  # noqa: UP032


def asserts(x):
    assert x.shape[1] == 3, f"a shape of {x.shape}"
    torch._assert(x.shape[1] == 3, f"a shape of {x.shape}")
    torch._check(x.shape[0] >= 0, lambda: f"a shape of {x.shape}")


def raises(x):
    message = f"a shape of {x.shape[0]} and " + str(tuple(x.shape))
    torch._assert(x.shape[1] == 3, message)
    if x.shape[1] != 3:
        raise ValueError(message)


def records(x):
    with torch.profiler.record_function(f"block of {x.shape[0]}"):
        pass


@pytest.mark.parametrize("tells", [prints, logs, asserts, raises, records])
def test_a_text_that_people_read_fixes_nothing(tells) -> None:
    def function(x):
        tells(x)
        return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))
        assert right_or_refused(program, function) == 9


def test_contiguity_that_makes_no_difference_is_no_condition() -> None:
    def function(x):
        y = x.T
        # At size 0 the results are empty, and show nothing.
        return (y if y.is_contiguous() else y.contiguous()).reshape(-1) + 1

    program = export(FunctionModule(function), (torch.randn(4, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))
    assert right_or_refused(program, function) == 8
