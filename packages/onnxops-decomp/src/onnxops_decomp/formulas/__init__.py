"""Compositions of ONNX operators that both lowerings and adapters write."""
