"""What each option of an export does on each path, found by its effect; run as a program, it counts the outcomes."""

from __future__ import annotations

import collections
import contextlib
import io
import sys
import tempfile
import unittest.mock
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn
from torch.onnx import OperatorExportTypes, TrainingMode

import onnx_fx_export
import onnx_ts_legacy
import onnx_verify
from onnxops_core import OnnxExporterError, symbolic

X = torch.linspace(-2, 2, 8).reshape(2, 4)
LEGACY = "onnx-ts-legacy"


@torch.library.custom_op("option_probes::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


unknown.register_fake(torch.empty_like)


class Block(nn.Module):
    # An export takes back what its forward counts in attributes.
    called = unittest.mock.Mock()

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        Block.called()
        return self.linear(x).relu()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Scaled(nn.Module):
    def forward(self, x, scale):
        return x * scale


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x * self.count


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


class Calling(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


# ---- paths


def refuse_capture(module: nn.Module, args: Any, kwargs: Any) -> None:
    """Keep torch.export from capturing a module that can be traced, whichever way it tries."""
    torch._dynamo.graph_break()
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and type(value) is not torch.Tensor:
            raise TypeError("torch.export is not meant to capture this")


def uncapturable(model: nn.Module) -> nn.Module:
    model.register_forward_pre_hook(refuse_capture, with_kwargs=True)
    return model


def by_fallback(model: nn.Module, *args: Any, **options: Any) -> Any:
    options.setdefault("fallback", True)
    program = onnx_fx_export.export(uncapturable(model), *args, **options)
    assert program.model.producer_name == LEGACY
    return program


def by_torchscript(model: nn.Module, *args: Any, **options: Any) -> Any:
    return onnx_fx_export.export(model, *args, **{"dynamo": False, **options})


def replaced(*args: Any, **options: Any) -> Any:
    with onnx_fx_export.replace_torch_onnx():
        return torch.onnx.export(*args, **options)


def replaced_torchscript(*args: Any, **options: Any) -> Any:
    return replaced(*args, **{"dynamo": False, **options})


PATHS: dict[str, Callable[..., Any]] = {
    "fx": onnx_fx_export.export,
    "torchscript": by_torchscript,
    "fallback": by_fallback,
    "legacy": onnx_ts_legacy.export,
    "replaced": replaced,
    "replaced torchscript": replaced_torchscript,
}


# ---- probes: whether an option has its effect

Run = Callable[..., Any]
PROBES: dict[str, Callable[[Run, Path], bool]] = {}


def probe(function: Callable[[Run, Path], bool]) -> Callable[[Run, Path], bool]:
    PROBES[function.__name__.rstrip("_")] = function
    return function


def ops(program: Any) -> list[str]:
    return [node.op_type for node in program.model.graph.all_nodes()]


@probe
def model(run: Run, folder: Path) -> bool:
    linear = nn.Linear(4, 3).eval()
    (result,) = run(linear, (X,)).run({"input": X * 2}).values()
    return torch.allclose(result, linear(X * 2), atol=1e-5)


@probe
def args(run: Run, folder: Path) -> bool:
    programs = [run(Scaled(), given) for given in ((X, X), [X, X])]
    return all(torch.equal(next(iter(p.run({"x": X, "scale": X}).values())), X * X) for p in programs)


@probe
def f(run: Run, folder: Path) -> bool:
    buffer = io.BytesIO()
    run(nn.ReLU(), (X,), folder / "m.onnx")
    run(nn.ReLU(), (X,), buffer)
    return len(onnx.load(folder / "m.onnx").graph.node) == len(onnx.load_from_string(buffer.getvalue()).graph.node) == 1


@probe
def kwargs(run: Run, folder: Path) -> bool:
    return run(Scaled(), (X,), kwargs={"scale": X}).input_names == ["x", "scale"]


@probe
def verbose(run: Run, folder: Path) -> bool:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run(nn.ReLU(), (X,), verbose=True)
    return bool(printed.getvalue())


@probe
def input_names(run: Run, folder: Path) -> bool:
    return run(nn.ReLU(), (X,), input_names=["a"]).input_names == ["a"]


@probe
def output_names(run: Run, folder: Path) -> bool:
    return run(nn.ReLU(), (X,), output_names=["b"]).output_names == ["b"]


@probe
def opset_version(run: Run, folder: Path) -> bool:
    return run(nn.ReLU(), (X,), opset_version=14).model.opset_imports[""] == 14


@probe
def dynamic_shapes(run: Run, folder: Path) -> bool:
    n = torch.export.Dim("n", min=2, max=6)
    program = run(nn.ReLU(), (X,), folder / "m.onnx", dynamic_shapes=({0: n},))
    conditions = "".join(entry.value for entry in onnx.load(folder / "m.onnx").metadata_props)
    return str(program.model.graph.inputs[0].shape[0]) == "n" and "n <= 6" in conditions and "n >= 2" in conditions


@probe
def dynamic_axes(run: Run, folder: Path) -> bool:
    program = run(nn.ReLU(), (X,), input_names=["x"], dynamic_axes={"x": {0: "n"}})
    return str(program.model.graph.inputs[0].shape[0]) == "n"


@probe
def custom_translation_table(run: Run, folder: Path) -> bool:
    table = {torch.ops.aten.relu.default: lambda op, x: op.Abs(x)}
    return ops(run(nn.ReLU(), (X,), custom_translation_table=table)) == ["Abs"]


@probe
def external_data(run: Run, folder: Path) -> bool:
    run(nn.Linear(400, 4), (torch.ones(2, 400),), folder / "m.onnx", external_data=True)
    return (folder / "m.onnx.data").exists()


@probe
def export_params(run: Run, folder: Path) -> bool:
    run(nn.Linear(4, 4), (X,), folder / "m.onnx", export_params=False)
    graph = onnx.load(folder / "m.onnx").graph
    return not graph.initializer and len(graph.input) == 3


@probe
def keep_initializers_as_inputs(run: Run, folder: Path) -> bool:
    run(nn.Linear(4, 4), (X,), folder / "m.onnx", keep_initializers_as_inputs=True)
    graph = onnx.load(folder / "m.onnx").graph
    return len(graph.initializer) == 2 and len(graph.input) == 3


@probe
def state(run: Run, folder: Path) -> bool:
    return len(run(Counter(), (X,), state="io").output_names) == 2


@probe
def verify(run: Run, folder: Path) -> bool:
    with unittest.mock.patch.object(onnx_verify, "compare", wraps=onnx_verify.compare) as compare:
        run(nn.ReLU(), (X,), verify=True)
    return compare.called


@probe
def optimize(run: Run, folder: Path) -> bool:
    example = (X.reshape(1, 2, 4),)
    plain, fused = (ops(run(nn.Linear(4, 4).eval(), example, optimize=wanted)) for wanted in (False, True))
    return len(fused) < len(plain)


@probe
def target(run: Run, folder: Path) -> bool:
    return "com.microsoft" in run(nn.GELU(), (X,), target="onnxruntime").model.opset_imports


@probe
def export_modules_as_functions(run: Run, folder: Path) -> bool:
    program = run(Blocks().eval(), (X,), export_modules_as_functions={Block})
    return "Block" in [function.name for function in program.model.functions.values()]


@probe
def capture_repeated_blocks(run: Run, folder: Path) -> bool:
    calls = []
    for chosen in (False, {Block}):
        Block.called.reset_mock()
        run(Blocks().eval(), (X,), capture_repeated_blocks=chosen)
        calls.append(Block.called.call_count)
    return calls[1] < calls[0]


@probe
def size_checks(run: Run, folder: Path) -> bool:
    n = torch.export.Dim("n", min=2, max=6)
    plain, checked = (
        ops(run(nn.ReLU(), (X,), dynamic_shapes=({0: n},), size_checks=wanted)) for wanted in (False, True)
    )
    return len(checked) > len(plain)


@probe
def trial_runs(run: Run, folder: Path) -> bool:
    """Without them, a program of torch.export refuses what is to be tried; no other one needs any."""
    differences = Calling(lambda x: x[1:] - x[:-1])
    programs = [run(differences, (X.T,), dynamic_shapes=({0: "n"},), trial_runs=wanted) for wanted in (True, False)]
    tried, untried = (list(program.constraints.conditions) for program in programs)
    by_capture = "trial runs" in programs[0].timings
    return "trial runs" not in programs[1].timings and (len(untried) > len(tried)) == by_capture


@probe
def strategy(run: Run, folder: Path) -> bool:
    programs = [run(nn.ReLU(), (X,), strategy=name) for name in ("non-strict", "strict")]
    return [program.capture_strategy for program in programs] == ["non-strict", "strict"]


@probe
def widen_bfloat16(run: Run, folder: Path) -> bool:
    half = nn.Linear(4, 4).bfloat16().eval()
    found = [ops(run(half, (X.bfloat16(),), widen_bfloat16=wide)) for wide in (True, False)]
    return found[0].count("Cast") > found[1].count("Cast")


@probe
def nan(run: Run, folder: Path) -> bool:
    found = [ops(run(Calling(lambda x: x.amax(1)), (X,), nan=kind)) for kind in ("exact", "finite")]
    return "IsNaN" in found[0] and "IsNaN" not in found[1]


@probe
def dynamo(run: Run, folder: Path) -> bool:
    made = [run(nn.ReLU(), (X,), dynamo=way).model.producer_name for way in (False, True)]
    return made == [LEGACY, LEGACY if run is by_fallback else "onnx-fx-export"]


@probe
def fallback(run: Run, folder: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(uncapturable(nn.ReLU()), (X,), fallback=True).model.producer_name == LEGACY


@probe
def report(run: Run, folder: Path) -> bool:
    run(nn.ReLU(), (X,), report=True, artifacts_dir=folder)
    return "Relu" in (folder / "onnx_export_report.html").read_text()


@probe
def profile(run: Run, folder: Path) -> bool:
    run(nn.ReLU(), (X,), profile=True, artifacts_dir=folder)
    return "function calls" in (folder / "onnx_export_profile.txt").read_text()


@probe
def dump_exported_program(run: Run, folder: Path) -> bool:
    run(nn.ReLU(), (X,), dump_exported_program=True, artifacts_dir=folder)
    return (folder / "exported_program.pt2").exists()


@probe
def artifacts_dir(run: Run, folder: Path) -> bool:
    run(nn.ReLU(), (X,), report=True, artifacts_dir=folder / "inner")
    return (folder / "inner" / "onnx_export_report.html").exists()


@probe
def progress(run: Run, folder: Path) -> bool:
    stages: list[str] = []
    run(nn.ReLU(), (X,), folder / "m.onnx", progress=stages.append)
    return {"capture", "convert", "save"} <= {*stages}


@probe
def metadata(run: Run, folder: Path) -> bool:
    nodes = [next(iter(run(nn.ReLU(), (X,), metadata=kind).model.graph)) for kind in ("full", "none")]
    return len(nodes[0].metadata_props) > len(nodes[1].metadata_props)


@probe
def training(run: Run, folder: Path) -> bool:
    kept = ops(run(nn.Dropout(0.5).eval(), (X,), training=TrainingMode.TRAINING))
    gone = ops(run(nn.Dropout(0.5).train(), (X,), training=TrainingMode.EVAL))
    return "Dropout" in kept and "Dropout" not in gone


@probe
def operator_export_type(run: Run, folder: Path) -> bool:
    program = run(Calling(unknown), (X,), operator_export_type=OperatorExportTypes.ONNX_FALLTHROUGH)
    return "unknown" in ops(program)


@probe
def do_constant_folding(run: Run, folder: Path) -> bool:
    layers = nn.Sequential(nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)).eval()
    found = [ops(run(layers, (X.T[None],), do_constant_folding=folds, optimize=True)) for folds in (True, False)]
    return "BatchNormalization" in found[1] and "BatchNormalization" not in found[0]


@probe
def custom_opsets(run: Run, folder: Path) -> bool:
    custom = Calling(lambda x: symbolic("com.example::Scale", (x,), {}, dtype=x.dtype, shape=x.shape))
    return run(custom, (X,), custom_opsets={"com.example": 7}).model.opset_imports["com.example"] == 7


@probe
def autograd_inlining(run: Run, folder: Path) -> bool:
    run(Calling(Function.apply), (X,), autograd_inlining=True)
    try:
        run(Calling(Function.apply), (X,), autograd_inlining=False)
    except OnnxExporterError as error:
        if "autograd_inlining" in str(error):
            raise
        return True
    return False


@probe
def frozen_values(run: Run, folder: Path) -> bool:
    try:
        run(Calling(lambda x: x * x.sum().item()), (X,), frozen_values="error")
    except OnnxExporterError as error:
        if "no argument" in str(error):
            raise
        return "the data decides" in str(error)
    return False


def outcome(path: str, option: str) -> str:
    """Return what an option does on a path: honoured, refused, dropped, or crashed with another error."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "honoured" if PROBES[option](PATHS[path], Path(folder)) else "dropped"
        except OnnxExporterError as error:
            return "refused" if option in str(error) else f"crashed: {error}"
        except Exception as error:
            return f"crashed: {type(error).__name__}: {error}"


def outcomes() -> Iterator[tuple[str, str, str]]:
    """Yield each option and path with what the option does there."""
    for option in PROBES:
        for path in PATHS:
            yield option, path, outcome(path, option)


def main() -> None:
    counted: collections.Counter[str] = collections.Counter()
    for option, path, result in outcomes():
        counted[result.partition(":")[0]] += 1
        if result not in ("honoured", "refused"):
            print(f"{option:30} {path:22} {result[:160]}")
    print(dict(counted))


if __name__ == "__main__":
    sys.exit(main())
