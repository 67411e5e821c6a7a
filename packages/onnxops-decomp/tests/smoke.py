"""What an installed onnxops-decomp must do with nothing around it but its declared dependencies."""

from importlib.metadata import version

import onnxops_decomp


def main() -> None:
    assert onnxops_decomp.__version__ == version("onnxops-decomp")
    print("onnxops-decomp", onnxops_decomp.__version__, "works")


if __name__ == "__main__":
    main()
