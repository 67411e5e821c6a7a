"""Random models that compute with their dynamic sizes in Python: slices, parts, padding, branches, loops."""

from __future__ import annotations

import random

import torch
from code_of_tests import compiled

_HEAD = """import math
import torch
import torch.nn.functional as F

class Model(torch.nn.Module):
    def forward(self, x):
"""


class RandomSizes:
    """The source of a model of ``x``, a matrix.

    Args:
        seed: Decides what it computes.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = ["n", "m"]
        self._lines = ["n, m = x.shape"]
        self._returned: list[str] = []
        self._last = "x"
        for step in range(self._random.randint(3, 6)):
            self._add(step)
        results = [*dict.fromkeys([*self._returned, self._last])]
        if self._random.random() < 0.3:
            results.append(self._number())
        self._lines.append(f"return {', '.join(results)}")
        self.source = _HEAD + "".join(f"        {line}\n" for line in self._lines)

    def _number(self) -> str:
        """Return an expression of sizes."""
        choose = self._random.choice
        one, other, small = choose([*self._numbers[-4:], "n", "m"]), choose(["n", "m", "4", "3"]), choose([2, 3, 4])
        forms = [f"{one}", f"{one} // {small}", f"{one} + {choose([1, 2, -1, 3])}", f"{one} % {small}"]
        rarer = [f"{one} * {small}", f"min({one}, {other})", f"max({one}, {other})", f"abs({one} - {other})"]
        return choose([*forms, *forms, *rarer, f"-(-{one} // {small})", f"math.isqrt({one})"])

    def _add(self, step: int) -> None:
        """Add a line that computes the next tensor of the last one."""
        number = self._number()
        if self._random.random() < 0.5:
            self._lines.append(f"k{step} = {number}")
            self._numbers.append(f"k{step}")
            number = f"k{step}"
        form = self._random.choice(_FORMS)
        least = f"max({number}, 1)"
        choices = {name: self._random.choice(found) for name, found in _CHOICES.items()}
        self._lines += [
            line.format(v=self._last, w=f"v{step}", k=number, p=self._random.choice([number, least]), **choices)
            for line in form.split("; ")
        ]
        self._last = f"v{step}"
        if self._random.random() < 0.2:
            self._returned.append(self._last)

    def model(self, name: str) -> torch.nn.Module:
        """Return the model; its lines are found under a name of a file."""
        return compiled(self.source, name)["Model"]().eval()


_CHOICES = {
    "axis": ["0", "1"],
    "end": ["0", "-1"],
    "order": ["<", "<=", "==", "!=", ">=", ">"],
    "limit": ["0", "1", "2", "3", "4", "7", "n", "m"],
    "few": ["2", "3"],
    "rows": [":", "::2", "-1:"],
}
_FORMS = (
    "{w} = {v}[:{k}]",
    "{w} = {v}[:, {k}:]",
    "{w} = torch.cat([{v}, {v}.new_zeros({k}, {v}.shape[1])])",
    "{w} = F.pad({v}, (0, {k}))",
    "{w} = {v} + torch.arange({v}.shape[1]) * ({k})",
    "{w} = {v}.repeat({p}, 1)",
    "{w} = {v} * 2 if {k} {order} {limit} else {v} + 1",
    "{w} = {v}.roll({k}, {axis})",
    "{w} = {v}.tril({k})",
    "{w} = {v}.narrow(0, 0, min({k}, {v}.shape[0]))",
    "{w} = {v}.split({p}, {axis})[{end}]",
    "{w} = {v}.chunk({few}, {axis})[{end}]",
    "{w} = {v}.reshape(-1, {v}.shape[0])",
    "{w} = {v}.t()",
    "{w} = {v} / ({k} + 0.5)",
    "{w} = {v} * math.sqrt({v}.shape[1])",
    "{w} = {v} @ x.new_ones({v}.shape[1], {p})",
    "{w} = {v}.flatten().unfold(0, {few}, 1)",
    "{w} = F.interpolate({v}[None, None], size=({p}, {v}.shape[1]))[0, 0]",
    "{w} = {v}.clone(); {w}[{rows}, :{k}] = 1.5",
    "{w} = torch.stack([{v}.sum() * i for i in range({few})])[:, None] + {v}[:1, :1]",
    "{w} = {v}.index_select(0, torch.arange({v}.shape[0]).flip(0)[:{p}])",
)
