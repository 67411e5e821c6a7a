"""Losses equal eager PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

OPSETS = swept(11, 13, 18, 26)
REDUCTIONS = ["none", "mean", "sum"]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3), (2, 5, 3, 4)])
def test_nll_loss_leaves_out_ignored_targets(
    shape: tuple[int, ...], weighted: bool, reduction: str, opset: int
) -> None:
    target = torch.randint(0, 5, (*shape[:1], *shape[2:]) if len(shape) > 1 else ())
    if target.ndim:
        target.view(-1)[0] = -100
    weight = torch.rand(5) if weighted else None
    check(
        lambda x, t, *w: F.nll_loss(x, t, *w, reduction=reduction),
        torch.randn(shape),
        target,
        *([] if weight is None else [weight]),
        opset=opset,
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss_of_ignored_targets_alone(reduction: str) -> None:
    target = torch.full((3,), 2)
    check(lambda x, t: F.nll_loss(x, t, ignore_index=2, reduction=reduction), torch.randn(3, 4), target)


def test_nll_loss_of_an_ignored_target_with_an_infinite_likelihood_is_zero() -> None:
    x = torch.tensor([[-torch.inf, 0.0], [-1.0, -2.0]])
    check(lambda x, t: F.nll_loss(x, t, ignore_index=0), x, torch.tensor([0, 1]))


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_of_classes(smoothing: float, opset: int) -> None:
    check(
        lambda x, t, w: F.cross_entropy(x, t, w, ignore_index=1, label_smoothing=smoothing),
        torch.randn(6, 5, 3),
        torch.randint(0, 5, (6, 3)),
        torch.rand(5),
        opset=opset,
    )


def test_cross_entropy_of_probabilities() -> None:
    check(lambda x, t: F.cross_entropy(x, t), torch.randn(6, 5), torch.randn(6, 5).softmax(1))


def test_cross_entropy_runs_at_other_sizes() -> None:
    check(
        lambda x, t: F.cross_entropy(x, t),
        torch.randn(6, 5),
        torch.randint(0, 5, (6,)),
        others=[(torch.randn(3, 9), torch.randint(0, 9, (3,)))],
    )


PAIRWISE: dict[str, Callable[..., Any]] = {
    "mse": lambda x, y: F.mse_loss(x, y),
    "l1": lambda x, y: F.l1_loss(x, y),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
    "huber": lambda x, y: F.huber_loss(x, y, delta=0.7),
    "kl_div": lambda x, y: F.kl_div(x, y.softmax(-1), reduction="batchmean"),
    "poisson_nll": lambda x, y: F.poisson_nll_loss(x, y.abs(), full=True),
    "soft_margin": lambda x, y: F.soft_margin_loss(x, y.sign()),
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "bce_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=y[0].exp()),
    "cosine": lambda x, y: F.cosine_embedding_loss(x, y, y[:, 0].sign()),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, x + y, swap=True),
    "multilabel_soft_margin": lambda x, y: F.multilabel_soft_margin_loss(x, (y > 0).float()),
}


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("name", PAIRWISE)
def test_losses_of_two_tensors(name: str, opset: int) -> None:
    check(PAIRWISE[name], torch.randn(4, 5), torch.randn(4, 5), opset=opset)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margin_losses(reduction: str) -> None:
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0])
    check(
        lambda x, y, s: F.margin_ranking_loss(x, y, s, 0.3, reduction=reduction), torch.randn(4), torch.randn(4), sign
    )
    check(lambda x, s: F.hinge_embedding_loss(x, s, 0.3, reduction=reduction), torch.randn(4), sign)
    check(lambda x, t: F.multi_margin_loss(x, t, reduction=reduction), torch.randn(4, 5), torch.tensor([0, 4, 2, 2]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_integers_wrap_around_before_the_margin_is_added(dtype: torch.dtype) -> None:
    numbers = torch.randint(-128, 128, (3, 16)).to(dtype)
    check(lambda x, y, s: F.margin_ranking_loss(x, y, s, 2, reduction="none"), *numbers)
