"""The command line: ``onnx-fx-export reopset model.onnx -o out.onnx --opset 13``.

Exit codes: 0 written, 1 the model cannot be brought to the opset or differs there, 2 the command is wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from onnx_fx_export.cli.console import Progress, failed
from onnx_fx_export.errors import InvalidArgumentError, OnnxExporterError
from onnx_fx_export.reopset import Reopset, reopset

__all__ = ["app"]

app = typer.Typer(add_completion=False)


def _sizes(declared: list[str] | None) -> dict[str, list[int]] | None:
    if not declared:
        return None
    sizes = {}
    for text in declared:
        name, _, numbers = text.rpartition("=")
        try:
            sizes[name] = [int(number) for number in numbers.split(",")]
        except ValueError as error:
            raise InvalidArgumentError(f"--size takes NAME=2,3, such as batch=1,4; not {text}.") from error
    return sizes


@app.command()
def reopset_command(
    model: Annotated[Path, typer.Argument(help="an .onnx file")],
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write")],
    opset: Annotated[int, typer.Option(help="opset of the new model, 7 to 28")],
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="compare with the original")] = True,
    inputs: Annotated[str | None, typer.Option("--inputs", "-i", help=".npz or folder of inputs to compare on")] = None,
    size: Annotated[list[str] | None, typer.Option(help="sizes of a dynamic dimension, NAME=2,3; may repeat")] = None,
    external_data: Annotated[
        bool | None, typer.Option("--external-data/--no-external-data", help="weights in a file beside the model")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Write an ONNX model at another opset, after both have given the same."""
    progress = Progress(Console(file=sys.stderr))
    try:
        made = reopset(
            model,
            output,
            opset_version=opset,
            verify=verify,
            inputs=inputs,
            sizes=_sizes(size),
            external_data=external_data,
            progress=progress,
        )
    except InvalidArgumentError as error:
        raise failed(progress, error, 2) from error
    except OnnxExporterError as error:
        raise failed(progress, error, 1) from error
    progress.end()
    summary = _summary(made, output)
    if as_json:
        print(json.dumps(summary, indent=1))
        return
    table = Table(show_header=False, box=None)
    for name, value in summary.items():
        table.add_row(name, "\n".join(value) if isinstance(value, list) else str(value))
    Console(soft_wrap=True).print(table)


def _summary(made: Reopset, path: Path) -> dict[str, object]:
    return {
        "path": str(path),
        "opset": made.opset,
        "nodes": sum(1 for _ in made.model.graph.all_nodes()),
        "compared in": made.engine or "nothing",
        "compared on": list(made.compared),
        "largest difference": made.max_abs,
        "for ONNX Runtime": made.for_onnxruntime,
    }
