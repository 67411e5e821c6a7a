"""Starts the command line, or says which extra it needs."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: Always, with the exit code: 2 where the extra ``cli`` is not installed.
    """
    try:
        from onnx_fx_export.cli import run
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        print("The command line needs its extra: pip install onnx-fx-export[cli]", file=sys.stderr)
        raise SystemExit(2) from None
    run()
