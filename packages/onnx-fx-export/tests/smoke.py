"""What an installed onnx-fx-export must do with nothing around it but its declared dependencies."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import onnx
import torch

import onnx_fx_export


def main(extra: str | None) -> None:
    assert onnx_fx_export.__version__ == version("onnx-fx-export")
    model = torch.nn.Linear(3, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx_fx_export.export(
            model,
            (torch.randn(4, 3),),
            path,
            dynamic_shapes=[{0: "batch"}],
            opset_version=17,
            verify=extra == "verify",
        )
        proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version == 17
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    print("onnx-fx-export", onnx_fx_export.__version__, "works", f"with {extra}" if extra else "")


if __name__ == "__main__":
    main(*sys.argv[1:] or [None])
