"""What the tables use of torch without a public promise is still there and means the same."""

from __future__ import annotations

import torch

from onnxops_decomp.torch_private import overload_of_custom_op


def test_a_custom_operator_knows_its_overload() -> None:
    @torch.library.custom_op("decomp_private::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert overload_of_custom_op(doubled) is torch.ops.decomp_private.doubled.default
    assert overload_of_custom_op(torch.relu) is None
