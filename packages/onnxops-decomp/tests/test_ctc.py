"""The loss of connectionist temporal classification equals eager PyTorch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from decomp_harness import check
from opset_sweep import swept

OPSETS = swept(7, 9, 11, 13, 18, 26)
TARGETS = torch.tensor([[1, 2, 2, 4], [3, 1, 0, 0], [4, 4, 4, 1]])
LENGTHS = torch.tensor([4, 2, 3])
STEPS = torch.tensor([7, 5, 6])
FLAT = torch.cat([target[:length] for target, length in zip(TARGETS, LENGTHS.tolist(), strict=True)])


def _log_probs(*shape: int) -> torch.Tensor:
    return torch.randn(shape).log_softmax(-1)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("targets", [TARGETS, FLAT], ids=["padded", "concatenated"])
def test_lengths_in_tensors(targets: torch.Tensor, reduction: str, opset: int) -> None:
    check(
        lambda x, t, i, n: F.ctc_loss(x, t, i, n, reduction=reduction),
        _log_probs(7, 3, 5),
        targets,
        STEPS,
        LENGTHS,
        opset=opset,
    )


@pytest.mark.parametrize("targets", [TARGETS, FLAT], ids=["padded", "concatenated"])
def test_lengths_as_numbers(targets: torch.Tensor) -> None:
    check(
        lambda x, t: F.ctc_loss(x, t, (7, 5, 6), (4, 2, 3)),
        _log_probs(7, 3, 5),
        targets,
        others=[(_log_probs(9, 3, 6), targets)],
    )


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize("padded", [False, True])
def test_other_sizes_of_everything(padded: bool, opset: int) -> None:
    def example(steps: int, classes: int, lengths: list[int]) -> tuple[torch.Tensor, ...]:
        shape = (len(lengths), max(lengths)) if padded else (sum(lengths),)
        counts = torch.tensor(lengths)
        log_probs = _log_probs(steps, len(lengths), classes)
        return log_probs, torch.randint(1, classes, shape), torch.full_like(counts, steps), counts

    check(
        lambda x, t, i, n: F.ctc_loss(x, t, i, n, reduction="none"),
        *example(12, 5, [3, 5, 2]),
        opset=opset,
        others=[example(9, 7, [2, 4]), example(20, 3, [1, 6, 0, 6])],
    )


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_a_target_longer_than_its_sequence_is_impossible(zero_infinity: bool) -> None:
    check(
        lambda x, t, i, n: F.ctc_loss(x, t, i, n, reduction="none", zero_infinity=zero_infinity),
        _log_probs(7, 3, 5),
        TARGETS,
        torch.tensor([3, 2, 3]),
        LENGTHS,
    )


def test_empty_targets_and_sequences() -> None:
    log_probs = _log_probs(7, 3, 5)

    def loss(x: torch.Tensor, t: torch.Tensor, i: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(x, t, i, n, reduction="none")

    check(loss, log_probs, TARGETS, torch.tensor([3, 0, 0]), torch.tensor([0, 0, 2]))
    check(loss, log_probs, TARGETS[:, :0], STEPS, torch.zeros(3, dtype=torch.int64))
    check(loss, log_probs, FLAT[:0], STEPS, torch.zeros(3, dtype=torch.int64))
    check(lambda *args: F.ctc_loss(*args), log_probs, TARGETS, STEPS, torch.tensor([0, 2, 1]))


def test_another_blank_and_other_dtypes() -> None:
    check(
        lambda x, t, i, n: F.ctc_loss(x, t, i, n, blank=4, reduction="none"),
        _log_probs(7, 3, 5).double(),
        TARGETS.clamp(max=3).int(),
        STEPS.int(),
        LENGTHS.int(),
    )


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_one_sequence_without_a_batch(reduction: str) -> None:
    check(
        lambda x, t, i, n: F.ctc_loss(x, t, i, n, reduction=reduction),
        _log_probs(7, 5),
        TARGETS[0, :3],
        torch.tensor(6),
        torch.tensor(3),
    )


def test_impossible_and_certain_classes() -> None:
    log_probs = torch.full((4, 1, 3), -torch.inf)
    log_probs[torch.arange(4), 0, torch.tensor([1, 1, 0, 2])] = 0.0
    for target in ([1, 2], [2, 1], [1, 1]):
        check(
            lambda x, t: F.ctc_loss(x, t, (4,), (2,), reduction="none"),
            log_probs,
            torch.tensor([target]),
        )


@pytest.mark.parametrize("listed", [False, True])
def test_the_operator_below_the_loss(listed: bool) -> None:
    lengths: list[Any] = [[7, 5, 6], [4, 2, 3]] if listed else [STEPS, LENGTHS]
    operands = (_log_probs(7, 3, 5), TARGETS, *([] if listed else lengths))

    def both(x: torch.Tensor, t: torch.Tensor, *rest: torch.Tensor) -> Any:
        return torch._ctc_loss(x, t, *(rest or lengths))

    check(lambda *args: both(*args)[0], *operands)
    # torch leaves the forward variables beyond the end of a sequence uninitialized.
    check(lambda *args: both(*args)[1], *operands, values=False)
    check(lambda *args: both(*args)[1][0, 1:], *operands)
