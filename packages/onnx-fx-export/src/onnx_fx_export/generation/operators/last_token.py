"""The logits of the last token alone: the head of a model sees nothing of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["TRANSLATIONS", "last_kept", "of_last_kept", "reading_last"]


@torch.library.custom_op("onnx_fx_export::last_kept", mutates_args=())
def last_kept(mask: torch.Tensor) -> torch.Tensor:
    """Return the last place of each row that a mask keeps: (B, 1), int64.

    Args:
        mask: 1 for a token and 0 for padding (B, S), int64; of padding alone the place is the last one.
    """
    return mask.shape[1] - 1 - mask.flip(-1).argmax(-1, keepdim=True)


@last_kept.register_fake
def _(mask: torch.Tensor) -> torch.Tensor:
    return mask.new_empty(mask.shape[0], 1)


def _write(op: Any, mask: Any) -> Any:
    """Write one node, which PyTorch has no operator for: its argmax gives the first place."""
    return op.ArgMax(mask, axis=-1, keepdims=1, select_last_index=1)


def of_last_kept(mask: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what takes the state of the last token that is no padding (B, 1, width) from those of all (B, S, width).

    Args:
        mask: 1 for a token and 0 for padding (B, S), int64.
    """
    return lambda hidden: hidden.gather(1, last_kept(mask).unsqueeze(-1).expand(-1, 1, hidden.shape[-1]))


@contextlib.contextmanager
def reading_last(
    head: torch.nn.Module | None, pick: Callable[[torch.Tensor], torch.Tensor] = lambda hidden: hidden[:, -1:]
) -> Iterator[None]:
    """Let the head of a model see the last token of each row alone.

    Args:
        head: The head; None changes nothing.
        pick: Takes the states that the head sees (B, 1, width) from those of all tokens (B, S, width); those of the
            last place, where there is no padding.
    """
    if head is None:
        yield
        return

    def picked(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, *others = args
        return pick(hidden), *others

    handle = head.register_forward_pre_hook(picked)
    try:
        yield
    finally:
        handle.remove()


TRANSLATIONS: dict[Any, Callable[..., Any]] = {last_kept: _write}
