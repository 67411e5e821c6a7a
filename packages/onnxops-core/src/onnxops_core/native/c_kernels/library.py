"""Optional CPU kernels: C that is compiled on request, and loaded at run time where it has been.

The package is pure Python and needs no compiler. What torch's operators cannot do in one pass over memory is worth
a few lines of C, though: with the library of :func:`build_cpu_kernels` in the user's cache, rotary embedding, RMS
normalization, attention of a decoding step and writes into a cache use it; without it they are composed of torch
operators.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from onnxops_core.errors import OnnxExporterError

__all__ = [
    "attend_one_query",
    "build_cpu_kernels",
    "cpu_kernels",
    "refuses",
    "write_cache",
]

_SOURCE = Path(__file__).with_name("kernels.c")
_LARGEST_HEAD = 512
# The kernels run on one core; above this many elements torch's threads are faster together.
_LARGEST_FOR_ONE_CORE = 1 << 17
# Packing the arguments into a struct costs half of what ctypes takes to convert them one by one.
_ATTENTION = struct.Struct("18qd")
_CACHE_WRITE = struct.Struct("9q")


def _flags() -> list[str]:
    # errno of sqrt and the like stands in the way of vector instructions; results do not change.
    flags = ["-std=c11", "-O3", "-fPIC", "-shared", "-fopenmp-simd", "-fno-math-errno"]
    capability = torch.backends.cpu.get_cpu_capability()
    if capability in ("AVX2", "AVX512"):
        flags += ["-mavx2", "-mfma"]
    if capability == "AVX512":
        flags += [f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")]
    return flags


def _library_path() -> Path:
    """Where the library for this source, platform and kind of CPU lies."""
    identity = "\n".join([_SOURCE.read_text(encoding="utf-8"), sys.platform, platform.machine(), *_flags()])
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "onnxops-core", f"cpu-kernels-{name}.so")


def build_cpu_kernels(compiler: str | None = None) -> Path:
    """Compile the optional CPU kernels into the user's cache, for this and later processes.

    Only rotary embedding, RMS normalization and attention with one query per head, all in float32, and writes into
    a cache have such kernels. They give the same results and are faster on one core.

    Args:
        compiler: a C compiler with GCC's options; by default ``$CC`` or the first of cc, gcc and clang that is
            found.

    Returns:
        The path of the shared library, below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        OnnxExporterError: there is no C compiler, or it failed.
    """
    names = [compiler or os.environ.get("CC") or "cc", "gcc", "clang"][: 1 if compiler else None]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise OnnxExporterError(f"found no C compiler ({', '.join(names)}); pass the path of one as compiler")
    path = _library_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Other processes must never see half a library.
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        built = Path(directory, path.name)
        command = [found, *_flags(), "-o", str(built), str(_SOURCE), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OnnxExporterError(f"the C compiler failed: {' '.join(command)}\n{done.stderr.strip()}")
        built.replace(path)
    cpu_kernels.cache_clear()
    return path


@functools.cache
def cpu_kernels() -> Any:
    """Return the library of kernels, or None where it has not been built."""
    try:
        library = ctypes.CDLL(str(_library_path()))
    except (OSError, RuntimeError):  # not built, or no home directory
        return None
    for name in ("onnxops_attend_one_query", "onnxops_rotary", "onnxops_rms_normalization"):
        function = getattr(library, name)
        function.argtypes, function.restype = (ctypes.c_char_p,), None
    library.onnxops_write_cache.argtypes = (ctypes.c_char_p,)
    library.onnxops_write_cache.restype = ctypes.c_int64
    return library


def refuses(largest: torch.Tensor, *others: torch.Tensor) -> str | None:
    """Return why no kernel takes some tensors, of which the largest comes first; None if they may."""
    if cpu_kernels() is None:
        return "the CPU kernels are not built (see build_cpu_kernels)"
    for tensor in (largest, *others):
        if tensor.dtype != torch.float32 or not tensor.is_cpu:
            return f"a tensor is {tensor.dtype} on {tensor.device}, not float32 on the CPU"
        if tensor.is_neg():
            return "memory holds the negative of a tensor"
    if largest.numel() > _LARGEST_FOR_ONE_CORE and torch.get_num_threads() > 1:
        return "torch's threads are faster than one core"
    return None


def attend_one_query(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, total: int, scale: float | None
) -> torch.Tensor | None:
    """Attention of one query per head over the first ``total`` keys, or None where the kernel cannot compute it.

    Args:
        q: ``(batch, heads, 1, size)``.
        k: ``(batch, kv_heads, total or more, size)``, heads a multiple of kv_heads.
        v: ``(batch, kv_heads, total or more, v_size)``.
        total: how many keys are attended.
        scale: factor of the scores; ``1 / sqrt(size)`` by default.
    """
    if refuses(k, q, v) is not None:
        return None
    batch, heads, _, size = q.shape
    kv_heads, v_size = v.shape[1], v.shape[3]
    q_batch, q_head, _, q_feature = q.stride()
    k_batch, k_head, k_token, k_feature = k.stride()
    v_batch, v_head, v_token, v_feature = v.stride()
    if not q_feature == k_feature == v_feature == 1 or v_size > _LARGEST_HEAD:
        return None
    if v_size == size:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    else:
        out = q.new_empty((batch, heads, 1, v_size))
    call = _ATTENTION.pack(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        out.data_ptr(),
        batch,
        kv_heads,
        heads // kv_heads,
        total,
        size,
        v_size,
        q_batch,
        q_head,
        k_batch,
        k_head,
        k_token,
        v_batch,
        v_head,
        v_token,
        size**-0.5 if scale is None else scale,
    )
    cpu_kernels().onnxops_attend_one_query(call)
    return out


def write_cache(
    cache: torch.Tensor, update: torch.Tensor, write_indices: torch.Tensor | None, place: int, circular: bool
) -> bool:
    """Write an update into a cache in place; False, and nothing written, where the kernel cannot.

    That is also so where an update does not fit. The arguments are those of TensorScatter.
    """
    kernels = cpu_kernels()
    if kernels is None or not (cache.is_contiguous() and update.is_contiguous()):
        return False
    # Elements are copied as they lie in memory, which a lazy negation or conjugation does not show.
    if cache.dtype.is_complex or cache.is_neg() or update.is_neg() or not (update.is_cpu and cache.numel()):
        return False
    if write_indices is not None:
        if not write_indices.is_cpu:
            return False
        write_indices = write_indices.contiguous()
    shape = cache.shape
    batch, size = shape[0], shape[place]
    token = cache.itemsize * math.prod(shape[place + 1 :])
    call = _CACHE_WRITE.pack(
        cache.data_ptr(),
        update.data_ptr(),
        0 if write_indices is None else write_indices.data_ptr(),
        batch,
        math.prod(shape[1:place]),
        size,
        update.shape[place],
        token,
        circular,
    )
    return bool(kernels.onnxops_write_cache(call) == 0)
