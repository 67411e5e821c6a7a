"""What an installed onnx-ts-legacy must do with nothing around it but its declared dependencies."""

from importlib.metadata import version

import onnx_ts_legacy


def main() -> None:
    assert onnx_ts_legacy.__version__ == version("onnx-ts-legacy")
    print("onnx-ts-legacy", onnx_ts_legacy.__version__, "works")


if __name__ == "__main__":
    main()
