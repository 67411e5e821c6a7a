"""One bounded memory arena for all CPU sessions, so that an absurd model fails instead of taking the machine down."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache

import onnxruntime as ort

from onnx_verify.errors import InputError

_SHARE = 0.8
_SAME_AS_REQUESTED = 1
_wanted: int | None = None


def set_memory_limit(limit: int) -> None:
    """Set how many bytes all ONNX Runtime sessions on the CPU may take together for their values.

    The default is 80 % of the machine's memory. It has to be set before the first model is run.

    Raises:
        InputError: if it is not positive, or comes too late.
    """
    global _wanted
    if limit <= 0:
        raise InputError(f"a memory limit of {limit} bytes allows nothing")
    if share_arena.cache_info().currsize:
        raise InputError("the memory limit must be set before the first model is loaded")
    _wanted = limit


def unbounded_optimizers() -> list[str]:
    """Return the optimizers of ONNX Runtime that have to be off for a limit that was set to hold.

    Before 1.27, constants are folded in memory that no arena counts.
    """
    version = tuple(int(part) for part in ort.__version__.split(".")[:2])
    return ["ConstantFolding"] if _wanted is not None and version < (1, 27) else []


def _machine_memory() -> int:
    """Return the bytes of physical memory, or 16 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 16 << 30


@cache
def share_arena() -> None:
    """Register the arena, once per process."""
    limit = _wanted if _wanted is not None else int(_machine_memory() * _SHARE)
    place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    settings = ort.OrtArenaCfg({"max_mem": limit, "arena_extend_strategy": _SAME_AS_REQUESTED})
    # If the program has registered an arena of its own, that one is used, with its own limit.
    with suppress(Exception):
        ort.create_and_register_allocator(place, settings)
