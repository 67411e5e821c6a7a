"""What an installed onnxops-decomp must do with nothing around it but its declared dependencies."""

from importlib.metadata import version

import onnx
import onnx_ir as ir

import onnxops_decomp
from onnxops_decomp.files.model import build_model


def main() -> None:
    assert onnxops_decomp.__version__ == version("onnxops-decomp")
    op = onnxops_decomp.OpBuilder(13)
    x = op.input("x", ir.DataType.FLOAT, (2, 3))
    relu = onnxops_decomp.builtin_table()["aten::relu"].function(op, x)
    model = ir.to_proto(build_model(op, [relu], name="smoke"))
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Relu"]
    assert model.opset_import[0].version == 13
    print("onnxops-decomp", onnxops_decomp.__version__, "works")


if __name__ == "__main__":
    main()
