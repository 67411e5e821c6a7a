"""What an installed onnx-fx-export must do with nothing around it but its declared dependencies."""

from importlib.metadata import version

import onnx_fx_export


def main() -> None:
    assert onnx_fx_export.__version__ == version("onnx-fx-export")
    print("onnx-fx-export", onnx_fx_export.__version__, "works")


if __name__ == "__main__":
    main()
