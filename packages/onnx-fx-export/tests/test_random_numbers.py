"""Numbers computed of dynamic sizes, beside tensors of every dtype: dtype and value are those of PyTorch."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from both_exporters import TRACING
from code_of_tests import compiled
from torch.utils import _pytree as pytree

from onnx_fx_export import OnnxExporterError

NUMBERS = (
    *("n", "n // 2", "n % 3", "-n", "n * m", "n - m", "n ** 2", "abs(n - 4)", "max(n, 3)", "min(n, m)", "sum([n, m])"),
    *("n / 2", "n * 1.5", "1 / n", "n - 0.5", "n // 2 * 0.5", "math.sqrt(n)", "math.log(n)", "n > 3", "n == 4"),
    *("round(n / 3)", "divmod(n, 3)[0]", "divmod(n, 3)[1]", "2 ** n", "x.numel()", "n or m", "n << 1", "n & 3"),
)
USES = (
    *("t + k", "t * k", "t - k", "k - t", "t / k", "k / (t + 1)", "t > k", "t == k", "t ** k", "torch.fmod(t, k)"),
    *(
        "t.clamp(min=k)",
        "t.clip(-1, k)",
        "torch.where(t > 0, t, k)",
        "torch.where(t > 0, k, t)",
        "torch.where(t > 0, k, 0)",
    ),
    *(
        "torch.full_like(t, k)",
        "torch.full((2,), k)",
        "torch.tensor([k, 1])",
        "torch.tensor([k, 0.5])",
        "t.new_full((2,), k)",
    ),
    *(
        "t.masked_fill(t > 0, k)",
        "torch.add(t, t, alpha=k)",
        "t.clone().add_(k)",
        "t.clone().mul_(k)",
        "t.clone().fill_(k)",
    ),
    *(
        "(t > 0) * k",
        "(t > 0).sum() * k",
        "t.sum() / k",
        "torch.ones((), dtype=t.dtype) * k",
        "torch.stack([t, t * k])",
    ),
    *("torch.is_tensor(k)", "isinstance(k, int)", "isinstance(k, float)", "torch.scalar_tensor(k)", "torch.arange(k)"),
)
DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
SHAPES = ((), (3,), (2, 2))
BLOCK = 16
# The block that is run by default has met faults.
BLOCKS = [pytest.param(n, marks=[] if n == 3 else [pytest.mark.wide]) for n in range(40)]


def element(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    numbers = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape)
    return numbers % 2 == 0 if dtype == "bool" else numbers.to(getattr(torch, dtype))


def results(function: Any, rows: int, t: torch.Tensor) -> list[torch.Tensor] | None:
    """Return what a model gives; None if it does not take the size."""
    try:
        with torch.no_grad():
            return [torch.as_tensor(leaf) for leaf in pytree.tree_leaves(function(torch.ones(rows, 2), t.clone()))]
    except (RuntimeError, ZeroDivisionError, TypeError, ValueError, OnnxExporterError):
        return None


def check(seed: int) -> int:
    """Export a model, and return at how many sizes the program gave the same as the model."""
    choose = random.Random(seed).choice
    number, use, t = choose(NUMBERS), choose(USES), element(choose(DTYPES), choose(SHAPES))
    source = f"import math, torch\ndef model(x, t):\n    n, m = x.shape\n    k = {number}\n    return {use}\n"
    model, about = compiled(source, f"/models/numbers{seed}.py")["model"], f"{source} {t.dtype} {[*t.shape]}"
    if results(model, 5, t) is None:
        return 0
    export = TRACING[choose(["fx", "ts"])]
    try:
        program = export(model, (torch.ones(5, 2), t), dynamic_shapes=({0: "n"}, None), opset_version=choose([13, 18]))
    except OnnxExporterError:
        return 0
    compared = 0
    for rows in (5, 3, 4, 1, 9):
        expected = results(model, rows, t)
        given = None if expected is None else results(program, rows, t)
        if given is not None:
            torch.testing.assert_close(
                given, expected, rtol=1e-3, atol=1e-3, equal_nan=True, msg=lambda text: f"{text}\n{about}"
            )
            compared += 1
    return compared


@pytest.mark.parametrize("block", BLOCKS)
def test_numbers_of_sizes_promote_as_in_python(block: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compared = [check(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    assert sum(count > 1 for count in compared) >= BLOCK // 3
