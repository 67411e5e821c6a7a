"""What users of other exporters suffer from, as far as no other test of this package is about it.

The rest is in: test_repeated_blocks (layers traced again and again), test_saving (memory and large models),
test_dynamic_shapes (``dynamic_axes``), test_examples (sizes 0 and 1, shapes from examples), test_containers (caches),
test_errors (data-dependent branches, messages), test_mutation (state), test_autograd_function (``symbolic``),
test_export (opsets), test_observers and test_quantized_models (quantization), test_functions (modules as functions),
test_complex_models (complex numbers).
"""

from __future__ import annotations

import pytest
import torch

from onnx_fx_export import export

FUNCTIONS = {
    "searchsorted": lambda x: torch.searchsorted(torch.linspace(-2, 2, 7), x.contiguous()),
    "cummax": lambda x: torch.cummax(x, 0).values,
    "median": lambda x: torch.median(x, 1).values,
    "kthvalue": lambda x: torch.kthvalue(x, 2, 1).values,
    "cdist": lambda x: torch.cdist(x, x + 1),
    "inv": lambda x: torch.linalg.inv(x.T @ x + 3 * torch.eye(4)),
    "lgamma": lambda x: torch.lgamma(x.abs() + 1),
    "digamma": lambda x: torch.digamma(x.abs() + 1),
    "erfinv": lambda x: torch.erfinv(x.tanh() / 2),
    "histc": lambda x: torch.histc(x, 5, -3, 3),
    "stable sort": lambda x: torch.sort(x.round(), dim=1, stable=True).indices,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_that_others_lack(name: str) -> None:
    function = FUNCTIONS[name]
    program = export(function, (torch.randn(3, 4),), dynamic_shapes={"x": {0: "rows"}})
    x = torch.randn(6, 4)
    torch.testing.assert_close(program(x), function(x), rtol=1e-3, atol=1e-4)


def test_dynamic_shapes_by_the_names_of_the_inputs() -> None:
    shapes = {"features": {0: "batch"}}
    program = export(torch.nn.ReLU(), (torch.randn(2, 3),), input_names=["features"], dynamic_shapes=shapes)
    assert str(program.model.graph.inputs[0].shape[0]) == "batch"


def test_a_small_model_is_one_file(tmp_path) -> None:
    export(torch.nn.Linear(64, 64), (torch.randn(2, 64),), tmp_path / "model.onnx")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.onnx"]
