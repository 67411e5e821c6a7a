"""Operators written in C++, with a symbolic of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from ts_models import OPSETS, agree

import onnx_ts_legacy
from onnx_ts_legacy import register_custom_op_symbolic
from onnx_ts_legacy.errors import OnnxExporterError
from onnx_ts_legacy.symbolic_helper import parse_args

SOURCE = """
#include <torch/library.h>
#include <ATen/ATen.h>

at::Tensor weighted(const at::Tensor& x, const at::Tensor& weight, double power, int64_t repeats) {
  return at::pow(x.abs(), power).mul(weight).repeat({1, repeats});
}

TORCH_LIBRARY(ts_legacy_cpp, m) { m.def("weighted(Tensor x, Tensor weight, float power, int repeats) -> Tensor"); }
TORCH_LIBRARY_IMPL(ts_legacy_cpp, CompositeExplicitAutograd, m) { m.impl("weighted", weighted); }
"""


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the operator; it has no kernel for tensors without data."""
    if shutil.which("g++") is None or shutil.which("ninja") is None:
        pytest.skip("there is no C++ compiler")
    from torch.utils.cpp_extension import load_inline

    folder: Path = tmp_path_factory.mktemp("cpp")
    load_inline("ts_legacy_cpp", SOURCE, is_python_module=False, no_implicit_headers=True, build_directory=str(folder))
    return "ts_legacy_cpp::weighted"


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.ts_legacy_cpp.weighted(x, self.weight, 1.5, 2) + 1


@parse_args("v", "v", "f", "i")
def weighted(g, x, weight, power, repeats):
    powers = g.op("Pow", g.op("Abs", x), g.op("Constant", value_t=torch.tensor(power)))
    return g.op("Tile", g.op("Mul", powers, weight), g.op("Constant", value_t=torch.tensor([1, repeats])))


@pytest.mark.wide
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_an_operator_in_cpp_is_converted_by_its_symbolic(operator: str, scripted: bool) -> None:
    register_custom_op_symbolic(operator, weighted, 7)
    model = Weighted().eval()

    for opset in OPSETS:
        program = onnx_ts_legacy.export(
            torch.jit.script(model) if scripted else model,
            (torch.randn(2, 3),),
            opset_version=opset,
            dynamic_axes={"x": {0: "n"}},
        )
        agree(program, model, (torch.randn(5, 3),))


@pytest.mark.wide
def test_an_operator_in_cpp_becomes_one_of_a_domain_with_its_version(operator: str) -> None:
    @parse_args("v", "v", "f", "i")
    def custom(g, x, weight, power, repeats):
        return g.op("mycompany::Weighted", x, weight, power_f=power, repeats_i=repeats)

    register_custom_op_symbolic(operator, custom, 9)

    program = onnx_ts_legacy.export(Weighted(), (torch.randn(2, 3),), custom_opsets={"mycompany": 4})

    versions = {entry.domain: entry.version for entry in program.model_proto.opset_import}
    node = next(node for node in program.model_proto.graph.node if node.domain == "mycompany")
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert versions["mycompany"] == 4
    assert values["repeats"] == 2
    np.testing.assert_allclose(values["power"], 1.5)


@pytest.mark.wide
def test_an_operator_in_cpp_without_a_symbolic_is_named(operator: str) -> None:
    with pytest.raises(OnnxExporterError, match=r"ts_legacy_cpp::weighted(.|\n)*test_cpp_operators.py"):
        onnx_ts_legacy.export(Weighted(), (torch.randn(2, 3),))
