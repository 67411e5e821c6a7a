"""``onnx-fx-export generation SOURCE -o FOLDER``."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnx_fx_export.cli.console import Progress, failed, without_graphs_of_torch
from onnx_fx_export.cli.sources import load_model
from onnx_fx_export.errors import InvalidArgumentError, OnnxExporterError
from onnx_fx_export.generation import GenerationFolder, export_folder

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command()
def generation_command(
    source: Annotated[
        str, typer.Argument(help="folder of a transformers model, package.module:factory, or path/to/file.py:factory")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="folder to write; there must be none yet")],
    precision: Annotated[str, typer.Option(help='"fp32", "fp16", "int8" or "int4"')] = "fp32",
    engine: Annotated[str, typer.Option(help='"genai" or "onnxruntime": what is to run the folder')] = "genai",
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="generate with the engine, and compare token for token")
    ] = True,
    logits: Annotated[str, typer.Option(help='"last" or "all": of which positions logits are computed')] = "last",
    tokenizer: Annotated[
        bool, typer.Option("--tokenizer/--no-tokenizer", help="write the files of the folder's tokenizer, too")
    ] = True,
    adapters: Annotated[
        bool, typer.Option("--adapters/--no-adapters", help="write the model's LoRA adapters as files of their own")
    ] = False,
    windowed_caches: Annotated[
        bool, typer.Option("--windowed-caches/--full-caches", help="let layers with sliding windows keep these alone")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Write a language model as a folder that an engine runs, token for token like the model's own generate."""
    progress = Progress(Console(file=sys.stderr))
    try:
        model, own_tokenizer = load_model(source)
        with without_graphs_of_torch(), warnings.catch_warnings(record=True) as noted:
            folder = export_folder(
                model, output, precision, engine, verify,  # type: ignore[arg-type]  # checked there
                logits=logits,  # type: ignore[arg-type]
                tokenizer=own_tokenizer if tokenizer else False, adapters=adapters,
                windowed_caches=windowed_caches, progress=progress,
            )  # fmt: skip
    except InvalidArgumentError as error:
        raise failed(progress, error, 2) from error
    except OnnxExporterError as error:
        raise failed(progress, error, 1) from error
    progress.end()
    for warning in noted:
        if issubclass(warning.category, UserWarning):
            Console(stderr=True).print("[yellow]warning:[/yellow]", Text(str(warning.message)), soft_wrap=True)
    if as_json:
        print(json.dumps(_summary(folder), indent=1))
    else:
        _show(folder)


def _summary(folder: GenerationFolder) -> dict[str, Any]:
    return {**dataclasses.asdict(folder), "path": str(folder.path)}


def _show(folder: GenerationFolder) -> None:
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("folder", Text(str(folder.path)))
    table.add_row("nodes", f"{folder.nodes:,}")
    for name, size in folder.files.items():
        table.add_row(Text(name), f"{size:,} bytes")
    for compared in folder.compared:
        prompts = ", ".join(map(str, compared.prompts))
        ties = f", {compared.ties} ties" if compared.ties else ""
        adapter = "" if compared.adapter is None else f" with {compared.adapter}"
        table.add_row(Text(f"prompts of {prompts} {compared.unit}{adapter}"), f"{compared.tokens} tokens equal{ties}")
    if (change := folder.quantization) is not None:
        layers = f"{change.layers} layers" + (f", {len(change.left)} left" if change.left else "")
        table.add_row("weights rounded", layers)
        if change.difference is not None and change.same_tokens is not None:
            table.add_row("logits differ by", f"{change.difference:.1%}")
            table.add_row("most likely token is the same", f"{change.same_tokens:.0%}")
    if not folder.compared:
        table.add_row("verified", "no")
    Console(soft_wrap=True).print(table)
