"""The page of ATen operators links to PyTorch's; the tools that write it are in the repository alone."""

from __future__ import annotations

import pytest

try:
    from tools.operator_links import DECLARATIONS, TORCH
    from tools.operator_tables import aten_page
except ImportError:
    pytest.skip("the tools of the repository are not here", allow_module_level=True)


@pytest.mark.parametrize(
    ("operator", "address"),
    [
        ("aten::add.Tensor", f"{TORCH}/generated/torch.add.html"),
        ("aten::linalg_det", f"{TORCH}/generated/torch.linalg.det.html"),
        ("aten::special_zeta", f"{TORCH}/special.html#torch.special.zeta"),
        ("aten::celu", f"{TORCH}/generated/torch.nn.functional.celu.html"),
        ("aten::add_.Tensor", f"{TORCH}/generated/torch.Tensor.add_.html"),
        ("aten::_to_copy", f"{DECLARATIONS}#:~:text=func%3A%20_to_copy"),
        ("aten::Int.Tensor", f"{TORCH}/jit_builtin_functions.html"),
    ],
)
def test_an_operator_links_to_the_page_of_its_function_or_else_to_its_declaration(operator: str, address: str) -> None:
    assert f"| [`{operator}`]({address}) | 7-8, 13 |" in aten_page({operator: {"opsets": [7, 8, 13]}})
