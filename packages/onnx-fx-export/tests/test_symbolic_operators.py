"""Operators that stand for ONNX nodes, of torch and of this project, in both exporters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.onnx import OperatorExportTypes
from torch.onnx.ops import symbolic, symbolic_multi_out

import onnx_ts_legacy
import onnxops_core
from onnx_fx_export import OnnxExporterError, export

X = torch.linspace(-2, 2, 12).reshape(3, 4)
OTHER = torch.linspace(3, -4, 20).reshape(5, 4)
# Bound before any export.
BY_NAME = SimpleNamespace(symbolic=symbolic, symbolic_multi_out=symbolic_multi_out)
HOMES = {"torch": torch.onnx.ops, "torch by name": BY_NAME, "onnxops_core": onnxops_core}
EXPORTERS = {
    "fx": lambda model, opset: export(model, (X,), opset_version=opset, dynamic_shapes=({0: "n"},)),
    "ts": lambda model, opset: onnx_ts_legacy.export(
        model, (X,), opset_version=opset, input_names=["x"], dynamic_axes={"x": {0: "n"}}
    ),
}


def first(answer: Any) -> torch.Tensor:
    return answer[0] if isinstance(answer, list | tuple) else answer


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("version", "opset"), [(18, 22), (13, 20), (22, 18), (18, 13), (11, 18), (None, 18), (18, 18)])
def test_a_node_is_written_in_the_form_of_the_model(home: str, exporter: str, version: int | None, opset: int) -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            operator, rows = HOMES[home].symbolic, x.shape[0]
            y = operator("Add", (x, x), dtype=x.dtype, shape=(rows, 4), version=version)
            axes = {"axes": [1]} if (version or opset) < 13 else {}
            inputs = (y,) if axes else (y, torch.tensor([1]))
            total = operator("ReduceSum", inputs, {"keepdims": 0, **axes}, dtype=1, shape=(rows,), version=version)
            return total + rows

    program = EXPORTERS[exporter](Model(), opset)
    assert program.model.opset_imports[""] == opset
    torch.testing.assert_close(first(program(OTHER)), (OTHER * 2).sum(1) + 5)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_version_that_means_something_else_is_refused(home: str, exporter: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            return HOMES[home].symbolic("Softmax", (x,), dtype=x.dtype, shape=x.shape, version=11)

    with pytest.raises(
        OnnxExporterError, match=r"Softmax means something else in opset 20 than in 11: ask for opset 11"
    ):
        EXPORTERS[exporter](Model(), 20)
    torch.testing.assert_close(first(EXPORTERS[exporter](Model(), 12)(OTHER)), OTHER.softmax(1))


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("opset", [11, 20])
def test_several_outputs(home: str, exporter: str, opset: int) -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            sizes, attributes = (x.shape[0], 2), {"axis": 1, "largest": 0}
            values, places = HOMES[home].symbolic_multi_out(
                "TopK",
                (x, torch.tensor([2])),
                attributes,
                dtypes=(1, 7),
                shapes=(sizes, sizes),
                version=11,
            )
            return values * values.shape[0] + places

    program = EXPORTERS[exporter](Model(), opset)
    values, places = torch.topk(OTHER, 2, 1, largest=False)
    torch.testing.assert_close(first(program(OTHER)), values * 5 + places)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_node_of_another_domain_has_its_attributes(home: str, exporter: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            attributes = {"k": 2, "alpha": 0.5, "names": ["a", "b"], "sizes": [1, 2]}
            first, second = HOMES[home].symbolic_multi_out(
                "my.domain::Op", (x, None, x), attributes, dtypes=(1, 7), shapes=(x.shape, (2,)), version=3
            )
            return first + 1, second

    program = EXPORTERS[exporter](Model(), 18)
    node = next(node for node in program.model.graph if node.domain == "my.domain")
    assert [None if value is None else value.name for value in node.inputs] == ["x", None, "x"]
    assert {name: attribute.value for name, attribute in node.attributes.items()} == {
        "k": 2, "alpha": 0.5, "names": ("a", "b"), "sizes": (1, 2),
    }  # fmt: skip
    assert program.model.opset_imports["my.domain"] == 3


@torch.library.custom_op("symbolic_operator_tests::without_fake", mutates_args=())
def without_fake(x: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    return x * factor, x.sum(1).to(torch.float64)


@pytest.mark.parametrize("axes", [None, {"x": {0: "n"}}])
def test_a_custom_operator_without_a_fake_kernel_falls_through(axes: Any) -> None:
    def model(x):
        scaled, total = without_fake(x, 2.5)
        return scaled + 1, total * 2

    program = onnx_ts_legacy.export(
        model,
        (X,),
        operator_export_type=OperatorExportTypes.ONNX_FALLTHROUGH,
        input_names=["x"],
        dynamic_axes=axes,
    )
    assert "symbolic_operator_tests" in program.model.opset_imports
    kinds = [(str(value.dtype), len(value.shape)) for value in program.model.graph.outputs]
    assert kinds == [("FLOAT", 2), ("DOUBLE", 1)]
    static = all(isinstance(dim, int) for dim in program.model.graph.outputs[0].shape)
    assert static == (axes is None)
