"""Programs that mix tracing and scripting, and the kinds of variables that TorchScript has."""

from __future__ import annotations

import copy
import enum
from typing import Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035  TorchScript reads these annotations

import pytest
import torch
from torch import Tensor, nn
from ts_models import exported, over_opsets, refused_below

import onnx_ts_legacy
from onnx_ts_legacy import TrainingMode
from onnx_ts_legacy.errors import CaptureError, StateError

X, Y = torch.randn(2, 3), torch.randn(5, 3)
AXES = {"x": {0: "n"}}


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


FUNCTIONS = (pair, accumulated, smaller_and_larger, list_operations, numbers_of_tensors, chosen_number)


@pytest.mark.parametrize(
    ("program", "lowest", "opset"), over_opsets({p.name: p for p in FUNCTIONS}, {"smaller_and_larger": 10})
)
def test_a_scripted_function(program: torch.jit.ScriptFunction, lowest: int, opset: int) -> None:
    with refused_below(lowest, opset):
        exported(program, (X,), (Y,), dynamic_axes=AXES, opset=opset)


@torch.jit.script
def returned_numbers(x: Tensor) -> Tuple[float, float, int, bool, List[float]]:  # noqa: UP006
    halves: List[float] = []  # noqa: UP006
    for i in range(x.size(0)):
        halves.append(i * 0.5)
    return x.size(0) * 0.1, 0.1, x.size(0), bool(x.sum() > 0), halves


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_returned_numbers_have_the_dtypes_that_torch_gives_numbers(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        program = onnx_ts_legacy.export(returned_numbers, (X,), dynamic_axes=AXES)
        expected = [torch.tensor(number) for number in returned_numbers(Y)]
    finally:
        torch.set_default_dtype(before)

    for actual, wanted in zip(program(Y), expected, strict=True):
        assert actual.dtype == wanted.dtype
        assert torch.equal(actual, wanted)


def test_dict_inputs_string_and_optional_arguments() -> None:
    @torch.jit.script
    def looked_up(table: Dict[str, Tensor], key: str, factor: Optional[int] = None) -> Tensor:  # noqa: UP006, UP045
        if factor is not None:
            return table[key] * factor
        return table[key] + len(table)

    program = exported(looked_up, ({"p": X, "q": Y}, "q"))
    exported(looked_up, ({"p": X, "q": Y}, "q", 3))

    assert program.input_names == ["table.p", "table.q"]


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


def test_a_value_that_tracing_freezes_is_warned_about_with_its_line() -> None:
    def frozen(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.warns(torch.jit.TracerWarning, match="Python boolean") as caught:
        onnx_ts_legacy.export(frozen, (X.abs(),))

    assert any(warning.filename == __file__ for warning in caught)


def test_a_scripted_module_without_one_forward_is_refused() -> None:
    with pytest.raises(CaptureError, match="script a module that calls it"):
        onnx_ts_legacy.export(torch.jit.script(nn.GRU(3, 4)), (torch.randn(2, 5, 3),))


class Mode(enum.Enum):
    DOUBLE = 2
    TRIPLE = 3


class ByMode(nn.Module):
    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        if self.mode == Mode.DOUBLE:
            return x + x
        if self.mode != Mode.TRIPLE or self.mode.name == "":
            return x
        return x * self.mode.value


class ByModeOfData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mode = Mode.DOUBLE
        if bool(x.sum() > 0):
            mode = Mode.TRIPLE
        if mode == Mode.DOUBLE:
            return x + x
        return x


@pytest.mark.parametrize("mode", Mode)
def test_members_of_enumerations_decide_as_in_python(mode: Mode) -> None:
    exported(torch.jit.script(ByMode(mode)), (X,), (Y,), dynamic_axes=AXES)


def test_a_member_that_the_data_chooses_is_refused_by_name() -> None:
    with pytest.raises(onnx_ts_legacy.OnnxExporterError, match=r"Mode\.TRIPLE or Mode\.DOUBLE"):
        onnx_ts_legacy.export(torch.jit.script(ByModeOfData()), (X,))
