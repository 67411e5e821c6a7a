"""The command line: ``onnx-fx-export SOURCE -o model.onnx``, and the commands ``generation`` and ``reopset``.

It needs the extra ``cli`` (typer and rich). Exit codes: 0 written, 1 the export failed, 2 the command is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from onnx_fx_export.cli.export import app
from onnx_fx_export.cli.generation import app as generation_app
from onnx_fx_export.cli.reopset import app as reopset_app

__all__ = ["app", "generation_app", "reopset_app", "run"]

# No source of an export has these names: those end in .pt2, or have a colon.
_COMMANDS = {"generation": generation_app, "reopset": reopset_app}


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command of these arguments, by default those of the process.

    Raises:
        SystemExit: Always, with the exit code.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in _COMMANDS:
        _COMMANDS[given[0]](given[1:], prog_name=f"onnx-fx-export {given[0]}")
    app(given, prog_name="onnx-fx-export")
