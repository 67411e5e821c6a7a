"""The logits of the last token alone: the head of a model sees nothing of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["TRANSLATIONS", "last_kept", "reading_last"]


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


@contextlib.contextmanager
def reading_last(head: torch.nn.Module | None, mask: torch.Tensor | None) -> Iterator[None]:
    """Let the head of a model see the last token of each row alone.

    Args:
        head: The head; None changes nothing.
        mask: 1 for a token and 0 for padding (B, S), int64: the last one that is not padding is seen. None: there is no
            padding.
    """
    if head is None:
        yield
        return
    last = None if mask is None else last_kept(mask).unsqueeze(-1)

    def picked(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, *others = args
        if last is None:
            return hidden[:, -1:], *others
        return hidden.gather(1, last.expand(-1, 1, hidden.shape[-1])), *others

    handle = head.register_forward_pre_hook(picked)
    try:
        yield
    finally:
        handle.remove()


TRANSLATIONS: dict[Any, Callable[..., Any]] = {last_kept: _write}
