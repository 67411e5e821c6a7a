"""Random models that compute with their sizes: the program is right at every size, or refuses it."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
from random_sizes import RandomSizes
from torch.utils import _pytree as pytree

from onnx_fx_export import InvalidArgumentError, OnnxExporterError, export

EXAMPLES = [(4, 6), (5, 7), (6, 9), (3, 8), (4, 4)]
SIZES = [(4, 7), (7, 4), (9, 12), (2, 3), (1, 5), (5, 1), (1, 1), (8, 8), (13, 5), (2, 2)]
BLOCK = 12
BLOCKS = [pytest.param(n, marks=[] if n < 1 else [pytest.mark.wide]) for n in range(40)]


def results(function: Any, size: tuple[int, int]) -> list[torch.Tensor] | None:
    """Return what a model gives; None if it does not take the size."""
    x = torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))
    try:
        with torch.no_grad():
            return [torch.as_tensor(leaf) for leaf in pytree.tree_leaves(function(x))]
    except InvalidArgumentError:
        return None
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        if isinstance(function, torch.nn.Module):
            return None
        raise


def check(seed: int) -> int:
    """Export a model, and return at how many sizes the program gave the same as the model."""
    choice, sizes = random.Random(seed * 31 + 7), RandomSizes(seed)
    example, model = choice.choice(EXAMPLES), sizes.model(f"/models/sizes{seed}.py")
    if results(model, example) is None:
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = export(
                model,
                (torch.randn(*example),),
                dynamic_shapes=({0: "n", 1: "m"},),
                opset_version=choice.choice([11, 13, 18, 18, 20]),
                nan="exact",
            )
        except OnnxExporterError:
            return 0
    right = 0
    for size in (example, *SIZES):
        expected = results(model, size)
        given = None if expected is None else results(program, size)
        if given is not None:
            torch.testing.assert_close(
                given, expected, rtol=1e-3, atol=1e-4, check_dtype=False, msg=lambda text: f"{text}\n{sizes.source}"
            )
            right += 1
    assert right, sizes.source
    return right


@pytest.mark.parametrize("block", BLOCKS)
def test_each_size_is_right_or_refused(block: int) -> None:
    compared = [check(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    assert sum(count > 3 for count in compared) >= BLOCK // 4
