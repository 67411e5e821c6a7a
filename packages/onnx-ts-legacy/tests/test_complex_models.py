"""Complex weights, state, lists and writes, traced and scripted."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from ts_models import agree, exported, run

import onnx_ts_legacy


class Spectral(nn.Module):
    """Multiplies some frequencies of an image by learned complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3, 3, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(x.shape[0], 3, spectrum.shape[-2], spectrum.shape[-1], dtype=torch.complex64)
        out[:, :, :3, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :3, :3], self.weight)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class Weights(nn.Module):
    """Weights that are complex, conjugates of others, or what conjugates show."""

    def __init__(self) -> None:
        super().__init__()
        numbers = torch.randn(3, 4, dtype=torch.complex64)
        self.register_buffer("numbers", numbers)
        self.register_buffer("conjugates", numbers.conj())
        self.register_buffer("imaginary", numbers.imag)
        self.register_buffer("opposite", numbers.conj().imag)
        self.register_buffer("adjoint", numbers.mH)
        self.own = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> list[Tensor]:
        z = torch.complex(x, x * 2)
        return [
            torch.view_as_real((z * self.numbers).resolve_conj()),
            torch.view_as_real((z * self.conjugates).resolve_conj()),
            x * self.imaginary,
            x * self.opposite,
            torch.view_as_real(z @ self.adjoint),
            torch.view_as_real(torch.cat([self.own[:2], z])),
        ]


class Conjugates(nn.Module):
    """Conjugates that torch puts off until something is computed from them."""

    def forward(self, x: Tensor) -> list[Tensor]:
        z = torch.complex(x, x * 3)
        y = z.clone()
        y.conj()[0] = y[1] * 2
        return [
            torch.view_as_real(z.conj() * 2),
            torch.view_as_real(z.mH.resolve_conj()),
            torch.view_as_real(z @ z.adjoint()),
            torch.view_as_real(torch.cat([z.conj(), z])),
            z.conj().imag.clone(),
            z.conj().angle(),
            torch.view_as_real(y),
            x.conj(),
        ]


class Writes(nn.Module):
    """Writes real numbers to complex tensors, and complex numbers to real tensors."""

    def forward(self, x: Tensor) -> list[Tensor]:
        z = torch.complex(x, x * 3)
        row, all_of_it, number, real = z.clone(), z.clone(), z.clone(), x.clone()
        row[0] = x[0]
        all_of_it.copy_(x)
        number[:, 1] = 2.5
        real.copy_(z)
        wide = torch.zeros(x.size(0), x.size(1), dtype=torch.complex128)
        wide[1:] = z[1:]
        scattered = torch.select_scatter(z, x[0], 0, 1)
        written = [torch.view_as_real(row), torch.view_as_real(all_of_it), torch.view_as_real(number)]
        return [real, torch.view_as_real(wide), torch.view_as_real(scattered)] + written  # noqa: RUF005 (scripted)


def tensors(rows: int) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("scripted", [False, True])
def test_complex_weights_multiply_a_spectrum(scripted: bool) -> None:
    model = Spectral()
    x, other = torch.randn(2, 2, 8, 8), torch.randn(1, 2, 12, 6)
    axes = {"x": {0: "n", 2: "height", 3: "width"}}
    exported(torch.jit.script(model) if scripted else model, (x,), (other,), dynamic_axes=axes, input_names=["x"])


@pytest.mark.parametrize("scripted", [False, True])
def test_weights_that_share_memory_with_their_conjugates_are_other_weights(scripted: bool) -> None:
    model = Weights()
    exported(torch.jit.script(model) if scripted else model, (tensors(3),), (-tensors(3),))


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.parametrize("kind", [Conjugates, Writes])
def test_conjugates_and_writes_of_another_class_of_numbers(kind: type[nn.Module], scripted: bool) -> None:
    model = torch.jit.script(kind()) if scripted else kind()
    exported(model, (tensors(3),), (tensors(5),), dynamic_axes={"x": {0: "n"}}, input_names=["x"])


def test_a_list_of_complex_tensors_in_a_loop() -> None:
    @torch.jit.script
    def rows(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = torch.complex(x, x)
        found: list[Tensor] = []
        for i in range(x.size(0)):
            found.append(z[i] * w)
        last = found[x.size(0) - 1]
        joined = torch.stack(found, -1), torch.cat(found, -1)
        return torch.view_as_real(last), torch.view_as_real(joined[0]), torch.view_as_real(joined[1])

    examples = [(tensors(count), tensors(1)) for count in (3, 5)]
    exported(rows, *examples, dynamic_axes={"x": {0: "n"}}, input_names=["x", "w"])


@pytest.mark.parametrize("scripted", [False, True])
def test_complex_state_goes_in_and_comes_out(scripted: bool) -> None:
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("average", torch.zeros(4, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            self.average.mul_(0.5).add_(torch.complex(x, -x).sum(0))
            return torch.view_as_real(self.average.conj() * 2)

    model = Averaged()
    example = torch.jit.script(copy.deepcopy(model)) if scripted else copy.deepcopy(model)
    program = onnx_ts_legacy.export(example, (tensors(3),), state="io", opset_version=17)
    state = torch.randn(4, dtype=torch.complex64)
    model.average.copy_(state)
    x_name, state_name = program.input_names[0], program.model_proto.graph.input[1].name
    feeds = {x_name: tensors(3).numpy(), state_name: torch.view_as_real(state).numpy()}
    output, after = run(program.model_proto, feeds)
    torch.testing.assert_close(torch.from_numpy(output), model(tensors(3)))
    torch.testing.assert_close(torch.from_numpy(after), torch.view_as_real(model.average))


def test_complex_weights_are_replaced() -> None:
    model, other = Spectral(), Spectral()
    x = torch.randn(2, 2, 8, 8)
    program = onnx_ts_legacy.export(model, (x,), opset_version=17)
    program.apply_weights(other.state_dict())
    agree(program, other, (x,))
