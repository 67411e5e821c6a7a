"""Bad input gives one clear exception of the exporter's tree and leaves no file."""

from __future__ import annotations

import enum
import functools
import logging
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

import onnx_fx_export
from onnx_fx_export import CaptureError, InvalidArgumentError, export


@torch.library.custom_op("onnx_fx_export_tests::mystery", mutates_args=())
def mystery(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@mystery.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Unsupported(torch.nn.Module):
    def forward(self, x):
        y = mystery(x)
        z = mystery(y) + 1
        return mystery(z)


def test_unsupported_operators_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(onnx_fx_export.ConversionError) as caught:
        export(Unsupported(), (torch.ones(2),), path)
    message = str(caught.value)
    assert "3x" in message
    assert "onnx_fx_export_tests::mystery" in message
    assert "test_errors.py:" in message
    assert "custom_translation_table" in message
    assert isinstance(caught.value, onnx_fx_export.OnnxExporterError)
    assert list(tmp_path.iterdir()) == []


def test_an_opset_that_cannot_express_an_operator_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"

    def function(x):
        return torch.nonzero(x)

    with pytest.raises(onnx_fx_export.OnnxExporterError) as caught:
        export(function, (torch.ones(3),), path, opset_version=7)
    message = str(caught.value)
    assert "aten::nonzero" in message
    assert "opset 7" in message
    assert "opset_version=9" in message
    assert list(tmp_path.iterdir()) == []


def test_a_dimension_that_became_static_leaves_no_file(tmp_path: Path) -> None:
    def function(x):
        return x + torch.ones(3)

    with pytest.raises(onnx_fx_export.DynamicShapeError):
        export(function, (torch.ones(3),), tmp_path / "model.onnx", dynamic_shapes={"x": {0: "n"}})
    assert list(tmp_path.iterdir()) == []


def of_one_size(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(4.0)[: x.shape[0]].sum() + x.reshape(4, 3).sum()


def row_by_row(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([*map(torch.neg, x)])


@pytest.mark.parametrize("strategy", [None, "strict"])
@pytest.mark.parametrize("function", [of_one_size, row_by_row])
def test_what_torch_logs_of_a_failure_is_left_to_the_error(function, strategy: str | None, caplog) -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x):
            return function(x)

    with pytest.raises(onnx_fx_export.DynamicShapeError) as failure:
        export(Fixed(), (torch.randn(4, 3),), dynamic_shapes={"x": {0: "a", 1: "b"}}, strategy=strategy)
    # The call of the exporter is not what fixes a size.
    assert "export(Fixed()" not in str(failure.value)
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), None), ((torch.ones(2, 6), 1, 2), None), ((torch.ones(2, 6),), {"y": 1})]
)
def test_arguments_that_do_not_fit_are_refused(args, kwargs) -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="do not fit"):
        export(torch.nn.Linear(6, 2), args, kwargs=kwargs)


def test_an_unwritable_path_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "model.onnx"
    with pytest.raises(onnx_fx_export.SaveError, match=r"model\.onnx"):
        export(torch.nn.Linear(6, 2), (torch.ones(2, 6),), path)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_cannot_be_captured_says_why() -> None:
    class Branch(torch.nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x
            return -x

    with pytest.raises(onnx_fx_export.CaptureError) as caught:
        export(Branch(), (torch.ones(2),), strategy="non-strict")
    message = str(caught.value)
    assert "torch.cond" in message
    line = Branch.forward.__code__.co_firstlineno + 1
    assert f"test_errors.py:{line}" in message


def chunks_of_a_tensor(x):
    count = (x.shape[1] + (x[0, 0, 0] > 9).long()) // 4
    return x.transpose(1, 2).view(x.shape[0], x.shape[2], count, 4)


def chunks_of_a_number(x):
    return x.transpose(1, 2).view(x.shape[0], x.shape[2], x.shape[1] // 4, 4)


def test_a_size_that_data_decides_is_told_of_with_its_line() -> None:
    with pytest.raises(CaptureError) as caught:
        export(chunks_of_a_tensor, (torch.randn(2, 8, 3),), dynamic_shapes=({0: "batch", 1: "n"},))
    message = str(caught.value)
    assert f"test_errors.py:{chunks_of_a_tensor.__code__.co_firstlineno + 2}" in message
    assert "takes a size from the values" in message
    assert "torch._check" in message
    assert "torch.cond" not in message


def test_a_loop_that_data_ends_is_told_of_with_what_to_do_instead() -> None:
    def total(x, count):
        left = count.item()
        while left > 0:
            x, left = x + left, left - 1
        return x

    with pytest.raises(CaptureError, match=r"test_errors.py:\d+(.|\n)*torch.while_loop"):
        export(total, (torch.ones(2), torch.tensor(3)))


def test_the_advice_for_sizes_works() -> None:
    program = export(chunks_of_a_number, (torch.randn(2, 8, 3),), dynamic_shapes=({0: "batch", 1: "n"},))
    x = torch.randn(3, 20, 3)
    torch.testing.assert_close(program(x), chunks_of_a_tensor(x))


def test_something_that_is_no_model_is_refused() -> None:
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="int"):
        export(3, ())


class Mode(enum.Enum):
    TWICE = 2


@pytest.mark.parametrize("value", [torch.float16, torch.device("cpu"), {1, 2}, 1j, Mode.TWICE], ids=str)
def test_arguments_that_torch_export_does_not_take_can_be_bound(value) -> None:
    def function(x, extra):
        return x.to(extra) if isinstance(extra, torch.dtype) else x * 2

    x = torch.randn(2, 3)
    with pytest.raises(CaptureError, match=r"functools\.partial"):
        export(function, (x, value), dynamic_shapes={"x": {0: "n"}, "extra": None})
    program = export(functools.partial(function, extra=value), (x,), dynamic_shapes={"x": {0: "n"}})
    torch.testing.assert_close(program(x), function(x, value))


def test_the_number_nan_is_refused_as_a_result_with_what_to_return() -> None:
    with pytest.raises(CaptureError, match=r"torch\.tensor\(float"):
        export(lambda x: (x * 2, float("nan")), (torch.randn(2),))
    result = export(lambda x: (x * 2, torch.tensor(float("nan"))), (torch.randn(2),))(torch.ones(2))
    assert result[1].isnan()


def test_a_module_as_argument_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="The argument layer"):
        export(lambda x, layer: x * 2, (torch.randn(2), torch.nn.Linear(2, 2)))


def test_a_call_of_another_structure_is_refused() -> None:
    program = export(torch.nn.Linear(6, 2), (torch.ones(2, 6),))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match=r"exported for the arguments \(input\), not"):
        program(torch.ones(2, 6), torch.ones(2))


def test_a_defective_translation_is_found_by_its_dtype() -> None:
    def wrong(op, self):
        return op.Shape(self)

    with pytest.raises(onnx_fx_export.ConversionError, match="INT64"):
        export(torch.nn.ReLU(), (torch.ones(2),), custom_translation_table={torch.ops.aten.relu.default: wrong})


def test_verification_finds_a_wrong_translation() -> None:
    def wrong(op, self):
        return op.Abs(self)

    table = {torch.ops.aten.relu.default: wrong}
    with pytest.raises(onnx_fx_export.VerificationError, match="does not agree"):
        export(torch.nn.ReLU(), (-torch.ones(2),), custom_translation_table=table, verify=True)
    export(torch.nn.ReLU(), (-torch.ones(2),), verify=True)


@pytest.mark.parametrize("external", [False, True])
def test_a_refused_save_keeps_the_file_that_was_there(tmp_path: Path, external: bool) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"before")
    program = export(torch.nn.Linear(600, 70), (torch.ones(2, 600),))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(onnx_fx_export.SaveError, match="too large"):
            program.save(path, external_data=external)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]


def test_unconvertible_operators_can_be_listed_without_exporting() -> None:
    found = onnx_fx_export.unconvertible_ops(Unsupported(), (torch.ones(2),))
    assert list(found) == ["onnx_fx_export_tests.mystery.default"]
    assert all("test_errors.py:" in reason for reason in found["onnx_fx_export_tests.mystery.default"])
    assert onnx_fx_export.unconvertible_ops(torch.nn.ReLU(), (torch.ones(2),)) == {}


def test_numbers_of_four_bits_two_in_an_element_are_refused() -> None:
    packed = torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)

    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", packed)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, self.weight

    with pytest.raises(onnx_fx_export.InvalidArgumentError, match=r"Weight weight.*view\(torch\.uint8\)"):
        export(Weighted(), (torch.randn(2),))
    with pytest.raises(onnx_fx_export.InvalidArgumentError, match="Input y"):
        export(lambda x, y: (x + 1, y), (torch.randn(2), packed))


@pytest.mark.parametrize("dynamo", [True, False], ids=["fx", "torchscript"])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_are_refused(layout: torch.layout, dynamo: bool) -> None:
    sparse = torch.eye(3).to_sparse(layout=layout)

    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", sparse)

        def forward(self, x):
            return torch.sparse.mm(self.weight, x)

    for model, args in ((torch.sparse.mm, (sparse, torch.ones(3, 2))), (Weighted(), (torch.ones(3, 2),))):
        with pytest.raises(onnx_fx_export.InvalidArgumentError, match=r"layout torch.sparse_c.*to_dense\(\)"):
            export(model, args, dynamo=dynamo)


@pytest.mark.parametrize("script", [False, True], ids=["traced", "scripted"])
@pytest.mark.parametrize("dynamo", [True, False], ids=["fx", "torchscript"])
def test_tensors_that_are_no_arrays_are_refused(script: bool, dynamo: bool) -> None:
    model = torch.jit.script(torch.nn.ReLU()) if script else torch.nn.ReLU()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for tensor, message in ((torch.eye(3).to_mkldnn(), r"to_dense\(\)"), (nested, "is nested.*to_padded_tensor")):
        with pytest.raises(InvalidArgumentError, match=message):
            export(model, (tensor,), dynamo=dynamo)


@pytest.mark.parametrize("args", [None, 3, "ab", {"input": torch.ones(2)}, np.ones((2, 3))], ids=repr)
def test_what_is_no_tuple_of_arguments_is_refused(args) -> None:
    with pytest.raises(InvalidArgumentError, match="args must be a tuple of positional arguments"):
        export(torch.nn.ReLU(), args)


class KeptInDict(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = {"norm": torch.nn.BatchNorm1d(3)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts["norm"](x)


@pytest.mark.parametrize("dynamo", [True, False], ids=["fx", "torchscript"])
def test_a_module_that_is_kept_in_a_dict_is_refused_with_what_to_do(dynamo: bool) -> None:
    with pytest.raises(
        onnx_fx_export.OnnxExporterError, match=r"in a list, a dict or a closure.*torch\.nn\.ModuleDict"
    ):
        export(KeptInDict(), (torch.randn(2, 3),), dynamo=dynamo)


@pytest.mark.parametrize("dynamo", [True, False], ids=["fx", "torchscript"])
@pytest.mark.parametrize(("result", "name"), [({1}, "set"), (np.ones(2), "ndarray"), (torch.float32, "dtype")])
def test_a_result_that_is_no_tensor_is_refused_by_its_class(result, name: str, dynamo: bool) -> None:
    with pytest.raises(onnx_fx_export.OnnxExporterError, match=f"returns a {name}; ONNX has only tensors"):
        export(lambda x: (x, result), (torch.randn(2, 3),), dynamo=dynamo)


def test_what_an_operator_says_of_its_arguments_is_told() -> None:
    with pytest.raises(CaptureError, match=r"\(RuntimeError\):\nUnsupported input type encountered for isin"):
        export(lambda x: torch.isin(x > 0, x > 1), (torch.randn(2, 3),))


@pytest.mark.parametrize("make", [lambda x, n: x.new([n]), lambda x, n: torch.Tensor([n])], ids=["new", "Tensor"])
def test_a_size_in_an_old_constructor_is_refused_with_its_line(make) -> None:
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    with pytest.raises(onnx_fx_export.OnnxExporterError, match=r"no trace records: .*\.py:\d+.*new_tensor"):
        export(lambda x: x + make(x, x.shape[0]), (torch.randn(2, 3),), dynamic_shapes=shapes, dynamo=False)
    program = export(lambda x: x + make(x, x.shape[0]), (torch.zeros(2, 3),), dynamo=False)
    torch.testing.assert_close(program(torch.zeros(2, 3)), torch.full((2, 3), 2.0))
