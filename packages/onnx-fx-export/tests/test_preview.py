"""Code written for the preview exporter of torch 2.1 to 2.6 goes on working."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

import onnx_fx_export
from onnx_fx_export import ExportOptions, ExportOutput, OnnxRegistry, dynamo_export


class Scaled(torch.nn.Module):
    def forward(self, x, *, scale):
        return {"y": torch.relu(x) * scale, "count": x.shape[0], "z": x.sum(-1)}


def test_arguments_of_the_model_are_those_of_the_export() -> None:
    x, scale = torch.randn(2, 3), torch.tensor(2.0)
    output = dynamo_export(Scaled(), x, scale=scale)
    assert isinstance(output, ExportOutput)
    torch.testing.assert_close(output(x, scale=scale), Scaled()(x, scale=scale))


def test_every_dimension_can_be_dynamic() -> None:
    output = dynamo_export(
        torch.nn.Linear(4, 2), torch.randn(2, 3, 4), export_options=ExportOptions(dynamic_shapes=True)
    )
    shape = output.model.graph.inputs[0].shape
    assert [isinstance(dim, int) for dim in shape] == [False, False, True]
    assert output(torch.randn(5, 7, 4)).shape == (5, 7, 2)


def test_without_options_every_dimension_is_static() -> None:
    output = dynamo_export(torch.nn.ReLU(), torch.randn(2, 3))
    assert output.model.graph.inputs[0].shape == [2, 3]


def test_a_registry_fixes_the_opset_and_converts_operators() -> None:
    registry = OnnxRegistry(opset_version=17)
    assert registry.is_registered_op("aten", "relu")
    assert not registry.is_registered_op("aten", "relu", "no_such_overload")
    registry.register_op(lambda op, self: op.Max(self, 0.0), "aten", "relu", "default")
    assert len(registry.get_op_functions("aten", "relu")) == 2
    x = torch.randn(3)
    output = dynamo_export(torch.nn.ReLU(), x, export_options=ExportOptions(onnx_registry=registry))
    assert [node.op_type for node in output.model.graph] == ["Max"]
    assert output.model.opset_imports == {"": 17}
    torch.testing.assert_close(output(x), x.relu())


def test_a_function_for_complex_operands_leaves_real_ones_alone() -> None:
    registry = OnnxRegistry()
    registry.register_op(lambda op, self: op.Neg(self), "aten", "view_as_real", is_complex=True)
    registry.register_op(lambda op, self: op.Neg(self), "aten", "relu", is_complex=True)
    options = ExportOptions(onnx_registry=registry)
    real, number = torch.randn(3), torch.randn(3, dtype=torch.complex64)
    torch.testing.assert_close(dynamo_export(torch.relu, real, export_options=options)(real), torch.relu(real))
    output = dynamo_export(torch.view_as_real, number, export_options=options)
    torch.testing.assert_close(output(number), -torch.view_as_real(number))


def test_inputs_and_outputs_are_adapted() -> None:
    x, scale = torch.randn(2, 3), torch.tensor(2.0)
    output = dynamo_export(Scaled(), x, scale=scale)
    assert [tensor.shape for tensor in output.adapt_torch_inputs_to_onnx(x, scale=scale)] == [x.shape, scale.shape]
    adapted = output.adapt_torch_outputs_to_onnx(Scaled()(x, scale=scale))
    assert [tensor.shape for tensor in adapted] == [(2, 3), (2,)]


class Reversed:
    def serialize(self, export_output: ExportOutput, destination) -> None:
        destination.write(export_output.model_proto.SerializeToString()[::-1])


class Failing:
    def serialize(self, export_output: ExportOutput, destination) -> None:
        destination.write(b"half")
        raise ValueError("no more")


def test_a_serializer_writes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model"
    output = dynamo_export(torch.nn.ReLU(), torch.randn(3))
    output.save(path, serializer=Reversed())
    onnx.checker.check_model(onnx.load_from_string(path.read_bytes()[::-1]))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="no more"):
        output.save(path, serializer=Failing())
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


class Model(torch.nn.Module):
    """Weights of all kinds: folded, transposed, tied, and a buffer that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.normalization = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.linear = torch.nn.Linear(5, 5)
        self.embedding, self.head = torch.nn.Embedding(5, 5), torch.nn.Linear(5, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(5.0) * 3, persistent=False)

    def forward(self, x):
        x = self.linear(self.normalization(self.convolution(x))) + self.positions
        return self.head(x) + self.embedding(torch.tensor([1]))


SHAPES = {"x": {0: "batch"}}


def unallocated() -> torch.nn.Module:
    with onnx_fx_export.enable_fake_mode() as context:
        model = Model()
    own_weight_of_the_head = 25  # registered, then replaced by the tied one
    assert context.parameter_bytes == 4 * (sum(p.numel() for p in model.parameters()) + own_weight_of_the_head)
    return model.eval()


def fake() -> torch.nn.Module:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return Model().eval()


def on_meta() -> torch.nn.Module:
    return Model().to("meta").eval()


@pytest.mark.parametrize("made", [unallocated, on_meta, fake])
@pytest.mark.parametrize("source", ["state dict", "checkpoint", "safetensors"])
def test_a_model_without_weights_gets_them_later(made, source: str, tmp_path: Path) -> None:
    reference = Model().eval()
    reference.normalization.running_mean.normal_()
    state = {**reference.state_dict(), "positions": reference.positions}
    weights = tmp_path / f"weights.{source}"
    if source == "state dict":
        weights = state
    elif source == "checkpoint":
        torch.save(state, weights)
    else:
        from safetensors.torch import save_file

        save_file({name: tensor.clone() for name, tensor in state.items()}, weights)
    program = onnx_fx_export.export(made(), (torch.randn(2, 3, 7, 7),), dynamic_shapes=SHAPES, opset_version=18)
    program.apply_weights(weights)
    path = tmp_path / "model.onnx"
    program.save(path)
    assert path.exists()
    x = torch.randn(4, 3, 7, 7)
    with torch.no_grad():
        torch.testing.assert_close(program(x), reference(x), rtol=1e-4, atol=1e-5)


def test_the_model_is_as_before_after_the_export() -> None:
    model = unallocated()
    before = dict(model.named_parameters())
    onnx_fx_export.export(model, (torch.randn(2, 3, 7, 7),))
    assert all(before[name] is parameter and parameter.is_meta for name, parameter in model.named_parameters())
    assert not Model().head.weight.is_meta  # outside of the context


def test_missing_weights_are_an_error_and_no_file(tmp_path: Path) -> None:
    program = onnx_fx_export.export(unallocated(), (torch.randn(2, 3, 7, 7),))
    program.apply_weights({"linear.weight": torch.ones(5, 5)})
    for use in (lambda: program.save(tmp_path / "model.onnx"), lambda: program(torch.randn(2, 3, 7, 7))):
        with pytest.raises(onnx_fx_export.SaveError, match=r"never allocated.*apply_weights"):
            use()
    assert not list(tmp_path.iterdir())
    program.save(tmp_path / "skeleton.onnx", include_initializers=False)


def test_the_state_can_be_given_when_saving(tmp_path: Path) -> None:
    with onnx_fx_export.enable_fake_mode() as context:
        model = torch.nn.Linear(3, 2)
    output = dynamo_export(model, torch.randn(4, 3), export_options=ExportOptions(fake_context=context))
    assert output.fake_context is context
    reference = torch.nn.Linear(3, 2)
    output.save(tmp_path / "model.onnx", model_state=reference.state_dict())
    x = torch.randn(4, 3)
    torch.testing.assert_close(output(x), reference(x).detach())


def test_half_precision_without_weights_keeps_its_normalization() -> None:
    program = onnx_fx_export.export(unallocated().half(), (torch.randn(2, 3, 7, 7).half(),))
    assert "BatchNormalization" in [node.op_type for node in program.model.graph]
