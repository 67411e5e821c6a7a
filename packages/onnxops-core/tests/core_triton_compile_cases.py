"""Compiles the Triton kernels for a Hopper GPU, without one: run by test_native_triton.py in a process of its own.

What the interpreter lets pass and a GPU's compiler does not shows here: types, constants, tile sizes, layouts and
the shared memory that a program takes. Calls are made with CPU tensors; nothing is launched.
"""

import types

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver

SHARED_MEMORY = 227 * 1024  # of a block on a GPU of compute capability 9.0


# As much of a driver as compiling needs.
_NO_DEVICE = types.SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    get_current_device=lambda: 0,
    get_current_stream=lambda device: 0,
)


@pytest.fixture
def compiled(monkeypatch, request):
    """Returns a list to which each call adds what its kernel was compiled to.

    That is done for the first and the last settings that are tried, and for all of them in a wide test.
    """
    found = []

    def every_setting(self, *args, grid, warmup, **kwargs):
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        tried = self.prune_configs(kwargs)
        tried = tried if request.node.get_closest_marker("wide") else [tried[0], tried[-1]]
        kernels = [self.fn.run(*args, grid=grid, warmup=True, **kwargs, **config.all_kwargs()) for config in tried]
        grid({**self.nargs, **kwargs, **self.configs[0].all_kwargs()})
        found.append(kernels)

    driver.set_active(_NO_DEVICE)
    monkeypatch.setattr(Autotuner, "run", every_setting)
    return found


def _assert_compiled(found):
    assert found
    for kernels in found:
        assert all("cubin" in kernel.asm for kernel in kernels)
        assert all(kernel.metadata.shared <= SHARED_MEMORY for kernel in kernels)


DTYPES = [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("positions", "interleaved", "width"), [(True, False, 128), (False, True, 96)])
def test_rotary(compiled, dtype, positions, interleaved, width):
    from onnxops_core.native.rotary.triton import rotary

    ids = torch.zeros(2, 5, dtype=torch.int64) if positions else None
    caches = [torch.ones(9 if positions else 10, width // 2, dtype=dtype) for _ in range(2)]
    caches = caches if positions else [cache.view(2, 5, -1) for cache in caches]

    rotary(torch.ones(2, 32, 5, 128, dtype=dtype), *caches, ids, interleaved=interleaved, width=width)

    _assert_compiled(compiled)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 4096, 1 << 15])
@pytest.mark.parametrize("centre", [False, True])
def test_normalization(compiled, dtype, columns, centre):
    from onnxops_core.native.normalization.triton import normalize

    x, row = torch.ones(3, columns, dtype=dtype), torch.ones(columns, dtype=dtype)

    normalize(x, row, columns, 1e-5, centre=centre)
    normalize(x, row, columns, 1e-5, centre=centre, shift=row, skip=x, bias=row, total=True, statistics=True)

    _assert_compiled(compiled)


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(compiled, dtype):
    from onnxops_core.native.activations.triton import swiglu

    swiglu(torch.ones(4096, dtype=dtype), torch.ones(4096, dtype=dtype), 1.5)

    _assert_compiled(compiled)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize(("inner", "circular", "starts"), [(128, False, True), (1, True, True), (7, False, False)])
def test_cache_write(compiled, dtype, inner, circular, starts):
    from onnxops_core.native.caches.triton import write_update

    cache, update = torch.zeros(2, 4, 16, inner).to(dtype), torch.zeros(2, 4, 3, inner).to(dtype)

    write_update(cache, update, torch.zeros(2, dtype=torch.int64) if starts else None, 2, circular)

    _assert_compiled(compiled)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bits", "zeros"), [(4, "none"), (4, "packed"), (2, "plain"), (8, "packed")])
@pytest.mark.parametrize(("rows", "group"), [(1, 32), (130, 128)])
def test_matmul_nbits(compiled, dtype, bits, zeros, rows, group):
    from onnxops_core.native.quantization.triton import matmul_nbits

    n, blocks = 64, 256 // group
    weight = torch.zeros(n, blocks, group * bits // 8, dtype=torch.uint8)
    packed = torch.zeros(n, -(-blocks * bits // 8), dtype=torch.uint8)
    zero_points = {"none": None, "packed": packed, "plain": torch.zeros(n, blocks, dtype=dtype)}[zeros]

    matmul_nbits(
        torch.ones(rows, 256, dtype=dtype),
        weight,
        torch.ones(n, blocks, dtype=dtype),
        zero_points,
        torch.ones(n, dtype=dtype) if rows > 1 else None,
        group,
        bits,
    )

    _assert_compiled(compiled)


ATTENTION = {
    "causal, soft cap": {"causal": True, "softcap": 5.0},
    "windows": {"left": 3, "right": 4},
    "lengths": {"lengths": torch.tensor([3, 7]), "causal": True},
    "boolean mask": {"mask": torch.ones(1, 1, 1, 40, dtype=torch.bool)},
    "float mask": {"mask": torch.ones(40)},
}


@pytest.mark.parametrize(
    ("name", "size", "dtype"),
    [
        *((name, 128, torch.bfloat16) for name in ATTENTION),
        ("windows", 8, torch.float32),
        ("causal, soft cap", 256, torch.float32),
        pytest.param("causal, soft cap", 128, torch.float32, marks=pytest.mark.wide),
        pytest.param("float mask", 256, torch.float16, marks=pytest.mark.wide),
    ],
)
def test_attention(compiled, dtype, size, name):
    from onnxops_core.native.attentions.triton import attend

    fixed = {"mask": None, "lengths": None, "past": 0, "causal": False, "left": -1, "right": -1, "softcap": 0.0}
    options = fixed | ATTENTION[name]
    mask, lengths = options.pop("mask"), options.pop("lengths")
    mask = mask.to(dtype) if mask is not None and mask.is_floating_point() else mask
    q, k = torch.ones(2, 8, 5, size, dtype=dtype), torch.ones(2, 2, 40, size, dtype=dtype)

    attend(q, k, k, mask, lengths, scale=0.1, **options)

    _assert_compiled(compiled)


def test_one_query_and_one_key(compiled):
    from onnxops_core.native.attentions.triton import attend

    q = torch.ones(1, 1, 1, 64)

    attend(q, q, q, None, None, past=0, causal=True, left=2, right=2, scale=0.1, softcap=1.0)

    _assert_compiled(compiled)
