"""Of installed packages only code counts that a call may reach; the user's own counts in any case."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from onnxops_decomp.exporting import Inventory, type_tests

SOURCE = """
import torch

def helper(value):
    return type(value) is int

def unused(value):
    return type(value) is int

def held(value):
    return type(value) is int

class Cache:
    def __init__(self, value):
        self.whole = type(value) is int

    def __len__(self):
        return 1 if type(self.whole) is int else 2

class Base(torch.nn.Module):
    def load(self, value):
        kind = type(value)
        return kind, unused(value)

    def step_fast(self, value):
        return type(value) is int

    def run(self, value):
        return helper(value)

    @property
    def size(self):
        return type(self.extra) is int

class Model(Base):
    def __init__(self):
        super().__init__()
        self.chosen = held
        self.extra = 1
        self.whole = type(self.extra) is int

    def forward(self, x):
        cache = Cache(x.shape[0])
        if self.run(x.shape[0]) and self.chosen(x.shape[0]) and self.size:
            return x
        return getattr(self, "step_" + "fast")(x)
"""
REACHED = {"helper", "held", "Base.step_fast", "Base.size"}
OWN = {"Cache.__init__", "Cache.__len__", "unused", "Base.load", "Model.__init__"}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Makes the module in a folder."""

    def made(folder: str) -> ModuleType:
        path = tmp_path / folder / "some_library.py"
        path.parent.mkdir()
        path.write_text(SOURCE)
        spec = importlib.util.spec_from_file_location("some_library", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["some_library"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield made
    sys.modules.pop("some_library", None)


def asking(module: ModuleType) -> set[str]:
    """Return the functions of a model that ask for classes, by qualified name."""
    functions = Inventory(module.Model()).running_functions()
    return {each.__qualname__ for each in functions if type_tests([each])}


def test_code_that_no_call_names_is_left_out_of_an_installed_package(make) -> None:
    assert asking(make("site-packages")) == REACHED


def test_all_code_of_the_user_counts(make) -> None:
    assert asking(make("own")) == REACHED | OWN


def test_a_method_that_a_hook_calls_counts(make) -> None:
    module = make("site-packages")
    model = module.Model()
    model.register_forward_hook(model.load)
    functions = Inventory(model).running_functions()
    found = {each.__qualname__ for each in functions if type_tests([each])}
    assert {"Base.load", "unused"} <= found


def test_the_lines_are_where_the_text_is(make) -> None:
    module = make("site-packages")
    lines = type_tests(Inventory(module.Model()).running_functions())
    numbers = sorted(int(line.rpartition(":")[2]) for line in lines)
    texts = SOURCE.splitlines()
    assert all("type(" in textwrap.dedent(texts[number - 1]) for number in numbers)
