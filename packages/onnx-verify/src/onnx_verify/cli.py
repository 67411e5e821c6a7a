"""The command line: compare, run, bisect, blame, portable, bench and inspect."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from onnx_verify._version import __version__
from onnx_verify.checks import Expectations, check_model, summarize
from onnx_verify.comparing.bench import benchmark
from onnx_verify.comparing.comparison import compare as compare_models
from onnx_verify.comparing.comparison import compare_outputs, resolve_inputs
from onnx_verify.comparing.verdict import Verdict
from onnx_verify.errors import InputError, OnnxVerifyError
from onnx_verify.inputs.datafiles import read_expected
from onnx_verify.inputs.generate import RandomInputs
from onnx_verify.judging.blame import blame as blame_engines
from onnx_verify.judging.portable import portable as find_places
from onnx_verify.models.model import load_model
from onnx_verify.reporting import tables as tables
from onnx_verify.running.runtimes import Backend
from onnx_verify.search.find import find_mismatch
from onnx_verify.search.steps import SearchOptions
from onnx_verify.values.tolerance import Tolerance

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Proves an ONNX model right, or shows the first node that is wrong. Exits with 0 if all is right, 1 for a "
    "mismatch, 2 for an error.",
)

ModelPath = Annotated[Path, typer.Argument(help="An .onnx file.")]
Inputs = Annotated[
    str, typer.Option("--inputs", "-i", help="An .npz, .npy or .pb file, a test data folder, or 'random'.")
]
Seed = Annotated[int, typer.Option(help="Seed of the random inputs.")]
Size = Annotated[
    list[str] | None, typer.Option(help="Sizes of a dynamic dimension for random inputs: NAME=2,3 (repeatable).")
]
Rtol = Annotated[float | None, typer.Option(help="Relative tolerance; by dtype otherwise.")]
Atol = Annotated[float | None, typer.Option(help="Absolute tolerance; by dtype otherwise.")]
Runtime = Annotated[
    str, typer.Option("--runtime", help="ort[:LEVEL], ort-cuda[:LEVEL], reference, torch, or openvino.")
]
Runtimes = Annotated[
    list[str] | None,
    typer.Option(
        "--runtime",
        help="ort[:LEVEL], ort-cuda[:LEVEL], reference, torch, or openvino; given twice, of the first model and of the "
        "second.",
    ),
]
Timeout = Annotated[float, typer.Option(help="Seconds after which a run is stopped; 0 lets it run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Report = Annotated[Path | None, typer.Option(help="Write an HTML report here.")]


@contextmanager
def _errors(as_json: bool) -> Iterator[None]:
    """Turn an error of this package into exit code 2."""
    try:
        yield
    except OnnxVerifyError as error:
        text = f"{type(error).__name__}: {tables.clean(str(error))}"
        if as_json:
            print(json.dumps({"ok": False, "error": text}))
        else:
            Console(stderr=True).print(text, style="bold red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error


def _version(show: bool) -> None:
    if show:
        print(f"onnx-verify {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def _inputs(text: str, seed: int, sizes: list[str] | None) -> Any:
    if text != "random":
        if sizes:
            raise InputError("--size is for random inputs")
        return text
    spec = RandomInputs(seed=seed)
    if not sizes:
        return spec
    parsed: dict[str, list[int]] = {}
    for entry in sizes:
        name, _, numbers = entry.rpartition("=")
        try:
            parsed[name] = [int(number) for number in numbers.split(",")]
        except ValueError as error:
            raise InputError(f"--size {entry!r} is not NAME=2,3") from error
    return replace(spec, sizes=parsed)


def _tolerance(rtol: float | None, atol: float | None) -> Tolerance | None:
    return None if rtol is None and atol is None else Tolerance(rtol or 0.0, atol or 0.0)


def _finish(ok: bool) -> None:
    if not ok:
        raise typer.Exit(1)


def _write_report(result: Any, path: Path | None, command: list[str]) -> None:
    if path is not None:
        from onnx_verify.reporting.report import write_report

        write_report(result, path, commands=[shlex.join(command)])


def _runtimes(given: list[str] | None) -> tuple[str, str | None]:
    """Return the runtime of the first model, and that of the second if there is one.

    Raises:
        InputError: If there are more.
    """
    first, *others = given or ["ort"]
    if len(others) > 1:
        raise InputError(f"--runtime is given for two models at most, not {1 + len(others)} times")
    return first, others[0] if others else None


@app.command()
def compare(
    reference: ModelPath,
    candidate: ModelPath,
    inputs: Inputs = "random",
    seed: Seed = 0,
    size: Size = None,
    rtol: Rtol = None,
    atol: Atol = None,
    runtime: Runtimes = None,
    timeout: Timeout = 0,
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Compare the outputs of two models, of which the first is right."""
    with _errors(as_json):
        right, left = _runtimes(runtime)
        with tables.progress("comparing", as_json) as tick:
            verdict = compare_models(
                reference,
                candidate,
                _inputs(inputs, seed, size),
                _tolerance(rtol, atol),
                backend=replace(Backend.parse(left or right), timeout=timeout),
                reference_backend=replace(Backend.parse(right), timeout=timeout),
                progress=tick,
            )
        _write_report(verdict, report, ["onnx-verify", "compare", str(reference), str(candidate), "--inputs", inputs])
        tables.show(verdict.to_dict() if as_json else tables.verdict(verdict), as_json)
    _finish(verdict.ok)


@app.command()
def run(
    model: ModelPath,
    inputs: Inputs = "random",
    seed: Seed = 0,
    size: Size = None,
    runtime: Runtime = "ort",
    timeout: Timeout = 0,
    output: Annotated[Path | None, typer.Option(help="Write the outputs of the first input set to this .npz.")] = None,
    expect: Annotated[bool, typer.Option("--expect", help="Compare with the output_*.pb beside the inputs.")] = False,
    rtol: Rtol = None,
    atol: Atol = None,
    as_json: Json = False,
) -> None:
    """Run a model and show what its outputs hold."""
    with _errors(as_json):
        ready = replace(Backend.parse(runtime), timeout=timeout).load(model, by_name_only=True)
        sets = resolve_inputs(_inputs(inputs, seed, size), ready)
        results = [(each.label, ready.run(each)) for each in sets]
        if output is not None:
            arrays: dict[str, Any] = dict(results[0][1])
            np.savez(output, allow_pickle=False, **arrays)
        if not expect:
            tables.show(tables.values_dict(results) if as_json else tables.values(results), as_json)
            return
        expected = read_expected(Path(inputs))
        if len(expected) != len(results):
            raise InputError(f"{inputs} holds {len(results)} sets of inputs and {len(expected)} of outputs")
        cases = [
            compare_outputs(right, actual, label, _tolerance(rtol, atol))
            for right, (label, actual) in zip(expected, results, strict=True)
        ]
        verdict = Verdict(inputs, ready.name, cases)
        tables.show(verdict.to_dict() if as_json else tables.verdict(verdict), as_json)
    _finish(verdict.ok)


@app.command()
def bisect(
    model: ModelPath,
    reference: Annotated[
        Path | None, typer.Argument(help="The right model; the same model in another runtime otherwise.")
    ] = None,
    inputs: Inputs = "random",
    seed: Seed = 0,
    size: Size = None,
    rtol: Rtol = None,
    atol: Atol = None,
    runtime: Runtimes = None,
    timeout: Timeout = 0,
    reference_runtime: Annotated[
        str | None, typer.Option(help="What runs the reference: ort without one model for both, reference otherwise.")
    ] = None,
    strategy: Annotated[str, typer.Option(help="auto, instrumented or bisect.")] = "auto",
    match: Annotated[str, typer.Option(help="How values pair up: auto, names or position.")] = "auto",
    memory: Annotated[int, typer.Option(help="MiB for values and weights beyond the models.")] = 1024,
    count: Annotated[int, typer.Option(help="How many wrong nodes to look for.")] = 1,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Check nodes even if the outputs agree.")] = False,
    repro: Annotated[Path | None, typer.Option(help="Write a folder that reproduces the first mismatch.")] = None,
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Find the first node that is wrong."""
    with _errors(as_json):
        left, second = _runtimes(runtime)
        right = reference_runtime or second or ("reference" if reference is None else "ort")
        with tables.progress("searching", as_json) as tick:
            options = SearchOptions(
                tolerance=_tolerance(rtol, atol),
                backend=replace(Backend.parse(left), prepack=False, timeout=timeout),
                reference_backend=replace(Backend.parse(right), prepack=False, timeout=timeout),
                strategy=strategy,
                match=match,
                memory_limit=memory << 20,
                max_mismatches=count,
                exhaustive=exhaustive,
                progress=tick,
            )
            found = find_mismatch(model, _inputs(inputs, seed, size), reference=reference, options=options)
        if repro is not None and found.first is not None:
            found.first.export_repro(repro)
        _write_report(found, report, ["onnx-verify", "bisect", str(model), *([str(reference)] if reference else [])])
        tables.show(found.to_dict() if as_json else tables.mismatches(found), as_json)
    _finish(found.ok)


Engines = Annotated[
    list[str] | None, typer.Option("--runtime", help="An engine, repeatable; all that are installed otherwise.")
]


@app.command()
def blame(
    model: ModelPath,
    inputs: Inputs = "random",
    seed: Seed = 0,
    size: Size = None,
    rtol: Rtol = None,
    atol: Atol = None,
    runtime: Engines = None,
    repro: Annotated[Path | None, typer.Option(help="Write a folder that reproduces the disagreement.")] = None,
    as_json: Json = False,
) -> None:
    """Run a model in several engines, and say which stands alone on which node."""
    with _errors(as_json):
        given = _inputs(inputs, seed, size)
        given = replace(given, edge_cases=False) if isinstance(given, RandomInputs) else given
        found = blame_engines(model, given, engines=runtime, tolerance=_tolerance(rtol, atol))
        if repro is not None and found.node is not None:
            found.node.export_repro(repro)
        tables.show(found.to_dict() if as_json else tables.judgment(found), as_json)
    _finish(found.ok)


@app.command()
def portable(
    model: ModelPath,
    opset: Annotated[list[int] | None, typer.Option(help="An opset beside the model's own; repeatable.")] = None,
    inputs: Inputs = "random",
    seed: Seed = 0,
    size: Size = None,
    rtol: Rtol = None,
    atol: Atol = None,
    runtime: Engines = None,
    as_json: Json = False,
) -> None:
    """Say for each engine and opset whether a model loads and agrees, and what stands in the way."""
    with _errors(as_json):
        given = _inputs(inputs, seed, size)
        given = replace(given, edge_cases=False) if isinstance(given, RandomInputs) else given
        with tables.progress("trying", as_json) as tick:
            found = find_places(
                model, given, opsets=opset or (), engines=runtime, tolerance=_tolerance(rtol, atol), progress=tick
            )
        plain = {"ok": all(place.ok for place in found), "places": [place.to_dict() for place in found]}
        tables.show(plain if as_json else tables.places(found), as_json)
    _finish(all(place.ok for place in found))


@app.command()
def bench(
    models: Annotated[list[Path], typer.Argument(help="The models; ratios are to the first.")],
    inputs: Inputs = "random",
    seed: Seed = 0,
    size: Size = None,
    runtime: Annotated[list[str] | None, typer.Option("--runtime", help="As for compare; repeatable.")] = None,
    rounds: Annotated[int, typer.Option(help="How often each model is run.")] = 30,
    memory: Annotated[bool, typer.Option(help="Measure peak memory in a process of its own.")] = True,
    as_json: Json = False,
) -> None:
    """Measure latency, throughput and memory of models side by side."""
    with _errors(as_json):
        named = {str(path): load_model(path) for path in models}
        with tables.progress("measuring", as_json) as tick:
            measured = benchmark(
                named,
                _inputs(inputs, seed, size),
                backends=[Backend.parse(text) for text in runtime or ["ort"]],
                rounds=rounds,
                memory=memory,
                progress=tick,
            )
        tables.show(measured.to_dict() if as_json else tables.measurements(measured), as_json)


@app.command()
def inspect(
    model: ModelPath,
    runs: Annotated[bool, typer.Option("--run/--no-run", help="Also run the model, at several sizes.")] = True,
    opset: Annotated[int | None, typer.Option(help="The opset that it should have.")] = None,
    dynamic: Annotated[list[str] | None, typer.Option(help="A dimension that should be dynamic; repeatable.")] = None,
    runtime: Runtime = "ort",
    timeout: Timeout = 0,
    as_json: Json = False,
) -> None:
    """Show what a model is made of and check its properties; exits with 1 if one is wrong."""
    with _errors(as_json):
        loaded = load_model(model)
        expected = Expectations(opset=opset, dynamic=dynamic or ())
        findings = check_model(loaded, expected, backend=replace(Backend.parse(runtime), timeout=timeout), run=runs)
        summary = summarize(loaded)
        if as_json:
            plain = [{"check": f.check, "severity": f.severity, "message": f.message} for f in findings]
            tables.show({**summary, "findings": plain}, as_json)
        else:
            tables.show(tables.summary(summary, findings), as_json)
    _finish(all(finding.severity != "error" for finding in findings))
