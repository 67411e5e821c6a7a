"""Complex inputs, parameters and outputs, from torch through ONNX Runtime and back."""

from __future__ import annotations

import pytest
import torch

from onnx_fx_export import OnnxExporterError, export


class Filter(torch.nn.Module):
    """A global filter: multiplies the spectrum by learned complex weights."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width // 2 + 1, dtype=torch.complex64))

    def forward(self, x):
        spectrum = torch.fft.rfft(x, dim=-1, norm="ortho")
        return torch.fft.irfft(spectrum * self.weight, n=x.shape[-1], dim=-1, norm="ortho")


class Rotary(torch.nn.Module):
    """Rotary positions by multiplication with complex numbers of length one."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(32.0), 1 / 100 ** (torch.arange(4) / 4))
        self.register_buffer("positions", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.positions[: x.shape[1]]).flatten(-2)


class Mixed(torch.nn.Module):
    """Complex in and out, with a real result beside."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 4, dtype=torch.complex64))
        self.bias = torch.nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, z, x):
        y = z @ self.weight + self.bias
        return {"sum": y + x, "conjugate": y.conj() * 1j, "same": z}, y.abs(), (y.real, y.angle())


def check(model: torch.nn.Module, examples, dynamic_shapes, opset: int = 20) -> None:
    program = export(model, examples[0], dynamic_shapes=dynamic_shapes, opset_version=opset, verify=True)
    for example in examples:
        with torch.no_grad():
            expected = model(*example)
        torch.testing.assert_close(program(*example), expected, rtol=1e-4, atol=1e-5)
        program.verify(*example)


@pytest.mark.parametrize("opset", [17, 20, 23])
def test_a_filter_in_the_frequency_domain(opset: int) -> None:
    check(Filter(), [(torch.randn(n, m, 6),) for n, m in ((2, 3), (5, 2))], {"x": {0: "n", 1: "m"}}, opset)


@pytest.mark.parametrize("opset", [13, 20, 23])
def test_rotary_positions_by_complex_multiplication(opset: int) -> None:
    check(Rotary(), [(torch.randn(2, n, 8),) for n in (5, 9)], {"x": {1: "length"}}, opset)


@pytest.mark.parametrize("opset", [13, 20])
def test_complex_inputs_and_outputs_keep_their_structure(opset: int) -> None:
    examples = [(torch.randn(n, 3, dtype=torch.complex64), torch.randn(n, 1)) for n in (2, 7)]
    check(Mixed(), examples, {"z": {0: "n"}, "x": {0: "n"}}, opset)


def test_complex_weights_are_saved_and_replaced(tmp_path) -> None:
    import onnxruntime

    model, other, x = Filter(), Filter(), torch.randn(2, 3, 6)
    program = export(model, (x,), tmp_path / "filter.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "filter.onnx"))
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), model(x).detach())
    program.apply_weights(other.state_dict())
    torch.testing.assert_close(program(x), other(x).detach())


def test_complex_state_goes_in_and_comes_out() -> None:
    class Phase(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("phase", torch.ones(3, dtype=torch.complex64))

        def forward(self, angles):
            self.phase.mul_(torch.polar(torch.ones(3), angles))
            return self.phase.real

    model = Phase()
    program = export(model, (torch.randn(3),), state="io")
    angles = torch.randn(3)
    outputs = program.run({"angles": angles, "phase": torch.full((3,), 2j)})
    model.phase.fill_(2j)
    torch.testing.assert_close(outputs["output"], model(angles))
    torch.testing.assert_close(outputs["phase.next"], model.phase)


@pytest.mark.parametrize("path", [{}, {"dynamo": False}], ids=["fx", "torchscript"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.linear(x, torch.ones(2, 3)),
        lambda x: torch.nn.functional.linear(x, torch.ones(2, 3), torch.ones(2)),
        lambda x: x @ torch.ones(3, 2),
        lambda x: torch.mv(x, torch.ones(3)),
        lambda x: torch.addmm(torch.ones(2, 2), x, torch.ones(3, 2)),
        lambda x: torch.einsum("ij,jk->ik", x, torch.ones(3, 2)),
        lambda x: torch.vdot(x[0], torch.ones(3)),
        lambda x: torch.inner(x, torch.ones(2, 3)),
    ],
)
def test_products_of_complex_and_real_matrices_are_refused_as_in_torch(function, path) -> None:
    x = torch.ones(2, 3, dtype=torch.complex64)

    with pytest.raises(RuntimeError):
        function(x)
    with pytest.raises(OnnxExporterError):
        export(Function(function), (x,), **path)


def test_a_scripted_layer_refuses_complex_inputs_as_in_torch() -> None:
    with pytest.raises(OnnxExporterError, match="of one dtype"):
        export(torch.jit.script(torch.nn.Linear(3, 2)), (torch.ones(2, 3, dtype=torch.complex64),))


class Function(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Conjugates(torch.nn.Module):
    """Weights that share their memory with conjugates of theirs, and with what these show."""

    def __init__(self) -> None:
        super().__init__()
        numbers = torch.randn(3, 4, dtype=torch.complex64)
        self.register_buffer("numbers", numbers)
        self.register_buffer("conjugates", numbers.conj())
        self.register_buffer("imaginary", numbers.imag)
        self.register_buffer("opposite", numbers.conj().imag)

    def forward(self, x):
        z = torch.complex(x, x * 2)
        return (z * self.numbers).abs() * 1, z * self.conjugates, x * self.imaginary, x * self.opposite


class Writes(torch.nn.Module):
    """Writes real numbers to complex tensors, and complex numbers to real tensors."""

    def forward(self, x):
        z = torch.complex(x, x * 3)
        row, all_of_it, real = z.clone(), z.clone(), x.clone()
        row[0] = x[0]
        all_of_it.copy_(x)
        real.copy_(z)
        parts = torch.zeros(x.shape, dtype=torch.complex128)
        parts[:, ::2] = x[:, ::2]
        scattered = torch.select_scatter(z, x[0], 0, 1), torch.slice_scatter(z, x[:1], 0, 1, 2)
        return row, all_of_it, real, parts, *scattered, torch.select_scatter(x, z[0], 0, 1)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("opset", [13, 20])
def test_writes_to_tensors_of_another_class_of_numbers(opset: int) -> None:
    check(Writes(), [(torch.randn(n, 4),) for n in (3, 5)], {"x": {0: "n"}}, opset)


def test_weights_that_share_memory_with_their_conjugates_are_other_weights(tmp_path) -> None:
    model, x = Conjugates(), torch.randn(3, 4)
    check(model, [(x,)], None)
    program = export(model, (x,), tmp_path / "model.onnx", external_data=True)
    other = Conjugates()
    program.apply_weights(other.state_dict())
    torch.testing.assert_close(program(x), other(x))


def test_a_complex_result_may_have_no_elements() -> None:
    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.polar(x, 2 * x)

    program = export(spectrum, (torch.rand(3, 4),), dynamic_shapes=({0: "rows"},))
    for rows in (0, 1, 5):
        x = torch.rand(rows, 4)
        torch.testing.assert_close(program(x), spectrum(x))
