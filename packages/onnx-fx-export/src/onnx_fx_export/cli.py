"""The command line: ``onnx-fx-export model.pt2 -o model.onnx --opset 23 --verify``.

It needs the extra ``cli`` (typer and rich). Exit codes: 0 exported, 1 the export failed, 2 the command is wrong.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
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
from onnx_fx_export.errors import InvalidArgumentError, OnnxExporterError
from onnxops_decomp.exporting import OPTIONS, ONNXProgram

__all__ = ["app", "load_source"]


def load_source(source: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the model that a source names, and its example arguments.

    Args:
        source: Path of a ``.pt2`` file that torch.export saved, ``package.module:factory``, or
            ``path/to/file.py:factory``. A factory takes no arguments and returns the model and its positional example
            arguments, and, if it wants to, a dictionary of further arguments of :func:`onnx_fx_export.export`.

    Raises:
        InvalidArgumentError: If the source cannot be found or is of neither kind.
    """
    if source.endswith(".pt2"):
        if not Path(source).is_file():
            raise InvalidArgumentError(f"There is no file {source}.")
        try:
            program = torch.export.load(source)
        except Exception as error:  # whatever reading a file of another kind raises
            raise InvalidArgumentError(f"{source} is no program that torch.export saved: {error}.") from error
        args, kwargs = program.example_inputs or ((), {})
        return program, tuple(args), {"kwargs": kwargs}
    module_name, separator, attribute = source.rpartition(":")
    if not separator:
        raise InvalidArgumentError(f"{source} is neither a .pt2 file nor package.module:factory.")
    sys.path.insert(0, "")
    try:
        factory = getattr(_module(module_name), attribute)
    except Exception as error:  # whatever the code of a user raises
        raise InvalidArgumentError(f"{source} cannot be loaded: {_told(error)}.") from error
    if not callable(factory):
        raise InvalidArgumentError(f"{source} is no function, but {type(factory).__name__}.")
    try:
        made = factory()
    except Exception as error:  # whatever the code of a user raises
        raise InvalidArgumentError(f"{source} failed: {_told(error)}.") from error
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[1], tuple | list):
        raise InvalidArgumentError(
            f"{source} has to return a model and a tuple of its positional example arguments, and may add a dictionary "
            f"of arguments of onnx_fx_export.export; it returned {type(made).__name__}."
        )
    options = dict(made[2]) if len(made) > 2 else {}
    if unknown := options.keys() - OPTIONS.keys():
        raise InvalidArgumentError(f"{source} states {min(unknown)!r}, which is no argument of onnx_fx_export.export.")
    return made[0], tuple(made[1]), options


def _module(name: str) -> Any:
    """Import a module by its name, or from the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    # What stands beside the file is found by it, as when Python runs it.
    sys.path.insert(0, str(path.parent.resolve()))
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _told(error: Exception) -> str:
    """Return what an error of the user's code says, and the line that raised it."""
    *_, frame = traceback.extract_tb(error.__traceback__)
    is_own = Path(frame.filename) == Path(__file__) or "importlib" in frame.filename
    return f"{type(error).__name__}: {error}" + ("" if is_own else f" (at {frame.filename}:{frame.lineno})")


@contextlib.contextmanager
def _without_graphs_of_torch() -> Iterator[None]:
    """Keep back what torch prints to stderr, which is shown only if nothing fails: its graphs where a capture does."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as held:
            yield
    finally:
        logging.disable(logging.NOTSET)
    print(held.getvalue(), end="", file=sys.stderr)


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
        "seconds": getattr(program, "timings", {}),
    }


def _described(values: Sequence[ir.Value]) -> list[str]:
    """Return the name, dtype and shape of each value."""
    return [f"{v.name} {v.dtype.name if v.dtype else '?'}{'?' if v.shape is None else v.shape}" for v in values]


def _show(summary: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None)
    shown = {name: value for name, value in summary.items() if name != "seconds" and value != 0}
    for name, value in {**shown, "bytes": f"{summary['bytes']:,}"}.items():
        table.add_row(name, Text("\n".join(value) if isinstance(value, list) else str(value)))
    Console(soft_wrap=True).print(table)


class _Progress:
    """Tells of the stages as they begin and, with their times, as they end."""

    def __init__(self, console: Console) -> None:
        self._console, self._stage, self._start = console, "", 0.0
        self._status = console.status("") if console.is_terminal else None

    def __call__(self, stage: str) -> None:
        self.end()
        self._stage, self._start = stage, time.perf_counter()
        if self._status is not None:
            self._status.update(stage)
            self._status.start()

    def end(self) -> None:
        """Tell of the stage that ended."""
        if self._status is not None:
            self._status.stop()
        if self._stage:
            self._console.print(f"{self._stage:>8}  {time.perf_counter() - self._start:.2f} s", highlight=False)
        self._stage = ""


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
errors = Console(stderr=True)


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
        str | None, typer.Option(help='"error", or "io" to make mutated buffers inputs and outputs')
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
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="print the version and end", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    """Export a model to ONNX.

    Options win over what a factory states.
    """
    given: dict[str, Any] = {
        "opset_version": opset, "input_names": input_names, "output_names": output_names, "verify": verify,
        "state": state, "optimize": optimize, "external_data": external_data, "export_params": export_params,
        "widen_bfloat16": widen, "target": target,
        "dynamo": None if torchscript is None else False, "fallback": fallback, "report": report, "profile": profile,
        "dump_exported_program": dump, "artifacts_dir": artifacts,
    }  # fmt: skip
    progress = _Progress(Console(file=sys.stderr))
    try:
        model, args, options = load_source(source)
        given["dynamic_axes"] = _dynamic_axes(dynamic) if dynamic else None
        given["export_modules_as_functions"] = _classes(functions, model) if functions else None
        given["capture_repeated_blocks"] = _classes(repeated, model) if repeated else None
        if dynamic:
            options.pop("dynamic_shapes", None)
        options.update({name: value for name, value in given.items() if value is not None})
        with _without_graphs_of_torch():
            program = export(model, args, output, progress=progress, **options)
    except InvalidArgumentError as error:
        raise _failed(progress, error, 2) from error
    except OnnxExporterError as error:
        raise _failed(progress, error, 1) from error
    progress.end()
    summary = _summary(program, output)
    if as_json:
        print(json.dumps(summary, indent=1))
    else:
        _show(summary)


def _failed(progress: _Progress, error: Exception, code: int) -> typer.Exit:
    progress.end()
    errors.print("[red]error:[/red]", Text(str(error)), soft_wrap=True)
    return typer.Exit(code)
