"""The writer of ONNX nodes: what it is told, what it knows of sizes, and what it leaves out."""
