"""Each feature of the exporter at each opset from 7 to 26: what it computes, or how it is refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any, Dict, List, Optional, Tuple  # noqa: UP035  TorchScript reads these annotations

import onnx
import pytest
import torch
import torch.ao.quantization as tq
from onnxscript import opset17 as op
from onnxscript import script
from onnxscript.values import Opset
from torch import Tensor, nn
from ts_models import agree, exported, n, over_opsets, refused_below, run

import onnx_ts_legacy
from onnx_ts_legacy import OperatorExportTypes, TrainingMode, TSProgram, register_custom_op_symbolic

X, Y = n(2, 3), n(5, 3)
AXES = {"x": {0: "n"}}
Feature = Callable[[int], None]
FEATURES: dict[str, Feature] = {}
LOWEST: dict[str, int] = {}


def feature(lowest: int = 7) -> Callable[[Feature], Feature]:
    """Enter what exports a model for an opset and asserts that it is right; ``lowest`` is the first that has it."""

    def enter(function: Feature) -> Feature:
        FEATURES[function.__name__] = function
        LOWEST[function.__name__] = lowest
        return function

    return enter


def both(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return a module to be traced, and the same one scripted."""
    return model, torch.jit.script(model)


def agree_over_calls(program: TSProgram, eager: Callable[..., Tensor], *inputs: Tensor) -> dict[str, Tensor]:
    """Assert that a program with state agrees with a model that keeps its own; return the state after all calls."""
    onnx.checker.check_model(program.model_proto, full_check=True)
    state = dict(program.initial_state)
    for x in inputs:
        outputs = dict(zip(program.output_names, program(x, **state), strict=True))
        torch.testing.assert_close(outputs["output"], eager(x).detach(), rtol=1e-4, atol=1e-5)
        state = {name: outputs[output] for name, output in program.state_outputs.items()}
    return state


# ---- state


class ChangedInLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3))
        self.last, self.count = torch.zeros(3), 0

    def forward(self, x: Tensor) -> Tensor:
        for i in range(x.size(0)):
            self.rows[i % 4] += x[i]
            self.last = self.last * 0.5 + x[i]
            self.count += 1
        if bool(x.sum() > 0):
            self.rows.mul_(2)
        return self.rows.sum(0) * self.count + self.last


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.total[1:].add_(x.sum())
        self.total += 1
        return x * self.total


@feature()
def attributes_changed_in_loops_and_branches(opset: int) -> None:
    eager, given = torch.jit.script(ChangedInLoop()), torch.jit.script(ChangedInLoop())
    program = onnx_ts_legacy.export(given, (X,), dynamic_axes=AXES, state="io", opset_version=opset)

    state = agree_over_calls(program, eager, X, Y, -Y.abs(), Y[:1])

    torch.testing.assert_close(state["rows"], eager.rows, rtol=1e-4, atol=1e-5)
    assert state["count"].item() == eager.count


@feature()
def buffers_changed_through_views(opset: int) -> None:
    for given in both(Counting()):
        program = onnx_ts_legacy.export(given, (X,), dynamic_axes=AXES, state="io", opset_version=opset)
        agree_over_calls(program, Counting(), X, Y, -Y)


@feature()
def batch_norm_in_training_mode(opset: int) -> None:
    for given in both(nn.BatchNorm1d(3)):
        program = onnx_ts_legacy.export(
            given.train(),
            (X,),
            training=TrainingMode.PRESERVE,
            state="io",
            dynamic_axes={"input": {0: "n"}},
            opset_version=opset,
        )
        agree_over_calls(program, nn.BatchNorm1d(3).train(), X, Y, Y * 3 + 1)


@feature()
def dropout_in_training_mode(opset: int) -> None:
    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.25, training=self.training) + x

    for given in both(Dropping().train()):
        program = onnx_ts_legacy.export(
            given, (X,), training=TrainingMode.PRESERVE, dynamic_axes=AXES, opset_version=opset
        )
        (result,) = program(torch.ones(4000, 3))
        torch.testing.assert_close(result.unique(), torch.tensor([1.0, 1 + 1 / 0.75]))
        torch.testing.assert_close((result == 1).float().mean(), torch.tensor(0.25), rtol=0, atol=0.03)


# ---- structure of inputs, outputs and programs


class Nested(nn.Module):
    def forward(
        self,
        batch: Dict[str, Tensor],  # noqa: UP006
        pair: Tuple[Tensor, Tensor],  # noqa: UP006
        scale: Optional[Tensor] = None,  # noqa: UP045
    ) -> Dict[str, Tensor]:  # noqa: UP006
        first = batch["x"] + pair[0]
        if scale is not None:
            first = first * scale
        return {"sum": first, "other": pair[1] * batch["y"]}


@feature()
def nested_inputs_keyword_arguments_and_dict_outputs(opset: int) -> None:
    a, b, c, d, scale = (n(2, 3) + i for i in range(5))
    axes = {name: {0: "n"} for name in ("batch.x", "batch.y", "pair.0", "pair.1", "scale")}
    for model in both(Nested()):
        program = onnx_ts_legacy.export(
            model, ({"x": a, "y": b}, (c, d), {"scale": scale}), dynamic_axes=axes, opset_version=opset
        )

        longer = [torch.cat([value, value + 1]) for value in (d, c, b, a, scale)]
        assert program.output_names == ["sum", "other"]
        agree(program, Nested(), ({"x": longer[0], "y": longer[1]}, (longer[2], longer[3]), longer[4]))


class Folded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        rows = x.reshape(batch * length, width)
        return rows.reshape(batch, length * width) + torch.zeros(batch, 1).expand(-1, length * width)


@feature()
def sizes_read_from_a_tensor(opset: int) -> None:
    for model in both(Folded()):
        exported(model, (n(2, 6, 4),), (n(3, 9, 4),), (n(1, 1, 4),), dynamic_axes={"x": {0: "b", 1: "t"}}, opset=opset)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3) * 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.size(0) > 2:
            return x * self.weight
        return x + self.weight


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scripted = nn.Linear(3, 3), torch.jit.script(Scripted())

    def forward(self, x: Tensor) -> Tensor:
        return self.scripted(self.linear(x)) + 1


@feature()
def a_scripted_module_in_a_traced_one(opset: int) -> None:
    program = exported(Mixed(), (X,), (Y,), (X[:1],), dynamic_axes=AXES, opset=opset)
    assert "If" in {node.op_type for node in program.model.graph}
    assert {"linear.weight", "scripted.weight"} <= set(program.model.graph.initializers)


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.named = nn.ModuleDict({"last": nn.Linear(3, 2)})

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x) * (i + 1)
        return self.named["last"](x)


@feature()
def module_lists_and_dicts(opset: int) -> None:
    for model in both(Containers()):
        exported(model, (X,), (Y,), dynamic_axes=AXES, opset=opset)


@torch.jit.script
def chosen(x: Tensor, mode: str, factor: Optional[int] = None) -> List[Tensor]:  # noqa: UP006, UP045
    assert x.dim() == 2, f"rank {x.dim()}"
    if bool(x.sum() > 1000):
        raise ValueError("too large")
    if mode == "double":
        x = x * 2
    elif mode != "none":
        raise ValueError(f"mode {mode}")
    print("mode", mode)
    found = [x, x + 1]
    if isinstance(factor, int):
        found[0] = found[0] * factor
    for i, (a, b) in enumerate(zip([x, x], found)):
        found[i] = a - b * len(found)
    return found


@feature()
def texts_optional_arguments_and_checks(opset: int) -> None:
    exported(chosen, (X, "double"), (Y, "double"), dynamic_axes=AXES, opset=opset)
    exported(chosen, (X, "none", 3), (Y, "none", 3), dynamic_axes=AXES, opset=opset)


@torch.jit.script
def counted(x: Tensor, steps: Tensor) -> Tensor:
    i = int(steps)
    while i > 0:
        x = x + i
        i = i - 2
    return x


@feature()
def a_while_loop_over_a_number_of_the_runtime(opset: int) -> None:
    exported(counted, (X, torch.tensor(3)), (X, torch.tensor(8)), (X, torch.tensor(-1)), opset=opset)


class Divided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x // 3 + x % 2 + torch.div(x, -4, rounding_mode="trunc")


@feature()
def floor_division(opset: int) -> None:
    for model in both(Divided()):
        exported(model, (torch.arange(-5, 5),), (torch.arange(-7, 9),), dynamic_axes=AXES, opset=opset)


class Indexed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[torch.tensor([[0, -1], [1, 0]]), :, torch.tensor([[0, 1], [-1, 2]])] = 5.0
        y[:, torch.tensor([1, -1])] += y[:, torch.tensor([0, 0])]
        y[-1, torch.tensor([0, 2])] = x[0, torch.tensor([1, -2])]
        y[y > 4.5] = -1.0
        return y[torch.tensor([-1, 0]), :, torch.tensor([1, -1])] + y[:2, 0, 1:2]


@feature(lowest=9)
def reads_and_writes_with_several_indices(opset: int) -> None:
    for model in both(Indexed()):
        exported(model, (n(3, 4, 3),), (n(6, 4, 3),), dynamic_axes=AXES, opset=opset)


# ---- recurrent networks


class Packed(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.network = kind(3, 4, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        output, _ = self.network(packed)
        return nn.utils.rnn.pad_packed_sequence(output, batch_first=True, padding_value=-1.0)[0]


@feature(lowest=9)
def packed_sequences(opset: int) -> None:
    torch.manual_seed(0)
    axes = {"x": {0: "n", 1: "t"}, "lengths": {0: "n"}}
    other = (n(3, 6, 3), torch.tensor([6, 4, 1])), (n(1, 6, 3), torch.tensor([2]))
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for model in both(Packed(kind)):
            exported(model, (n(2, 5, 3), torch.tensor([5, 3])), *other, dynamic_axes=axes, opset=opset)


# ---- quantization


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.conv, self.relu, self.linear = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(36, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dequant(self.linear(self.relu(self.conv(self.quant(x))).flatten(1)))


def trained(weight: Any) -> nn.Module:
    torch.manual_seed(0)
    model = Small().train()
    model.qconfig = tq.QConfig(activation=tq.default_fake_quant, weight=weight)
    prepared = tq.prepare_qat(model)
    for _ in range(3):
        prepared(torch.randn(8, 3, 5, 5))
    return prepared.eval().apply(tq.disable_observer)


def within_a_step(model: nn.Module, step: float, opset: int) -> None:
    program = onnx_ts_legacy.export(model, (n(2, 3, 5, 5),), dynamic_axes=AXES, opset_version=opset)
    onnx.checker.check_model(program.model_proto, full_check=True)
    x = n(7, 3, 5, 5)
    # At opset 10, ONNX Runtime's own optimizations write a Round into the model, which that opset does not have.
    (actual,) = run(program.model_proto, {"x": x.numpy()}, optimized=False)
    apart = (torch.from_numpy(actual) - model(x).detach()).abs() / step
    # A sum that is a tie may round to either side.
    assert apart.max() <= 1.01
    assert (apart > 0.01).float().mean() < 0.1


@feature()
def quantized_layers(opset: int) -> None:
    model = tq.convert(trained(tq.default_weight_fake_quant))
    within_a_step(model, model.linear.scale, opset)


@feature()
def layers_quantized_by_channel(opset: int) -> None:
    model = tq.convert(trained(tq.default_per_channel_weight_fake_quant))
    within_a_step(model, model.linear.scale, opset)


@feature()
def fake_quantization(opset: int) -> None:
    model = trained(tq.default_weight_fake_quant)
    within_a_step(model, float(model.linear.activation_post_process.scale), opset)


@feature()
def fake_quantization_by_channel(opset: int) -> None:
    model = trained(tq.default_per_channel_weight_fake_quant)
    within_a_step(model, float(model.linear.activation_post_process.scale), opset)


@feature()
def dynamically_quantized_layers(opset: int) -> None:
    torch.manual_seed(0)
    model = tq.quantize_dynamic(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)), {nn.Linear})
    program = onnx_ts_legacy.export(model, (X,), dynamic_axes={"input": {0: "n"}}, opset_version=opset)
    for x in (Y * 7, Y.abs() + 1):
        torch.testing.assert_close(program(x)[0], model(x), rtol=1e-4, atol=1e-5)


# ---- conversions of the user's own


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def symbolic(g: Any, x: Any) -> Any:
        return g.op("Add", x, x)


class DoubledAndShifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x + 1

    @staticmethod
    def symbolic(ctx: Any, g: Any, x: Any) -> Any:
        one = g.op("Constant", value_t=torch.tensor(1.0))
        return g.op("Add", x, x), g.op("Add", x, one)


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, 0] = 3
        return y.exp()


@feature()
def autograd_functions(opset: int) -> None:
    def model(x: Tensor) -> Tensor:
        first, second = DoubledAndShifted.apply(x)
        return Doubled.apply(first) * second + Plain.apply(x)

    exported(model, (X,), (Y,), dynamic_axes=AXES, opset=opset)


@feature()
def symbolics_of_python_operators(opset: int) -> None:
    def symbolic(g: Any, x: Any, *, name: str) -> Any:
        return g.op("Exp", x) if name == "Plain" else g.op("Add", x, x)

    register_custom_op_symbolic("prim::PythonOp", symbolic, 7)
    program = onnx_ts_legacy.export(lambda x: Plain.apply(Doubled.apply(x)), (X,), opset_version=opset)

    torch.testing.assert_close(program(X)[0], (X * 2).exp())


@torch.library.custom_op("ts_features::scaled_sum", mutates_args=())
def scaled_sum(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return (x * scale + y).sum(1)


@scaled_sum.register_fake
def _(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return x.new_empty(x.shape[0])


def use_scaled_sum(x: Tensor, y: Tensor) -> Tensor:
    return scaled_sum(x, y, 2.5) + 1


@script(Opset("com.example.functions", 1), default_opset=op)
def ScaledSum(x, y, scale: float = 2.5):
    scaled = op.Add(op.Mul(x, op.Constant(value_float=scale)), y)
    return op.ReduceSum(scaled, op.Constant(value_ints=[1]), keepdims=0)


@feature()
def onnxscript_functions(opset: int) -> None:
    def symbolic(g: Any, x: Any, y: Any, scale: Any) -> Any:
        return g.onnxscript_op(ScaledSum, x, y, scale_f=2.5)

    register_custom_op_symbolic("ts_features::scaled_sum", symbolic, 7)

    exported(use_scaled_sum, (X, X + 1), opset=opset)


@feature()
def nodes_of_a_custom_domain(opset: int) -> None:
    def symbolic(g: Any, x: Any, y: Any, scale: Any) -> Any:
        return g.op("com.example::ScaledSum", x, y, scale_f=2.5)

    register_custom_op_symbolic("ts_features::scaled_sum", symbolic, 7)
    program = onnx_ts_legacy.export(use_scaled_sum, (X, X), custom_opsets={"com.example": 3}, opset_version=opset)

    versions = {entry.domain: entry.version for entry in program.model_proto.opset_import}
    assert versions == {"": opset, "com.example": 3}
    assert [node.op_type for node in program.model_proto.graph.node] == ["ScaledSum", "Add"]


@feature()
def operators_left_as_they_are(opset: int) -> None:
    written = {
        OperatorExportTypes.ONNX_FALLTHROUGH: [("ts_features", "scaled_sum"), ("", "Add")],
        OperatorExportTypes.ONNX_ATEN_FALLBACK: [("org.pytorch.aten", "ATen"), ("", "Add")],
        OperatorExportTypes.ONNX_ATEN: [("org.pytorch.aten", "ATen")] * 2,
    }
    for kind, nodes in written.items():
        model = use_scaled_sum
        if kind is not OperatorExportTypes.ONNX_FALLTHROUGH:
            model = lambda x, y: torch.ops.aten._cdist_backward(x, y, x, 2.0, x) + 1  # noqa: E731
        program = onnx_ts_legacy.export(model, (X, X), operator_export_type=kind, opset_version=opset)
        assert [(node.domain, node.op_type) for node in program.model.graph] == nodes


# ---- weights


@feature()
def weights_as_inputs(opset: int) -> None:
    for model in both(nn.Linear(3, 2)):
        file = io.BytesIO()
        onnx_ts_legacy.export(model, (X,), file, keep_initializers_as_inputs=True, opset_version=opset)
        kept = onnx.load_from_string(file.getvalue())
        (result,) = run(kept, {"input": X.numpy(), "bias": torch.zeros(2).numpy()})
        expected = nn.functional.linear(X, model.weight).detach()
        torch.testing.assert_close(torch.from_numpy(result), expected)

        file = io.BytesIO()
        onnx_ts_legacy.export(model, (X,), file, export_params=False, opset_version=opset)
        without = onnx.load_from_string(file.getvalue())
        weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
        (result,) = run(without, {"input": X.numpy(), **weights})
        torch.testing.assert_close(torch.from_numpy(result), model(X).detach())


@feature()
def batch_norm_in_the_weights_before_it(opset: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model(n(8, 3, 6, 6) * 3 + 1)
    for given in both(model.eval()):
        program = exported(
            copy.deepcopy(given), (n(2, 3, 6, 6),), (n(5, 3, 6, 6),), dynamic_axes={"input": {0: "n"}}, opset=opset
        )
        assert [node.op_type for node in program.model.graph] == ["Conv", "Relu"]


@feature()
def a_transformer_encoder(opset: int) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    exported(model, (n(2, 5, 8),), (n(3, 7, 8),), dynamic_axes={"src": {0: "n", 1: "t"}}, opset=opset)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("feature", "lowest", "opset"), over_opsets(FEATURES, LOWEST))
def test_a_feature_holds_or_is_refused(feature: Feature, lowest: int, opset: int) -> None:
    with refused_below(lowest, opset):
        feature(opset)
