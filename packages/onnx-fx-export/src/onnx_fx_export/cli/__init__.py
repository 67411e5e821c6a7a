"""The command line: ``onnx-fx-export SOURCE -o model.onnx`` and ``onnx-fx-export generation SOURCE -o FOLDER``.

It needs the extra ``cli`` (typer and rich). Exit codes: 0 written, 1 the export failed, 2 the command is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from onnx_fx_export.cli.export import app
from onnx_fx_export.cli.generation import app as generation_app

__all__ = ["app", "generation_app", "run"]


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command of these arguments, by default those of the process.

    Raises:
        SystemExit: Always, with the exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # No source of an export has this name: those end in .pt2, or have a colon.
    if given[:1] == ["generation"]:
        generation_app(given[1:], prog_name="onnx-fx-export generation")
    app(given, prog_name="onnx-fx-export")
