"""Loops over a dynamic number of steps are scans wherever the code of a model stands."""

from __future__ import annotations

import importlib.util
import linecache
import sys

import pytest
import torch

from onnx_fx_export import export

STEPS = ({0: "batch", 1: "length"},)


def check(model: torch.nn.Module) -> None:
    program = export(model.eval(), (torch.randn(2, 5, 3),), dynamic_shapes=STEPS)
    assert program.capture_strategy == "size-loops"
    for shape in ((1, 1, 3), (3, 9, 3), (2, 4, 3)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def test_in_a_class_within_a_function() -> None:
    class Local(torch.nn.Module):
        def forward(self, x):
            state = x[:, 0]
            for t in range(x.shape[1]):
                state = torch.tanh(state + x[:, t])
            return state

    check(Local())


def test_with_names_of_the_function_around() -> None:
    factor, layer, scale = 3, torch.nn.Linear(3, 3), torch.randn(3)

    class Local(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x):
            state = x[:, 0]
            for t in range(x.shape[1]):
                state = torch.tanh(self.layer(state) * factor + x[:, t] * scale)
            return state

    check(Local())


def test_in_a_function_that_a_local_class_calls() -> None:
    def scanned(step, state, rows):
        results = []
        for row in rows:
            state, result = step(state, row)
            results.append(result)
        return state, torch.stack(results)

    class Local(torch.nn.Module):
        def forward(self, x):
            state, results = scanned(lambda a, b: (torch.tanh(a + b), a * b), x[:, 0], x.transpose(0, 1))
            return state + results.sum(0)

    check(Local())


def test_with_private_names_and_those_of_a_base() -> None:
    class Base(torch.nn.Module):
        def decayed(self, x):
            return x * 0.5

    class Local(Base):
        def __init__(self) -> None:
            super().__init__()
            self.__layer = torch.nn.Linear(3, 3)

        def forward(self, x):
            state = x[:, 0]
            for t in range(x.shape[1]):
                state = torch.tanh(super().decayed(state) + self.__layer(x[:, t]))
            return state

    check(Local())


def test_in_another_file(tmp_path) -> None:
    path = tmp_path / "helpers_of_loops.py"
    path.write_text(
        "import torch\n\n\ndef run(cell, state, x):\n    for t in range(x.shape[1]):\n"
        "        state = cell(x[:, t], state)\n    return state\n"
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    globals()["run_of_another_file"] = module.run

    class Local(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.GRUCell(3, 3)

        def forward(self, x):
            return run_of_another_file(self.cell, x[:, 0] * 0, x)  # type: ignore[name-defined]  # noqa: F821

    try:
        check(Local())
    finally:
        del globals()["run_of_another_file"], sys.modules[path.stem]


def test_typed_into_an_interpreter(monkeypatch) -> None:
    source = (
        "class Typed(torch.nn.Module):\n    def forward(self, x):\n        state = x[:, 0]\n"
        "        for t in range(x.shape[1]):\n            state = torch.tanh(state + x[:, t])\n        return state\n"
    )
    name = "<input of a notebook>"
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(True), name))
    main = type(sys)("typed_in")
    main.torch = torch
    monkeypatch.setitem(sys.modules, "typed_in", main)
    exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)
    check(main.Typed())


class Edits(torch.nn.Module):
    """Loops within each other, and two indices that they count."""

    def forward(self, x, y):
        rows, columns = x.shape[1], y.size(1)
        d = torch.zeros(x.shape[0], rows + 1, columns + 1)
        d[:, :, 0], d[:, 0] = torch.arange(rows + 1), torch.arange(columns + 1)
        for i in range(1, rows + 1):
            for j in range(1, y.size(1) + 1):
                cost = (x[:, i - 1] != y[:, j - 1]).float()
                other = torch.minimum(d[:, i - 1, j], d[:, i, j - 1]) + 1
                d[:, i, j] = torch.minimum(other, d[:, i - 1, j - 1] + cost)
        return d[:, -1, -1]


@pytest.mark.parametrize("number", [0, 1])
def test_within_each_other(number) -> None:
    sizes = ({0: "batch", 1: "length"}, {0: "batch", 1: "other"})
    example = [torch.randint(0, 3, (2, length)) for length in (4, 5)]
    model = Edits()
    program = export(model, tuple(example[::-1] if number else example), dynamic_shapes=sizes)
    assert program.capture_strategy == "size-loops"
    for batch, first, second in ((1, 1, 1), (1, 6, 3), (3, 2, 9)):
        given = torch.randint(0, 3, (batch, first)), torch.randint(0, 3, (batch, second))
        torch.testing.assert_close(program(*given), model(*given))
