"""Runs of a model that leave it as it was."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from onnxops_core import onnx_export
from onnxops_decomp.exporting import (
    Example,
    Inventory,
    KeptContents,
    code_names,
    gradient_mode,
    kept_inventory,
    modules_entered,
)

__all__ = ["Around", "EagerRuns", "entered_by", "same_random_numbers"]

Around = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclasses.dataclass
class EagerRuns:
    """Runs a model; whatever a run changes is put back.

    Attributes:
        model: The model.
        stock: What the model can reach, and what its tensors hold, once it was run.
    """

    model: torch.nn.Module
    stock: tuple[Inventory, KeptContents] | None = None

    def results(self, call: Example, *around: Around) -> Any:
        """Return what the model gives for a call.

        Args:
            call: The arguments; the model gets copies.
            around: Make what is entered around the run, once it is known what the model can reach.

        Raises:
            Exception: Whatever the model raises.
        """
        known = self.stock and self.stock[0]
        with kept_inventory(self.model, known) as inventory, gradient_mode(self.model), same_random_numbers():
            if self.stock is None:
                tensors = [*inventory.weights.values(), *inventory.tensors.values()]
                self.stock = inventory, KeptContents(tensors)
            kept = self.stock[1]
            try:
                with kept, contextlib.ExitStack() as stack:
                    for entered in around:
                        stack.enter_context(entered())
                    return self.model(*copy.deepcopy(call[0]), **copy.deepcopy(call[1]))
            finally:
                kept.restore()

    def calls(self, name: str) -> bool:
        """Tell whether functions that the model can reach call something of that name; only once it was run."""
        assert self.stock is not None
        functions = (each for each in self.stock[0].functions if isinstance(each, types.FunctionType))
        return any(name in code_names(function.__code__) for function in functions)


def entered_by(model: torch.nn.Module, example: Example) -> Sequence[ModuleType]:
    """Return the modules of Python, but for libraries and torch, whose functions a call of a model enters.

    Args:
        model: The model, with data in its weights.
        example: The call; one that raises enters what it enters.
    """
    found: list[list[ModuleType]] = []

    @contextlib.contextmanager
    def noted() -> Iterator[None]:
        with modules_entered() as modules, contextlib.suppress(Exception):
            found.append(modules)
            yield

    with onnx_export():
        EagerRuns(model).results(example, noted)
    return found[0] if found else ()


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Let each run draw the same numbers, and the user's code after it those that it would have drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield
