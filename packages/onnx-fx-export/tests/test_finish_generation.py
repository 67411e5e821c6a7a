"""What language models spell out becomes the operators that there are for it."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
import torch

from onnx_fx_export import ONNXProgram, export

HALF, REST = 4, 2


def operators(program: ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


def by_slices(x, cos, sin):
    both = [torch.cat((each, each), -1) for each in (cos, sin)]
    return x * both[0] + torch.cat((-x[..., HALF:], x[..., :HALF]), -1) * both[1]


def by_chunks(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def by_neighbours(x, cos, sin):
    wide = [each.repeat_interleave(2, -1) for each in (cos, sin)]
    return x * wide[0] + torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2) * wide[1]


def by_stacked_neighbours(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def in_part(x, cos, sin):
    return torch.cat((by_slices(x[..., : 2 * HALF], cos, sin), x[..., 2 * HALF :]), -1)


def the_other_way(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos + second * sin, second * cos - first * sin), -1)


def of_one_half(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second), -1)


class Rotary(torch.nn.Module):
    def __init__(self, spelling, scale: float = 1.0) -> None:
        super().__init__()
        self.spelling, self.scale = spelling, scale
        self.register_buffer("frequency", torch.rand(HALF))

    def forward(self, x, position):
        angles = position[:, :, None].float() * self.frequency
        return self.spelling(
            x, *((each * self.scale).to(x.dtype).unsqueeze(1) for each in (angles.cos(), angles.sin()))
        )


def exported_rotary(model: Rotary, width: int, dtype: torch.dtype = torch.float32) -> tuple[ONNXProgram, float]:
    """Return the program, and how far it is from the model at another size."""
    dims, positions = {0: "batch", 2: "length"}, {0: "batch", 1: "length"}
    torch.manual_seed(0)

    def inputs(batch: int, length: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, 3, length, width, dtype=dtype), torch.randint(0, 50, (batch, length))

    program = export(model, inputs(2, 5), opset_version=23, dynamic_shapes={"x": dims, "position": positions})
    other = inputs(3, 7)
    return program, float((program(*other) - model(*other)).abs().max())


@pytest.mark.parametrize("scale", [1.0, 1.5])
@pytest.mark.parametrize(
    ("spelling", "width"),
    [(by_slices, 8), (by_chunks, 8), (by_neighbours, 8), (by_stacked_neighbours, 8), (in_part, 8 + REST)],
)
def test_a_rotary_embedding_is_one_node_however_it_is_written(spelling, width, scale):
    program, difference = exported_rotary(Rotary(spelling, scale), width)

    assert operators(program).count("RotaryEmbedding") == 1
    assert not {"Neg", "Split", "Slice"} & set(operators(program))
    assert difference < 1e-5


@pytest.mark.parametrize(("spelling", "width"), [(by_slices, 8), (by_stacked_neighbours, 8), (in_part, 8 + REST)])
def test_a_rotary_embedding_of_half_precision_is_one_node(spelling, width):
    program, difference = exported_rotary(Rotary(spelling, 1.5), width, torch.float16)

    assert operators(program).count("RotaryEmbedding") == 1
    assert not {"Neg", "Split", "Slice"} & set(operators(program))
    assert difference < 0.02


@pytest.mark.parametrize("spelling", [the_other_way, of_one_half])
def test_other_turns_stay(spelling):
    program, difference = exported_rotary(Rotary(spelling), 8)

    assert operators(program).count("RotaryEmbedding") == 0
    assert difference < 1e-5


class Shifted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6))

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, (6,), 1.0 + self.weight) * self.weight


def test_a_weight_and_a_constant_are_added_when_they_are_written(tmp_path):
    model, x = Shifted(), torch.randn(2, 6)
    program = export(model, (x,))

    assert operators(program).count("Add") == 0
    torch.testing.assert_close(program(x), model(x))
    other = Shifted()
    program.apply_weights(other.state_dict())
    torch.testing.assert_close(program(x), other(x))
    assert operators(export(model, (x,), optimize=False)).count("Add") == 1


class Row(torch.nn.Module):
    def forward(self, x, index):
        return x.gather(1, index.reshape(-1, 1, 1).expand(-1, 1, x.shape[-1]))


class Columns(torch.nn.Module):
    def forward(self, x, index):
        return x.gather(1, index.reshape(-1, 1, 1).expand(-1, 1, 3))


def test_one_row_of_each_entry_is_gathered_whole():
    dims = ({0: "batch", 1: "length"}, {0: "batch"})
    program = export(Row(), (torch.randn(2, 5, 4), torch.tensor([1, 4])), dynamic_shapes=dims)
    x, index = torch.randn(3, 7, 4), torch.tensor([6, 0, -1])

    assert (operators(program).count("GatherND"), operators(program).count("GatherElements")) == (1, 0)
    wanted = x[torch.arange(3), index][:, None]
    torch.testing.assert_close(program(x, index), wanted)


def test_a_part_of_a_row_is_gathered_by_its_elements():
    program = export(Columns(), (torch.randn(2, 5, 4), torch.tensor([1, 4])))

    assert operators(program).count("GatherElements") == 1


def new_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_of_squares(x):
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def of_another_slope(x):
    return x * 0.5 * (1.0 + torch.tanh(0.7 * x * (1 + 0.044715 * x * x)))


def of_another_half(x):
    return x * 0.6 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


class Hidden(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function = torch.nn.Linear(4, 6), function

    def forward(self, x):
        return self.function(self.linear(x)) + 1


def torch_gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


GELU_BY_TANH = pytest.mark.parametrize(
    ("function", "count"),
    [(torch_gelu, 1), (new_gelu, 1), (gelu_of_squares, 1), (of_another_slope, 0), (of_another_half, 0)],
)


@GELU_BY_TANH
@pytest.mark.parametrize("opset", [17, 20])
def test_gelu_by_tanh_is_one_node_for_onnxruntime_however_it_is_written(function, count, opset):
    model, x = Hidden(function), torch.randn(3, 5, 4)
    program = export(model, (x,), target="onnxruntime", opset_version=opset)

    assert operators(program).count("FastGelu") == count
    assert operators(program).count("Tanh") == 1 - count
    torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


@GELU_BY_TANH
@pytest.mark.parametrize(("opset", "written", "run"), [(13, "Tanh", "FastGelu"), (20, "Gelu", "Gelu")])
def test_gelu_by_tanh_is_one_operation_of_every_model(function, count, opset, written, run, tmp_path):
    model = Hidden(function)
    program = export(model, (torch.randn(3, 4),), dynamic_shapes=({0: "n"},), opset_version=opset)

    assert operators(program).count(written) == (count if written == "Gelu" else 1)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(program.model_proto.SerializeToString(), options, ["CPUExecutionProvider"])
    assert [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node].count(run) == count
    for rows in (1, 7):
        x = 3 * torch.randn(rows, 4)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def test_double_precision_keeps_the_approximation_as_it_is_written():
    model, x = Hidden(new_gelu).double(), torch.randn(3, 4, dtype=torch.float64)
    program = export(model, (x,), opset_version=20)

    assert "Gelu" not in operators(program)
    torch.testing.assert_close(program(x), model(x))
