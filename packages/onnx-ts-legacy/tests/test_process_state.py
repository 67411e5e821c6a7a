"""What a program changes of its process between two exports counts in the second one."""

from __future__ import annotations

import builtins
import contextlib
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import Pool
from typing import Any

import pytest
import torch

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError
from onnx_ts_legacy.graph.autocast import may_cast_inside

_OWNERS: tuple[Any, ...] = (
    *(torch, torch.Tensor, torch._VF, torch.nn.functional, torch.nn.Module, torch.nn.RNNBase, torch.nn.LSTM),
    *(torch.UntypedStorage, torch.TypedStorage, torch.jit._recursive, torch.jit._builtins, torch.backends.mha),
    *(builtins, math, threading.Thread, ThreadPoolExecutor, Pool),
)


def process() -> list[dict[str, Any]]:
    """Return all that exports may replace for a time, and this module's own globals."""
    names = {name: value for name, value in globals().items() if name != "__warningregistry__"}
    return [*(dict(vars(owner)) for owner in _OWNERS), names]


class Prints(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("called")
        return x * 2


def test_a_function_that_is_replaced_after_an_export_is_called_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    onnx_ts_legacy.export(Prints(), (torch.ones(2),))

    monkeypatch.setattr(builtins, "print", lambda *args: printed.extend(args))
    onnx_ts_legacy.export(Prints(), (torch.ones(2),))

    assert "called" in printed


def test_a_rule_of_autocast_that_is_registered_after_an_export_is_seen_in_the_next_one() -> None:
    with torch.library._scoped_library("process_state", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CPU")
        overload = torch.ops.process_state.twice.default
        before = may_cast_inside(overload)

        torch.library.register_autocast("process_state::twice", "cpu", torch.bfloat16, lib=library)

        assert (before, may_cast_inside(overload)) == (False, True)


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Fails(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError(math.floor(x.shape[0] / 2))


class Loses(torch.nn.Module):
    """Needs a second trace, in which conversions are recorded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(int(x.shape[0] / 2), -1)


@pytest.mark.parametrize("model", [Prints(), Loses(), Fails(), torch.nn.LSTM(2, 3)])
def test_what_an_export_replaces_is_back_at_its_end_however_it_ends(model: torch.nn.Module) -> None:
    x = torch.ones(4, 3, 2)
    before = process()

    for _ in range(2):
        if isinstance(model, Fails):
            with pytest.raises(CaptureError, match="ValueError"):
                onnx_ts_legacy.export(model, (x,), dynamic_axes={"x": [0]})
        else:
            onnx_ts_legacy.export(model, (x,), dynamic_axes={"x": [0]}, input_names=["x"])

        after = process()
        for old, new in zip(before, after, strict=True):
            assert old.keys() == new.keys()
            assert all(value is new[name] for name, value in old.items())


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * math.floor(x.shape[0] / 2)


class Exports(torch.nn.Module):
    def __init__(self, *others: Any) -> None:
        super().__init__()
        self.others = others

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = max(x.shape[0], 2)
        for other in self.others:
            exported(other)
        return x.sum(0) * math.ceil(rows / 3) if isinstance(rows, int) else x * 2


class Catches(Exports):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(CaptureError):
            super().forward(x)
        return Exports.forward(self.plain, x)  # type: ignore[attr-defined]


def exported(model: Any) -> list[str]:
    options: dict[str, Any] = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    program = onnx_ts_legacy.export(model, (torch.ones(4, 3),), **options)
    return [node.op_type for node in program.model.graph]


@pytest.mark.parametrize("other", [Inner(), torch.jit.script(Scripted())])
def test_an_export_inside_a_trace_is_refused_and_leaves_that_as_it_was(other: Any) -> None:
    before, model = process(), Catches(other)
    model.plain = Exports()

    with pytest.raises(CaptureError, match="while another one is traced"):
        exported(Exports(other))

    assert process() == before
    assert exported(model) == exported(Exports())
    assert "ReduceSum" in exported(model)
    assert process() == before


@pytest.mark.parametrize("restores", [False, True])
def test_what_a_program_replaces_while_it_is_traced_is_called_and_stays_as_long_as_it_leaves_it(restores: bool) -> None:
    def ceil(value: Any) -> int:
        return 7

    class Replaces(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            stand_in = math.ceil
            math.ceil = ceil
            number = math.ceil(2.5)
            if restores:
                math.ceil = stand_in
            return x * number

    usual: Callable[[Any], int] = math.ceil
    try:
        for _ in range(2):
            program = onnx_ts_legacy.export(Replaces(), (torch.ones(2),))
            values = program.model.graph.initializers.values()
            assert [value.const_value.numpy().item() for value in values if value.const_value is not None] == [7]
            assert math.ceil is (usual if restores else ceil)
    finally:
        math.ceil = usual
