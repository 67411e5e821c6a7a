"""Starts the command line by ``python -m onnx_verify``."""

from onnx_verify._entry import main

if __name__ == "__main__":
    main()
