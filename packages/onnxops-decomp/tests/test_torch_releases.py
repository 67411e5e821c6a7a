"""What the releases of torch that the package supports do not have in common."""

import ast
from pathlib import Path

import pytest

import onnxops_decomp

SOURCES = sorted(Path(onnxops_decomp.__file__).parent.rglob("*.py"))
# In torch 2.13, no longer in 2.14. Read as an attribute of torch.ops.aten, the name breaks the import of the table.
GONE = {"cholesky"}


def attributes_of_aten(source: str) -> set[str]:
    """The names that a source reads from `aten` or `torch.ops.aten`."""
    read = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return {node.attr for node in read if ast.unparse(node.value) in ("aten", "torch.ops.aten")}


def test_attributes_of_aten_are_found() -> None:
    assert attributes_of_aten("f(aten.cholesky.default)\ntorch.ops.aten.add(aten_other.mul)") == {"cholesky", "add"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_operators_that_a_supported_torch_lacks_are_entered_by_name(path: Path) -> None:
    assert not attributes_of_aten(path.read_text(encoding="utf-8")) & GONE
