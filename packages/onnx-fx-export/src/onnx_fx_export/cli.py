"""The command line: ``onnx-fx-export model.pt2 -o model.onnx --opset 23 --verify``.

It needs the extra ``cli`` (typer and rich). Exit codes: 0 exported, 1 the export failed, 2 the command is wrong.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnx_fx_export.errors import InvalidArgumentError, OnnxExporterError
from onnx_fx_export.export import DEFAULT_OPSET, export
from onnx_fx_export.program import ONNXProgram

__all__ = ["app", "load_source"]


def load_source(source: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the model that a source names, and its example arguments.

    Args:
        source: Path of a ``.pt2`` file that torch.export saved, or ``package.module:factory``. A factory takes no
            arguments and returns the model and its positional example arguments, and, if it wants to, a dictionary
            of further arguments of :func:`onnx_fx_export.export`.

    Raises:
        InvalidArgumentError: If the source cannot be found or is of neither kind.
    """
    if source.endswith(".pt2"):
        if not Path(source).is_file():
            raise InvalidArgumentError(f"There is no file {source}.")
        program = torch.export.load(source)
        args, kwargs = program.example_inputs or ((), {})
        return program, tuple(args), {"kwargs": kwargs}
    module_name, separator, attribute = source.partition(":")
    if not separator:
        raise InvalidArgumentError(f"{source} is neither a .pt2 file nor package.module:factory.")
    sys.path.insert(0, "")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(f"{source} cannot be loaded: {error}.") from error
    model, args, *options = factory()
    return model, tuple(args), dict(options[0]) if options else {}


def _summary(program: ONNXProgram, path: Path) -> dict[str, Any]:
    return {
        "path": str(path),
        "opset": program.model.opset_imports[""],
        "nodes": len(program.model.graph),
        "inputs": program.input_names,
        "outputs": program.output_names,
        "bytes": path.stat().st_size,
        "seconds": program.timings,
    }


def _show(summary: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None)
    seconds = ", ".join(f"{stage} {spent:.2f} s" for stage, spent in summary["seconds"].items())
    for name, value in {**summary, "bytes": f"{summary['bytes']:,}", "seconds": seconds}.items():
        table.add_row(name, ", ".join(value) if isinstance(value, list) else str(value))
    Console().print(table)


app = typer.Typer(add_completion=False)
errors = Console(stderr=True)


@app.command()
def export_command(
    source: Annotated[str, typer.Argument(help="model.pt2, or package.module:factory")],
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write")],
    opset: Annotated[int, typer.Option(help="opset of the model, 7 to 28")] = DEFAULT_OPSET,
    verify: Annotated[bool, typer.Option("--verify", help="compare with PyTorch on the example")] = False,
    state: Annotated[str, typer.Option(help='"error", or "io" to make mutated buffers inputs and outputs')] = "error",
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Export a model to ONNX."""
    try:
        model, args, options = load_source(source)
        options.update(opset_version=opset, verify=verify, state=state)
        with errors.status("exporting") as status:
            program = export(model, args, output, progress=status.update, **options)
    except InvalidArgumentError as error:
        raise _failed(error, 2) from error
    except OnnxExporterError as error:
        raise _failed(error, 1) from error
    summary = _summary(program, output)
    if as_json:
        print(json.dumps(summary, indent=1))
    else:
        _show(summary)


def _failed(error: Exception, code: int) -> typer.Exit:
    errors.print("[red]error:[/red]", Text(str(error)), soft_wrap=True)
    return typer.Exit(code)
