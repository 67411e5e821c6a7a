"""Complex numbers, which ONNX has few operators for."""
