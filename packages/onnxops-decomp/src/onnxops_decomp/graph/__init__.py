"""From an fx graph to ONNX: its calls one by one, and what becomes of writes, strides and composite operators."""
