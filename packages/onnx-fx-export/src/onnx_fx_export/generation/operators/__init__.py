"""Operators that stand for parts of models in a capture, and how ONNX Runtime has them."""
