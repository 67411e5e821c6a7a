"""Operators that write to an operand without saying so in their schema: normalization in training mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from onnx_ts_legacy.calls.scalars import binary
from onnx_ts_legacy.mutation.writes import write_tensor
from onnx_ts_legacy.state.context import ConversionContext
from onnx_ts_legacy.state.values import Tensor, is_runtime
from onnxops_decomp.exporting import AtenTrait, has_aten_trait

__all__ = ["update_running_statistics"]

aten = torch.ops.aten
_TRAINING, _MOMENTUM = 5, 6


def update_running_statistics(context: ConversionContext, overload: torch._ops.OpOverload, args: Sequence[Any]) -> None:
    """Write the running statistics that a call in training mode updates; other calls do nothing here.

    Source: ``torch.nn.BatchNorm1d``: ``x_new = (1 - momentum) * x + momentum * x_observed``, the variance unbiased.
    What instance normalization observes is the mean over the instances.
    """
    if not has_aten_trait(overload, AtenTrait.STATISTICS) or not args[_TRAINING] or not isinstance(args[3], Tensor):
        return
    x, mean, variance, momentum = args[0], args[3], args[4], args[_MOMENTUM]
    axes = [axis for axis in range(x.fake.dim()) if axis != 1]
    observed_mean = context.call(aten.mean.dim, [x, axes], {})
    if overload is aten.instance_norm.default:
        of_instances = context.call(aten.var.correction, [x, axes[1:]], {"correction": 1})
        observed_variance = context.call(aten.mean.dim, [of_instances, [0]], {})
    else:
        observed_variance = context.call(aten.var.correction, [x, axes], {"correction": 1})
    rest = binary(context, "sub", 1, momentum) if is_runtime(momentum) else 1 - momentum
    for target, observed in ((mean, observed_mean), (variance, observed_variance)):
        kept = context.call(aten.mul.Scalar, [target, rest], {})
        added = context.call(aten.mul.Scalar, [observed, momentum], {})
        write_tensor(context, target, context.call(aten.add.Tensor, [kept, added], {}))
