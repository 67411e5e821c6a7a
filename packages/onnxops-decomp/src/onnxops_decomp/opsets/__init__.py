"""ONNX models at another opset."""
