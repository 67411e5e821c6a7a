"""What an installed onnxops-core must do with nothing around it but its declared dependencies."""

from importlib.metadata import version

import onnxops_core


def main() -> None:
    assert onnxops_core.__version__ == version("onnxops-core")
    print("onnxops-core", onnxops_core.__version__, "works")


if __name__ == "__main__":
    main()
