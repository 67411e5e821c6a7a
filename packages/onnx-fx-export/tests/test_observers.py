"""Models of quantization-aware training: the observer off gives plain fake quantization, on gives state."""

import warnings

import pytest
import torch
import torch.ao.quantization as quantization

from onnx_fx_export import MutationError, export

warnings.filterwarnings("ignore", category=DeprecationWarning)


def _quantizer(per_channel: bool = False, symmetric: bool = False) -> torch.nn.Module:
    observer = quantization.MovingAverageMinMaxObserver
    scheme = torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine
    if per_channel:
        observer, scheme = quantization.MovingAveragePerChannelMinMaxObserver, torch.per_channel_symmetric
    return quantization.FusedMovingAvgObsFakeQuantize(
        observer=observer, quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=scheme
    )


def _op_types(program) -> list[str]:
    return [node.op_type for node in program.model_proto.graph.node]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_switched_off_observer_leaves_a_pair_of_nodes(per_channel: bool, symmetric: bool) -> None:
    model = _quantizer(per_channel, symmetric)
    model(torch.randn(3, 4))
    model.disable_observer()
    program = export(model, (torch.randn(3, 4),))
    # Zero points per channel are INT32 buffers, which are cast to the dtype of the integers.
    assert [name for name in _op_types(program) if name != "Cast"] == ["QuantizeLinear", "DequantizeLinear"]
    x = torch.randn(3, 4) * 3
    torch.testing.assert_close(program(x), model(x))


def test_a_switched_off_quantization_leaves_nothing() -> None:
    model = _quantizer()
    model.disable_observer()
    model.disable_fake_quant()
    program = export(torch.nn.Sequential(model, torch.nn.ReLU()), (torch.randn(3, 4),))
    assert _op_types(program) == ["Relu"]


@pytest.mark.parametrize("per_channel", [False, True])
def test_parameters_follow_from_the_observed_range_and_not_from_a_stale_scale(per_channel: bool) -> None:
    model = _quantizer(per_channel)
    model(torch.randn(3, 4))
    model.disable_observer()
    model.scale.mul_(7)
    program = export(model, (torch.randn(3, 4),))
    x = torch.randn(3, 4)
    torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("per_channel", [False, True])
def test_an_observer_that_is_on_is_state(per_channel: bool) -> None:
    model = _quantizer(per_channel)
    model(torch.randn(3, 4))
    with pytest.raises(MutationError, match="min_val"):
        export(model, (torch.randn(3, 4),))
    program = export(model, (torch.randn(3, 4),), state="io", verify=True)
    assert any("max_val.next" in output.name for output in program.model_proto.graph.output)


def test_the_program_of_the_user_stays_as_it_is() -> None:
    model = _quantizer()
    model(torch.randn(3, 4))
    model.disable_observer()
    captured = torch.export.export(model, (torch.randn(3, 4),))
    code = captured.graph_module.code
    export(captured)
    assert captured.graph_module.code == code


@pytest.mark.filterwarnings("ignore")
def test_a_network_prepared_for_training_and_put_in_evaluation() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(48, 2))
    net.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    prepared = quantization.prepare_qat(net.train())
    prepared(torch.randn(4, 2, 6, 6))
    prepared.eval().apply(quantization.disable_observer)
    program = export(prepared, (torch.randn(4, 2, 6, 6),), dynamic_shapes=({0: "batch"},))
    x = torch.randn(5, 2, 6, 6)
    torch.testing.assert_close(program(x), prepared(x), atol=2e-2, rtol=0)
    assert _op_types(program).count("QuantizeLinear") >= 4
