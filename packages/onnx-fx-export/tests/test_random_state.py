"""Random models that keep state: each call gives what the model gives, or the export is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_state import RandomState, compare_calls

import onnx_ts_legacy
from onnx_fx_export import OnnxExporterError, export

EXPORTERS: dict[str, Callable[..., Any]] = {"fx": export, "traced": onnx_ts_legacy.export}
BLOCK = 8
BLOCKS = [pytest.param(n, marks=[] if n < 1 else [pytest.mark.wide]) for n in range(40)]


def described(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return what the model keeps."""
    held: Any = model
    places = [*held.items, *held.table.values(), *held.pair, held.plain, held.helper.kept, *held.helper.items]
    return [tensor.clone() for tensor in (*model.buffers(), *places)]


def check(seed: int, export_model: Callable[..., Any], state: str) -> bool:
    """Export a model, and return whether it was exported; it has to be right in three calls, and as it was."""
    source = RandomState(seed)

    def fresh() -> torch.nn.Module:
        return source.model(f"/models/state{seed}.py")

    model, before = fresh(), described(fresh())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = export_model(model, (torch.randn(2, 3),), dynamic_shapes=[{0: "n"}], state=state)
        except OnnxExporterError:
            return False
        finally:
            torch.testing.assert_close(described(model), before, msg=lambda text: f"{text}\n{source.source}")
    compare_calls(program, fresh, state, source.source)
    return True


@pytest.mark.parametrize("state", ["io", "ignore"])
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("block", BLOCKS)
def test_each_call_is_right_or_the_export_refused(block: int, exporter: str, state: str) -> None:
    exported = [check(seed, EXPORTERS[exporter], state) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    assert sum(exported) > BLOCK // 2
