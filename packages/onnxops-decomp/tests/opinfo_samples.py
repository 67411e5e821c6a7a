"""Calls of PyTorch's OpInfo database, recorded once and lowered at many opsets."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import decomp_harness as harness
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from onnxops_decomp.errors import LoweringError

__all__ = ["Call", "calls", "names", "outcome"]

# Operators whose results are drawn, or never written: dtype and shape are all that can be compared.
RANDOM = frozenset(
    """bernoulli cauchy empty empty_like empty_permuted empty_strided exponential geometric log_normal multinomial
    new_empty new_empty_strided normal normal.in_place normal.number_mean rand_like randint randint_like randn
    randn_like uniform nn.functional.alpha_dropout nn.functional.dropout nn.functional.dropout2d
    nn.functional.dropout3d nn.functional.feature_alpha_dropout.with_train
    nn.functional.feature_alpha_dropout.without_train nn.functional.fractional_max_pool2d
    nn.functional.fractional_max_pool3d nn.functional.multi_head_attention_forward nn.functional.rrelu pca_lowrank
    svd_lowrank""".split()
)


@dataclasses.dataclass
class Call:
    """One sample of an operator: a function of its tensors.

    Attributes:
        name: What the operator is called in the lists of exceptions.
        function: The operator.
        leaves: Its arguments, flat.
        structure: How they are nested.
    """

    name: str
    function: Callable[..., Any]
    leaves: list[Any]
    structure: pytree.TreeSpec

    @property
    def positions(self) -> list[int]:
        return [index for index, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.leaves[index].detach().clone() for index in self.positions]

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with others in place of the tensors."""
        leaves = list(self.leaves)
        for index, tensor in zip(self.positions, tensors, strict=True):
            leaves[index] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return args, kwargs

    def __call__(self, *tensors: torch.Tensor) -> Any:
        args, kwargs = self.arguments(tensors)
        return self.function(*args, **kwargs)


def _name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


@functools.cache
def infos() -> dict[str, Any]:
    # Operators that only torch's compiler calls, and those that change the shape of a tensor in place.
    return {_name(info): info for info in op_db if not info.name.startswith(("jiterator", "resize_", "to_sparse"))}


def names() -> list[str]:
    return sorted(infos())


def calls(name: str, dtype: torch.dtype, count: int) -> list[Call]:
    """Return up to ``count`` samples of an operator, spread over all of them; none if it does not take the dtype."""
    info = infos()[name]
    if dtype not in info.supported_dtypes("cpu"):
        return []
    torch.manual_seed(0)
    samples = list(info.sample_inputs("cpu", dtype, requires_grad=False))
    count = min(count, len(samples))
    chosen = {round(i * (len(samples) - 1) / max(count - 1, 1)) for i in range(count)}
    return [
        Call(name, info.op, *pytree.tree_flatten(((samples[i].input, *samples[i].args), samples[i].kwargs)))
        for i in sorted(chosen)
    ]


def expected_of(call: Call) -> list[torch.Tensor] | None:
    """Return what eager PyTorch computes, or None if it gives no tensor, or no dense one."""
    torch.manual_seed(0)
    try:
        results = harness.expected_of(call, call.tensors)
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return None
    return results if results and all(result.layout == torch.strided for result in results) else None


def outcome(
    call: Call, traced: torch.fx.GraphModule, expected: list[torch.Tensor], opset: int, *, values: bool = True
) -> LoweringError | None:
    """Lower and run a sample; return the refusal of the table, None where the result is torch's.

    Without ``values``, dtypes and shapes alone are compared.

    Raises:
        AssertionError: If the model computes something else.
        Exception: If the model is not valid, or the runtime cannot run it.
    """
    try:
        lowered = harness.lower_graph(traced, opset=opset)
    except LoweringError as error:
        return error
    compared = values and call.name not in RANDOM
    harness.compare(harness.run(lowered.proto, call.tensors), expected, values=compared, tolerance=_tolerance(expected))
    return None


def _tolerance(expected: list[torch.Tensor]) -> tuple[float, float] | None:
    """Return that of torch.testing for single precision widened for sums of another order, as for all tests."""
    return (1e-3, 1e-4) if any(result.dtype == torch.float32 for result in expected) else None
