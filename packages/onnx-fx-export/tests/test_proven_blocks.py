"""Unasked, blocks are captured once only where nothing can tell one from another, and nothing changes between them."""

from __future__ import annotations

import contextvars
import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from stacks import Block, Stack

from onnx_fx_export import CaptureError, OnnxExporterError, export
from onnx_fx_export.repeats.blocks import LEAST_WITHHELD

COUNT = 8
LOG: list[int] = []
BY_MODULE: dict[torch.nn.Module, float] = {}
TABLE = np.zeros(1)
VARIABLE = contextvars.ContextVar("VARIABLE", default=0.0)
NUMBER = 0.0


class Doing(torch.nn.Module):
    """Adds what a function makes of the block, which can reach the model."""

    def __init__(self, model: torch.nn.Module, act: Callable[[Any], Any]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.act, self.outside = act, (model,)

    def forward(self, x):
        return self.linear(x) + self.act(self)


class Model(torch.nn.Module):
    def __init__(
        self, act: Callable[[Any], Any], between: Callable[[Any, int], None] | None = None, count: int = COUNT
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.between, self.flag, self.special, self.seen = between, 1.0, [], itertools.count()
        self.blocks = torch.nn.ModuleList(Doing(self, act) for _ in range(count))

    def forward(self, x):
        for index, block in enumerate(self.blocks):
            if self.between is not None:
                self.between(self, index)
            x = block(x)
        return x


def log(block: Doing) -> float:
    LOG.append(1)
    return float(len(LOG))


def set_global(block: Doing) -> float:
    global NUMBER
    NUMBER += 1
    return NUMBER


def toggle(model: Model, index: int) -> None:
    model.flag = float(index >= 5)


def set_variable(model: Model, index: int) -> None:
    VARIABLE.set(float(index >= 4))


def set_outer(model: Model, index: int) -> None:
    global NUMBER
    NUMBER = float(index >= 6)


def fill_table(model: Model, index: int) -> None:
    TABLE[0] = float(index >= 5)


def make_special(index: int) -> Callable[[Model, int], None]:
    def between(model: Model, _: int) -> None:
        model.special = [model.blocks[index]]

    return between


def by_module(block: Doing) -> float:
    return BY_MODULE.get(block, 0.0)


def fill_by_module(model: Model, index: int) -> None:
    BY_MODULE[model.blocks[5]] = 3.0


def closure() -> Callable[[Doing], float]:
    calls = 0.0

    def act(block: Doing) -> float:
        nonlocal calls
        calls += 1
        return calls

    return act


def default_list(block: Doing, kept: list[int] = []) -> float:
    kept.append(1)
    return float(len(kept))


def cached(block: Doing) -> float:
    return numbered(len(LOG))


@functools.lru_cache
def numbered(number: int) -> float:
    LOG.append(number)
    return float(number)


TOLD_APART: dict[str, tuple[Callable[[Doing], Any], Callable[[Model, int], None] | None]] = {
    "a list of the module": (log, None),
    "a global": (set_global, None),
    "a closure": (closure(), None),
    "a default": (default_list, None),
    "a cache": (cached, None),
    "an iterator": (lambda block: float(next(block.outside[0].seen)), None),
    "random numbers of Python": (lambda block: random.random(), None),
    "the first block": (lambda block: float(block is block.outside[0].blocks[0]), None),
    "the last block": (lambda block: float(block is block.outside[0].blocks[-1]), None),
    "the last block by index": (lambda block: float(list(block.outside[0].blocks).index(block)), None),
    "a member of a list": (lambda block: float(block in block.outside[0].special), make_special(6)),
    "a member that is the first": (lambda block: float(block in block.outside[0].special), make_special(0)),
    "an equal of one": (lambda block: float(block == block.outside[0].blocks[6]), None),
    "a key": (by_module, fill_by_module),
    "an identity": (lambda block: float(id(block) == id(block.outside[0].blocks[6])), None),
    "all attributes": (lambda block: float(len(vars(block))), None),
    "an attribute of the model": (lambda block: block.outside[0].flag, toggle),
    "a variable of the context": (lambda block: VARIABLE.get(), set_variable),
    "a global that the model sets": (lambda block: NUMBER, set_outer),
    "an array that the model fills": (lambda block: float(TABLE[0]), fill_table),
}


def outcome(act: Any, between: Any, count: int = COUNT, **options: Any) -> Any:
    """Return what becomes of an export: its values, or its error."""
    LOG.clear()
    BY_MODULE.clear()
    numbered.cache_clear()
    random.seed(1)
    model, x = Model(act, between, count), torch.ones(2, 3)
    try:
        program = export(model, (x,), trial_runs=False, **options)
    except OnnxExporterError as error:
        return type(error), str(error)
    finally:
        assert not any("forward" in vars(block) for block in model.blocks)
    return [node.op_type for node in program.model.graph], program(x).tolist()


@pytest.mark.parametrize(("act", "between"), TOLD_APART.values(), ids=TOLD_APART)
def test_blocks_that_may_differ_are_captured_each(act: Any, between: Any) -> None:
    assert outcome(act, between) == outcome(act, between, capture_repeated_blocks=False)


@pytest.mark.parametrize("name", ["a global", "the last block", "an attribute of the model", "a key"])
def test_deep_models_whose_blocks_may_differ_are_captured_anew(name: str) -> None:
    act, between = TOLD_APART[name]
    found = outcome(act, between, LEAST_WITHHELD)
    assert found == outcome(act, between, LEAST_WITHHELD, capture_repeated_blocks=False)


def test_parameters_that_the_model_reads_beside_the_calls_of_its_blocks() -> None:
    class Reading(Stack):
        def forward(self, x):
            return super().forward(x) * self.blocks[-1].up.weight.mean()

    torch.manual_seed(5)
    model = Reading(*(Block() for _ in range(LEAST_WITHHELD)))
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(export(model, (x,))(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("count", "hooked"), [(COUNT + 2, False), (COUNT + 2, True), (LEAST_WITHHELD, False)])
def test_equal_blocks_are_captured_once_unasked(count: int, hooked: bool) -> None:
    torch.manual_seed(2)
    model = Stack(*(Block() for _ in range(count)))
    if hooked:
        model.blocks[4].register_forward_hook(lambda module, args, result: result * 2)
    x, dims = torch.randn(2, 3, 4), {"x": {0: "batch", 1: "length"}}
    program = export(model, (x,), dynamic_shapes=dims)
    each = export(model, (x,), dynamic_shapes=dims, capture_repeated_blocks=False)
    assert (program.capture_strategy, each.capture_strategy) == ("repeated-blocks", "non-strict")
    assert "copies of blocks" in program.timings
    assert "copies of blocks" not in each.timings
    assert [node.op_type for node in program.model.graph] == [node.op_type for node in each.model.graph]
    for sizes in ((2, 3, 4), (1, 5, 4), (4, 1, 4)):
        x = torch.randn(sizes)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def test_other_numbers_keep_blocks_apart() -> None:
    torch.manual_seed(3)
    model = Stack(*(Block(scale=2.0 if index in (3, 7) else 1.0) for index in range(COUNT + 1)))
    x = torch.randn(2, 3, 4)
    program = export(model, (x,))
    assert program.capture_strategy == "repeated-blocks"
    torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def test_what_no_proof_is_found_for_is_not_repeated_by_name() -> None:
    model = Model(lambda block: id(block) * 0.0)
    with pytest.raises(CaptureError, match="no two blocks are certain to compute the same"):
        export(model, (torch.ones(2, 3),), strategy="repeated-blocks")


def test_conditions_in_blocks() -> None:
    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x.sin(), (x,))

    torch.manual_seed(4)
    model = torch.nn.Sequential(*(Chosen() for _ in range(COUNT)))
    program = export(model, (torch.ones(2, 3),), dynamic_shapes=({0: "n"},))
    for x in (torch.ones(5, 3), -9 * torch.ones(3, 3)):
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)
