"""One function for each ONNX operator, by family."""
