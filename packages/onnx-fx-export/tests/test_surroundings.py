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


class OnItsInput(torch.nn.Module):
    """Operators that are decomposed, folded or looked up, for which an exporter makes tensors of its own."""

    def forward(self, x, k):
        y = x.quantile(0.5, dim=1) + torch.arange(x.shape[1], device=x.device)[None, -1]
        return y, torch.fft.rfft(x).abs(), torch.combinations(k[0]), x.cumsum(1).bfloat16()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_a_default_device_changes_nothing_in_a_model_that_stays_on_its_input(path, device):
    def exported():
        program = fx.export(OnItsInput(), (X, K), verify=True, **PATHS[path])
        return program.model_proto.SerializeToString(deterministic=True), program(Y, K)

    file, results = exported()
    with torch.device(device):
        other_file, other_results = exported()

    assert other_file == file
    for actual, expected in zip(other_results, results, strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_an_export(path, dtype):
    check(Mixed(), path, lambda: torch.autocast("cpu", dtype), **HALF)


@pytest.mark.parametrize("path", PATHS)
def test_autocast_inside_of_a_model(path):
    check(EntersItself(Mixed()), path, contextlib.nullcontext, **HALF)


F = torch.nn.functional
# Operators that call others, whose operands autocast casts.
MADE_OF_OTHERS = {
    "einsum": lambda x, k: (torch.einsum("ij,kj->ik", x, x), torch.cosine_similarity(x, x)),
    "inner": lambda x, k: (torch.inner(x, x),),
    "tensordot": lambda x, k: (torch.tensordot(x, x, ([1], [1])),),
    "multi_dot": lambda x, k: (torch.linalg.multi_dot([x, x.t(), x]),),
    "bilinear": lambda x, k: (F.bilinear(x, x + 1, WEIGHT, WEIGHT[:, 0, 0]), F.bilinear(x, x, WEIGHT)),
    "baddbmm": lambda x, k: (torch.baddbmm(x[None], x[None], torch.ones(1, 3, 3)),),
    "attention": lambda x, k: (F.scaled_dot_product_attention(x[None], x[None], x[None]),),
    "gru": lambda x, k: torch.gru(x[None], torch.zeros(1, 1, 3), GATES, False, 1, 0.0, False, False, True),
    "gru_cell": lambda x, k: (torch.gru_cell(x, x, *GATES),),
    "lstm_cell": lambda x, k: torch.lstm_cell(x, (x, x), *FOUR_GATES),
    "rnn_cell": lambda x, k: (torch.rnn_tanh_cell(x, x, WEIGHT[0], WEIGHT[1], WEIGHT[0, 0], WEIGHT[0, 1]),),
}
torch.manual_seed(0)
WEIGHT = torch.randn(2, 3, 3)
GATES = [torch.randn(9, 3), torch.randn(9, 3)]
FOUR_GATES = [torch.randn(12, 3), torch.randn(12, 3), torch.randn(12), torch.randn(12)]


class Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, k):
        return self.function(x, k)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("around", [True, False], ids=["around", "inside"])
@pytest.mark.parametrize("name", MADE_OF_OTHERS)
def test_autocast_casts_inside_of_operators_that_are_made_of_others(name, around, path):
    model = Calls(MADE_OF_OTHERS[name])
    options = dict(PATHS[path])
    if name in ("gru", "multi_dot"):  # The sizes decide which products are computed.
        options.pop("dynamic_shapes" if path == "fx" else "dynamic_axes")

    with torch.autocast("cpu", torch.bfloat16, enabled=around), torch.no_grad():
        model = model if around else EntersItself(model)
        program = fx.export(model, (Y, K), **options)
        expected = model(Y, K)

    assert any(result.dtype == torch.bfloat16 for result in expected) or name in (
        "bilinear",
        "gru",
        "gru_cell",
        "lstm_cell",
    )
    for actual, wanted in zip(outputs(program, Y, K), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0.01, atol=0.01)
    # What is computed in float32 differs by more.
    with torch.no_grad():
        exact = Calls(MADE_OF_OTHERS[name])(Y, K)
    assert any((wanted - whole).abs().max() > 1e-4 for wanted, whole in zip(expected, exact, strict=False))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "function",
    [lambda x, k: F.affine_grid(x[None, :2], [1, 1, 3, 3], False), lambda x, k: torch.linalg.pinv(x)],
    ids=["affine_grid", "pinv"],
)
def test_kernels_in_which_autocast_casts_are_refused_by_name(function, path):
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(fx.OnnxExporterError) as refused:
        fx.export(Calls(function), (Y, K), **{**PATHS[path], "dynamic_axes": None, "dynamic_shapes": None})

    assert "autocast casts inside aten::" in str(refused.value)
    assert __file__ in str(refused.value)


def computes_lstm_in_half_precision():
    try:
        with torch.autocast("cpu", torch.bfloat16):
            torch.nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
    except RuntimeError:
        # oneDNN, which autocast chooses for an LSTM, has kernels of half precision for AVX-512 and newer alone.
        return False
    return True


IF_EAGER_DOES = pytest.mark.skipif(
    not computes_lstm_in_half_precision(), reason="eager torch has no LSTM in half precision on this processor"
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("around", [True, False], ids=["around", "inside"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "bias": False}, {"proj_size": 2}])
@pytest.mark.parametrize("recurrent", [torch.nn.RNN, torch.nn.GRU, pytest.param(torch.nn.LSTM, marks=IF_EAGER_DOES)])
def test_recurrent_layers_compute_in_half_precision(recurrent, options, around, path):
    if "proj_size" in options and recurrent is not torch.nn.LSTM:
        pytest.skip("only an LSTM has projections")
    model = Recurrent(lambda *sizes: recurrent(*sizes, **options))

    with torch.autocast("cpu", torch.bfloat16, enabled=around), torch.no_grad():
        model = model if around else InsideOnly(model)
        program = fx.export(model, (Y, K), dynamo=path == "fx", opset_version=18)
        expected = model(Y, K)

    for actual, wanted in zip(outputs(program, Y, K), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0.01, atol=0.01)


class OverRows(Recurrent):
    def forward(self, x, k):
        output, states = self.recurrent(x[:, None] + torch.zeros(1, 2, 3))
        return (output, *states)


LAYERS = {
    "rnn": (torch.nn.RNN, {}),
    "gru": (torch.nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "lstm": (torch.nn.LSTM, {}),
    "projections": (torch.nn.LSTM, {"proj_size": 2}),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "name", ["rnn", "gru", pytest.param("lstm", marks=IF_EAGER_DOES), pytest.param("projections", marks=IF_EAGER_DOES)]
)
def test_recurrent_layers_in_half_precision_take_sequences_of_any_length(name, path):
    recurrent, options = LAYERS[name]
    model = OverRows(lambda *sizes: recurrent(*sizes, **options))

    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        program = fx.export(model, (X, K), **PATHS[path])
        expected = model(Y, K)

    for actual, wanted in zip(program(Y, K), expected, strict=True):
        torch.testing.assert_close(actual, wanted, **HALF)


@torch.jit.script
def scripted(x: torch.Tensor):
    return torch.einsum("ij,kj->ik", [x, x]), x @ x.t(), torch.softmax(x, 1)


def test_scripted_functions_that_a_trace_calls_are_under_autocast_too():
    model = Calls(lambda x, k: scripted(x))

    check(model, "torchscript", lambda: torch.autocast("cpu", torch.bfloat16), **HALF)


def test_a_scripted_function_under_autocast_that_the_model_enters_is_refused():
    with pytest.raises(fx.OnnxExporterError, match=f"itself enters torch.autocast.*{__file__}"):
        fx.export(EntersItself(Calls(lambda x, k: scripted(x))), (X, K), **PATHS["torchscript"])


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.linear(x)
            if bool(x.sum() > 0):
                y = y @ y.t() @ y
            with torch.autocast("cpu", enabled=False):
                z = x @ x.t()
        with torch.no_grad():
            return y, z, torch.softmax(x, -1), x @ x.t()


def test_a_scripted_model_computes_in_half_precision_where_it_enters_autocast():
    script = torch.jit.script(Scripted())
    program = fx.export(script, (X,), input_names=["x"], dynamic_axes={"x": [0]})

    for x in (Y, -Y):
        with torch.no_grad():
            expected = script(x)
        for actual, wanted in zip(outputs(program, x), expected, strict=True):
            torch.testing.assert_close(actual, wanted, **HALF)


def test_a_scripted_model_is_refused_under_autocast():
    script = torch.jit.script(torch.nn.Linear(3, 3))

    with torch.autocast("cpu", torch.bfloat16), pytest.raises(fx.OnnxExporterError, match=r"inside torch\.autocast"):
        fx.export(script, (X,))


@pytest.mark.parametrize("path", ["fx", "torchscript"])
def test_an_opset_that_the_installed_onnx_does_not_know_is_refused_with_the_version_that_does(path, monkeypatch):
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: 23)

    with pytest.raises(fx.OnnxExporterError, match=r"knows opset 23: ask for that, or install onnx 1\.19 or newer"):
        fx.export(Mixed(), (X, K), **{**PATHS[path], "opset_version": 24})
