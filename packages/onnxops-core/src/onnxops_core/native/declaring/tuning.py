# Triton has no types.
# mypy: disable-error-code="import-not-found,import-untyped"
"""How the kernels choose their block sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import triton

__all__ = ["autotuned", "size_class"]

Settings = tuple[dict[str, int], int, int]
"""Block sizes by name, the number of warps and the number of pipeline stages."""

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def autotuned(
    settings: Sequence[Settings], key: list[str], fits: Callable[..., bool] | None = None
) -> Callable[[Any], Any]:
    """Return a decorator that measures which settings are the fastest, once for each value of the key arguments.

    In Triton's interpreter, where there is nothing to measure, the first settings are taken.

    Args:
        settings: what is tried; the first must do for any call.
        key: names of the arguments on which the choice depends, beside the dtypes.
        fits: takes a configuration and the arguments by name; those that it denies are not even compiled.
    """
    tried = settings[:1] if _INTERPRETED else settings
    configs = [triton.Config(blocks, num_warps=warps, num_stages=stages) for blocks, warps, stages in tried]

    def prune(configs: list[Any], named: dict[str, Any], **others: Any) -> list[Any]:
        return [configs[0], *(config for config in configs[1:] if fits is None or fits(config, named | others))]

    decorator: Callable[[Any], Any] = triton.autotune(configs, key=key, prune_configs_by={"early_config_prune": prune})
    return decorator


def size_class(size: int, largest: int) -> int:
    """Return the next power of two, up to a limit: sizes of a class share what was measured.

    A length that grows with every decoding step must not be measured anew with every step.
    """
    return min(largest, 1 << max(0, size - 1).bit_length())
