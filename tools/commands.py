"""Running other programs, with an error that says which one failed and what it printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL = 4000


class ToolError(Exception):
    """A task of the repository could not be done; the message says why and what to do."""


def run(command: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run `command` in `cwd` and return what it printed.

    Args:
        command: The program and its arguments.
        cwd: The directory it runs in.
        env: Variables added to the environment of this process.

    Raises:
        ToolError: The program failed; the message holds the end of its output.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        words = " ".join(str(part) for part in command)
        raise ToolError(f"`{words}` in {cwd} ended with {done.returncode}:\n{done.stdout[-TAIL:]}")
    return done.stdout
