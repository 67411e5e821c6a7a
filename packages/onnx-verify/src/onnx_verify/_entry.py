"""The ``onnx-verify`` command: says what is missing if the command line's libraries are not installed."""

from __future__ import annotations

import sys
import traceback


def main() -> None:
    """Run the command; exit with 0 if all is right, 1 for a mismatch, 2 for an error."""
    try:
        from onnx_verify.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("typer", "rich", "click"):
            raise
        print(
            f"onnx-verify: the command line needs {error.name}; install it with: pip install 'onnx-verify[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    try:
        app()
    except Exception:  # exit code 1 means a mismatch; a crash must not be taken for one
        traceback.print_exc()
        sys.exit(2)
