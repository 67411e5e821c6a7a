"""``onnx-fx-export model.pt2 -o model.onnx --opset 23 --verify``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import onnx_ir as ir
import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnx_fx_export._version import __version__
from onnx_fx_export.api import DEFAULT_OPSET, export
from onnx_fx_export.cli.console import Progress, failed, without_graphs_of_torch
from onnx_fx_export.cli.sources import load_source
from onnx_fx_export.errors import InvalidArgumentError, OnnxExporterError
from onnxops_decomp.exporting import ONNXProgram

__all__ = ["app"]


def _summary(program: ONNXProgram, path: Path) -> dict[str, Any]:
    model = program.model
    data = path.with_name(f"{path.name}.data")
    return {
        "path": str(path),
        "opset": model.opset_imports[""],
        "nodes": sum(1 for _ in model.graph.all_nodes()),
        "functions": len(model.functions),
        "inputs": _described(model.graph.inputs),
        "outputs": _described(model.graph.outputs),
        "bytes": sum(file.stat().st_size for file in (path, data) if file.exists()),
        "verified": [
            f"{each.sizes}: {each.outputs} outputs, max. difference {each.max_abs:.2g}" for each in program.verified
        ],
        "captured by": program.capture_strategy or ("a file" if program.exported_program else "TorchScript"),
        "conditions": list(program.constraints.conditions),
        "seconds": program.timings,
    }


def _described(values: Sequence[ir.Value]) -> list[str]:
    """Return the name, dtype and shape of each value."""
    return [f"{v.name} {v.dtype.name if v.dtype else '?'}{'?' if v.shape is None else v.shape}" for v in values]


def _show(summary: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None)
    shown = {name: value for name, value in summary.items() if name != "seconds" and value not in (0, [])}
    for name, value in {**shown, "bytes": f"{summary['bytes']:,}"}.items():
        table.add_row(name, Text("\n".join(value) if isinstance(value, list) else str(value)))
    Console(soft_wrap=True).print(table)


def _dynamic_axes(declared: Sequence[str]) -> dict[str, dict[int, str]]:
    """Return what ``input:axis=name`` says, by input."""
    axes: dict[str, dict[int, str]] = {}
    for text in declared:
        found = re.fullmatch(r"(?P<input>.+):(?P<axis>-?\d+)=(?P<name>.+)", text)
        if found is None:
            raise InvalidArgumentError(f"--dynamic takes input:axis=name, such as input_ids:0=batch; not {text}.")
        axes.setdefault(found["input"], {})[int(found["axis"])] = found["name"]
    return axes


def _classes(names: Sequence[str], model: Any) -> Any:
    """Return the classes of modules of these names, short or with their module; True for ``all``.

    Raises:
        InvalidArgumentError: If the model has no module of such a class.
    """
    if "all" in names:
        return True
    if not isinstance(model, torch.nn.Module):
        return set(names)  # a captured program knows the classes by their whole names only
    kinds = {type(module) for module in model.modules()}
    found = {kind for kind in kinds if {kind.__qualname__, f"{kind.__module__}.{kind.__qualname__}"} & {*names}}
    if not found:
        known = sorted(kind.__qualname__ for kind in kinds)
        raise InvalidArgumentError(f"The model has no module of class {', '.join(names)}; it has {', '.join(known)}.")
    return found


app = typer.Typer(add_completion=False)


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.command()
def export_command(
    source: Annotated[str, typer.Argument(help="model.pt2, package.module:factory, or path/to/file.py:factory")],
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write")],
    opset: Annotated[int | None, typer.Option(help=f"opset of the model, 7 to 28; {DEFAULT_OPSET} by default")] = None,
    dynamic: Annotated[
        list[str] | None, typer.Option("--dynamic", help="dynamic dimension, as input:axis=name; may be repeated")
    ] = None,
    input_names: Annotated[list[str] | None, typer.Option("--input-name", help="name of an input, in order")] = None,
    output_names: Annotated[list[str] | None, typer.Option("--output-name", help="name of an output, in order")] = None,
    verify: Annotated[bool | None, typer.Option("--verify", help="compare with PyTorch on the example")] = None,
    state: Annotated[
        str | None,
        typer.Option(help='state that the model changes: "error", "io" for inputs and outputs, or "ignore"'),
    ] = None,
    optimize: Annotated[bool | None, typer.Option("--optimize/--no-optimize", help="fuse groups of nodes")] = None,
    functions: Annotated[
        list[str] | None, typer.Option("--functions", help='class of modules that become functions, or "all"')
    ] = None,
    repeated: Annotated[
        list[str] | None,
        typer.Option("--repeated", help='class of modules of which equal ones are captured once, or "all"'),
    ] = None,
    external_data: Annotated[
        bool | None, typer.Option("--external-data/--no-external-data", help="weights in a file beside the model")
    ] = None,
    export_params: Annotated[bool | None, typer.Option("--weights/--no-weights", help="write the weights")] = None,
    widen: Annotated[
        bool | None, typer.Option("--widen-bfloat16", help="compute in float32 where CPUs have no bfloat16")
    ] = None,
    torchscript: Annotated[
        bool | None, typer.Option("--torchscript", help="export with onnx-ts-legacy instead")
    ] = None,
    fallback: Annotated[
        bool | None, typer.Option("--fallback", help="export with onnx-ts-legacy if this exporter cannot")
    ] = None,
    report: Annotated[bool | None, typer.Option("--report", help="write a page about the export")] = None,
    profile: Annotated[bool | None, typer.Option("--profile", help="write where the time goes")] = None,
    dump: Annotated[
        bool | None, typer.Option("--dump-exported-program", help="write what torch.export captured")
    ] = None,
    artifacts: Annotated[Path | None, typer.Option("--artifacts-dir", help="folder for these files")] = None,
    target: Annotated[str | None, typer.Option(help='"onnxruntime" to use operators of its own')] = None,
    nan: Annotated[
        str | None, typer.Option(help='"exact" for what PyTorch does with NaN; "finite" for plain operators')
    ] = None,
    size_checks: Annotated[
        bool | None, typer.Option("--size-checks", help="check the conditions on sizes inside the model")
    ] = None,
    trial_runs: Annotated[
        bool | None, typer.Option("--trial-runs/--no-trial-runs", help="run the model at other sizes")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="how to capture the model, if not as the exporter chooses")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option(help='what nodes say of their origin: "full", "source" or "none"')
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="print the version and end", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    """Export a model to ONNX.

    `onnx-fx-export generation --help` tells how a language model becomes a folder that an engine runs, and
    `onnx-fx-export reopset --help` how an ONNX model gets another opset.

    Options take precedence over what a factory states.
    """
    given: dict[str, Any] = {
        "opset_version": opset, "input_names": input_names, "output_names": output_names, "verify": verify,
        "state": state, "optimize": optimize, "external_data": external_data, "export_params": export_params,
        "widen_bfloat16": widen, "target": target, "nan": nan, "size_checks": size_checks, "trial_runs": trial_runs,
        "strategy": strategy, "metadata": metadata,
        "dynamo": None if torchscript is None else False, "fallback": fallback, "report": report, "profile": profile,
        "dump_exported_program": dump, "artifacts_dir": artifacts,
    }  # fmt: skip
    progress = Progress(Console(file=sys.stderr))
    try:
        model, args, options = load_source(source)
        given["dynamic_axes"] = _dynamic_axes(dynamic) if dynamic else None
        given["export_modules_as_functions"] = _classes(functions, model) if functions else None
        given["capture_repeated_blocks"] = _classes(repeated, model) if repeated else None
        if dynamic:
            options.pop("dynamic_shapes", None)
        options.update({name: value for name, value in given.items() if value is not None})
        with without_graphs_of_torch():
            program = export(model, args, output, progress=progress, **options)
    except InvalidArgumentError as error:
        raise failed(progress, error, 2) from error
    except OnnxExporterError as error:
        raise failed(progress, error, 1) from error
    progress.end()
    summary = _summary(program, output)
    if as_json:
        print(json.dumps(summary, indent=1))
    else:
        _show(summary)
