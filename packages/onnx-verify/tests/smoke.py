"""What an installed onnx-verify must do with nothing around it but its declared dependencies."""

from importlib.metadata import version

import onnx_verify


def main() -> None:
    assert onnx_verify.__version__ == version("onnx-verify")
    print("onnx-verify", onnx_verify.__version__, "works")


if __name__ == "__main__":
    main()
