"""Random programs, scripted and traced: the model agrees with torch, or what differs is reported with its line."""

from __future__ import annotations

import random
import warnings
from typing import Any

import onnx
import pytest
import torch
from random_programs import RandomProgram, arguments, compiled
from torch.utils import _pytree as pytree
from ts_models import run

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError, OnnxExporterError

AXES = {"x": {0: "n", 1: "m"}, "z": {0: "m"}}
EXAMPLE = (4, 3)
SIZES = [EXAMPLE, (6, 5), (1, 3), (4, 1), (1, 1), (2, 2), (3, 4)]
BLOCK = 20
BLOCKS = [pytest.param(n, marks=[] if n < 3 else [pytest.mark.wide]) for n in range(33)]


def results(function: Any, size: tuple[int, int]) -> list[torch.Tensor] | None:
    """Return what a program gives; None if it does not take the size."""
    try:
        with torch.no_grad():
            return [torch.as_tensor(leaf) for leaf in pytree.tree_leaves(function(*arguments(*size)))]
    except Exception:
        return None


def scripted(function: Any) -> Any:
    """Return the scripted program; itself, to be traced, if TorchScript does not take it."""
    try:
        program = torch.jit.script(function)
    except Exception:
        return function
    return program if results(program, EXAMPLE) is not None else function


def difference(proto: onnx.ModelProto, names: list[str], truths: list[Any]) -> str:
    """Say at which size the model gives something else than all of ``truths`` do."""
    for size in SIZES:
        expected = [found for truth in truths if (found := results(truth, size)) is not None]
        if not expected:
            continue
        feeds = {name: tensor.numpy() for name, tensor in zip(names, arguments(*size), strict=True)}
        given = [torch.as_tensor(value) for value in run(proto, feeds)]
        if not any(agree(given, wanted) for wanted in expected):
            return f"at {size}: {given} instead of {expected[0]}"
    return ""


def agree(given: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    try:
        torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-4, equal_nan=True)
    except AssertionError:
        return False
    return True


def check(seed: int) -> bool:
    """Export a program at a random opset; tell whether it was compared, or refused or warned of instead."""
    choice = random.Random(seed * 31 + 7)
    program = RandomProgram(seed, choice.choice([5, 8, 12]))
    opset = choice.choice([*range(7, 27), *[11, 13, 16, 17, 18, 20, 23] * 3])
    function = compiled(program.source, f"seed{seed}")["forward"]
    model = scripted(function) if choice.random() < 0.7 else function
    place = f"/programs/seed{seed}.py"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result = onnx_ts_legacy.export(
                model, arguments(*EXAMPLE), input_names=["x", "z"], dynamic_axes=AXES, opset_version=opset
            )
        except OnnxExporterError as error:
            # torch's tracer has no lines of its own failures.
            if place in str(error) or isinstance(error, CaptureError):
                return False
            raise AssertionError(f"Seed {seed}:\n{program.source}") from error
    onnx.checker.check_model(result.model_proto, full_check=True)
    if any(place in f"{warning.filename} {warning.message}" for warning in told):
        return False
    different = difference(result.model_proto, result.input_names, [model, function])
    assert not different, f"Seed {seed} {different}:\n{program.source}"
    return True


@pytest.mark.parametrize("block", BLOCKS)
def test_a_random_program_agrees_or_is_told_of(block: int) -> None:
    compared = sum(map(check, range(block * BLOCK, (block + 1) * BLOCK)))
    # Refusing everything would be no proof.
    assert compared > BLOCK // 4


@pytest.mark.parametrize("seed", [10617, 10999])
def test_a_program_with_a_refused_write_or_a_late_size_agrees_or_is_told_of(seed: int) -> None:
    check(seed)


def test_a_seed_makes_one_program() -> None:
    assert RandomProgram(3).source == RandomProgram(3).source
    assert RandomProgram(3).source != RandomProgram(4).source
