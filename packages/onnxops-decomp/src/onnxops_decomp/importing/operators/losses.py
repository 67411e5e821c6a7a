"""Losses."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxops_decomp.importing.registry import onnx_op


@onnx_op("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    classes = target.to(torch.int64)
    kept = torch.ones_like(classes, dtype=torch.bool) if ignore_index is None else classes != ignore_index
    classes = torch.where(kept, classes, 0)
    picked = -torch.gather(input, 1, classes.unsqueeze(1)).squeeze(1)
    factor = torch.ones_like(picked) if weight is None else weight[classes]
    factor = torch.where(kept, factor, 0)
    loss = torch.where(kept, picked * factor, 0)
    if reduction == "none":
        return loss
    return torch.sum(loss) if reduction == "sum" else torch.sum(loss) / torch.sum(factor)


@onnx_op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    log_prob = torch.log_softmax(scores, 1)
    return negative_log_likelihood_loss(log_prob, labels, weights, ignore_index, reduction), log_prob
