"""Random models that keep state: in buffers, attributes, lists, dicts, tuples and objects, under one name or two."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from code_of_tests import compiled

_HEAD = """import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.zeros(3))
        self.register_buffer("second", torch.ones(3))
        self.register_buffer("rows", torch.zeros(2, 3))
        self.plain = torch.full((3,), 2.0)
        self.items = [torch.zeros(3), torch.ones(3)]
        self.table = {"a": torch.zeros(3), "b": torch.ones(3)}
        self.pair = (torch.zeros(3), torch.ones(3) * 3)
        self.helper = SimpleNamespace(kept=torch.zeros(3), items=[torch.ones(3)])
"""
_BOUND = [
    *("self.first", "self.second", "self.plain", "self.items[0]", "self.items[1]", 'self.table["a"]'),
    *('self.table["b"]', "self.helper.kept", "self.helper.items[0]"),
]
_WRITTEN = ["self.rows[0]", "self.rows[1]", "self.pair[0]"]
_OTHER_NAMES = {
    "self.other = self.first": "self.other",
    "self.other = self.items[0]": "self.other",
    "self.other = self.plain": "self.other",
    'self.table["c"] = self.second': 'self.table["c"]',
    "self.items.append(self.first)": "self.items[2]",
    "self.helper.other = self.second": "self.helper.other",
}
_CONTAINERS = [
    "self.items = [self.items[1], self.items[0] + total]",
    "self.items = list(reversed(self.items))",
    "self.items.reverse()",
    "self.pair = (self.pair[1], self.pair[0] + total)",
    "self.pair = self.pair[::-1]",
    'self.table = dict(a=self.table["b"], b=self.table["a"] + total)',
    "self.helper.items = [self.helper.items[0] * 2]",
]


class RandomState:
    """The source of a model of ``x``, a matrix of 3 columns.

    Args:
        seed: Decides what it keeps, writes and reads.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._places = [*_BOUND, *_WRITTEN]
        kept = ""
        if self._random.random() < 0.3:
            kept, place = self._random.choice(list(_OTHER_NAMES.items()))
            self._places.append(place)
        steps = [self._step() for _ in range(self._random.randint(2, 6))]
        steps.append(f"result = result * 0.5 + {self._value()}")
        if self._random.random() < 0.4:
            steps.append(f"{self._random.choice(_BOUND)} = {self._value()} + 0")
        lines = ["total, result = x.sum(0), x", *steps, "return result"]
        forward = "".join(f"        {line}\n" for line in lines)
        self.source = f"{_HEAD}        {kept}\n\n    def forward(self, x):\n{forward}"

    def _value(self) -> str:
        one, other = self._random.choices(self._places, k=2)
        forms = [one, one, one, "total", "x[0]", f"({one} * 0.5 + {other})", f"({one} + total)"]
        return self._random.choice(forms)

    def _step(self) -> str:
        choose, place = self._random.choice, self._random.choice(self._places)
        bound, other = self._random.choices(_BOUND, k=2)
        return choose(
            [
                f"{place}.{choose(['add_', 'sub_', 'copy_'])}({self._value()})",
                f"{place}.{choose(['mul_(0.5)', 'add_(1)'])}",
                f"{bound} = {self._value()} * 1",
                f"{bound} += {self._value()}",
                f"{bound}, {other} = {other} * 1, {bound} * 1",
                f"{bound} = {other}",
                f"{bound} = {other}[:]",
                choose(_CONTAINERS),
                f"view = {place}; view += 1",
                f"copy = {place}.clone(); {choose(self._places)}.add_(1); result = result + copy",
                f"result = result + {self._value()}",
                f"result = result + {self._value()}",
            ]
        )

    def model(self, name: str) -> torch.nn.Module:
        """Return a new model; its lines are found under a name of a file."""
        model: torch.nn.Module = compiled(self.source, name, SimpleNamespace=SimpleNamespace)["Model"]()
        return model.eval()


def compare_calls(program: Any, fresh: Callable[[], torch.nn.Module], state: str, text: str) -> None:
    """Run three calls of a program of ``x``, a matrix of 3 columns, and of the model.

    Args:
        program: The exported program.
        fresh: Makes the model; without ``state="io"`` each call is the first one of a model.
        state: What became of the state.
        text: What a failure shows.
    """
    own, values = fresh(), dict(program.initial_state)
    for rows in (2, 4, 3):
        x = torch.randn(rows, 3)
        with torch.no_grad():
            expected = (own if state == "io" else fresh())(x.clone())
        found = program.run({program.input_names[0]: x, **values})
        torch.testing.assert_close(
            found[program.output_names[0]], expected, rtol=1e-3, atol=1e-4, msg=lambda each: f"{each}\n{text}"
        )
        values = {name: found[following] for name, following in program.state.items() if name in values}
