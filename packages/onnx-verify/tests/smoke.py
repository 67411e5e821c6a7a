"""What an installed onnx-verify must do with nothing around it but its declared dependencies."""

import importlib.util
import sys
from importlib.metadata import version

import numpy as np
from onnx import TensorProto, helper

import onnx_verify


def main(extra: str | None) -> None:
    assert onnx_verify.__version__ == version("onnx-verify")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([helper.make_node("Sqrt", ["x"], ["y"])], "roots", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    inputs = (np.arange(4, dtype=np.float32),)
    assert onnx_verify.compare(np.sqrt, model, inputs)
    assert not onnx_verify.compare(np.square, model, inputs)
    if extra is None:
        assert importlib.util.find_spec("torch") is None, "onnx-verify has to work without torch"
    if extra == "torch":
        import torch

        assert onnx_verify.compare(torch.sqrt, model, (torch.arange(4.0),))
    print("onnx-verify", onnx_verify.__version__, "works", f"with {extra}" if extra else "")


if __name__ == "__main__":
    main(*sys.argv[1:] or [None])
