"""What an installed onnxops-core must do with nothing around it but its declared dependencies."""

from importlib.metadata import version

import torch

import onnxops_core
from onnxops_core import rms_normalization


def main() -> None:
    assert onnxops_core.__version__ == version("onnxops-core")
    x = torch.randn(2, 8)
    expected = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(rms_normalization(x, torch.ones(8)), expected)
    with onnxops_core.onnx_export():
        assert torch.onnx.is_in_onnx_export()
    print("onnxops-core", onnxops_core.__version__, "works")


if __name__ == "__main__":
    main()
