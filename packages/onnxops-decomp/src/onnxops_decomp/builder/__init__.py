"""The writer of ONNX nodes: its context, what it knows of sizes, and what it leaves out."""
