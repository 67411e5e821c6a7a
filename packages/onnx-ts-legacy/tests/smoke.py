"""What an installed onnx-ts-legacy must do with nothing around it but its declared dependencies."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import onnx
import torch

import onnx_ts_legacy


class Repeat(torch.nn.Module):
    def forward(self, x):
        while bool(x.sum() < 10.0):
            x = x * 2.0
        return x


def main(extra: str | None) -> None:
    program = onnx_ts_legacy.export(torch.nn.Linear(3, 2), (torch.randn(2, 3),), dynamic_axes={"input": {0: "batch"}})
    onnx.checker.check_model(program.model_proto)
    assert program.input_names == ["input"]
    assert onnx_ts_legacy.__version__ == version("onnx-ts-legacy")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model = torch.jit.script(Repeat())
        onnx_ts_legacy.export(model, (torch.ones(3),), path, opset_version=11, verify=extra == "verify")
        proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version == 11
    assert "Loop" in [node.op_type for node in proto.graph.node]
    print("onnx-ts-legacy", onnx_ts_legacy.__version__, "works", f"with {extra}" if extra else "")


if __name__ == "__main__":
    main(*sys.argv[1:] or [None])
