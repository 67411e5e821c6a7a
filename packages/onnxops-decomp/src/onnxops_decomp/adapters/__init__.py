"""One function per ONNX operator change: how the newer form is written in the older opset."""

from onnxops_decomp.builder.forms import adapter, find_adapter

__all__ = ["adapter", "find_adapter"]
