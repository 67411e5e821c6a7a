"""A quantized ONNX model is imported, trained for some steps, and exported again."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnx_fx_export
from onnxops_decomp import to_torch

RNG = np.random.default_rng(0)


def model(nodes, width, results, constants, opset):
    infos = [("x", ["n", width]), ("y", ["n", results])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in infos]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def quantized():
    """Return two layers between which values are rounded to 8 bits; the weight of the first is in 8 bits."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x8"]),
        helper.make_node("DequantizeLinear", ["x8", "scale", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w8", "w_scale", "w_zero"], ["w"], axis=1),
        helper.make_node("MatMul", ["xd", "w"], ["h"]),
        helper.make_node("Add", ["h", "bias"], ["hb"]),
        helper.make_node("Tanh", ["hb"], ["t"]),
        helper.make_node("QuantizeLinear", ["t", "scale", "zero"], ["t8"]),
        helper.make_node("DequantizeLinear", ["t8", "scale", "zero"], ["td"]),
        helper.make_node("MatMul", ["td", "head"], ["y"]),
    ]
    constants = {
        "scale": np.array(0.02, "f"), "zero": np.array(0, np.int8),
        "w8": RNG.integers(-100, 100, (4, 8)).astype(np.int8), "w_scale": np.full(8, 0.01, "f"),
        "w_zero": np.zeros(8, np.int8), "bias": np.zeros(8, "f"), "head": RNG.standard_normal((8, 3)).astype("f"),
    }  # fmt: skip
    return model(nodes, 4, 3, constants, 19)


def trained(module, parameters, x, wanted):
    """Return the loss before and after some steps."""
    optimizer = torch.optim.Adam(parameters, 0.02)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(module(x), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def operators(program):
    return [node.op_type for node in ir.traversal.RecursiveGraphIterator(program.model.graph)]


@pytest.mark.parametrize("opset", [13, 18, 20, 21, 23])
def test_a_model_with_quantized_values_is_trained_through_the_rounding(opset: int) -> None:
    torch.manual_seed(0)
    module = to_torch(quantized(), trainable=True)
    x, wanted = torch.randn(32, 4) / 3, torch.randn(32, 3)
    before, after = trained(module, module.parameters(), x, wanted)

    assert after < 0.9 * before
    assert module.bias.grad is not None
    assert module.bias.abs().max() > 0.01
    shapes = ({0: torch.export.Dim("n", min=2)},)
    program = onnx_fx_export.export(module, (x,), dynamic_shapes=shapes, opset_version=opset, verify=True)
    assert operators(program).count("QuantizeLinear") == 2
    assert operators(program).count("DequantizeLinear") == 3


def test_the_derivative_of_rounding_is_one_in_range_and_zero_beyond() -> None:
    module = to_torch(quantized(), trainable=True)
    x = torch.tensor([[0.1, 0.2, 0.3, 99.0]], requires_grad=True)
    module(x).sum().backward()
    assert (x.grad[0, :3] != 0).all()
    assert x.grad[0, 3] == 0


class LowRank(torch.nn.Module):
    """What low-rank adaptation adds to the result of a frozen product."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.down = torch.nn.Linear(inputs, rank, bias=False)
        self.up = torch.nn.Linear(rank, outputs, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.up(self.down(x))


def adapted(module):
    """Add a low-rank path beside every MatMulNBits of an imported model; return the new modules."""
    added = []
    for node in list(module.graph.nodes):
        if node.meta.get("onnx", {}).get("op_type") != "MatMulNBits":
            continue
        path = LowRank(node.kwargs["K"], node.kwargs["N"])
        module.add_submodule(f"lora_{len(added)}", path)
        with module.graph.inserting_after(node):
            low = module.graph.call_module(f"lora_{len(added)}", (node.args[0],))
        with module.graph.inserting_after(low):
            total = module.graph.call_function(torch.add, (node, low))
        node.replace_all_uses_with(total, delete_user_cb=lambda user, total=total: user is not total)
        added.append(path)
    module.recompile()
    return added


def test_low_rank_paths_beside_four_bit_products_are_trained_and_exported() -> None:
    torch.manual_seed(0)
    weights = {"b": RNG.integers(0, 255, (6, 1, 16)).astype(np.uint8), "s": (RNG.random((6, 1)) * 0.05).astype("f")}
    product = helper.make_node(
        "MatMulNBits", ["x", "b", "s"], ["h"], domain="com.microsoft", K=32, N=6, bits=4, block_size=32
    )
    module = to_torch(model([product, helper.make_node("Tanh", ["h"], ["y"])], 32, 6, weights, 21))
    x, wanted = torch.randn(16, 32), torch.rand(16, 6)
    untouched = module(x)
    paths = adapted(module)
    torch.testing.assert_close(module(x), untouched)
    before, after = trained(module, [each for path in paths for each in path.parameters()], x, wanted)

    assert after < 0.9 * before
    program = onnx_fx_export.export(
        module, (x,), dynamic_shapes=({0: "n"},), opset_version=21, target="onnxruntime", verify=True
    )
    assert "MatMulNBits" in operators(program)
