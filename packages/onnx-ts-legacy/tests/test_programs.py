"""Programs that mix tracing and scripting, and the kinds of variables that TorchScript has."""

from __future__ import annotations

import copy
from typing import Dict, List, NamedTuple, Optional  # noqa: UP035  TorchScript reads these annotations

import pytest
import torch
from torch import Tensor, nn
from ts_models import exported

import onnx_ts_legacy
from onnx_ts_legacy import TrainingMode
from onnx_ts_legacy.errors import CaptureError, StateError

X, Y = torch.randn(2, 3), torch.randn(5, 3)
AXES = {"x": {0: "n"}}


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3) * 2)
        self.register_buffer("shift", torch.zeros(1) + 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) > 2:
            return x * self.weight
        return x + self.shift


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scripted = nn.Linear(3, 3), torch.jit.script(Scripted())

    def forward(self, x: Tensor) -> Tensor:
        return self.scripted(self.linear(x)) + 1


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.named = nn.ModuleDict({"last": nn.Linear(3, 2)})

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x) * (i + 1)
        return self.named["last"](x)


class Packed(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.network = kind(3, 4, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        output, _ = self.network(packed)
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True, padding_value=-1.0)[0]


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@torch.jit.script
class Accumulator:
    def __init__(self, x: Tensor) -> None:
        self.total = x

    def add(self, y: Tensor) -> None:
        self.total = self.total + y


@torch.jit.script
def pair(x: Tensor) -> Pair:
    return Pair(x * 2, x + 1)


@torch.jit.script
def accumulated(x: Tensor) -> Tensor:
    total = Accumulator(x)
    for i in range(3):
        total.add(x * i)
    return total.total


@torch.jit.script
def smaller_and_larger(x: Tensor) -> Tensor:
    rows, columns = min(x.size(0), 4), max(x.size(1) - 1, 1)
    return x[:rows, :columns].reshape(-1)


@torch.jit.script
def list_operations(x: Tensor) -> List[Tensor]:  # noqa: UP006
    items = [x, x + 1, x + 2]
    items.insert(0, x * 5)
    items.reverse()
    taken = items.pop(1)
    items.extend([taken])
    items[0] = taken * 2
    return items


@torch.jit.script
def numbers_of_tensors(x: Tensor) -> Tensor:
    return x * x.sum().item() + int(x.max())


@torch.jit.script
def chosen_number(x: Tensor) -> Tensor:
    scale = 1.0 if x.size(0) > 3 else 0.5
    return x * scale


@pytest.mark.parametrize(
    "program",
    [pair, accumulated, smaller_and_larger, list_operations, numbers_of_tensors, chosen_number],
    ids=lambda program: program.name,
)
def test_a_scripted_function(program: torch.jit.ScriptFunction) -> None:
    exported(program, (X,), (Y,), dynamic_axes=AXES)


@pytest.mark.parametrize("opset", [9, 17])
def test_a_scripted_module_inside_a_traced_one_keeps_its_condition(opset: int) -> None:
    program = exported(Mixed(), (X,), (Y,), (X[:1],), dynamic_axes=AXES, opset=opset)

    assert "If" in {node.op_type for node in program.model.graph}
    assert {"linear.weight", "scripted.weight"} <= set(program.model.graph.initializers)


def test_module_lists_and_dicts_are_read_where_they_are_used() -> None:
    exported(torch.jit.script(Containers()), (X,), (Y,), dynamic_axes=AXES)


def test_dict_inputs_string_and_optional_arguments() -> None:
    @torch.jit.script
    def looked_up(table: Dict[str, Tensor], key: str, factor: Optional[int] = None) -> Tensor:  # noqa: UP006, UP045
        if factor is not None:
            return table[key] * factor
        return table[key] + len(table)

    program = exported(looked_up, ({"p": X, "q": Y}, "q"))
    exported(looked_up, ({"p": X, "q": Y}, "q", 3))

    assert program.input_names == ["table_p", "table_q"]


def test_a_while_loop_over_a_number_of_the_runtime() -> None:
    @torch.jit.script
    def counted(x: Tensor, n: Tensor) -> Tensor:
        i = int(n)
        while i > 0:
            x = x + i
            i = i - 2
        return x

    exported(counted, (X, torch.tensor(3)), (X, torch.tensor(8)), (X, torch.tensor(-1)))


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_floor_division_rounds_down(scripted: bool) -> None:
    def divided(x: Tensor) -> Tensor:
        return x // 3 + x % 2

    model = torch.jit.script(divided) if scripted else divided

    exported(model, (torch.arange(-5, 5),), (torch.arange(-7, 9),), dynamic_axes=AXES)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
def test_a_recurrent_network_over_packed_sequences(kind: type, scripted: bool) -> None:
    model = torch.jit.script(Packed(kind)) if scripted else Packed(kind)
    axes = {"x": {0: "n", 1: "t"}, "lengths": {0: "n"}}

    exported(
        model,
        (torch.randn(2, 5, 3), torch.tensor([5, 3])),
        (torch.randn(3, 6, 3), torch.tensor([6, 4, 1])),
        (torch.randn(1, 6, 3), torch.tensor([2])),
        dynamic_axes=axes,
    )


def test_batch_norm_in_training_mode_updates_its_statistics_as_state() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    eager = copy.deepcopy(model).train()
    with pytest.raises(StateError, match=r"running_mean.*state='io'"):
        onnx_ts_legacy.export(model, (X,), training=TrainingMode.TRAINING)

    program = onnx_ts_legacy.export(
        model, (X,), training=TrainingMode.TRAINING, state="io", dynamic_axes={"input": {0: "n"}}
    )

    state = program.initial_state
    for _ in range(3):
        batch = torch.randn(5, 3)
        outputs = dict(zip(program.output_names, program(batch, **state), strict=True))
        torch.testing.assert_close(outputs["output"], eager(batch).detach(), rtol=1e-4, atol=1e-5)
        state = {name: outputs[output] for name, output in program.state_outputs.items()}
    for name, value in eager.named_buffers():
        torch.testing.assert_close(state[name], value)


class ChangedInLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3))
        self.register_buffer("last", torch.zeros(3))
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        for i in range(x.size(0)):
            self.rows[i % 4] += x[i]
            self.last = self.last * 0.5 + x[i]
            self.count += 1
        if bool(x.sum() > 0):
            self.rows.mul_(2)
        return self.rows.sum(0) * self.count + self.last


@pytest.mark.parametrize("opset", [11, 18])
def test_attributes_changed_in_loops_and_branches_are_carried_from_call_to_call(opset: int) -> None:
    eager = torch.jit.script(ChangedInLoop())
    program = onnx_ts_legacy.export(
        torch.jit.script(ChangedInLoop()), (X,), dynamic_axes=AXES, state="io", opset_version=opset
    )

    state = program.initial_state
    for x in (X, Y, -Y.abs(), Y[:1]):
        outputs = dict(zip(program.output_names, program(x, **state), strict=True))
        torch.testing.assert_close(outputs["output"], eager(x), rtol=1e-4, atol=1e-5)
        state = {name: outputs[output] for name, output in program.state_outputs.items()}
    torch.testing.assert_close(state["rows"], eager.rows, rtol=1e-4, atol=1e-5)
    assert state["count"].item() == eager.count


def test_a_value_that_tracing_freezes_is_warned_about_with_its_line() -> None:
    def frozen(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.warns(torch.jit.TracerWarning, match="Python boolean") as caught:
        onnx_ts_legacy.export(frozen, (X.abs(),))

    assert any(warning.filename == __file__ for warning in caught)


def test_a_scripted_module_without_one_forward_is_refused() -> None:
    with pytest.raises(CaptureError, match="script a module that calls it"):
        onnx_ts_legacy.export(torch.jit.script(nn.GRU(3, 4)), (torch.randn(2, 5, 3),))
