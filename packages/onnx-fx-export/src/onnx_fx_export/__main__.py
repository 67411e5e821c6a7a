"""Starts the command line by ``python -m onnx_fx_export``."""

from onnx_fx_export.entry import main

if __name__ == "__main__":
    main()
