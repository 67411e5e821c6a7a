"""The attention masks of transformers, left out where the model itself makes none.

Where nothing is to be masked, transformers attends without a mask, but while torch.export runs it makes one of ones, as
it cannot read padding then. Without padding there is nothing to be read, and some models take no mask at all.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from onnxops_core.exporting import original, replaced

__all__ = ["masks_where_needed"]


@contextlib.contextmanager
def masks_where_needed() -> Iterator[None]:
    """Let the library's functions make no mask for both directions where there is no padding."""
    masking: Any = sys.modules.get("transformers.masking_utils")
    interface = getattr(masking, "AttentionMaskInterface", None)
    if interface is None:
        yield
        return
    own = [getattr(masking, name) for name in ("sdpa_mask", "eager_mask")]

    def found(self: Any, key: str) -> Any:
        function = original(interface, "__getitem__")(self, key)
        return functools.partial(_mask, function) if function in own else function

    with replaced([(interface, "__getitem__", found)]):
        yield


def _mask(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return no mask where transformers may leave it out, and no padding and no window keep it from doing so."""
    needed = any(kwargs.get(name) is not None for name in ("attention_mask", "local_size"))
    return function(*args, **kwargs) if needed or not kwargs.get("allow_is_bidirectional_skip") else None
