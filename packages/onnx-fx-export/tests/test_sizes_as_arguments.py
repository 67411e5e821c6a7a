"""Sizes that a model gives to functions which take numbers are those of the call, not of the example."""

import pytest
import torch

import onnx_fx_export as fx

F = torch.nn.functional
X = torch.randn(2, 5)
OTHERS = [torch.randn(2, 8), torch.randn(2, 3), torch.randn(2, 4)]


class Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def restored(x, length):
    spectrum = torch.stft(x, 4, 1, window=torch.hann_window(4), return_complex=True)
    return torch.istft(spectrum, 4, 1, window=torch.hann_window(4), length=length)


FUNCTIONS = {
    "linspace": lambda x: x + torch.linspace(-1, 2, x.shape[1]),
    "linspace up to a size": lambda x: x + torch.linspace(0, x.shape[1] - 1, steps=x.shape[1]),
    "linspace of doubles": lambda x: x + torch.linspace(0.1, 0.7, x.shape[1] - 2, dtype=torch.float64).sum(),
    "logspace": lambda x: x + torch.logspace(0, 1, x.shape[1], base=2.0),
    "hann": lambda x: x * torch.hann_window(x.shape[1]),
    "hann of one": lambda x: torch.hann_window(x.shape[1] - 2) + x.sum(),
    "symmetric hann": lambda x: x * torch.hann_window(x.shape[1], periodic=False),
    "hamming": lambda x: x * torch.hamming_window(x.shape[1], True, 0.5),
    "blackman": lambda x: x * torch.blackman_window(x.shape[1]),
    "bartlett": lambda x: x * torch.bartlett_window(x.shape[1], False),
    "fftfreq": lambda x: x * torch.fft.fftfreq(x.shape[1], 0.5),
    "rfftfreq": lambda x: torch.fft.rfftfreq(x.shape[1]) + x.sum(),
    "one_hot": lambda x: F.one_hot(torch.tensor([0, 2]), x.shape[1]),
    "avg_pool1d of all": lambda x: F.avg_pool1d(x[None], x.shape[1]),
    "avg_pool1d of parts": lambda x: F.avg_pool1d(x[None], x.shape[1] // 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x[None, None], x.shape[0:]),
    "max_pool2d": lambda x: F.max_pool2d(x[None, None], (2, x.shape[1] // 2)),
    "max_pool1d": lambda x: F.max_pool1d(x[None], kernel_size=x.shape[1] - 1),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[None], x.shape[1] - 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[None], x.shape[1] - 1),
    "tril_indices": lambda x: torch.tril_indices(x.shape[1], x.shape[1] - 1, -1) + x.sum(),
    "triu_indices": lambda x: torch.triu_indices(2, x.shape[1], offset=1, dtype=torch.int32),
    "vander": lambda x: torch.vander(x[0]) + torch.vander(x[1], increasing=True),
    "istft up to a length": lambda x: restored(x, x.shape[1]),
    "istft beyond the frames": lambda x: restored(x, x.shape[1] + 3),
    "roll": lambda x: torch.roll(x, x.shape[1] // 2, 1),
    "roll by name": lambda x: x.roll(shifts=x.shape[1] - 3, dims=1),
    "zeros": lambda x: x + x.new_zeros(x.shape[1]),
    "positions from the end": lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)],
}


@pytest.mark.parametrize("dynamo", [True, False], ids=["fx", "torchscript"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_the_size_of_the_call(name, dynamo):
    model = Calls(FUNCTIONS[name])
    program = fx.export(model, (X,), dynamic_shapes={"x": {1: "n"}}, dynamo=dynamo)

    for x in (X, *OTHERS):
        torch.testing.assert_close(program(x)[0] if isinstance(program(x), tuple | list) else program(x), model(x))


@pytest.mark.parametrize("option", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("dynamo", [True, False], ids=["fx", "torchscript"])
def test_what_no_operator_takes_from_a_size_is_that_of_the_example_or_refused(option, dynamo):
    model = Calls(lambda x: F.conv1d(x[None], torch.ones(1, 2, 2), **{option: x.shape[1] - 2}))

    with pytest.raises(fx.OnnxExporterError):
        fx.export(model, (X,), dynamic_shapes={"x": {1: "n"}}, dynamo=dynamo)(OTHERS[0])


def test_static_sizes_leave_the_operators_of_pooling():
    program = fx.export(Calls(lambda x: F.avg_pool1d(x[None], x.shape[1] - 2)), (X,), dynamo=False)

    assert "AveragePool" in [node.op_type for node in program.model_proto.graph.node]


PARTS = {
    "halves": (lambda x: torch.cat(x.split((x.shape[1] + 1) // 2, 1)[::-1], 1), 5),
    "the first of many": (lambda x: x.split(x.shape[1] // 4, 1)[0], 3),
    "the last of many": (lambda x: x.split(x.shape[1] // 4, 1)[-1], 3),
    "at least one": (lambda x: x.split(max(x.shape[1] // 4, 1), 1)[1], 3),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("opset", [10, 18])
def test_parts_of_a_dynamic_size_are_right_where_there_are_as_many(name, opset) -> None:
    function, least = PARTS[name]
    program = fx.export(Calls(function), (torch.randn(4, 9),), dynamic_shapes=({1: "m"},), opset_version=opset)
    right = 0
    for length in (5, 9, 10, 13, 14, 17, 22, 30):
        x = torch.randn(4, length)
        try:
            result = program(x)
        except fx.InvalidArgumentError:
            assert len(x.split(max(length // 4, 1), 1)) != 5
            continue
        torch.testing.assert_close(result, function(x))
        right += 1
    assert right >= least


def test_one_size_at_which_nothing_is_left_does_not_let_all_others_pass() -> None:
    def function(x):
        return x.narrow(1, 0, min(abs(len(x) - 4), x.shape[1])).split(max(len(x) // 2, 1), 1)[-1]

    program = fx.export(Calls(function), (torch.randn(5, 7),), dynamic_shapes=({0: "n", 1: "m"},))
    for rows in (5, 6, 7):
        x = torch.randn(rows, 12)
        torch.testing.assert_close(program(x), function(x))
    for rows in (9, 11, 20):
        with pytest.raises(fx.InvalidArgumentError, match="captured for"):
            program(torch.randn(rows, 12))
