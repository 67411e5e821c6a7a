"""Random programs: the exported model agrees with torch at every size that it takes, or the export says why not."""

from __future__ import annotations

import collections
import warnings

import pytest
import torch
from tensor_programs import SIZES, TensorProgram, arguments, compiled

from onnx_fx_export import InvalidArgumentError, OnnxExporterError, export

NAMES = ({0: "rows", 1: "columns"}, {0: "rows", 1: "columns"}, {0: "columns"})
OPSETS = [18, 13, 11, 9, 7, 23, 20]
BLOCK = 10
BLOCKS = [pytest.param(n, marks=[] if n < 1 else [pytest.mark.wide]) for n in range(40)]


def outcome(seed: int) -> list[str]:
    """Export a program and return what became of each size."""
    program = TensorProgram(seed, 9)
    function = compiled(program.source, f"/programs/seed{seed}.py")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = export(
                function, arguments(*SIZES[0]), dynamic_shapes=NAMES, opset_version=OPSETS[seed % len(OPSETS)]
            )
    except OnnxExporterError:
        return ["not exported"]
    found = []
    for size in SIZES:
        try:
            given = exported(*arguments(*size))
        except InvalidArgumentError:
            assert size != SIZES[0]
            found.append("not taken")
            continue
        torch.testing.assert_close(
            tuple(given),
            function(*arguments(*size)),
            rtol=2e-3,
            atol=2e-3,
            equal_nan=True,
            msg=lambda m: f"{size}: {m}",
        )
        found.append("equal")
    return found


@pytest.mark.parametrize("block", BLOCKS)
def test_a_random_program_agrees_or_is_refused(block: int) -> None:
    found: collections.Counter[str] = collections.Counter()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try:
            found.update(outcome(seed))
        except Exception as error:
            raise AssertionError(f"Seed {seed}:\n{TensorProgram(seed, 9).source}") from error
    # Refusing everything would be no proof.
    assert found["equal"] > found.total() // 3


def test_a_seed_makes_one_program() -> None:
    assert TensorProgram(3, 9).source == TensorProgram(3, 9).source
    assert TensorProgram(3, 9).source != TensorProgram(4, 9).source
