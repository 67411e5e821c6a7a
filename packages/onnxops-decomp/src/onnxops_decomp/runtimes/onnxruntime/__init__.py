"""ONNX Runtime: dtypes without a kernel, what is composed in their place, and operators of its own domain."""
