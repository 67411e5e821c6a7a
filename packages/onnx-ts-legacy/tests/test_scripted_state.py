"""What scripted programs keep in attributes: state of the model, refused by name and line, or no state at all."""

import re
import warnings
from typing import Any, Dict, List, Optional, Tuple  # noqa: UP035 - TorchScript reads them

import pytest
import torch
from torch import Tensor, nn

import onnx_ts_legacy
from onnx_ts_legacy.errors import StateError

X = torch.linspace(-2, 2, 6).reshape(2, 3)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = 0

    def forward(self, x: Tensor) -> Tensor:
        self.kept += 1
        return x * self.kept


class Flag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = True

    def forward(self, x: Tensor) -> Tensor:
        if self.kept:
            self.kept = False
            return x * 0
        return x


class Halved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.kept / 2
        return x * self.kept


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = torch.zeros(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.kept + x
        return self.kept * 2


class SumInPlace(Sum):
    def forward(self, x: Tensor) -> Tensor:
        self.kept += x
        return self.kept * 2


class Below(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = Sum()
        self.counter = Counter()

    def forward(self, x: Tensor) -> Tensor:
        return self.kept(x) + self.counter(x)


class Appended(nn.Module):
    kept: List[int]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.kept = [1]

    def forward(self, x: Tensor) -> Tensor:
        self.kept.append(1)
        return x * len(self.kept)


class Item(nn.Module):
    kept: List[Tensor]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros(2, 3)]

    def forward(self, x: Tensor) -> Tensor:
        self.kept[0] = self.kept[0] + x
        return self.kept[0]


class Nested(nn.Module):
    kept: List[List[int]]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.kept = [[1], [2]]

    def forward(self, x: Tensor) -> Tensor:
        self.kept[1].append(3)
        return x * len(self.kept[1])


class Entry(nn.Module):
    kept: Dict[str, Tensor]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.kept = {"h": torch.zeros(2, 3)}

    def forward(self, x: Tensor) -> Tensor:
        self.kept["h"] = self.kept["h"] + x
        return self.kept["h"]


class FirstSum(nn.Module):
    kept: Optional[Tensor]  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.kept = None

    def forward(self, x: Tensor) -> Tensor:
        before = self.kept
        if before is None:
            before = torch.zeros_like(x)
        self.kept = before + x
        return before * 2 + x


class Remembered(FirstSum):
    def forward(self, x: Tensor) -> Tensor:
        kept = self.kept
        if kept is None:
            kept = x
            if bool(x.sum() > 0):
                self.kept = kept
        return kept * x


class Turned(nn.Module):
    kept: Tuple[int, int]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.kept = (1, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = (self.kept[1], self.kept[0])
        return x * self.kept[0]


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = "a"

    def forward(self, x: Tensor) -> Tensor:
        if self.kept == "a":
            self.kept = "b"
            return x * 2
        return x * 3


class Unread(Counter):
    def forward(self, x: Tensor) -> Tensor:
        self.kept += 1
        return x * 2


class Size(Counter):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = x.size(0)
        return x * self.kept


class Overwritten(Sum):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = x + 1
        return self.kept * 2


class Log(nn.Module):
    kept: List[Tensor]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.kept = []

    def forward(self, x: Tensor) -> Tensor:
        self.kept.append(x)
        return x * 2


class Cache(FirstSum):
    def forward(self, x: Tensor) -> Tensor:
        kept = self.kept
        if kept is None:
            kept = torch.ones(1, 3)
            self.kept = kept
        return kept * x


STATE = [Counter, Flag, Halved, Sum, SumInPlace, Below]
REFUSED = [Appended, Item, Nested, Entry, FirstSum, Remembered, Turned, Text]
NONE = [Unread, Size, Overwritten, Log, Cache]


def right(program: Any, model: nn.Module) -> list[bool]:
    """Return for three calls in a row whether the program gives what the model does."""
    state, found = dict(program.initial_state), []
    for x in (X, X * 0.5 + 1, X - 1):
        outputs = program.run({"x": x, **state})
        state = {source: outputs[after] for source, after in program.state.items()}
        found.append(torch.allclose(next(iter(outputs.values())).float(), model(x)))
    return found


@pytest.mark.parametrize("model", STATE)
def test_numbers_and_tensors_are_state(model: type[nn.Module]) -> None:
    scripted = torch.jit.script(model())
    with pytest.raises(StateError, match=rf"changes \S+ \(at {re.escape(__file__)}:\d+\)"):
        onnx_ts_legacy.export(scripted, (X,))

    program = onnx_ts_legacy.export(scripted, (X,), state="io")

    assert program.state
    assert right(program, model()) == [True, True, True]
    assert right(program, scripted) == [True, True, True]  # the export left it as it was


@pytest.mark.parametrize("state", ["error", "io"])
@pytest.mark.parametrize("model", REFUSED)
def test_other_values_that_a_later_call_depends_on_are_refused(model: type[nn.Module], state: Any) -> None:
    scripted = torch.jit.script(model())

    with pytest.raises(StateError, match=rf"changes kept \(at {re.escape(__file__)}:\d+\)"):
        onnx_ts_legacy.export(scripted, (X,), state=state)
    with pytest.warns(UserWarning, match=rf"changes kept \(at {re.escape(__file__)}:\d+\)"):
        program = onnx_ts_legacy.export(scripted, (X,), state="ignore")

    assert right(program, model())[0]
    torch.testing.assert_close(scripted(X), model()(X))


@pytest.mark.parametrize("state", ["error", "io", "ignore"])
@pytest.mark.parametrize("model", NONE)
def test_what_no_later_call_depends_on_is_no_state(model: type[nn.Module], state: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*changes")
        program = onnx_ts_legacy.export(torch.jit.script(model()), (X,), state=state)

    assert not program.state
    assert right(program, model()) == [True, True, True]


class Items(nn.Module):
    kept: list[Tensor]
    table: dict[str, Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.kept = [torch.zeros(3), torch.ones(3)]
        self.table = {"a": torch.zeros(3), "b": torch.ones(3)}


class OfAList(Items):
    def forward(self, x: Tensor) -> Tensor:
        self.kept[0].add_(x.sum(0))
        return x + self.kept[0] * self.kept[1]


class OfAll(Items):
    def forward(self, x: Tensor) -> Tensor:
        for each in self.kept:
            each.mul_(0.5).add_(x.sum(0))
        return x + self.kept[1]


class OfADict(Items):
    def forward(self, x: Tensor) -> Tensor:
        y = self.table["b"]
        y += x.sum(0)
        return x + self.table["a"] - self.table["b"]


@pytest.mark.parametrize(
    ("model", "paths"), [(OfAList, ["kept.0"]), (OfAll, ["kept.0", "kept.1"]), (OfADict, ["table.b"])]
)
def test_items_that_are_written_to_are_state(model: type[nn.Module], paths: list[str]) -> None:
    scripted, eager = torch.jit.script(model()), model()
    with pytest.raises(StateError, match=re.escape(paths[0])):
        onnx_ts_legacy.export(scripted, (X,))
    program = onnx_ts_legacy.export(scripted, (X,), dynamic_shapes=[{0: "n"}], state="io")

    values = dict(program.initial_state)
    assert list(program.state) == paths
    for rows in (2, 4, 1):
        x = torch.randn(rows, 3)
        found = program.run({program.input_names[0]: x, **values})
        torch.testing.assert_close(found[program.output_names[0]], eager(x))
        values = {name: found[following] for name, following in program.state.items()}
