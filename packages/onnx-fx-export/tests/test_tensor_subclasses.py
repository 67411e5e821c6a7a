"""Weights of a tensor subclass become the plain tensors that they are made of."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
import torch

from onnx_fx_export import export

DIMS = ({0: "batch"},)


class Scaled(torch.Tensor):
    """Integers and a scale for each row, which may be a subclass itself."""

    @staticmethod
    def __new__(cls, integers: torch.Tensor, scale: torch.Tensor) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(cls, integers.shape, dtype=scale.dtype)

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor) -> None:
        self.integers, self.scale = integers, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["integers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], context: None, size: Any, stride: Any) -> Scaled:
        return cls(inner["integers"], inner["scale"])

    def dequantized(self) -> torch.Tensor:
        scale = self.scale.dequantized() if isinstance(self.scale, Scaled) else self.scale
        integers = self.integers.dequantized() if isinstance(self.integers, Scaled) else self.integers
        return integers.to(scale.dtype) * scale

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.linear:
            x, weight, bias = args
            return torch.nn.functional.linear(x, weight.dequantized(), bias)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return cls(args[0].integers, args[0].scale)
        raise NotImplementedError(f"{function} on Scaled")


def scaled(weight: torch.Tensor) -> Scaled:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return Scaled((weight / scale).round().to(torch.int8), scale)


def network(weight: torch.Tensor) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).eval()
    model[0].weight = torch.nn.Parameter(weight, requires_grad=False)
    return model


def test_what_the_weight_is_made_of_is_stored_and_nothing_else(tmp_path) -> None:
    model = network(scaled(torch.randn(4, 8)))
    program = export(model, (torch.randn(2, 8),), tmp_path / "scaled.onnx", dynamic_shapes=DIMS)
    saved = {tensor.name: tensor for tensor in onnx.load(tmp_path / "scaled.onnx").graph.initializer}
    assert saved["0.weight.integers"].data_type == onnx.TensorProto.INT8
    assert list(saved["0.weight.scale"].dims) == [4, 1]
    assert "0.weight" not in saved
    x = torch.randn(5, 8)
    torch.testing.assert_close(program(x), model(x))


def test_a_subclass_inside_a_subclass() -> None:
    weight = scaled(torch.randn(4, 8))
    model = network(Scaled(weight.integers, scaled(weight.scale)))
    program = export(model, (torch.randn(2, 8),), dynamic_shapes=DIMS)
    assert "0.weight.scale.integers" in program.model.graph.initializers
    x = torch.randn(5, 8)
    torch.testing.assert_close(program(x), model(x))


def test_other_weights_of_the_subclass_can_be_put_in() -> None:
    first, second = (network(scaled(torch.randn(4, 8))) for _ in range(2))
    program = export(first, (torch.randn(2, 8),), dynamic_shapes=DIMS)
    assert program.apply_weights(second.state_dict()) == []
    x = torch.randn(5, 8)
    torch.testing.assert_close(program(x), second(x))


def test_in_a_module_that_becomes_a_function() -> None:
    model = network(scaled(torch.randn(4, 8)))
    program = export(model, (torch.randn(2, 8),), dynamic_shapes=DIMS, export_modules_as_functions={torch.nn.Linear})
    assert len(program.model.functions) == 2
    x = torch.randn(5, 8)
    torch.testing.assert_close(program(x), model(x))


def test_in_a_program_that_was_functionalized() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network(scaled(torch.randn(4, 8)))
            self.register_buffer("calls", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls[0] += 1
            return self.network(x) + self.calls

    model = Counting().eval()
    program = export(model, (torch.randn(2, 8),), dynamic_shapes=DIMS, state="io")
    x = torch.randn(5, 8)
    torch.testing.assert_close(program(x), model(x))


class Dispatched(Scaled):
    """One that torch sees as a whole: operators take it apart below autograd."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return cls(args[0].integers, args[0].scale)
        plain = [arg.dequantized() if isinstance(arg, cls) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


def test_operators_that_work_on_the_whole_weight() -> None:
    weight = scaled(torch.randn(4, 8))
    model = network(Dispatched(weight.integers, weight.scale))
    program = export(model, (torch.randn(2, 8),), dynamic_shapes=DIMS)
    stored = {value.dtype.name for value in program.model.graph.initializers.values()}
    assert "INT8" in stored
    x = torch.randn(5, 8)
    torch.testing.assert_close(program(x), model(x))


# ---- torchao


def _configuration(name: str) -> Any:
    ao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    if name == "four bits for the CPU":
        prototype = pytest.importorskip("torchao.prototype.quantization.int4", reason="torchao has no such format")
        return prototype.PrototypeInt4WeightOnlyConfig(group_size=32)
    return {
        "eight bits": lambda: ao.Int8WeightOnlyConfig(),
        "four bits in groups": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32)),
        "three bits by rows": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int3, granularity=ao.PerAxis(0)),
        "floats of eight bits": lambda: ao.Float8WeightOnlyConfig(),
        "eight bits, activations too": lambda: ao.Int8DynamicActivationInt8WeightConfig(),
        "activations of eight bits, weights of four": lambda: ao.Int8DynamicActivationIntxWeightConfig(),
    }[name]()


WEIGHTS = ["eight bits", "four bits for the CPU", "four bits in groups", "three bits by rows", "floats of eight bits"]
# A half float scale may put an activation on the other side of a tie, so that these are compared in float32 alone.
ACTIVATIONS = ["eight bits, activations too", "activations of eight bits, weights of four"]


@pytest.mark.parametrize("opset", [19, 21])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in WEIGHTS + ACTIVATIONS), *((name, torch.float16) for name in WEIGHTS)],
)
def test_weights_that_torchao_quantized(name: str, dtype: torch.dtype, opset: int) -> None:
    configuration = _configuration(name)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32, bias=False))
    model = model.to(dtype).eval().requires_grad_(False)
    plain = model(x := torch.randn(5, 128).to(dtype))
    pytest.importorskip("torchao.quantization").quantize_(model, configuration)
    program = export(model, (torch.randn(3, 128).to(dtype),), dynamic_shapes=DIMS, opset_version=opset)
    assert program.model.graph.initializers.keys().isdisjoint({"0.weight", "2.weight"})
    actual, expected = program(x), model(x)
    assert not torch.equal(expected, plain)
    rtol, atol = (1e-2, 1e-3) if dtype == torch.float16 else (1e-4, 1e-5)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ["four bits in groups", "three bits by rows"])
def test_weights_that_torchao_quantized_for_onnx_runtime(name: str) -> None:
    configuration = _configuration(name)
    model = torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32, bias=False))
    model = model.eval().requires_grad_(False)
    pytest.importorskip("torchao.quantization").quantize_(model, configuration)
    program = export(model, (torch.randn(3, 128),), dynamic_shapes=DIMS, target="onnxruntime")
    assert [node.op_type for node in program.model.graph] == ["MatMulNBits", "Relu", "MatMulNBits"]
    x = torch.randn(5, 128)
    torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)
