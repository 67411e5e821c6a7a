"""What is switched on around an export: the exported model computes what the model computes there."""

import contextlib

import onnx
import pytest
import torch

import onnx_fx_export as fx

X, K = torch.linspace(-2, 2, 6).reshape(2, 3), torch.tensor([[1, 2, 3]])
Y = torch.linspace(-1, 3, 12).reshape(4, 3)
# A few roundings to the eight bits of bfloat16, also where the sum is float32.
HALF = {"rtol": 0.02, "atol": 0.02}
PATHS = {
    "fx": {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC}, None)},
    "torchscript": {"dynamo": False, "dynamic_axes": {"x": [0]}, "opset_version": 18},
}


class Mixed(torch.nn.Module):
    """Operators that autocast runs in half precision, in float32, and in the dtypes of their operands."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x, k):
        y = torch.softmax(self.linear(x), -1) + torch.arange(3).to(x.dtype) / 3
        return torch.nn.functional.layer_norm(y, [3]) @ self.linear.weight.t(), y * k / torch.tensor(2.5), k / 2


class Einsum(torch.nn.Module):
    def forward(self, x, k):
        return torch.einsum("ij,kj->ik", x, x), torch.cosine_similarity(x, x)


class Recurrent(torch.nn.Module):
    def __init__(self, recurrent):
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = recurrent(3, 4).eval()

    def forward(self, x, k):
        return (self.recurrent(x[None])[0],)


class InsideOnly(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, k):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x, k)


class EntersItself(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, k):
        with torch.autocast("cpu", torch.bfloat16):
            first = self.inner(x, k)
            with torch.autocast("cpu", enabled=False):
                second = self.inner(x, k)
        return *first, *second


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def outputs(program, *inputs):
    """Run in the reference implementation, as ONNX Runtime has few kernels for bfloat16."""
    found = program.call_reference(*inputs)
    return list(found.values()) if isinstance(found, dict) else list(found)


def check(model, path, context, **tolerance):
    with context():
        model(X, K)  # fills the cache of autocast
        program = fx.export(model, (X, K), **PATHS[path])
        with torch.no_grad():
            expected = model(Y, K)
    for actual, wanted in zip(outputs(program, Y, K), expected, strict=True):
        torch.testing.assert_close(actual, wanted, **tolerance)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "context",
    [
        contextlib.nullcontext,
        torch.no_grad,
        torch.inference_mode,
        deterministic,
        lambda: default_dtype(torch.float64),
        lambda: torch.device("cpu"),
    ],
    ids=["nothing", "no_grad", "inference_mode", "deterministic", "double", "device"],
)
def test_modes_around_an_export(path, context):
    check(Mixed(), path, context)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_an_export(path, dtype):
    check(Mixed(), path, lambda: torch.autocast("cpu", dtype), **HALF)


@pytest.mark.parametrize("path", PATHS)
def test_autocast_inside_of_a_model(path):
    check(EntersItself(Mixed()), path, contextlib.nullcontext, **HALF)


@pytest.mark.parametrize(
    ("model", "context"),
    [(Einsum(), lambda: torch.autocast("cpu", torch.bfloat16)), (EntersItself(Einsum()), contextlib.nullcontext)],
    ids=["around", "inside"],
)
def test_autocast_casts_inside_of_operators_that_are_made_of_others(model, context):
    check(model, "fx", context, **HALF)
    with context(), pytest.raises(fx.OnnxExporterError, match=r"under torch\.autocast, which casts inside of it"):
        fx.export(model, (X, K), **PATHS["torchscript"])


@pytest.mark.parametrize("around", [True, False], ids=["around", "inside"])
@pytest.mark.parametrize("recurrent", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
def test_recurrent_layers_are_refused_in_a_trace_under_autocast(recurrent, around):
    model = Recurrent(recurrent)

    with torch.autocast("cpu", torch.bfloat16, enabled=around), pytest.raises(fx.OnnxExporterError) as refused:
        fx.export(model if around else EntersItself(model), (X, K), **PATHS["torchscript"])

    assert f"torch.nn.{recurrent.__name__} under torch.autocast at {__file__}:" in str(refused.value)


@pytest.mark.parametrize("around", [True, False], ids=["around", "inside"])
@pytest.mark.parametrize("recurrent", [torch.nn.RNN, torch.nn.GRU])
def test_recurrent_layers_compute_in_half_precision(recurrent, around):
    model = Recurrent(recurrent)

    with torch.autocast("cpu", torch.bfloat16, enabled=around), torch.no_grad():
        program = fx.export(model if around else InsideOnly(model), (X, K))
        expected = (model if around else InsideOnly(model))(X, K)

    for actual, wanted in zip(outputs(program, X, K), expected, strict=True):
        torch.testing.assert_close(actual, wanted, **HALF)


@pytest.mark.parametrize("around", [True, False], ids=["around", "inside"])
def test_an_lstm_in_half_precision_is_refused_by_name(around):
    model = Recurrent(torch.nn.LSTM)

    with torch.autocast("cpu", torch.bfloat16, enabled=around), pytest.raises(fx.OnnxExporterError, match="mkldnn_rnn"):
        fx.export(model if around else InsideOnly(model), (X, K))


def test_a_scripted_model_is_refused_under_autocast():
    script = torch.jit.script(torch.nn.Linear(3, 3))

    with torch.autocast("cpu", torch.bfloat16), pytest.raises(fx.OnnxExporterError, match=r"inside of torch\.autocast"):
        fx.export(script, (X,))


@pytest.mark.parametrize("path", ["fx", "torchscript"])
def test_an_opset_that_the_installed_onnx_does_not_know_is_refused_with_the_version_that_does(path, monkeypatch):
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: 23)

    with pytest.raises(fx.OnnxExporterError, match=r"knows opset 23: ask for that, or install onnx 1\.19 or newer"):
        fx.export(Mixed(), (X, K), **{**PATHS[path], "opset_version": 24})
