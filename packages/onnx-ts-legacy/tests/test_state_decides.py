"""A trace cannot follow Python values of what a model keeps from one call to the next: they are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

import onnx_ts_legacy
from onnx_ts_legacy.errors import CaptureError, StateError

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
X = torch.linspace(-1, 2, 8).reshape(2, 4)


class Counting(nn.Module):
    """Adds one to a buffer, and gives what a function makes of it and an input; `first` says which comes first."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], first: str = "write") -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.function, self.first = function, first

    def forward(self, x: Tensor) -> Tensor:
        if self.first == "write":
            self.count += 1
            return self.function(x, self.count)
        result = self.function(x, self.count)
        self.count = self.count + 1
        return result


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "int": lambda x, n: x * int(n),
    "float": lambda x, n: x * float(n),
    "item": lambda x, n: x + n.item(),
    "tolist": lambda x, n: x + n.tolist(),
    "a condition": lambda x, n: x * 2 if n > 1 else x,
    "a slice": lambda x, n: x[:, : int(n) + 1],
    "a range": lambda x, n: x * sum(range(n)),
    "a new tensor": lambda x, n: x + torch.tensor([int(n), 2]).sum(),
    "a filled tensor": lambda x, n: x + torch.full((4,), n.item()),
    "of what follows": lambda x, n: x * int((n * 2).clone() + 1),
    "through a view": lambda x, n: x * int(n.view(1)[0]),
}


@pytest.mark.parametrize("first", ["write", "read"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_state_decides_is_refused_with_its_name_and_line(name: str, first: str) -> None:
    with pytest.raises(CaptureError, match=rf"(?m)^  count, which the model changes, decides: .* at {__file__}:\d+$"):
        onnx_ts_legacy.export(Counting(FUNCTIONS[name], first).eval(), (X,), state="io")


class Outside(nn.Module):
    """Keeps a tensor in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = [torch.zeros(())]

    def forward(self, x: Tensor) -> Tensor:
        self.seen[0] += 1
        return x * float(self.seen[0])


class Around(nn.Module):
    """Holds a model that counts, and one that is scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Counting(lambda x, n: x * int(n))
        self.scripted = torch.jit.script(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.scripted(self.inner(x))


@pytest.mark.parametrize(("model", "name"), [(Outside, r"seen\.0"), (Around, r"inner\.count")])
def test_wherever_the_state_is_kept(model: Callable[[], nn.Module], name: str) -> None:
    with pytest.raises(CaptureError, match=f"{name}, which the model changes, decides"):
        onnx_ts_legacy.export(model().eval(), (X,), state="io")


class Overwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scratch", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("fixed", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        self.scratch.fill_(4)
        return x * int(self.scratch[0]) + int(self.fixed)


def test_what_is_written_before_it_is_read_and_what_never_changes_may_decide() -> None:
    program = onnx_ts_legacy.export(Overwritten().eval(), (X,), state="io")

    torch.testing.assert_close(program(X * 2)[0], X * 8 + 3)


def test_a_state_that_is_ignored_may_decide() -> None:
    with pytest.warns(UserWarning, match="count"):
        program = onnx_ts_legacy.export(Counting(FUNCTIONS["int"]).eval(), (X,), state="ignore")

    torch.testing.assert_close(program(X)[0], X)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * int(self.count)


class Emptied(nn.Module):
    """Writes to a tensor that it keeps, and lets it go."""

    def __init__(self, let_go: Callable[[nn.Module], object]) -> None:
        super().__init__()
        self.kept, self.let_go = [torch.zeros(4)], let_go

    def forward(self, x: Tensor) -> Tensor:
        last = self.kept[-1].add_(x[0])
        self.let_go(self)
        return x + last


@pytest.mark.parametrize("let_go", [lambda m: m.kept.pop(), lambda m: m.kept.clear(), lambda m: m.kept.insert(0, 1)])
def test_a_tensor_that_is_written_to_and_makes_way_is_refused_with_its_name(let_go: Callable[..., object]) -> None:
    model = Emptied(let_go)
    with pytest.raises(StateError, match=r"changes kept\.0"):
        onnx_ts_legacy.export(model, (X,), state="io")
    assert [tensor.tolist() for tensor in model.kept] == [[0.0] * 4]


def test_scripted_it_is_right_in_every_call() -> None:
    program = onnx_ts_legacy.export(torch.jit.script(Scripted()), (X,), state="io")
    session = ort.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names, reference, count = [each.name for each in session.get_inputs()], Scripted(), np.zeros((), np.int64)

    for _ in range(3):
        result, count = session.run(None, dict(zip(names, [X.numpy(), count], strict=True)))
        np.testing.assert_allclose(result, reference(X).numpy())
