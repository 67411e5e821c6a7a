"""What an installed onnx-fx-export must do with nothing around it but its declared dependencies."""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import onnx
import torch

import onnx_fx_export


def transformers_back_end() -> None:
    """Export a small model by transformers' own interface."""
    from transformers import BertConfig, BertModel

    from onnx_fx_export.transformers import OnnxFxConfig, OnnxFxExporter

    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    ids = torch.randint(3, 50, (2, 5))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    exported = OnnxFxExporter().export(BertModel(config).eval(), inputs, OnnxFxConfig(dynamic=True))
    assert exported.program.input_names == ["input_ids", "attention_mask"]
    assert "last_hidden_state" in exported.program.output_names


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
    if extra == "transformers":
        transformers_back_end()
    print("onnx-fx-export", onnx_fx_export.__version__, "works", f"with {extra}" if extra else "")


if __name__ == "__main__":
    main(*sys.argv[1:] or [None])
