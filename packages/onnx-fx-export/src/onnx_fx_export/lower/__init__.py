"""From an ExportedProgram to ONNX nodes."""
