"""What the ONNX specification says of operators: their forms by opset, and the dtypes and shapes of their results."""
